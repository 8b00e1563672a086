// Chunker against reassembler: whatever the sizes and wherever the bytes are cut, messages come out as they went in.
#include <deque>
#include <map>

#include "wire_support.hpp"

namespace kvasir::wire {
namespace {

struct sent_message {
    layer_id layer;
    request_id request;
    byte_vector payload;
};

payload_pieces in_pieces(const byte_vector& payload, std::mt19937_64& random) {
    payload_pieces pieces;
    for (std::size_t at = 0; at < payload.size();) {
        const std::size_t count = std::min<std::size_t>(payload.size() - at, 1 + random() % (payload.size() + 1));
        pieces.push_back(shared_bytes::own(byte_vector(payload.begin() + static_cast<std::ptrdiff_t>(at),
                                                       payload.begin() + static_cast<std::ptrdiff_t>(at + count))));
        at += count;
    }
    return pieces;
}

/// Feeds bytes cut at random places, half of the time straight into the place they belong.
class feeder {
  public:
    explicit feeder(reassembler& into, std::mt19937_64& random) : into_(into), random_(random) {}

    void feed(byte_span bytes, std::size_t longest_cut) {
        while (!bytes.empty()) {
            byte_span part = bytes.first(std::min<std::size_t>(bytes.size(), 1 + random_() % longest_cut));
            bytes = bytes.subspan(part.size());
            if (const auto direct = into_.direct_buffer(); !direct.empty() && random_() % 2 == 0) {
                const std::size_t count = std::min(direct.size(), part.size());
                std::memcpy(direct.data(), part.data(), count);
                into_.commit_direct(count, {});
                part = part.subspan(count);
            }
            pull(part);
        }
    }

    std::vector<raw_message> messages;

  private:
    void pull(byte_span bytes) {
        for (;;) {
            auto step = into_.next(bytes, {});
            if (std::holds_alternative<reassembler::need_more>(step)) return;
            if (const auto* fault = std::get_if<framing_fault>(&step)) FAIL() << fault->text;
            if (std::holds_alternative<frame_header>(step)) {
                into_.keep();
            } else {
                messages.push_back(std::move(std::get<raw_message>(step)));
            }
        }
    }

    reassembler& into_;
    std::mt19937_64& random_;
};

void expect_round_trip(const std::vector<std::size_t>& sizes, const limits& receiver, std::size_t longest_cut,
                       std::mt19937_64& random) {
    chunker out;
    out.set_limits(receiver);
    std::map<std::uint64_t, sent_message> sent;
    for (const std::size_t size : sizes) {
        const std::uint64_t id = 1 + sent.size();
        sent[id] = {{static_cast<std::uint32_t>(random())}, {id}, random_bytes(size, random)};
        out.push_message(frame_type::compute, sent[id].layer, {id}, in_pieces(sent[id].payload, random));
    }
    reassembler in(receiver, nullptr);
    feeder feed(in, random);
    // Written in parts as a socket would take them.
    for (;;) {
        std::vector<byte_span> spans;
        out.gather(spans, 1 + random() % 100000, 1 + random() % 10);
        if (spans.empty()) break;
        byte_vector written;
        for (const byte_span span : spans)
            written.insert(written.end(), span.begin(), span.end());
        written.resize(1 + random() % written.size());
        out.consume(written.size());
        feed.feed(written, longest_cut);
    }
    EXPECT_EQ(out.pending_bytes(), 0U);
    ASSERT_EQ(feed.messages.size(), sent.size());
    for (const raw_message& message : feed.messages) {
        const sent_message& original = sent.at(message.request.value);
        EXPECT_EQ(message.type, frame_type::compute);
        EXPECT_EQ(message.layer, original.layer);
        const byte_span got = message.payload.bytes();
        ASSERT_EQ(got.size(), original.payload.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), original.payload.begin()));
    }
}

TEST(wire_stream, sizes_around_every_boundary) {
    std::mt19937_64 random(1);
    const limits receiver;
    for (const std::size_t size : {0UL, 1UL, 23UL, 24UL, 25UL, 65535UL, 65536UL, 65537UL, 262143UL, 262144UL, 262145UL,
                                   524287UL, 524288UL, 524289UL}) {
        expect_round_trip({size}, receiver, 100000, random);
    }
}

TEST(wire_stream, single_bytes) {
    std::mt19937_64 random(2);
    expect_round_trip({0, 1, 2, 5000}, {1 << 20, 4096, 1}, 1, random);
}

TEST(wire_stream, beyond_16_mib_and_up_to_the_maximum) {
    std::mt19937_64 random(3);
    expect_round_trip({(16U << 20U) + 1, 100, (17U << 20U)}, {}, 1 << 20, random);
    expect_round_trip({default_max_message_bytes}, {}, 1 << 20, random);
}

TEST(wire_stream, many_messages_at_once) {
    std::mt19937_64 random(4);
    for (int round = 0; round < 30; ++round) {
        std::vector<std::size_t> sizes;
        for (std::uint64_t n = 1 + random() % 40; n > 0; --n)
            sizes.push_back(random() % 4 == 0 ? random() % 60000 : random() % 300);
        expect_round_trip(sizes, {65536, 4096 + static_cast<std::uint32_t>(random() % 9), 64}, 1 + random() % 9000,
                          random);
    }
}

/// Headers of the frames in these bytes.
std::vector<frame_header> headers_in(byte_span bytes) {
    std::vector<frame_header> headers;
    while (!bytes.empty()) {
        headers.push_back(decode_frame_header(bytes.first<frame_header_bytes>()));
        bytes = bytes.subspan(frame_header_bytes + static_cast<std::size_t>(headers.back().payload_bytes));
    }
    return headers;
}

TEST(wire_stream, control_frames_wait_for_one_chunk_at_most) {
    chunker out;
    out.set_limits({});
    out.push_message(frame_type::compute, {}, {1}, {shared_bytes::own(byte_vector(10U << 20U))});
    std::vector<byte_span> spans;
    out.gather(spans, 1, 16);  // commits the first chunk
    out.push_control(frame_type::ping, {}, byte_vector(8));
    const auto headers = headers_in(drain(out));
    ASSERT_GT(headers.size(), 2U);
    EXPECT_EQ(headers[0].type, static_cast<std::uint8_t>(frame_type::compute));
    EXPECT_EQ(headers[1].type, static_cast<std::uint8_t>(frame_type::ping));
}

TEST(wire_stream, messages_take_turns) {
    chunker out;
    out.set_limits({1 << 20, 4096, 64});
    out.push_message(frame_type::compute, {}, {1}, {shared_bytes::own(byte_vector(10 * 4096))});
    out.push_message(frame_type::compute, {}, {2}, {shared_bytes::own(byte_vector(2 * 4096))});
    out.push_message(frame_type::compute, {}, {3}, {shared_bytes::own(byte_vector(100))});
    std::vector<std::uint64_t> order;
    for (const frame_header& header : headers_in(drain(out)))
        order.push_back(header.request.value);
    // The short one does not wait for the long ones, and the second is done long before the first.
    EXPECT_EQ(order, (std::vector<std::uint64_t>{3, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(wire_stream, the_receivers_bounds_on_unfinished_messages_are_kept) {
    std::mt19937_64 random(5);
    const limits receiver{65536, 4096, 64};
    chunker out;
    out.set_limits(receiver);
    std::map<std::uint64_t, std::uint64_t> total;
    for (std::uint64_t id = 1; id <= 40; ++id) {
        total[id] = 4097 + random() % 50000;
        out.push_message(frame_type::compute, {}, {id}, {shared_bytes::own(byte_vector(total[id]))});
    }
    std::map<std::uint64_t, bool> open;
    std::size_t most_open = 0;
    for (const frame_header& header : headers_in(drain(out))) {
        open[header.request.value] = true;
        if (!header.more_chunks()) open.erase(header.request.value);
        std::uint64_t sum = 0;
        for (const auto& [id, is_open] : open)
            sum += total[id];
        EXPECT_LE(sum, receiver.max_message_bytes);
        EXPECT_LE(open.size(), max_open_messages);
        most_open = std::max(most_open, open.size());
    }
    EXPECT_GT(most_open, 1U);
    EXPECT_TRUE(open.empty());
}

TEST(wire_stream, withdrawing) {
    chunker out;
    out.set_limits({1 << 20, 4096, 64});
    const auto push = [&out](std::uint64_t id, std::size_t size) {
        out.push_message(frame_type::compute, {}, {id}, {shared_bytes::own(byte_vector(size))});
    };
    push(1, 100);
    push(2, 10000);
    EXPECT_EQ(out.withdraw(frame_type::compute, {3}), chunker::withdrawal::not_there);
    EXPECT_EQ(out.withdraw(frame_type::result, {1}), chunker::withdrawal::not_there);
    EXPECT_EQ(out.withdraw(frame_type::compute, {1}), chunker::withdrawal::dropped);
    EXPECT_EQ(out.withdraw(frame_type::compute, {2}), chunker::withdrawal::dropped);
    EXPECT_EQ(out.pending_bytes(), 0U);
    EXPECT_TRUE(drain(out).empty());

    push(4, 100000);
    std::vector<byte_span> spans;
    out.gather(spans, 1, 16);
    EXPECT_EQ(out.withdraw(frame_type::compute, {4}), chunker::withdrawal::cut_short);
    const auto headers = headers_in(drain(out));
    ASSERT_EQ(headers.size(), 2U);
    EXPECT_TRUE(headers[0].more_chunks());
    EXPECT_FALSE(headers[1].more_chunks());
    EXPECT_EQ(headers[1].payload_bytes, 0U);
    EXPECT_EQ(out.withdraw(frame_type::compute, {4}), chunker::withdrawal::not_there);
}

TEST(wire_stream, bytes_live_until_they_are_consumed) {
    chunker out;
    out.set_limits({});
    auto rows = std::make_shared<byte_vector>(5000, std::byte{7});
    const std::weak_ptr<byte_vector> watched = rows;
    out.push_message(frame_type::compute, {}, {1}, {{.bytes = *rows, .owner = rows}});
    rows.reset();
    std::vector<byte_span> spans;
    out.gather(spans, 1 << 20, 16);
    // Even if everything else is forgotten meanwhile.
    out.drop_uncommitted();
    EXPECT_FALSE(watched.expired());
    EXPECT_EQ(spans.back()[100], std::byte{7});
    out.consume(frame_header_bytes + 5000);
    EXPECT_TRUE(watched.expired());
}

TEST(wire_stream, unknown_optional_frames_are_skipped) {
    std::mt19937_64 random(6);
    reassembler in({}, nullptr);
    feeder feed(in, random);
    byte_vector bytes = frame(0x40, flag_more_chunks, 1, 2, byte_vector(1000));
    for (const byte_vector& more : {frame(0x7f, 0, 1, 2, byte_vector(0)), frame(frame_type::ping, 0, byte_vector(8))})
        bytes.insert(bytes.end(), more.begin(), more.end());
    feed.feed(bytes, 100);
    ASSERT_EQ(feed.messages.size(), 1U);
    EXPECT_EQ(feed.messages[0].type, frame_type::ping);
}

TEST(wire_stream, a_budget_that_does_not_suffice_discards_one_message_only) {
    const auto budget = std::make_shared<byte_budget>(10000);
    reassembler in({}, budget);
    std::vector<raw_message> messages;
    const auto feed = [&](byte_span bytes) {
        for (;;) {
            auto step = in.next(bytes, {});
            if (std::holds_alternative<reassembler::need_more>(step)) return;
            ASSERT_FALSE(std::holds_alternative<framing_fault>(step));
            if (std::holds_alternative<frame_header>(step)) {
                in.keep();
            } else {
                messages.push_back(std::move(std::get<raw_message>(step)));
            }
        }
    };
    feed(frame(frame_type::compute, 1, byte_vector(6000)));
    EXPECT_EQ(budget->used_bytes(), 6000U);
    feed(frame(frame_type::compute, 2, byte_vector(6000)));
    feed(frame(frame_type::compute, 3, byte_vector(4000)));
    ASSERT_EQ(messages.size(), 3U);
    EXPECT_FALSE(messages[0].discarded);
    EXPECT_EQ(messages[1].discarded, error_code::busy);
    EXPECT_EQ(messages[1].payload.size(), 0U);
    EXPECT_FALSE(messages[2].discarded);
    EXPECT_EQ(budget->used_bytes(), 10000U);
    messages.clear();
    EXPECT_EQ(budget->used_bytes(), 0U);
}

}  // namespace
}  // namespace kvasir::wire
