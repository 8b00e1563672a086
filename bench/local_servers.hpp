// What a benchmark measures against: Kvasir workers and stock RPC servers on this machine, and slow networks in front
// of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "bench/delay_proxy.hpp"
#include "cli/child_process.hpp"
#include "net/endpoint.hpp"

namespace kvasir::bench {

/// A directory that goes with the object. Move-only.
class scratch_directory {
  public:
    static result<scratch_directory> make();
    scratch_directory(scratch_directory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
    scratch_directory& operator=(scratch_directory&& other) noexcept {
        std::swap(path_, other.path_);
        return *this;
    }
    ~scratch_directory();

    const std::filesystem::path& path() const { return path_; }

  private:
    explicit scratch_directory(std::filesystem::path path) : path_(std::move(path)) {}
    std::filesystem::path path_;
};

struct server_process {
    cli::child_process process;
    net::endpoint address;
};

struct worker_layout {
    std::uint32_t n_workers = 1;
    std::uint32_t copies = 1;  ///< how many workers hold each expert, at most all of them
    /// (row, expert) results per second and worker; 0: as fast as they can.
    double max_rows_per_second = 0.0;
};

/// The expert selection (as `kvasir slice` takes it) of each worker: the experts of each layer go round the workers,
/// starting one further in each layer, so that all workers get about the same work.
std::vector<std::string> deal_experts(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& layers_and_counts,
                                      const worker_layout& layout);

/// Workers that hold all of the model's experts between them. Slices are written to `scratch`.
result<std::vector<server_process>> start_workers(const std::filesystem::path& model, const worker_layout& layout,
                                                  const std::filesystem::path& scratch);
/// llama.cpp's ggml-rpc-server, with one thread each.
result<std::vector<server_process>> start_rpc_servers(std::uint32_t count);

/// A slow network in front of all servers.
result<std::unique_ptr<delay_proxy>> put_behind(const link_options& link, const std::vector<server_process>& servers);

std::vector<std::string> addresses_of(const std::vector<server_process>& servers);
/// The addresses in front of `count` targets.
std::vector<std::string> addresses_of(const delay_proxy& proxy, std::size_t count);

double median(std::vector<double> values);

/// Writes a benchmark's results; an empty path means nowhere.
result<void> write_json(const std::string& path, const std::string& text);

}  // namespace kvasir::bench
