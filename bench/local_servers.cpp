#include "bench/local_servers.hpp"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/file.hpp"
#include "bench/runner_process.hpp"
#include "model/model.hpp"

namespace kvasir::bench {
namespace {

constexpr duration start_patience = std::chrono::seconds(60);

result<server_process> start_worker(const std::filesystem::path& slice, const worker_layout& layout) {
    std::vector<std::string> arguments = {"worker",    "--slice", slice.string(), "--listen", "127.0.0.1:0",
                                          "--threads", "1"};
    if (layout.max_rows_per_second > 0.0) {
        arguments.emplace_back("--max-rows-per-second");
        arguments.push_back(fmt::format("{}", layout.max_rows_per_second));
    }
    auto process = cli::child_process::start((programs_directory() / "kvasir").string(), arguments);
    if (!process) return process.error();
    const auto line = process->read_line(start_patience);
    const std::string prefix = "listening on ";
    if (!line || !line->starts_with(prefix)) return error(errc::timeout, "a worker did not start");
    auto address = net::endpoint::parse(line->substr(prefix.size()));
    if (!address) return address.error();
    return server_process{*std::move(process), *std::move(address)};
}

/// A TCP socket of 127.0.0.1 that closes with the object.
class loopback_socket {
  public:
    loopback_socket() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
    ~loopback_socket() {
        if (socket_ >= 0) ::close(socket_);
    }
    loopback_socket(const loopback_socket&) = delete;
    loopback_socket& operator=(const loopback_socket&) = delete;

    /// A port that was free a moment ago; 0 when there is none. For programs that must be told one.
    std::uint16_t free_port() const {
        sockaddr_in address = loopback(0);
        socklen_t size = sizeof address;
        auto* generic = reinterpret_cast<sockaddr*>(&address);
        if (::bind(socket_, generic, size) != 0 || ::getsockname(socket_, generic, &size) != 0) return 0;
        return ntohs(address.sin_port);
    }
    bool connects_to(std::uint16_t port) const {
        const sockaddr_in address = loopback(port);
        return ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    }

  private:
    static sockaddr_in loopback(std::uint16_t port) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return address;
    }
    int socket_ = -1;
};

result<server_process> start_rpc_server() {
    const std::uint16_t port = loopback_socket().free_port();
    if (port == 0) return error(errc::io, "no free port for an RPC server");
    auto process = cli::child_process::start((programs_directory() / "ggml-rpc-server").string(),
                                             {"-H", "127.0.0.1", "-p", std::to_string(port), "-t", "1"});
    if (!process) return process.error();
    // Its output is buffered and says nothing in time. It takes one client after the other: this one goes at once.
    const time_point give_up = steady_clock_source().now() + start_patience;
    while (!loopback_socket().connects_to(port)) {
        if (steady_clock_source().now() > give_up) return error(errc::timeout, "an RPC server did not start");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return server_process{*std::move(process), {"127.0.0.1", port}};
}

}  // namespace

result<scratch_directory> scratch_directory::make() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvasir-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) return system_error("cannot make a temporary directory");
    return scratch_directory(pattern);
}

scratch_directory::~scratch_directory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> deal_experts(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& layers_and_counts,
                                      const worker_layout& layout) {
    std::vector<std::string> selections(layout.n_workers);
    const std::uint32_t copies = std::clamp(layout.copies, 1U, layout.n_workers);
    for (std::size_t i = 0; i < layers_and_counts.size(); ++i) {
        const auto& [layer, n_experts] = layers_and_counts[i];
        std::vector<std::string> held(layout.n_workers);
        for (std::uint32_t expert = 0; expert < n_experts; ++expert)
            for (std::uint32_t copy = 0; copy < copies; ++copy) {
                std::string& text = held[(expert + i + copy) % layout.n_workers];
                text += fmt::format("{}{}", text.empty() ? "" : "+", expert);
            }
        for (std::size_t worker = 0; worker < held.size(); ++worker)
            if (!held[worker].empty())
                selections[worker] +=
                    fmt::format("{}{}:{}", selections[worker].empty() ? "" : ",", layer, held[worker]);
    }
    return selections;
}

result<std::vector<server_process>> start_workers(const std::filesystem::path& path, const worker_layout& layout,
                                                  const std::filesystem::path& scratch) {
    const auto model = model::gguf_model::open(path);
    if (!model) return model.error();
    const auto experts = model::map_experts(*model);
    if (!experts) return experts.error();
    const auto manifest = model::manifest_for(*model);
    if (!manifest) return manifest.error();
    std::vector<std::pair<std::uint32_t, std::uint32_t>> layers;
    for (const model::expert_layer& layer : experts->layers)
        layers.emplace_back(layer.layer.value, layer.n_experts);

    std::vector<server_process> started;
    const std::vector<std::string> selections = deal_experts(layers, layout);
    for (std::size_t i = 0; i < selections.size(); ++i) {
        if (selections[i].empty())
            return error(errc::invalid_input, fmt::format("the model has no experts for {} workers", layout.n_workers));
        const auto selection = model::expert_selection::parse(selections[i]);
        if (!selection) return selection.error();
        const auto slice = scratch / fmt::format("slice-{}-of-{}x{}.gguf", i, layout.n_workers, layout.copies);
        if (!std::filesystem::exists(slice))
            if (auto written = model::write_slice(*model, *selection, manifest->model_digest(), slice); !written)
                return written.error();
        auto worker = start_worker(slice, layout);
        if (!worker) return worker.error();
        started.push_back(*std::move(worker));
    }
    return started;
}

result<std::vector<server_process>> start_rpc_servers(std::uint32_t count) {
    std::vector<server_process> started;
    for (std::uint32_t i = 0; i < count; ++i) {
        auto server = start_rpc_server();
        if (!server) return server.error();
        started.push_back(*std::move(server));
    }
    return started;
}

result<std::unique_ptr<delay_proxy>> put_behind(const link_options& link, const std::vector<server_process>& servers) {
    proxy_options options;
    for (const server_process& server : servers)
        options.to.push_back(server.address);
    options.link = link;
    return delay_proxy::start(options);
}

std::vector<std::string> addresses_of(const std::vector<server_process>& servers) {
    std::vector<std::string> texts;
    for (const server_process& server : servers)
        texts.push_back(server.address.text());
    return texts;
}

std::vector<std::string> addresses_of(const delay_proxy& proxy, std::size_t count) {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < count; ++i)
        texts.push_back(proxy.local(i).text());
    return texts;
}

double median(std::vector<double> values) {
    if (values.empty()) return 0.0;
    std::ranges::sort(values);
    return values[values.size() / 2];
}

result<void> write_json(const std::string& path, const std::string& text) {
    if (path.empty()) return {};
    auto file = atomic_file::create(path);
    if (!file) return file.error();
    if (auto written = file->write(text + "\n"); !written) return written.error();
    return file->commit();
}

}  // namespace kvasir::bench
