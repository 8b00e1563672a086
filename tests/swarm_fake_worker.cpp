// fake_worker of swarm_support.hpp: a thread with a queue, and connections that post to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <unordered_map>

#include "swarm_support.hpp"
#include "wire/messages.hpp"

namespace kvasir::swarm {
namespace {

class fake_peer;

/// One connection. The peer object is the asker's; this is shared with the worker's thread.
struct fake_link {
    net::peer_handlers handlers;
    std::mutex mutex;  // the two below
    bool open = true;
    std::set<request_id> in_flight;
};

struct asked_request {
    std::shared_ptr<fake_link> link;
    request_id id;
    wire::received_compute request;
    fate chosen = fate::answer;
};

wire::payload_buffer payload_of(const wire::payload_pieces& pieces) {
    std::vector<std::byte> all;
    for (const wire::shared_bytes& piece : pieces)
        all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
    return wire::payload_buffer::copy_of(all);
}

}  // namespace

struct fake_worker::core : std::enable_shared_from_this<core> {
    core(const test_model& model, wire::hello said) : hello(std::move(said)), engine(1) {
        for (const wire::held_layer& held : hello.layers)
            slices.emplace(held.layer, test_layer(model[held.layer.value], held));
    }

    void post(std::function<void()> task) {
        {
            const std::lock_guard lock(mutex);
            if (stopping) return;
            tasks.push_back(std::move(task));
        }
        changed.notify_one();
    }
    void run();
    void decide(asked_request request);
    void answer(const asked_request& request);
    void close(const std::shared_ptr<fake_link>& link, const std::string& why);

    const wire::hello hello;
    std::map<layer_id, test_layer> slices;
    expert::engine engine;  // the worker's thread alone

    mutable std::mutex mutex;  // everything below
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool stopping = false;
    error refusal;
    script decide_fate = [](const wire::compute_request&) { return fate::answer; };
    std::vector<std::weak_ptr<fake_link>> links;
    std::vector<asked_request> held;
    std::uint64_t n_asked = 0;
    std::uint64_t n_answered = 0;
    std::uint64_t n_cancelled = 0;
    std::uint64_t n_connections = 0;

    std::thread thread;
};

namespace {

class fake_peer final : public net::peer_connection {
  public:
    fake_peer(std::shared_ptr<fake_worker::core> worker, std::shared_ptr<fake_link> link)
        : worker_(std::move(worker)), link_(std::move(link)) {}
    ~fake_peer() override { fake_peer::close(); }

    result<void> send_compute(request_id id, wire::compute_request request) override {
        const auto encoded = wire::encode(request);
        if (!encoded) return encoded.error();
        auto decoded = wire::decode_compute(request.layer, payload_of(*encoded));
        if (!decoded) return decoded.error();
        fate chosen;
        {
            const std::lock_guard lock(worker_->mutex);
            ++worker_->n_asked;
            chosen = worker_->decide_fate(request);
        }
        if (chosen == fate::refuse_busy) return error(errc::busy, "the worker takes no more requests");
        if (chosen == fate::refuse_limit) return error(errc::limit_exceeded, "the request is too large");
        {
            const std::lock_guard lock(link_->mutex);
            if (!link_->open) return error(errc::closed, "the connection is closed");
            EXPECT_NE(id.value, 0U);
            EXPECT_TRUE(link_->in_flight.insert(id).second) << "request id " << id.value << " is in flight already";
        }
        auto asked = std::make_shared<asked_request>(asked_request{link_, id, *std::move(decoded), chosen});
        worker_->post([worker = worker_, asked] { worker->decide(std::move(*asked)); });
        return {};
    }

    bool cancel(request_id id) override {
        const std::lock_guard lock(link_->mutex);
        const bool found = link_->open && link_->in_flight.erase(id) > 0;
        const std::lock_guard count(worker_->mutex);
        worker_->n_cancelled += found ? 1 : 0;
        return found;
    }

    void close() override {
        worker_->post([worker = worker_, link = link_] { worker->close(link, "closed on purpose"); });
    }
    const wire::hello& hello() const override { return worker_->hello; }
    std::string remote() const override { return "fake"; }
    bool usable() const override {
        const std::lock_guard lock(link_->mutex);
        return link_->open;
    }
    net::connection_statistics statistics() const override { return {}; }

  private:
    const std::shared_ptr<fake_worker::core> worker_;
    const std::shared_ptr<fake_link> link_;
};

/// Takes the request out of flight; false when it is not (any more).
bool finish(const asked_request& request) {
    const std::lock_guard lock(request.link->mutex);
    return request.link->open && request.link->in_flight.erase(request.id) > 0;
}

}  // namespace

void fake_worker::core::run() {
    std::unique_lock lock(mutex);
    for (;;) {
        changed.wait(lock, [this] { return stopping || !tasks.empty(); });
        if (stopping) return;
        const auto task = std::move(tasks.front());
        tasks.pop_front();
        lock.unlock();
        task();
        lock.lock();
    }
}

void fake_worker::core::decide(asked_request request) {
    switch (request.chosen) {
        case fate::ignore:
            return;
        case fate::hold:
        case fate::late: {
            const std::lock_guard lock(mutex);
            held.push_back(std::move(request));
            return;
        }
        case fate::error:
            if (finish(request))
                request.link->handlers.on_request_error(request.id, {wire::error_code::busy, "full up"});
            return;
        case fate::close:
            return close(request.link, "the worker broke down");
        case fate::drain:
            request.link->handlers.on_drain();
            return answer(request);
        default:
            return answer(request);
    }
}

void fake_worker::core::answer(const asked_request& asked) {
    const wire::received_compute& request = asked.request;
    const auto slice = slices.find(request.layer);
    ASSERT_NE(slice, slices.end());
    const auto weights = expert::with_companions(slice->second.weights(), request.companions);
    ASSERT_TRUE(weights) << weights.error().message;
    const auto n_out = static_cast<std::size_t>(weights->n_out());
    std::vector<float> rows(request.pairs.size() * n_out);
    const expert::row_batch batch{request.encoding, request.n_values, request.n_rows, request.rows};
    const auto computed = engine.compute(*weights, request.act, batch, request.pairs, rows);
    ASSERT_TRUE(computed) << computed.error().message;

    wire::compute_result result;
    result.n_pairs = static_cast<std::uint32_t>(request.pairs.size());
    result.n_values = static_cast<std::uint32_t>(n_out);
    if (asked.chosen == fate::too_few_rows) --result.n_pairs;
    if (asked.chosen == fate::too_narrow) --result.n_values;
    rows.resize(std::size_t{result.n_pairs} * result.n_values);
    if (asked.chosen == fate::wrong_bit)
        rows.back() = std::bit_cast<float>(std::bit_cast<std::uint32_t>(rows.back()) ^ 1U);
    if (asked.chosen == fate::not_a_number) std::ranges::fill(rows, std::numeric_limits<float>::quiet_NaN());
    result.rows = wire::shared_bytes::own(std::move(rows));
    const auto encoded = wire::encode(result);
    ASSERT_TRUE(encoded) << encoded.error().message;
    const std::uint32_t layer = request.layer.value + (asked.chosen == fate::other_layer ? 1 : 0);
    auto decoded = wire::decode_result({layer}, payload_of(*encoded));
    ASSERT_TRUE(decoded) << decoded.error().message;
    if (!finish(asked) && asked.chosen != fate::late) return;
    {
        const std::lock_guard lock(mutex);
        ++n_answered;
    }
    asked.link->handlers.on_result(asked.id, *std::move(decoded));
}

void fake_worker::core::close(const std::shared_ptr<fake_link>& link, const std::string& why) {
    {
        const std::lock_guard lock(link->mutex);
        if (!std::exchange(link->open, false)) return;
        link->in_flight.clear();
    }
    link->handlers.on_closed(error(errc::closed, why));
}

fake_worker::fake_worker(const test_model& model, wire::hello hello)
    : core_(std::make_shared<core>(model, std::move(hello))) {
    core_->thread = std::thread([core = core_.get()] { core->run(); });
}

fake_worker::~fake_worker() {
    stop();
}

void fake_worker::stop() {
    {
        const std::lock_guard lock(core_->mutex);
        core_->stopping = true;
    }
    core_->changed.notify_one();
    if (core_->thread.joinable()) core_->thread.join();
    // Tasks and held requests refer to the core and to connections.
    const auto tasks = std::exchange(core_->tasks, {});
    const auto held = std::exchange(core_->held, {});
}

void fake_worker::connect(net::peer_handlers handlers, net::peer_connection::connect_handler done) {
    core_->post([core = core_, handlers = std::move(handlers), done = std::move(done)] {
        error refusal;
        {
            const std::lock_guard lock(core->mutex);
            ++core->n_connections;
            refusal = core->refusal;
        }
        if (refusal.code) return done(refusal);
        const auto link = std::make_shared<fake_link>();
        link->handlers = handlers;
        {
            const std::lock_guard lock(core->mutex);
            core->links.push_back(link);
        }
        done(std::make_shared<fake_peer>(core, link));
    });
}

void fake_worker::refuse_connections(error why) {
    const std::lock_guard lock(core_->mutex);
    core_->refusal = std::move(why);
}

void fake_worker::follow(script decide) {
    const std::lock_guard lock(core_->mutex);
    core_->decide_fate = std::move(decide);
}

void fake_worker::drain() {
    core_->post([core = core_.get()] {
        for (const auto& weak : core->links)
            if (const auto link = weak.lock()) link->handlers.on_drain();
    });
}

void fake_worker::close_connections() {
    core_->post([core = core_.get()] {
        for (const auto& weak : std::exchange(core->links, {}))
            if (const auto link = weak.lock()) core->close(link, "the worker went away");
    });
}

void fake_worker::release() {
    core_->post([core = core_.get()] {
        std::vector<asked_request> held;
        {
            const std::lock_guard lock(core->mutex);
            held = std::exchange(core->held, {});
        }
        for (const asked_request& request : held)
            core->answer(request);
    });
}

std::uint64_t fake_worker::n_asked() const {
    const std::lock_guard lock(core_->mutex);
    return core_->n_asked;
}
std::uint64_t fake_worker::n_answered() const {
    const std::lock_guard lock(core_->mutex);
    return core_->n_answered;
}
std::uint64_t fake_worker::n_cancelled() const {
    const std::lock_guard lock(core_->mutex);
    return core_->n_cancelled;
}
std::uint64_t fake_worker::n_connections() const {
    const std::lock_guard lock(core_->mutex);
    return core_->n_connections;
}
bool fake_worker::has_held() const {
    const std::lock_guard lock(core_->mutex);
    return !core_->held.empty();
}

}  // namespace kvasir::swarm
