// kvasir-delay-proxy: lets any two TCP peers talk as if they were far apart.
//
//     kvasir-delay-proxy --to HOST:PORT [--listen HOST:PORT] [--delay-ms D] [--jitter-ms J] [--bandwidth BYTES]
//                        [--stall-every-ms E --stall-ms S] [--seed N]
//
// Prints `listening on HOST:PORT` when it does, and on SIGINT or SIGTERM ends with a line of what has passed.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "bench/delay_proxy.hpp"
#include "cli/stop_signals.hpp"

namespace {

using namespace kvasir;

struct arguments {
    std::string listen = "127.0.0.1:0";
    std::string to;
    double delay_ms = 0.0;
    double jitter_ms = 0.0;
    double stall_every_ms = 0.0;
    double stall_ms = 0.0;
    std::uint64_t bytes_per_second = 0;
    std::uint64_t seed = 1;
};

duration from_ms(double value) {
    return std::chrono::duration_cast<duration>(std::chrono::duration<double, std::milli>(value));
}

int fail(const error& why, int status) {
    fmt::print(stderr, "kvasir-delay-proxy: {}\n", why.message);
    return status;
}

int run(const arguments& chosen) {
    constexpr int usage = 2;
    const auto listen = net::endpoint::parse(chosen.listen);
    if (!listen) return fail(listen.error(), usage);
    const auto to = net::endpoint::parse(chosen.to);
    if (!to) return fail(to.error(), usage);
    const bench::link_options link{.delay = from_ms(chosen.delay_ms),
                                   .jitter = from_ms(chosen.jitter_ms),
                                   .bytes_per_second = chosen.bytes_per_second,
                                   .stall_every = from_ms(chosen.stall_every_ms),
                                   .stall_for = from_ms(chosen.stall_ms)};
    if (auto possible = bench::check(link); !possible) return fail(possible.error(), usage);

    const cli::stop_signals stop;
    bench::proxy_options options;
    options.listen = *listen;
    options.to = {*to};
    options.link = link;
    options.seed = chosen.seed;
    const auto proxy = bench::delay_proxy::start(options);
    if (!proxy) return fail(proxy.error(), 1);
    fmt::print("listening on {}\n", (*proxy)->local().text());
    std::fflush(stdout);
    stop.wait();
    const bench::proxy_statistics passed = (*proxy)->statistics();
    fmt::print("passed: connections {} bytes to target {} from target {} turns {}\n", passed.connections,
               passed.bytes_to_target, passed.bytes_from_target, passed.turns);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    arguments chosen;
    CLI::App app("Delays what passes through TCP connections", "kvasir-delay-proxy");
    const auto milliseconds = CLI::Range(0.0, 3'600'000.0);
    app.add_option("--listen", chosen.listen, "Where to listen, host:port; port 0 is any free one")
        ->capture_default_str();
    app.add_option("--to", chosen.to, "Where each connection goes on to, host:port")->required();
    app.add_option("--delay-ms", chosen.delay_ms, "Delay one way")->check(milliseconds);
    app.add_option("--jitter-ms", chosen.jitter_ms, "Up to this much more, by chance")->check(milliseconds);
    app.add_option("--bandwidth", chosen.bytes_per_second, "Bytes per second in each direction (also 10MB); 0: no cap")
        ->transform(CLI::AsSizeValue(true));
    app.add_option("--stall-every-ms", chosen.stall_every_ms, "Mean time between stalls, as lost packets cause them")
        ->check(milliseconds);
    app.add_option("--stall-ms", chosen.stall_ms, "How long a stall lasts")->check(milliseconds);
    app.add_option("--seed", chosen.seed, "The same seed gives the same jitter and stalls")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    return run(chosen);
}
