// Bytes that lie: each is refused by name, and none makes the receiver hold more than it may.
#include <gmock/gmock.h>

#include "wire_support.hpp"

namespace kvasir::wire {
namespace {

using ::testing::HasSubstr;

struct lie {
    const char* what;
    byte_vector bytes;
    error_code code;
};

/// A worker that is established, given `bytes`; what it says last.
error_message last_words_of(conversation& talk) {
    const byte_vector said = drain(talk.output());
    byte_span rest = said;
    std::optional<error_message> last;
    while (rest.size() >= frame_header_bytes) {
        const frame_header header = decode_frame_header(rest.first<frame_header_bytes>());
        const byte_span payload = rest.subspan(frame_header_bytes, static_cast<std::size_t>(header.payload_bytes));
        if (header.type == static_cast<std::uint8_t>(frame_type::error) && header.request.value == 0) {
            last = *decode_error(payload);
        }
        rest = rest.subspan(frame_header_bytes + payload.size());
    }
    EXPECT_TRUE(last) << "nothing was said";
    return last.value_or(error_message{});
}

byte_vector header_only(frame_type type, std::uint64_t length, std::uint16_t flags = 0, std::uint64_t request = 1) {
    const auto header = encode(frame_header{
        .type = static_cast<std::uint8_t>(type), .flags = flags, .request = {request}, .payload_bytes = length});
    return {header.begin(), header.end()};
}

byte_vector with_version(std::uint8_t version) {
    auto bytes = header_only(frame_type::ping, 8);
    bytes[0] = static_cast<std::byte>(version);
    return bytes;
}

byte_vector operator+(byte_vector left, const byte_vector& right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
}

byte_vector begun(std::uint64_t request, std::size_t bytes = 1) {
    return frame(frame_type::compute, request, byte_vector(bytes), 0, flag_more_chunks);
}

TEST(wire_hostile, framing_lies_end_the_connection_by_name) {
    byte_vector too_many_open;
    for (std::uint64_t id = 1; id <= max_open_messages + 1; ++id)
        too_many_open = too_many_open + begun(id);
    byte_vector too_much_open;
    for (std::uint64_t id = 1; id <= 3; ++id)
        too_much_open = too_much_open + begun(id, 200 * 1024);  // with at most 512 KiB agreed on, see below
    const std::vector<lie> lies = {
        {"frame version 0", with_version(0), error_code::malformed},
        {"HTTP", from_hex_text("474554202f20485454502f312e310d0a486f73743a20780d"), error_code::malformed},
        {"unknown flag", header_only(frame_type::ping, 8, 2), error_code::malformed},
        {"type 0", frame(0, 0, 0, 0, {}), error_code::unknown_type},
        {"critical type", frame(0x3f, 0, 0, 0, {}), error_code::unknown_type},
        {"reserved type", frame(0x80, 0, 0, 0, {}), error_code::unknown_type},
        {"endless ping", header_only(frame_type::ping, ~0ULL), error_code::limit_exceeded},
        {"endless compute", header_only(frame_type::compute, ~0ULL), error_code::limit_exceeded},
        {"chunk too long", header_only(frame_type::compute, default_max_chunk_bytes + 1), error_code::limit_exceeded},
        {"optional frame too long", frame(0x41, 0, 0, 0, byte_vector(default_max_chunk_bytes + 1)),
         error_code::limit_exceeded},
        {"cut ping", header_only(frame_type::ping, 8, flag_more_chunks), error_code::malformed},
        {"empty chunk that is not the last", header_only(frame_type::compute, 0, flag_more_chunks),
         error_code::malformed},
        {"two layers", begun(1) + frame(frame_type::compute, 1, byte_vector(1), 9), error_code::malformed},
        {"too many begun", too_many_open, error_code::limit_exceeded},
        {"too much begun", too_much_open, error_code::limit_exceeded},
        {"message too long", begun(1, 256 * 1024) + begun(1, 256 * 1024) + begun(1, 1), error_code::limit_exceeded},
        {"second HELLO", frame(frame_type::hello, 0, *encode(backbone_hello())), error_code::unexpected},
        {"RESULT to a worker", frame(frame_type::result, 1, byte_vector(24)), error_code::unexpected},
        {"DRAIN to a worker", frame(frame_type::drain, 0, {}), error_code::unexpected},
        {"COMPUTE without id", frame(frame_type::compute, 0, byte_vector(24)), error_code::unexpected},
        {"ERROR for a request to a worker", frame(frame_type::error, 7, encode(error_message{error_code::busy, ""})),
         error_code::unexpected},
        {"ping of 7 bytes", frame(frame_type::ping, 0, byte_vector(7)), error_code::malformed},
        {"pong of 9 bytes", frame(frame_type::pong, 0, byte_vector(9)), error_code::malformed},
        {"pong to nothing", frame(frame_type::pong, 0, byte_vector(8)), error_code::unexpected},
        {"cancel with contents", frame(frame_type::cancel, 1, byte_vector(1)), error_code::malformed},
        {"goodbye with contents", frame(frame_type::goodbye, 0, byte_vector(1)), error_code::malformed},
        {"error cut off", frame(frame_type::error, 0, byte_vector(3)), error_code::malformed},
        {"refuse cut off", frame(frame_type::refuse, 0, byte_vector(3)), error_code::malformed},
    };
    for (const lie& told : lies) {
        SCOPED_TRACE(told.what);
        hello small = worker_hello();
        small.accepts.max_message_bytes = 512 * 1024;
        talking_pair both({}, backbone_hello(), small);
        both.settle();
        both.worker.talk.receive(told.bytes, both.clock.now());
        both.worker.collect();
        EXPECT_TRUE(both.worker.talk.closed());
        EXPECT_EQ(both.worker.count<closed_event>(), 1U);
        EXPECT_EQ(both.worker.count<compute_event>(), 0U);
        const error_message said = last_words_of(both.worker.talk);
        EXPECT_EQ(said.code, told.code) << said.text;
        EXPECT_FALSE(said.text.empty());
        // Whatever still comes is ignored.
        both.worker.talk.receive(told.bytes, both.clock.now());
        both.worker.collect();
        EXPECT_EQ(both.worker.count<closed_event>(), 1U);
    }
}

TEST(wire_hostile, before_hello_nothing_else_is_heard) {
    for (const frame_type type : {frame_type::compute, frame_type::result, frame_type::ping, frame_type::pong,
                                  frame_type::cancel, frame_type::drain}) {
        SCOPED_TRACE(name_of(type));
        side worker(worker_hello(), {}, {});
        worker.talk.receive(header_only(type, 8), {});
        worker.collect();
        EXPECT_TRUE(worker.talk.closed());
        EXPECT_EQ(last_words_of(worker.talk).code, error_code::unexpected);
    }
    side worker(worker_hello(), {}, {});
    worker.talk.receive(header_only(frame_type::hello, max_hello_bytes + 1), {});
    EXPECT_TRUE(worker.talk.closed());
}

TEST(wire_hostile, compute_lies_are_answered_and_survived) {
    const byte_vector honest = joined(*encode(small_request(2)));
    const auto changed = [&honest](std::size_t at, std::string_view hex) {
        byte_vector payload = honest;
        const byte_vector patch = from_hex_text(hex);
        std::copy(patch.begin(), patch.end(), payload.begin() + static_cast<std::ptrdiff_t>(at));
        return payload;
    };
    const std::vector<std::pair<const char*, byte_vector>> lies = {
        {"empty", {}},
        {"head cut off", byte_vector(honest.begin(), honest.begin() + 23)},
        {"rows cut off", byte_vector(honest.begin(), honest.begin() + 40)},
        {"pair cut off", byte_vector(honest.begin(), honest.end() - 1)},
        {"a byte too many", honest + byte_vector(1)},
        {"activation 0", changed(0, "00")},
        {"activation 255", changed(0, "ff")},
        {"encoding 2", changed(1, "02")},
        {"q8_k of 8 values", changed(1, "01")},
        {"reserved", changed(2, "0001")},
        {"4 billion rows", changed(12, "ffffffff")},
        {"4 billion pairs", changed(16, "ffffffff")},
        {"4 billion values", changed(20, "ffffffff")},
        {"no values", changed(20, "00000000")},
        {"everything at most", changed(12, "ffffffff ffffffff ffffffff")},
        {"row 2 of 2", changed(24 + 64, "02000000")},
        {"row 4294967295", changed(24 + 64, "ffffffff")},
    };
    talking_pair both;
    both.settle();
    std::uint64_t id = 0;
    for (const auto& [what, payload] : lies) {
        SCOPED_TRACE(what);
        both.worker.talk.receive(frame(frame_type::compute, ++id, payload, 3), both.clock.now());
        both.worker.collect();
        EXPECT_EQ(both.worker.count<compute_event>(), 0U);
        const byte_vector said = drain(both.worker.talk.output());
        ASSERT_GT(said.size(), frame_header_bytes);
        const frame_header header = decode_frame_header(byte_span(said).first<frame_header_bytes>());
        EXPECT_EQ(header.type, static_cast<std::uint8_t>(frame_type::error));
        EXPECT_EQ(header.request.value, id);
        EXPECT_EQ(decode_error(byte_span(said).subspan(frame_header_bytes))->code, error_code::malformed);
    }
    both.worker.talk.receive(frame(frame_type::compute, ++id, honest, 3), both.clock.now());
    both.worker.collect();
    EXPECT_EQ(both.worker.count<compute_event>(), 1U);
}

TEST(wire_hostile, hello_lies) {
    const byte_vector honest = *encode(worker_hello());
    // Cut off anywhere, it is refused; so is every length in it that claims more than there is.
    for (std::size_t length = 0; length < honest.size(); ++length) {
        if (const auto read = decode_hello(byte_span(honest).first(length))) {
            // The end of the layers: nothing says that a name must follow.
            EXPECT_EQ(read->layers, worker_hello().layers);
        }
    }
    const std::size_t numerics_at = 8 + 32 + 32 + 16;
    const std::size_t layers_at = numerics_at + 2 + worker_hello().numerics.size() + 2 + worker_hello().build.size();
    const auto changed = [&honest](std::size_t at, std::string_view hex) {
        byte_vector payload = honest;
        const byte_vector patch = from_hex_text(hex);
        std::copy(patch.begin(), patch.end(), payload.begin() + static_cast<std::ptrdiff_t>(at));
        return payload;
    };
    const std::vector<std::pair<const char*, byte_vector>> lies = {
        {"role 0", changed(4, "00")},
        {"role 3", changed(4, "03")},
        {"long numerics", changed(numerics_at, "ffff")},
        {"4 billion layers", changed(layers_at, "ffffffff")},
        {"more layers than there are", changed(layers_at, "03000000")},
        {"4 billion ranges", changed(layers_at + 4 + 16, "ffffffff")},
        {"no ranges", changed(layers_at + 4 + 16, "00000000")},
        {"no values in", changed(layers_at + 4 + 4, "00000000")},
        {"endless values out", changed(layers_at + 4 + 8, "ffffffff")},
        {"range of nothing", changed(layers_at + 4 + 20 + 4, "00000000")},
        {"range around the end", changed(layers_at + 4 + 20, "ffffffff ffffffff")},
        {"ranges that overlap", changed(layers_at + 4 + 20 + 8, "06000000")},
        {"layers that descend", changed(layers_at + 4 + 20 + 16, "02000000")},
        {"tag cut off", honest + from_hex_text("0200 0500000000")},
        {"long name", honest + from_hex_text("0100 41000000") + byte_vector(65)},
    };
    for (const auto& [what, payload] : lies) {
        SCOPED_TRACE(what);
        const auto read = decode_hello(payload);
        ASSERT_FALSE(read);
        EXPECT_THAT(read.error().message, HasSubstr("HELLO"));
    }
}

TEST(wire_hostile, result_lies_end_the_connection_to_the_worker) {
    const byte_vector honest =
        joined(*encode(compute_result{.n_pairs = 1, .n_values = 4, .rows = shared_bytes::own(std::vector<float>(4))}));
    const auto changed = [&honest](std::size_t at, std::string_view hex) {
        byte_vector payload = honest;
        const byte_vector patch = from_hex_text(hex);
        std::copy(patch.begin(), patch.end(), payload.begin() + static_cast<std::ptrdiff_t>(at));
        return payload;
    };
    struct result_lie {
        const char* what;
        byte_vector bytes;
    };
    const std::vector<result_lie> lies = {
        {"unknown id", frame(frame_type::result, 2, honest, 3)},
        {"id 0", frame(frame_type::result, 0, honest, 3)},
        {"other layer", frame(frame_type::result, 1, honest, 7)},
        {"empty", frame(frame_type::result, 1, {}, 3)},
        {"cut off", frame(frame_type::result, 1, byte_span(honest).first(honest.size() - 1), 3)},
        {"status", frame(frame_type::result, 1, changed(0, "01"), 3)},
        {"reserved", frame(frame_type::result, 1, changed(1, "01"), 3)},
        {"reserved at the end", frame(frame_type::result, 1, changed(20, "01"), 3)},
        {"pairs that overflow", frame(frame_type::result, 1, changed(4, "ffffffff ffffffff"), 3)},
        {"two halves of rows", frame(frame_type::result, 1, changed(4, "02000000 02000000"), 3)},
        {"ERROR for an unknown id", frame(frame_type::error, 2, encode(error_message{error_code::busy, ""}))},
        {"COMPUTE to a backbone", frame(frame_type::compute, 5, byte_vector(24))},
        {"CANCEL to a backbone", frame(frame_type::cancel, 1, {})},
    };
    for (const result_lie& told : lies) {
        SCOPED_TRACE(told.what);
        talking_pair both;
        both.settle();
        ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
        both.backbone.talk.receive(told.bytes, both.clock.now());
        both.backbone.collect();
        EXPECT_TRUE(both.backbone.talk.closed());
        EXPECT_EQ(both.backbone.count<result_event>(), 0U);
        EXPECT_EQ(both.backbone.count<closed_event>(), 1U);
    }
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    both.backbone.talk.receive(frame(frame_type::result, 1, honest, 3), both.clock.now());
    both.backbone.collect();
    EXPECT_EQ(both.backbone.count<result_event>(), 1U);
}

TEST(wire_hostile, random_bytes_never_do_more_than_close) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 3000; ++round) {
        talking_pair both;
        if (round % 4 != 0) both.settle();
        // Half of the time it looks like frames.
        byte_vector bytes = random_bytes(1 + random() % 400, random);
        if (round % 2 == 0) {
            const auto length = static_cast<std::uint64_t>(random() % 200);
            const auto header = encode(frame_header{.type = static_cast<std::uint8_t>(random() % 12),
                                                    .flags = static_cast<std::uint16_t>(random() % 2),
                                                    .layer = {3},
                                                    .request = {random() % 3},
                                                    .payload_bytes = length});
            bytes.insert(bytes.begin(), header.begin(), header.end());
        }
        side& victim = round % 3 == 0 ? both.backbone : both.worker;
        victim.talk.receive(bytes, both.clock.now());
        both.clock.advance(std::chrono::seconds(60));
        victim.talk.tick(both.clock.now());
        victim.collect();
        EXPECT_TRUE(victim.talk.closed());
        EXPECT_EQ(victim.count<closed_event>(), 1U);
    }
}

TEST(wire_hostile, who_asks_and_never_reads_is_cut_off) {
    conversation_options options;
    options.max_waiting_control_frames = 100;
    talking_pair both(options);
    both.settle();
    for (int i = 0; i < 200 && !both.worker.talk.closed(); ++i)
        both.worker.talk.receive(frame(frame_type::ping, 0, byte_vector(8)), both.clock.now());
    EXPECT_TRUE(both.worker.talk.closed());
    EXPECT_LT(both.worker.talk.output().pending_bytes(), 10000U);

    talking_pair others(options);
    others.settle();
    for (std::uint64_t id = 1; id < 200 && !others.worker.talk.closed(); ++id)
        others.worker.talk.receive(frame(frame_type::compute, id, {}), others.clock.now());
    EXPECT_TRUE(others.worker.talk.closed());
}

}  // namespace
}  // namespace kvasir::wire
