// A whole conversation with a peer that says anything, while its owner does what owners do.
//
// The first byte chooses the side and whether the handshake is already done. Then steps: one byte says what happens,
// 0x00 to 0xbf that the next so many bytes arrive (times 4, plus 1), the others what the owner does. Checked: one
// closed event at most and nothing after it; every request ends once; what is written is valid frames; memory stays
// bounded.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <variant>

#include "wire/conversation.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::wire;

void require(bool condition) {
    if (!condition) __builtin_trap();
}

hello hello_of(node_role role) {
    hello made;
    made.role = role;
    made.numerics.assign("kernels");
    made.accepts = {.max_message_bytes = min_max_message_bytes,
                    .max_chunk_bytes = min_max_chunk_bytes,
                    .max_requests_in_flight = 4};
    if (role == node_role::worker) {
        made.layers.push_back({.layer = {1},
                               .n_in = 2,
                               .n_out = 3,
                               .encodings = {row_encoding::f32},
                               .ranges = {{.first = {0}, .count = 2}}});
    }
    return made;
}

class player {
  public:
    explicit player(std::uint8_t choice)
        : role_((choice & 1U) != 0 ? node_role::worker : node_role::backbone),
          budget_(std::make_shared<byte_budget>(1U << 20U)),
          talk_(hello_of(role_), options(), now_) {
        if ((choice & 2U) != 0) shake_hands();
    }

    void arrive(byte_span bytes) {
        if (!bytes.empty() && std::to_integer<unsigned>(bytes[0]) % 3 == 0) {
            const auto direct = talk_.direct_buffer();
            const std::size_t count = std::min(direct.size(), bytes.size());
            std::copy_n(bytes.begin(), count, direct.begin());
            talk_.commit_direct(count, now_);
            bytes = bytes.subspan(count);
        }
        talk_.receive(bytes, now_);
        look();
    }

    void act(std::uint8_t what) {
        const request_id id{1U + (what & 7U)};
        switch (what >> 3U) {
            case 0x18:
                begin(id, 1);
                break;
            case 0x19:
                begin(id, 3000);
                break;
            case 0x1a:
                cancel(id);
                break;
            case 0x1b:
                finish(id, false);
                break;
            case 0x1c:
                finish(id, true);
                break;
            case 0x1d:
                pass(what & 7U);
                break;
            case 0x1e:
                write(what & 7U);
                break;
            default:
                end(what & 7U);
                break;
        }
        look();
    }

    void stop() {
        talk_.stream_ended();
        look();
        require(n_closed_ == 1);
        require(open_.empty() || role_ == node_role::worker || n_closed_ == 1);
        require(talk_.n_in_flight() == 0);
        taken_.clear();
        require(budget_->used_bytes() <= min_max_message_bytes + max_hello_bytes);
    }

  private:
    conversation_options options() const {
        conversation_options made;
        made.max_waiting_control_frames = 64;
        made.budget = budget_;
        return made;
    }

    void shake_hands() {
        const node_role other = role_ == node_role::worker ? node_role::backbone : node_role::worker;
        const auto payload = encode(hello_of(other)).value();
        const auto header =
            encode(frame_header{.type = static_cast<std::uint8_t>(frame_type::hello), .payload_bytes = payload.size()});
        talk_.receive(header, now_);
        talk_.receive(payload, now_);
        look();
        require(talk_.established());
    }

    void begin(request_id id, std::uint32_t n_rows) {
        compute_request request;
        request.layer = {1};
        request.n_rows = n_rows;
        request.n_values = 2;
        request.rows = shared_bytes::own(std::vector<float>(std::size_t{n_rows} * 2));
        request.pairs.assign(n_rows, {0, 1});
        if (talk_.begin_compute(id, std::move(request))) require(open_.insert(id).second);
    }
    void cancel(request_id id) {
        const bool was_open = open_.erase(id) == 1;
        require(talk_.cancel(id) == (was_open && n_closed_ == 0));
    }
    void finish(request_id id, bool failed) {
        const auto at = taken_.find(id);
        const std::uint32_t n_pairs =
            at == taken_.end() ? 1 : static_cast<std::uint32_t>(at->second.request.pairs.size());
        if (at != taken_.end()) taken_.erase(at);
        if (failed) return talk_.finish_error(id, error_code::busy, "busy");
        talk_.finish_result(id, {.n_pairs = n_pairs,
                                 .n_values = 3,
                                 .rows = shared_bytes::own(std::vector<float>(std::size_t{n_pairs} * 3))});
    }
    void pass(unsigned amount) {
        now_ += std::chrono::seconds(1U << amount) / 8;
        talk_.tick(now_);
        require(talk_.closed() || talk_.next_deadline() > now_);
    }
    void write(unsigned amount) {
        std::vector<byte_span> spans;
        talk_.output().gather(spans, 1U << (2 * amount), 1 + amount);
        std::size_t count = 0;
        for (const byte_span span : spans)
            count += span.size();
        if (count > 0) talk_.output().consume(1 + count / (1 + amount) % count);
    }
    void end(unsigned how) {
        if (how == 0) talk_.goodbye();
        if (how == 1 && role_ == node_role::worker) talk_.drain();
        if (how == 2) talk_.stream_ended(error(errc::io, "broke"));
    }

    void look() {
        for (auto& event : talk_.take_events()) {
            require(n_closed_ == 0);
            std::visit([this](auto& happened) { on(happened); }, event);
        }
    }
    void on(const established_event&) { require(++n_established_ == 1); }
    void on(compute_event& event) {
        require(role_ == node_role::worker);
        taken_.insert_or_assign(event.id, std::move(event));
    }
    void on(const cancel_event&) { require(role_ == node_role::worker); }
    void on(const result_event& event) {
        require(open_.erase(event.id) == 1);
        require(event.result.n_values == 3);
    }
    void on(const request_failed_event& event) { require(open_.erase(event.id) == 1); }
    void on(const drain_event&) { require(role_ == node_role::backbone); }
    void on(const closed_event& event) {
        require(!event.reason.message.empty());
        ++n_closed_;
        open_.clear();
    }

    node_role role_;
    time_point now_{};
    std::shared_ptr<byte_budget> budget_;
    conversation talk_;
    std::set<request_id> open_;                  ///< a backbone's, not yet ended
    std::map<request_id, compute_event> taken_;  ///< a worker's
    int n_established_ = 0;
    int n_closed_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    player game(data[0]);
    std::span<const std::uint8_t> rest(data + 1, size - 1);
    while (!rest.empty()) {
        const std::uint8_t step = rest[0];
        rest = rest.subspan(1);
        if (step >= 0xc0) {
            game.act(step);
            continue;
        }
        const auto part = rest.first(std::min<std::size_t>(rest.size(), std::size_t{step} * 4 + 1));
        rest = rest.subspan(part.size());
        game.arrive(std::as_bytes(part));
    }
    game.stop();
    return 0;
}
