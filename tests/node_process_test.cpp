// `kvasir worker` as a process: what it prints and how it ends, and that no bytes from the network shake it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "node_support.hpp"
#include "support/run_program.hpp"

namespace kvasir::node {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class node_process : public ::testing::Test {
  protected:
    static std::vector<std::string> arguments(std::vector<std::string> more = {}) {
        std::vector<std::string> all = {"--slice", shared_model().slice_path(), "--listen", "127.0.0.1:0", "--threads",
                                        "1"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    static test_support::program_result run(std::vector<std::string> words) {
        words.insert(words.begin(), {KVASIR_BINARY, "worker"});
        return test_support::run_program(words);
    }
    wire::byte_vector hello_frame() const {
        return wire::frame(wire::frame_type::hello, 0, *wire::encode(shared_model().backbone_hello()));
    }
    /// Asks for some rows on a connection of its own and compares every bit.
    void expect_correct_results(std::uint16_t port) {
        net::recorder seen;
        net::io_runner io;
        const auto peer = net::peer_connection::connect_and_wait(io, {"127.0.0.1", port},
                                                                 shared_model().backbone_hello(), {}, seen.handlers());
        ASSERT_TRUE(peer) << peer.error().message;
        std::uint64_t id = 0;
        for (const wire::held_layer& held : (*peer)->hello().layers) {
            const auto asked = reference_.ask(held, 3, 7, row_encoding::q8_k, random_);
            ASSERT_TRUE((*peer)->send_compute({++id}, asked.request));
            const auto answered = seen.result(id);
            ASSERT_TRUE(answered);
            EXPECT_TRUE(same_bits(answered->values(), asked.expected));
        }
        (*peer)->close();
        seen.closed();
    }

    std::mt19937_64 random_{5};
    reference reference_{shared_model()};
};

TEST_F(node_process, serves_and_counts_and_leaves) {
    const auto port_file = shared_model().path("port");
    worker_process worker(
        arguments({"--name", "shed", "--port-file", port_file, "--manifest", shared_model().manifest_path()}));
    const std::uint16_t port = worker.port();
    EXPECT_EQ(test_support::read_file(port_file), std::to_string(port) + "\n");
    EXPECT_THAT(worker.line_starting("holding").value_or(""), HasSubstr("5 experts in 2 layers"));
    expect_correct_results(port);
    EXPECT_TRUE(worker.line_starting("connected: 127.0.0.1:"));
    EXPECT_THAT(worker.line_starting("closed: ").value_or(""), HasSubstr("requests 2 rows 14 bytes in "));
    worker.signal(SIGTERM);
    EXPECT_TRUE(worker.line_starting("draining"));
    EXPECT_THAT(worker.line_starting("served: ").value_or(""), HasSubstr("connections 1 requests 2 rows 14"));
    EXPECT_EQ(worker.wait(), 0);
}

TEST_F(node_process, json_lines) {
    worker_process worker(arguments({"--json"}));
    const auto listening = nlohmann::json::parse(worker.line().value_or(""));
    EXPECT_EQ(listening["event"], "listening");
    const std::uint16_t port = listening["port"];
    EXPECT_EQ(listening["address"], "127.0.0.1:" + std::to_string(port));
    const auto holding = nlohmann::json::parse(worker.line().value_or(""));
    EXPECT_EQ(holding["experts"], 5);
    EXPECT_EQ(holding["model_digest"], shared_model().digest().hex());
    expect_correct_results(port);
    EXPECT_EQ(nlohmann::json::parse(worker.line().value_or(""))["event"], "connected");
    const auto closed = nlohmann::json::parse(worker.line().value_or(""));
    EXPECT_EQ(closed["event"], "closed");
    EXPECT_EQ(closed["rows"], 14);
    EXPECT_GT(closed["bytes_out"], 14 * 256 * 4);
    worker.signal(SIGINT);
    EXPECT_EQ(nlohmann::json::parse(worker.line().value_or(""))["event"], "draining");
    const auto summary = nlohmann::json::parse(worker.line().value_or(""));
    EXPECT_EQ(summary["event"], "summary");
    EXPECT_EQ(summary["rows"], 14);
    EXPECT_EQ(summary["orderly"], true);
    EXPECT_EQ(worker.wait(), 0);
}

TEST_F(node_process, serves_a_whole_model) {
    worker_process worker({"--slice", shared_model().model_path(), "--threads", "2"});
    expect_correct_results(worker.port());
}

TEST_F(node_process, bad_input_ends_with_one_line) {
    const auto& model = shared_model();
    const auto text = model.path("sentence.gguf");
    test_support::write_file(text, "a sentence");
    const auto changed = model.path("changed_process.gguf");
    model.write_slice("2:3", changed);
    model_on_disk::corrupt(changed);
    worker_process occupant(arguments());
    struct bad_case {
        std::vector<std::string> words;
        int status;
        std::vector<std::string> says;
    };
    const bad_case cases[] = {
        {{}, 2, {"--slice"}},
        {{"--slice", model.slice_path(), "--threads", "0"}, 2, {"--threads"}},
        {{"--slice", model.slice_path(), "--listen", "nowhere"}, 2, {"nowhere", "host:port"}},
        {{"--slice", model.slice_path(), "--listen", "127.0.0.1:99999"}, 2, {"65535"}},
        {{"--slice", model.path("none.gguf")}, 1, {"none.gguf"}},
        {{"--slice", text}, 1, {"sentence.gguf"}},
        {{"--slice", model.path(".")}, 1, {}},
        {{"--slice", model.slice_path(), "--listen", "127.0.0.1:" + std::to_string(occupant.port())},
         1,
         {"in use", "choose another port"}},
        {{"--slice", model.slice_path(), "--listen", "192.0.2.1:0"}, 1, {"192.0.2.1"}},
        {{"--slice", model.slice_path(), "--port-file", "/no/such/directory/port"}, 1, {"/no/such/directory/port"}},
        {{"--slice", changed, "--manifest", model.manifest_path()}, 1, {"changed_process.gguf"}},
        {{"--slice", changed, "--manifest", text}, 1, {"sentence.gguf"}},
    };
    for (const bad_case& one : cases) {
        SCOPED_TRACE(one.words.empty() ? "" : one.words.back());
        const auto ended = run(one.words);
        EXPECT_EQ(ended.status, one.status) << ended.err;
        EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
        EXPECT_TRUE(ended.err.starts_with("kvasir worker: ")) << ended.err;
        for (const std::string& word : one.says)
            EXPECT_THAT(ended.err, HasSubstr(word));
    }
}

TEST_F(node_process, corrupted_bytes_are_served_only_on_request) {
    const auto changed = shared_model().path("changed_served.gguf");
    shared_model().write_slice("2:1", changed);
    model_on_disk::corrupt(changed);
    worker_process worker({"--slice", changed, "--skip-slice-check"});
    net::recorder seen;
    net::io_runner io;
    const auto peer = net::peer_connection::connect_and_wait(io, {"127.0.0.1", worker.port()},
                                                             shared_model().backbone_hello(), {}, seen.handlers());
    ASSERT_TRUE(peer);
    const auto asked = reference_.ask((*peer)->hello().layers[0], 4, 8, row_encoding::f32, random_);
    ASSERT_TRUE((*peer)->send_compute({1}, asked.request));
    const auto answered = seen.result(1);
    ASSERT_TRUE(answered);
    EXPECT_FALSE(same_bits(answered->values(), asked.expected));
    (*peer)->close();
    seen.closed();
}

TEST_F(node_process, survives_any_bytes) {
    worker_process worker(arguments());
    const std::uint16_t port = worker.port();
    const auto good_hello = hello_frame();
    const auto asked = reference_.ask(
        held_slice::load({.path = shared_model().slice_path(), .manifest = {}, .skip_check = true, .progress = {}})
            .value()
            .layers()[0],
        2, 3, row_encoding::f32, random_);
    const auto good_compute = wire::frame(wire::frame_type::compute, 1, wire::joined(*wire::encode(asked.request)), 1);
    for (int round = 0; round < 300; ++round) {
        net::raw_client client(port);
        ASSERT_TRUE(client.connected());
        wire::byte_vector bytes;
        if (round % 3 != 0) bytes = good_hello;
        bytes.insert(bytes.end(), good_compute.begin(), good_compute.end());
        if (round % 5 == 0) {
            bytes = wire::random_bytes(1 + random_() % 5000, random_);
        } else {
            for (std::uint64_t n = random_() % 8; n > 0; --n)
                bytes[random_() % bytes.size()] = static_cast<std::byte>(random_());
        }
        bytes.resize(1 + random_() % bytes.size());
        client.send(bytes, 1000ms);
        switch (round % 4) {
            case 0:
                client.abort();
                break;
            case 1:
                client.close();
                break;
            case 2:
                client.shutdown_send();
                client.sees_end();
                break;
            default:
                break;
        }
        if (round % 50 == 0) expect_correct_results(port);
    }
    expect_correct_results(port);
    worker.signal(SIGTERM);
    EXPECT_EQ(worker.wait(), 0);
}

TEST_F(node_process, lengths_without_end_cost_no_memory) {
    worker_process worker(arguments());
    const std::uint16_t port = worker.port();
    const auto resident_kib = [&worker] {
        std::ifstream status("/proc/" + std::to_string(worker.process()) + "/status");
        for (std::string line; std::getline(status, line);)
            if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
        return 0L;
    };
    expect_correct_results(port);
    const long before_kib = resident_kib();
    std::vector<std::unique_ptr<net::raw_client>> clients;
    for (int i = 0; i < 100; ++i) {
        clients.push_back(std::make_unique<net::raw_client>(port));
        ASSERT_TRUE(clients.back()->send(hello_frame()));
        // Eight messages begun on each connection, every one of them promising more.
        for (std::uint64_t id = 1; id <= 8; ++id) {
            const auto header =
                wire::encode(wire::frame_header{.type = static_cast<std::uint8_t>(wire::frame_type::compute),
                                                .flags = id < 8 ? wire::flag_more_chunks : std::uint16_t{0},
                                                .layer = {1},
                                                .request = {id},
                                                .payload_bytes = id < 8 ? 1U : wire::default_max_chunk_bytes});
            ASSERT_TRUE(clients.back()->send(header));
            if (id < 8) {
                ASSERT_TRUE(clients.back()->send(wire::byte_vector(1)));
            }
        }
    }
    expect_correct_results(port);
    EXPECT_LT(resident_kib() - before_kib, 64 * 1024);
    net::raw_client greedy(port);
    ASSERT_TRUE(greedy.send(hello_frame()));
    ASSERT_TRUE(greedy.send(wire::encode(wire::frame_header{
        .type = static_cast<std::uint8_t>(wire::frame_type::compute), .request = {1}, .payload_bytes = ~0ULL})));
    const auto refused = greedy.receive(wire::frame_type::error);
    ASSERT_TRUE(refused);
    EXPECT_EQ(wire::decode_error(refused->payload)->code, wire::error_code::limit_exceeded);
    expect_correct_results(port);
}

TEST_F(node_process, two_hundred_connections) {
    worker_process worker(arguments());
    const std::uint16_t port = worker.port();
    std::vector<std::unique_ptr<net::raw_client>> crowd;
    for (int i = 0; i < 200; ++i) {
        crowd.push_back(std::make_unique<net::raw_client>(port));
        ASSERT_TRUE(crowd.back()->send(hello_frame()));
    }
    for (auto& one : crowd)
        ASSERT_TRUE(one->receive(wire::frame_type::hello));
    expect_correct_results(port);
    worker.signal(SIGTERM);
    for (auto& one : crowd)
        ASSERT_TRUE(one->receive(wire::frame_type::goodbye));
    crowd.clear();
    EXPECT_EQ(worker.wait(), 0);
}

TEST_F(node_process, a_second_signal_ends_at_once) {
    worker_process worker(arguments({"--drain-timeout", "3600"}));
    net::raw_client client(worker.port());
    ASSERT_TRUE(client.send(hello_frame()));
    ASSERT_TRUE(client.receive(wire::frame_type::hello));
    // Results that nobody reads keep it from leaving.
    net::raw_client stuck(worker.port(), 4096);
    ASSERT_TRUE(stuck.send(hello_frame()));
    wire::compute_request request;
    request.layer = {1};
    request.n_rows = 1;
    request.n_values = 256;
    request.rows = wire::shared_bytes::own(std::vector<float>(256, 1.0F));
    request.pairs.assign(20000, {0, 0});
    ASSERT_TRUE(stuck.send(wire::frame(wire::frame_type::compute, 1, wire::joined(*wire::encode(request)), 1)));
    ASSERT_TRUE(worker.line_starting("connected"));
    std::this_thread::sleep_for(200ms);
    worker.signal(SIGTERM);
    ASSERT_TRUE(worker.line_starting("draining"));
    worker.signal(SIGTERM);
    EXPECT_EQ(worker.wait(), 128 + SIGTERM);
}

TEST_F(node_process, a_closed_standard_output_does_not_end_it) {
    auto worker = std::make_unique<worker_process>(arguments(), std::vector<std::string>{});
    const std::uint16_t port = worker->port();
    worker->close_output();
    expect_correct_results(port);
    expect_correct_results(port);
}

}  // namespace
}  // namespace kvasir::node
