// What the tests of the swarm share: small layers with real weights, slices of them, and workers without a network.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "expert/expert.hpp"
#include "net/peer_connection.hpp"
#include "swarm/layer_call.hpp"
#include "swarm/worker_link.hpp"

namespace kvasir::swarm {

/// A number from 0 to `end` - 1.
inline std::uint32_t below(std::uint32_t end, std::mt19937& random) {
    return static_cast<std::uint32_t>(random() % end);
}

/// Loads ggml's backends, once.
void load_ggml();

/// The experts of one layer with random weights: or copies of some of another's, one after another, as a worker's
/// slice has them.
class test_layer {
  public:
    struct shape {
        std::int32_t type = 0;  ///< a ggml_type
        std::int64_t n_experts = 8;
        std::int64_t n_in = 256;
        std::int64_t n_ff = 256;
        std::int64_t n_out = 256;
        bool merged = false;
        bool companions = false;
    };

    test_layer(const shape& of, std::mt19937& random);
    test_layer(const test_layer& whole, const wire::held_layer& held);
    test_layer(test_layer&&) = default;

    const expert::layer_weights& weights() const { return weights_; }

  private:
    expert::expert_tensor make(const shape& of, std::int64_t n_in, std::int64_t n_out, std::mt19937& random);
    expert::expert_tensor copy(const expert::expert_tensor& from, const wire::held_layer& held);
    const float* keep(std::vector<float> values);

    expert::layer_weights weights_;
    std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
    std::vector<std::unique_ptr<std::vector<float>>> floats_;
};

/// What the fake network's workers hold: layer 0, 1, … of the model.
using test_model = std::vector<test_layer>;
/// Three layers: F32, Q4_K with merged gate/up and companions, IQ4_XS (whose experts must stay whole).
test_model make_test_model(std::mt19937& random);

/// A HELLO that holds the given experts of every layer.
wire::hello hello_holding(const test_model& model, const std::vector<std::vector<wire::expert_range>>& ranges_of_layer);
wire::hello hello_holding_all(const test_model& model);

/// One layer call with its memory, and what the answer must be.
class test_call {
  public:
    test_call(const test_model& model, std::uint32_t layer, std::uint32_t n_rows, std::size_t n_pairs,
              std::mt19937& random);

    layer_call call();
    /// Computes what is right with an engine directly.
    void prepare(expert::engine& engine);
    /// True when out() has the bits of prepare(); it is wiped for the next call.
    bool is_right();
    std::size_t n_pairs() const { return pairs_.size(); }

  private:
    const test_layer& layer_;
    std::uint32_t layer_number_;
    std::uint32_t n_rows_;
    std::vector<float> rows_;
    std::vector<row_expert_pair> pairs_;
    std::vector<float> out_;
    std::vector<float> right_;
};

/// What becomes of a request.
enum class fate {
    answer,
    ignore,        ///< never answered
    hold,          ///< answered by release()
    late,          ///< answered although it was cancelled
    error,         ///< ERROR busy
    too_few_rows,  ///< a RESULT of one row less
    too_narrow,    ///< a RESULT of narrower rows
    other_layer,   ///< a RESULT that names another layer
    wrong_bit,     ///< a RESULT of which one bit is wrong
    not_a_number,  ///< a RESULT full of NaN
    close,         ///< the connection ends instead
    refuse_busy,   ///< send_compute() says busy
    refuse_limit,  ///< send_compute() says limit_exceeded
    drain,         ///< DRAIN, then the answer
};

/// A worker without a network, with one thread of its own that computes and makes all callbacks. Keeps the promises of
/// net::peer_connection: what was accepted ends in one callback, in cancel() or in on_closed, which comes last.
class fake_worker {
  public:
    using script = std::function<fate(const wire::compute_request&)>;

    fake_worker(const test_model& model, wire::hello hello);
    ~fake_worker();
    fake_worker(const fake_worker&) = delete;
    fake_worker& operator=(const fake_worker&) = delete;

    /// As worker_link::connect_function. Accepts unless told otherwise.
    void connect(net::peer_handlers handlers, net::peer_connection::connect_handler done);
    /// Connections fail with this from now on; an empty code: they are accepted.
    void refuse_connections(error why);
    /// Decides about every request; called on the asking thread. Before: all are answered.
    void follow(script decide);
    void drain();
    void close_connections();
    /// Answers what is held.
    void release();
    /// Ends the thread; nothing is called back any more. Before whoever has connected is destroyed.
    void stop();

    std::uint64_t n_asked() const;      ///< requests that send_compute() saw
    std::uint64_t n_answered() const;   ///< correctly
    std::uint64_t n_cancelled() const;  ///< cancel() that found the request in flight
    std::uint64_t n_connections() const;
    bool has_held() const;

    struct core;

  private:
    std::shared_ptr<core> core_;
};

/// Endpoints whose port is the worker's number.
std::vector<net::endpoint> endpoints_of(std::size_t n_workers);

}  // namespace kvasir::swarm
