// One named worker as the backbone sees it: its connection, when to try again, what it has done, how fast it is.
//
// Any thread may call any member. Callbacks of the connection come on network threads; no lock is held while another
// object is called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/ids.hpp"
#include "net/peer_connection.hpp"
#include "swarm/call_inbox.hpp"
#include "swarm/options.hpp"
#include "swarm/placement.hpp"
#include "swarm/service_time.hpp"
#include "swarm/standing.hpp"

namespace kvasir::swarm {

class worker_link : public std::enable_shared_from_this<worker_link> {
  public:
    using connect_function =
        std::function<void(const net::endpoint&, net::peer_handlers, net::peer_connection::connect_handler)>;
    using change_function = std::function<void(worker_link&)>;

    /// `connect` starts a connection (in tests, something that looks like one). `changed` is called after every change
    /// of state(), without a lock held.
    worker_link(net::endpoint where, duration min_hedge, connect_function connect, change_function changed);

    /// Starts to connect if there is no connection and the last failure is long enough ago. When to call again at the
    /// earliest; empty while there is nothing to retry.
    std::optional<time_point> maintain(time_point now);
    /// Refuses the worker that is connected (its reason is shown to people) and closes.
    void refuse(const std::string& reason);
    /// Closes for good.
    void shut_down();

    /// The connection, if it can take work.
    net::peer_connection::ptr usable_peer() const;
    std::shared_ptr<const wire::hello> hello() const;
    /// For placement: what a pair costs includes `bytes_per_pair` on the wire.
    worker_estimate estimate(time_point now, double bytes_per_pair) const;
    /// Whether it should be given rows that are computed elsewhere as well (see standing::wants_trial).
    bool wants_trial(time_point now) const;

    struct sent {
        request_id id;
        duration hedge_after{};  ///< then its rows should be asked elsewhere as well
        duration patience{};     ///< then it has failed
    };
    enum class purpose { work, trial };
    /// Sends over `peer` (from usable_peer()); the answer of `result_bytes` or the failure goes to `inbox` as
    /// `position`. On an error nothing was sent and nothing will arrive.
    result<sent> send(const net::peer_connection::ptr& peer, wire::compute_request request, std::uint64_t result_bytes,
                      std::shared_ptr<call_inbox> inbox, std::uint32_t position, purpose why);
    /// An answer was what a correct worker sends; `n_pairs` of its rows were used (none, when somebody else was
    /// quicker). It came in time or late: that decides the worker's standing.
    void credit(std::uint32_t n_pairs, bool in_time);
    /// Its rows are asked elsewhere as well, for it is late.
    void count_hedge();
    /// Its rows were taken from elsewhere: the request is cancelled. `was_late`: that was its own fault. Nothing
    /// happens when the answer is in the inbox or on its way there.
    void outrun(request_id id, bool was_late);
    /// A trial that nobody waits for any more. Its answer is dropped when it comes, but measured.
    void leave(request_id id);
    /// The answer is not wanted any more because it is beyond all patience: no work for a while. False, and nothing
    /// changes, when the answer or failure is in the inbox or just on its way there.
    bool give_up(request_id id);
    /// An answer was not what a correct worker sends: no work for a while, and the connection ends.
    void distrust(const std::string& reason);
    void count_audit(std::uint64_t n_pairs, std::uint64_t n_wrong);
    /// Its rows were wrong: the connection ends and none is made again.
    void quarantine(const std::string& reason);

    worker_state state() const;
    const net::endpoint& endpoint() const { return endpoint_; }
    worker_statistics statistics() const;

  private:
    struct pending_request {
        std::shared_ptr<call_inbox> inbox;
        std::uint32_t position = 0;
        request_size size;
        time_point sent_at;
        duration hedge_after{};
        duration patience{};
        bool left = false;  ///< nobody waits for it
    };

    net::peer_handlers make_handlers(std::uint64_t attempt);
    void connected(std::uint64_t attempt, result<net::peer_connection::ptr> outcome);
    void closed(std::uint64_t attempt, const error& why);
    void draining(std::uint64_t attempt);
    void answered(request_id id, wire::received_result answer);
    void failed(request_id id, const wire::error_message& why);
    std::optional<pending_request> take(request_id id);
    void give_up_what_was_left(time_point now);
    void set_standing();
    void keep_byte_counts();

    const net::endpoint endpoint_;
    const connect_function connect_;
    const change_function changed_;

    mutable std::mutex mutex_;                    // everything below
    std::uint64_t attempt_ = 0;                   ///< callbacks of an older connection are told apart by it
    worker_state state_ = worker_state::joining;  ///< until the first attempt ends
    bool connecting_ = false;
    bool shut_down_ = false;
    std::string reason_;
    net::peer_connection::ptr peer_;
    std::shared_ptr<const wire::hello> hello_;
    backoff reconnect_;
    standing standing_;
    service_time service_;
    std::uint64_t next_request_ = 1;
    std::unordered_map<request_id, pending_request> pending_;
    std::uint64_t pairs_in_flight_ = 0;  ///< of pending_
    std::uint64_t pairs_ = 0;
    std::uint64_t requests_ = 0;
    std::uint64_t failures_ = 0;
    std::uint64_t hedges_ = 0;
    std::uint64_t misses_ = 0;
    std::uint64_t trials_ = 0;
    std::uint64_t audited_pairs_ = 0;
    std::uint64_t wrong_pairs_ = 0;
    std::uint64_t past_bytes_out_ = 0;  ///< of connections that have ended
    std::uint64_t past_bytes_in_ = 0;
};

}  // namespace kvasir::swarm
