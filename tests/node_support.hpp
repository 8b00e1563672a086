// What the node tests share: a small model with its manifest and slices, results computed right here, a worker process.
#pragma once

#include <fcntl.h>
#include <ggml-backend.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "expert/expert.hpp"
#include "model/model.hpp"
#include "net_support.hpp"
#include "node/held_slice.hpp"
#include "support/model_builder.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::node {

/// A model of three layers (the first dense) with 6 experts each, 256 wide, and slices of it, in a directory of its
/// own.
class model_on_disk {
  public:
    model_on_disk() {
        static const bool loaded = (ggml_backend_load_all(), true);
        static_cast<void>(loaded);
        std::mt19937 random(7);
        test_support::moe_shape shape;
        shape.types = {GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
        auto built = test_support::build_moe(shape, random);
        // Bit 14 of every 16-bit word clear: scales are finite and small.
        for (auto& tensor : built.tensors())
            if (tensor.name.find("_exps.") != std::string::npos)
                for (char& byte : tensor.data)
                    byte = static_cast<char>(byte & 0xbf);
        built.write(model_path());
        model_.emplace(model::gguf_model::open(model_path()).value());
        manifest_.emplace(model::manifest::compute(*model_).value());
        manifest_->save(manifest_path()).value();
        write_slice("1:0-2+5,2:1", slice_path());
    }

    std::filesystem::path model_path() const { return directory_ / "model.gguf"; }
    std::filesystem::path manifest_path() const { return directory_ / "model.gguf.manifest.json"; }
    /// Layer 1: experts 0, 1, 2, 5 (local 0 to 3). Layer 2: expert 1 (local 0).
    std::filesystem::path slice_path() const { return directory_ / "slice.gguf"; }
    std::filesystem::path path(std::string_view name) const { return directory_ / name; }

    void write_slice(std::string_view experts, const std::filesystem::path& path) const {
        const auto selection = model::expert_selection::parse(experts).value();
        model::write_slice(*model_, selection, manifest_->model_digest(), path).value();
    }
    const sha256_digest& digest() const { return manifest_->model_digest(); }

    /// Changes weights of the last expert.
    static void corrupt(const std::filesystem::path& path) {
        const auto slice = model::gguf_model::open(path).value();
        const auto experts = model::map_experts(slice).value();
        const auto& down = experts.layers.back()[model::expert_role::down];
        const std::uint64_t at = down.weight->file_offset + down.weight->size_bytes() - 1000;
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        std::string bytes(900, '\0');
        file.seekg(static_cast<std::streamoff>(at));
        file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        for (char& byte : bytes)
            byte = static_cast<char>(byte ^ 0x15);
        file.seekp(static_cast<std::streamoff>(at));
        file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }

    wire::hello backbone_hello() const {
        wire::hello ours;
        ours.role = wire::node_role::backbone;
        ours.model = digest();
        static const std::string numerics = expert::numerics_fingerprint();  // takes its time
        ours.numerics = numerics;
        ours.build = "test";
        ours.node = wire::node_id::random();
        return ours;
    }

  private:
    test_support::temporary_directory directory_;
    std::optional<model::gguf_model> model_;
    std::optional<model::manifest> manifest_;
};

inline const model_on_disk& shared_model() {
    static const model_on_disk model;
    return model;
}

/// Random rows and pairs for what `held` holds of a layer, and the rows that must come back, computed here from the
/// whole model.
struct asked_and_expected {
    wire::compute_request request;
    std::vector<float> expected;
};

class reference {
  public:
    explicit reference(const model_on_disk& model)
        : whole_(held_slice::load({.path = model.model_path(), .manifest = {}, .skip_check = false, .progress = {}})
                     .value()),
          engine_(1) {}

    asked_and_expected ask(const wire::held_layer& held, std::uint32_t n_rows, std::uint32_t n_pairs,
                           row_encoding encoding, std::mt19937_64& random) {
        asked_and_expected made;
        std::normal_distribution<float> value;
        std::vector<float> rows(std::size_t{n_rows} * held.n_in);
        for (float& one : rows)
            one = value(random);
        wire::byte_vector encoded(n_rows * *row_size_bytes(encoding, held.n_in));
        expert::encode_rows(encoding, reinterpret_cast<const std::byte*>(rows.data()), held.n_in * sizeof(float),
                            held.n_in, n_rows, encoded)
            .value();
        made.request.layer = held.layer;
        made.request.encoding = encoding;
        made.request.n_rows = n_rows;
        made.request.n_values = held.n_in;
        std::vector<row_expert_pair> global;
        for (std::uint32_t i = 0; i < n_pairs; ++i) {
            const auto row = static_cast<std::uint32_t>(random() % n_rows);
            const auto local = static_cast<std::uint32_t>(random() % held.n_experts());
            made.request.pairs.push_back({row, local});
            global.push_back({row, held.global_of({local})->value});
        }
        made.expected.resize(std::size_t{n_pairs} * held.n_out);
        const auto& weights = whole_.weights()[*whole_.find(held.layer)];
        engine_.compute(weights, made.request.act, {encoding, held.n_in, n_rows, encoded}, global, made.expected)
            .value();
        for (const float one : made.expected)
            EXPECT_TRUE(std::isfinite(one)) << "the model is no test of bits";
        made.request.rows = wire::shared_bytes::own(std::move(encoded));
        return made;
    }

  private:
    held_slice whole_;
    expert::engine engine_;
};

inline bool same_bits(std::span<const float> left, std::span<const float> right) {
    return std::ranges::equal(std::as_bytes(left), std::as_bytes(right));
}

/// `kvasir worker …` as a process of its own.
class worker_process {
  public:
    explicit worker_process(const std::vector<std::string>& arguments, const std::vector<std::string>& prefix = {}) {
        std::vector<std::string> words = prefix;
        words.insert(words.end(), {KVASIR_BINARY, "worker"});
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<char*> pointers;
        for (std::string& word : words)
            pointers.push_back(word.data());
        pointers.push_back(nullptr);
        int ends[2];
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        EXPECT_EQ(::posix_spawnp(&process_, pointers[0], &actions, nullptr, pointers.data(), environ), 0);
        posix_spawn_file_actions_destroy(&actions);
        ::close(ends[1]);
        out_ = ends[0];
    }
    worker_process(const worker_process&) = delete;
    worker_process& operator=(const worker_process&) = delete;
    ~worker_process() {
        if (process_ > 0) {
            ::kill(process_, SIGKILL);
            ::waitpid(process_, nullptr, 0);
        }
        close_output();
    }
    void close_output() {
        if (out_ >= 0) ::close(std::exchange(out_, -1));
    }

    /// The next line of its standard output; empty at the end or when none comes.
    std::optional<std::string> line() {
        for (;;) {
            if (const auto end = pending_.find('\n'); end != std::string::npos) {
                std::string first = pending_.substr(0, end);
                pending_.erase(0, end + 1);
                return first;
            }
            pollfd ready{.fd = out_, .events = POLLIN, .revents = 0};
            const int timeout_ms = static_cast<int>(std::chrono::milliseconds(net::patience).count());
            if (::poll(&ready, 1, timeout_ms) <= 0) return std::nullopt;
            char bytes[4096];
            const ssize_t count = ::read(out_, bytes, sizeof bytes);
            if (count <= 0) return std::nullopt;
            pending_.append(bytes, static_cast<std::size_t>(count));
        }
    }
    /// The next line that begins so.
    std::optional<std::string> line_starting(std::string_view beginning) {
        while (auto next = line())
            if (next->starts_with(beginning)) return next;
        return std::nullopt;
    }
    /// From its first line.
    std::uint16_t port() {
        if (port_ == 0) {
            const auto first = line().value_or("");
            EXPECT_TRUE(first.starts_with("listening on 127.0.0.1:")) << first;
            port_ = net::endpoint::parse(first.substr(first.rfind(' ') + 1)).value().port;
        }
        return port_;
    }
    void signal(int number) { ::kill(process_, number); }
    pid_t process() const { return process_; }
    /// Exit status, or 128 + signal.
    int wait() {
        int status = 0;
        ::waitpid(std::exchange(process_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }

  private:
    pid_t process_ = -1;
    int out_ = -1;
    std::string pending_;
    std::uint16_t port_ = 0;
};

}  // namespace kvasir::node
