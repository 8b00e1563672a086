// `kvasir generate`, `serve`, `verify` and `demo` as people use them, and as people misuse them.
#include <gmock/gmock.h>
#include <signal.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "process/swarm_fixture.hpp"
#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

worker_swarm demo_swarm(std::size_t n_workers, std::uint32_t seed) {
    const auto model = model::gguf_model::open(DEMO_MODEL);
    if (!model) throw std::runtime_error(model.error().message);
    return {DEMO_MODEL, spread_experts(*model::map_experts(*model), {.n_workers = n_workers, .seed = seed})};
}

std::vector<std::string> kvasir_words(std::vector<std::string> words, const worker_swarm& swarm) {
    words.insert(words.begin(), KVASIR_BINARY);
    for (const std::string& argument : swarm.worker_arguments())
        words.push_back(argument);
    return words;
}

TEST(generate, writes_the_same_text_with_and_without_workers) {
    const std::vector<std::string> words = {"generate", "-m", DEMO_MODEL, "-p", "And the Lord",
                                            "-n",       "30", "--seed",   "4"};
    worker_swarm swarm = demo_swarm(2, 11);
    const program_result swarmed = run_program(kvasir_words(words, swarm));
    EXPECT_EQ(swarmed.status, 0) << swarmed.err;
    for (const worker_summary& summary : swarm.finish())
        EXPECT_GT(summary.rows, 0U);
    std::vector<std::string> alone = words;
    alone.insert(alone.begin(), KVASIR_BINARY);
    const program_result local = run_program(alone);
    EXPECT_EQ(local.status, 0) << local.err;
    EXPECT_GT(local.out.size(), 30U);
    EXPECT_EQ(swarmed.out, local.out);
    EXPECT_EQ(local.err, "");
}

TEST(demo, ends_with_the_exactness_verdict) {
    const program_result done = run_program({KVASIR_BINARY, "demo", "-m", DEMO_MODEL, "-n", "40"});
    EXPECT_EQ(done.status, 0) << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr("[worker-2 killed]"));
    EXPECT_THAT(done.out, HasSubstr("EXACT: every logit has the same bits"));
}

// Misuse: one line, a reason, a remedy, the right status.

struct misuse {
    std::string what;
    std::vector<std::string> words;
    int status;
    std::string says;
};

void expect_one_line(const program_result& done, const misuse& expected) {
    SCOPED_TRACE(expected.what);
    EXPECT_EQ(done.status, expected.status) << done.err;
    EXPECT_THAT(done.err, StartsWith("kvasir"));
    EXPECT_THAT(done.err, HasSubstr(expected.says));
    EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
}

TEST(misuse, ends_with_one_line_and_the_right_status) {
    const temporary_directory directory;
    const std::string text_file = (directory / "text.gguf").string();
    write_file(text_file, "this is not a model");
    const std::vector<misuse> table = {
        {"no command", {}, 2, "kvasir"},
        {"unknown command", {"sing"}, 2, "sing"},
        {"generate without a model", {"generate", "-p", "x"}, 2, "--model"},
        {"generate without a prompt", {"generate", "-m", DEMO_MODEL}, 2, "--prompt"},
        {"generate: no such file", {"generate", "-m", "/nowhere.gguf", "-p", "x"}, 1, "/nowhere.gguf"},
        {"generate: no model", {"generate", "-m", text_file, "-p", "x"}, 1, "text.gguf"},
        {"generate: no tokens", {"generate", "-m", DEMO_MODEL, "-p", "x", "-n", "0"}, 2, "--tokens"},
        {"generate: empty prompt", {"generate", "-m", DEMO_MODEL, "-p", ""}, 1, "prompt"},
        {"generate: context too small", {"generate", "-m", DEMO_MODEL, "-p", "x", "-c", "8"}, 1, "-c"},
        {"verify: worker without a port", {"verify", "-m", DEMO_MODEL, "--worker", "host"}, 2, "host"},
        {"verify: a worker twice",
         {"verify", "-m", DEMO_MODEL, "--worker", "127.0.0.1:9", "--worker", "127.0.0.1:9"},
         2,
         "twice"},
        {"verify: port too large", {"verify", "-m", DEMO_MODEL, "--worker", "127.0.0.1:99999"}, 2, "99999"},
        {"verify: batch of nothing", {"verify", "-m", DEMO_MODEL, "--batch", "0"}, 2, "--batch"},
        {"verify: no such model", {"verify", "-m", "/nowhere.gguf", "--worker", "127.0.0.1:9"}, 1, "/nowhere.gguf"},
        {"demo without a model", {"demo"}, 2, "--model"},
        {"demo: no such file", {"demo", "-m", "/nowhere.gguf"}, 1, "/nowhere.gguf"},
#ifdef KVASIR_HAS_SERVER
        {"serve: workers for no model", {"serve", "--worker", "127.0.0.1:9"}, 2, "-m"},
        {"serve: worker without a value", {"serve", "-m", DEMO_MODEL, "--worker"}, 2, "--worker"},
        {"serve: bad worker", {"serve", "-m", DEMO_MODEL, "--worker", "x"}, 2, "x"},
        {"serve: no size", {"serve", "-m", DEMO_MODEL, "--hot-experts", "lots"}, 2, "500M"},
        {"serve: negative size", {"serve", "-m", DEMO_MODEL, "--hot-experts=-1"}, 2, "-1"},
        {"serve: size too large", {"serve", "-m", DEMO_MODEL, "--hot-experts", "99999999999T"}, 2, "99999999999T"},
        {"generate: no size", {"generate", "-m", DEMO_MODEL, "-p", "x", "--hot-experts", "lots"}, 2, "lots"},
        {"serve: no such model", {"serve", "-m", "/nowhere.gguf", "--worker", "127.0.0.1:9"}, 1, "/nowhere.gguf"},
#endif
    };
    for (const misuse& one : table) {
        std::vector<std::string> words = {KVASIR_BINARY};
        words.insert(words.end(), one.words.begin(), one.words.end());
        expect_one_line(run_program(words), one);
    }
}

TEST(misuse, a_worker_of_another_model_is_refused_by_name) {
    const temporary_directory directory;
    // Another model: the same file with one byte of a routed weight changed.
    const std::filesystem::path other = directory / "other.gguf";
    std::string bytes = read_file(DEMO_MODEL);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(other, bytes);
    const worker_swarm swarm(other, {"all"});
    const program_result done = run_program(kvasir_words({"generate", "-m", DEMO_MODEL, "-p", "x"}, swarm));
    expect_one_line(done, {"other model", {}, 1, "model digest"});
}

TEST(misuse, one_worker_under_two_names_is_noticed) {
    worker_swarm swarm = demo_swarm(1, 12);
    std::string other_name = swarm.workers()[0].address;
    other_name.replace(0, other_name.find(':'), "localhost");
    std::vector<std::string> words = kvasir_words({"verify", "-m", DEMO_MODEL}, swarm);
    words.insert(words.end(), {"--worker", other_name});
    const program_result done = run_program(words);
    EXPECT_EQ(done.status, 1);
    EXPECT_THAT(done.err, HasSubstr("named twice"));
}

#ifdef KVASIR_HAS_SERVER

/// `kvasir serve` on a port of its own.
class served_model {
  public:
    explicit served_model(const worker_swarm& swarm) : port_(free_port()) {
        std::vector<std::string> words = {"serve",  "-m",        DEMO_MODEL, "--port",    std::to_string(port_),
                                          "--host", "127.0.0.1", "-c",       "1024",      "-np",
                                          "2",      "-t",        "1",        "--no-webui"};
        for (const std::string& argument : swarm.worker_arguments())
            words.push_back(argument);
        auto started = cli::child_process::start(KVASIR_BINARY, words);
        if (!started) throw std::runtime_error(started.error().message);
        process_.emplace(std::move(*started));
        wait_until_healthy();
    }

    std::uint16_t port() const { return port_; }

    http::response<http::string_body> request(http::verb verb, const std::string& path, const std::string& body) const {
        asio::io_context io;
        beast::tcp_stream stream(io);
        stream.expires_after(std::chrono::seconds(120));
        stream.connect(asio::ip::tcp::endpoint(asio::ip::make_address("127.0.0.1"), port_));
        http::request<http::string_body> asked(verb, path, 11);
        asked.set(http::field::host, "127.0.0.1");
        asked.set(http::field::content_type, "application/json");
        asked.set(http::field::connection, "close");
        asked.body() = body;
        asked.prepare_payload();
        http::write(stream, asked);
        beast::flat_buffer buffer;
        http::response<http::string_body> answer;
        http::read(stream, buffer, answer);
        return answer;
    }

  private:
    static std::uint16_t free_port() {
        asio::io_context io;
        asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
        return acceptor.local_endpoint().port();
    }

    void wait_until_healthy() const {
        for (int attempt = 0; attempt < 600; ++attempt) {
            try {
                if (request(http::verb::get, "/health", "").result() == http::status::ok) return;
            } catch (const boost::system::system_error&) {
                // Not listening yet.
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        throw std::runtime_error("the server did not come up");
    }

    std::uint16_t port_;
    std::optional<cli::child_process> process_;
};

std::string completion_body(bool stream) {
    return nlohmann::json{{"prompt", "And it came to pass"}, {"max_tokens", 48}, {"temperature", 0}, {"stream", stream}}
        .dump();
}

std::string completed_text(const served_model& server) {
    const auto answer = server.request(http::verb::post, "/v1/completions", completion_body(false));
    EXPECT_EQ(answer.result(), http::status::ok) << answer.body();
    return nlohmann::json::parse(answer.body())["choices"][0]["text"].get<std::string>();
}

TEST(serve, answers_like_a_server_without_workers_and_survives_the_loss_of_all) {
    std::string alone;
    {
        const worker_swarm nobody(DEMO_MODEL, {});
        alone = completed_text(served_model(nobody));
    }
    EXPECT_GT(alone.size(), 40U);
    worker_swarm swarm = demo_swarm(2, 13);
    const served_model server(swarm);
    EXPECT_EQ(completed_text(server), alone);
    // In the middle of answers: one at a time, then everybody.
    std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        swarm.workers()[0].process.kill_now();
    });
    EXPECT_EQ(completed_text(server), alone);
    killer.join();
    swarm.workers()[1].process.kill_now();
    EXPECT_EQ(completed_text(server), alone);
}

TEST(serve, streams_and_speaks_the_chat_api) {
    worker_swarm swarm = demo_swarm(2, 14);
    {
        const served_model server(swarm);
        const auto streamed = server.request(http::verb::post, "/v1/completions", completion_body(true));
        EXPECT_EQ(streamed.result(), http::status::ok);
        EXPECT_THAT(streamed.body(), StartsWith("data: {"));
        EXPECT_THAT(streamed.body(), HasSubstr("data: [DONE]"));
        const auto chat =
            server.request(http::verb::post, "/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"In the beginning"}],"max_tokens":8})");
        EXPECT_EQ(chat.result(), http::status::ok) << chat.body();
        EXPECT_THAT(chat.body(), HasSubstr("\"assistant\""));
    }
    for (const worker_summary& summary : swarm.finish())
        EXPECT_GT(summary.rows, 0U);
}

#endif

}  // namespace
}  // namespace kvasir::test_support
