// The life of one layer call: place, send, compute the rest here, collect, hedge what is late, fall back, audit.
// Internal to this part.
//
// Invariant: every position of the call is filled exactly once, by whoever is first; what arrives for a filled position
// is dropped. Only the thread that asked writes to the call's memory, so nothing is written after run() has returned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "swarm/call_inbox.hpp"
#include "swarm/coverage.hpp"
#include "swarm/layer_call.hpp"
#include "swarm/partition.hpp"
#include "swarm/swarm.hpp"
#include "swarm/worker_link.hpp"

namespace kvasir::swarm {

/// What a layer call added to the counts.
struct dispatch_counts {
    std::uint64_t layer_calls = 0;  ///< 1 when at least one pair was sent out
    std::uint64_t local_pairs = 0;
    std::uint64_t fallback_pairs = 0;
    std::uint64_t audited_pairs = 0;
};

/// What a dispatch needs to know of the swarm around it.
struct surroundings {
    std::span<const std::shared_ptr<worker_link>> workers;
    const coverage& who_holds;
    /// What this machine needs for one (row, expert) pair, as measured so far.
    double here_us_per_pair = 0.0;
    std::function<void(const worker_link&, const std::string& what)> warn{};
    /// Which of so many results are to be audited; see audit_sampler.
    std::function<std::vector<std::uint32_t>(std::uint32_t n_results)> draw_audits{};
    /// Told how many rows each expert of the call's layer gets; says which of them are hot. Empty: none is.
    std::function<std::vector<bool>(const layer_call&, std::span<const std::uint32_t> rows_of_expert)> count_for_hot{};
};

/// One object per layer call, used once, by one thread.
class dispatch {
  public:
    dispatch(const layer_call& call, const surroundings& around, expert::engine& local);

    result<outcome> run();
    const dispatch_counts& counts() const { return counts_; }
    /// What this machine took for a pair in this call; empty when it computed none.
    std::optional<double> measured_here_us_per_pair() const;

  private:
    struct sent_request {
        std::shared_ptr<worker_link> worker;
        worker_index index = 0;
        request_id id;
        request_part part;
        time_point hedge_at;
        time_point deadline;
        bool open = true;
        bool late = false;          ///< its hedge_at has passed
        bool trial = false;         ///< its rows are computed elsewhere anyway
        bool answered = false;      ///< as a correct worker does
        std::uint32_t n_taken = 0;  ///< rows of it that were used
    };
    /// Who filled a position: an index in sent_, or one of these.
    static constexpr std::uint32_t nobody = 0xffffffff;
    static constexpr std::uint32_t this_machine = 0xfffffffe;

    std::vector<std::uint32_t> rows_of_experts() const;
    std::vector<expert_load> loads() const;
    std::vector<worker_estimate> estimates() const;
    bool place();
    result<void> encode_rows();
    void send_all();
    void send_trial();
    std::vector<std::uint32_t> send_to(worker_index index, std::span<const std::uint32_t> positions,
                                       worker_link::purpose why);
    bool send_part(worker_index index, const net::peer_connection::ptr& peer, request_part part,
                   worker_link::purpose why);
    wire::shared_bytes rows_of(const request_part& part) const;

    result<void> collect();
    void take(arrival one);
    bool accept(sent_request& request, std::uint32_t number, const wire::received_result& answer);
    void close(sent_request& request);
    void fall_back(const sent_request& request, const std::string& why);
    std::vector<std::uint32_t> unfilled(std::span<const std::uint32_t> positions) const;
    void look_at_the_clock(time_point when);
    void hedge(std::size_t number);
    time_point next_event() const;
    void leave_the_rest();

    result<void> audit();
    std::vector<std::uint32_t> positions_to_audit() const;
    result<void> compare(std::span<const std::uint32_t> positions, std::span<const float> recomputed);
    void credit_all();

    result<std::vector<float>> compute(std::span<const std::uint32_t> ordered);
    result<void> replace(std::vector<std::uint32_t> positions);
    result<void> compute_one_fallen_expert();
    std::span<float> out_row(std::uint32_t position) const;

    const layer_call& call_;
    const surroundings& around_;
    expert::engine& local_;
    const std::shared_ptr<call_inbox> inbox_ = std::make_shared<call_inbox>();

    row_encoding encoding_ = row_encoding::f32;
    std::size_t row_bytes_ = 0;
    std::shared_ptr<const std::vector<std::byte>> encoded_;  ///< all rows of the call, shared with what is being sent
    std::vector<std::vector<std::uint32_t>> positions_by_worker_;
    std::vector<std::uint32_t> here_;      ///< positions planned for this machine
    std::vector<std::uint32_t> fallback_;  ///< positions that nobody else will answer in time
    std::vector<std::uint32_t> filled_by_;
    std::vector<std::uint32_t> n_awaited_;  ///< for each position: open requests that carry it
    std::size_t n_unfilled_ = 0;
    std::vector<sent_request> sent_;
    duration computed_for_{};
    std::uint64_t n_computed_ = 0;
    dispatch_counts counts_;
};

}  // namespace kvasir::swarm
