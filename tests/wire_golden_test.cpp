// The bytes of every message, pinned. docs/protocol.md shows the same bytes; whoever changes one changes a protocol.
#include "wire_support.hpp"

namespace kvasir::wire {
namespace {

TEST(wire_golden, frame_header) {
    const frame_header header{.type = 0x03,
                              .flags = flag_more_chunks,
                              .layer = {0x0a0b0c0d},
                              .request = {0x1122334455667788},
                              .payload_bytes = 0x0102030405060708};
    const byte_vector bytes = from_hex_text("01 03 0100 0d0c0b0a 8877665544332211 0807060504030201");
    const auto encoded = encode(header);
    EXPECT_TRUE(std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end()));
    EXPECT_EQ(decode_frame_header(encoded), header);
}

TEST(wire_golden, frame_types) {
    const std::pair<frame_type, int> numbers[] = {
        {frame_type::hello, 0x01}, {frame_type::refuse, 0x02}, {frame_type::compute, 0x03}, {frame_type::result, 0x04},
        {frame_type::error, 0x05}, {frame_type::ping, 0x06},   {frame_type::pong, 0x07},    {frame_type::cancel, 0x08},
        {frame_type::drain, 0x09}, {frame_type::goodbye, 0x0a}};
    for (const auto& [type, number] : numbers) {
        EXPECT_EQ(static_cast<int>(type), number);
        EXPECT_EQ(frame_type_from(static_cast<std::uint8_t>(number)), type);
    }
    EXPECT_FALSE(frame_type_from(0x00));
    EXPECT_FALSE(frame_type_from(0x0b));
    EXPECT_FALSE(is_optional_type(0x3f));
    EXPECT_TRUE(is_optional_type(0x40));
    EXPECT_TRUE(is_optional_type(0x7f));
    EXPECT_FALSE(is_optional_type(0x80));
}

TEST(wire_golden, codes) {
    EXPECT_EQ(static_cast<int>(error_code::malformed), 1);
    EXPECT_EQ(static_cast<int>(error_code::unknown_type), 2);
    EXPECT_EQ(static_cast<int>(error_code::limit_exceeded), 3);
    EXPECT_EQ(static_cast<int>(error_code::unexpected), 4);
    EXPECT_EQ(static_cast<int>(error_code::layer_not_held), 5);
    EXPECT_EQ(static_cast<int>(error_code::expert_not_held), 6);
    EXPECT_EQ(static_cast<int>(error_code::shape_mismatch), 7);
    EXPECT_EQ(static_cast<int>(error_code::encoding_not_accepted), 8);
    EXPECT_EQ(static_cast<int>(error_code::activation_not_accepted), 9);
    EXPECT_EQ(static_cast<int>(error_code::busy), 10);
    EXPECT_EQ(static_cast<int>(error_code::draining), 11);
    EXPECT_EQ(static_cast<int>(error_code::cancelled), 12);
    EXPECT_EQ(static_cast<int>(error_code::timeout), 13);
    EXPECT_EQ(static_cast<int>(error_code::internal), 14);
    EXPECT_FALSE(error_code_from(0));
    EXPECT_FALSE(error_code_from(15));
    EXPECT_EQ(static_cast<int>(refusal_code::protocol_version), 1);
    EXPECT_EQ(static_cast<int>(refusal_code::role), 2);
    EXPECT_EQ(static_cast<int>(refusal_code::model), 3);
    EXPECT_EQ(static_cast<int>(refusal_code::numerics), 4);
    EXPECT_EQ(static_cast<int>(refusal_code::limits), 5);
    EXPECT_EQ(static_cast<int>(refusal_code::capacity), 6);
    EXPECT_EQ(static_cast<int>(refusal_code::leaving), 7);
}

TEST(wire_golden, hello) {
    hello said = worker_hello();
    said.numerics = "k1";
    said.build = "b";
    said.name = "shed";
    const byte_vector bytes = from_hex_text(
        "0100 0000 02 000000"                                               // version 1.0, worker
        "1111111111111111111111111111111111111111111111111111111111111111"  // model
        "3333333333333333333333333333333333333333333333333333333333333333"  // node
        "0000000400000000 00000400 40000000"                                // 64 MiB, 256 KiB, 64
        "0200 6b31"                                                         // "k1"
        "0100 62"                                                           // "b"
        "02000000"                                                          // two layers
        "03000000 08000000 04000000 01000000 02000000"                      // layer 3, 8 -> 4, f32, two ranges
        "04000000 03000000 09000000 01000000"                               // 4..6, 9
        "07000000 00010000 00010000 03000000 01000000"  // layer 7, 256 -> 256, f32 and q8_k, one range
        "00000000 01000000"                             // 0
        "0100 04000000 73686564");                      // tag 1: "shed"
    const auto encoded = encode(said);
    ASSERT_TRUE(encoded);
    EXPECT_EQ(to_hex(*encoded), to_hex(bytes));
    EXPECT_EQ(*decode_hello(bytes), said);
}

TEST(wire_golden, refuse) {
    const refusal said{.code = refusal_code::numerics, .field = "f", .ours = "us", .theirs = "them", .remedy = "try"};
    const byte_vector bytes = from_hex_text("0400 0100 66 0200 7573 0400 7468656d 0300 747279");
    EXPECT_EQ(to_hex(encode(said)), to_hex(bytes));
    EXPECT_EQ(*decode_refusal(bytes), said);
}

TEST(wire_golden, compute) {
    compute_request said;
    said.layer = {3};
    said.act = {activation_kind::swiglu_oai, 1.0F, 7.0F};
    said.companions = up_bias | down_scale;
    said.n_rows = 2;
    said.n_values = 2;
    said.rows = shared_bytes::own(std::vector<float>{1.0F, 2.0F, -1.0F, 0.5F});
    said.pairs = {{0, 5}, {1, 6}, {0, 7}};
    const byte_vector bytes = from_hex_text(
        "0a 00 8400 0000803f 0000e040"         // swiglu_oai, f32, up bias and down scale, alpha 1, limit 7
        "02000000 03000000 02000000"           // 2 rows, 3 pairs, 2 values
        "0000803f 00000040 000080bf 0000003f"  // the rows
        "00000000 05000000 01000000 06000000 00000000 07000000");
    const auto encoded = encode(said);
    ASSERT_TRUE(encoded);
    EXPECT_EQ(to_hex(joined(*encoded)), to_hex(bytes));
    const auto received = decode_compute({3}, payload_buffer::copy_of(bytes));
    ASSERT_TRUE(received);
    EXPECT_EQ(received->act, said.act);
    EXPECT_EQ(received->companions, said.companions);
    EXPECT_EQ(received->pairs, said.pairs);
}

TEST(wire_golden, result) {
    compute_result said;
    said.queue_depth = 0x0102;
    said.n_pairs = 1;
    said.n_values = 2;
    said.compute_time_us = 1000;
    said.queue_time_us = 258;
    said.rows = shared_bytes::own(std::vector<float>{1.0F, -2.0F});
    const byte_vector bytes =
        from_hex_text("00 00 0201 01000000 02000000 e8030000 02010000 00000000 0000803f 000000c0");
    const auto encoded = encode(said);
    ASSERT_TRUE(encoded);
    EXPECT_EQ(to_hex(joined(*encoded)), to_hex(bytes));
    const auto received = decode_result({0}, payload_buffer::copy_of(bytes));
    ASSERT_TRUE(received);
    EXPECT_EQ(received->values()[1], -2.0F);
}

TEST(wire_golden, error) {
    const error_message said{error_code::busy, "full"};
    const byte_vector bytes = from_hex_text("0a00 0400 66756c6c");
    EXPECT_EQ(to_hex(encode(said)), to_hex(bytes));
    EXPECT_EQ(*decode_error(bytes), said);
}

/// What a conversation writes, header and all.
TEST(wire_golden, control_frames) {
    const auto written = [](side& from) { return to_hex(drain(from.talk.output())); };
    const auto expected = [](std::string_view text) { return to_hex(from_hex_text(text)); };
    talking_pair both;
    both.settle();
    EXPECT_TRUE(both.backbone.talk.begin_compute({0x0203}, small_request()));
    written(both.backbone);
    EXPECT_TRUE(both.backbone.talk.cancel({0x0203}));
    EXPECT_EQ(written(both.backbone), expected("01 08 0000 00000000 0302000000000000 0000000000000000"));
    both.worker.talk.drain();
    EXPECT_EQ(written(both.worker), expected("01 09 0000 00000000 0000000000000000 0000000000000000"));
    both.worker.talk.receive(frame(frame_type::ping, 0, from_hex_text("0102030405060708")), both.clock.now());
    EXPECT_EQ(written(both.worker), expected("01 07 0000 00000000 0000000000000000 0800000000000000 0102030405060708"));
    both.worker.talk.goodbye();
    EXPECT_EQ(written(both.worker), expected("01 0a 0000 00000000 0000000000000000 0000000000000000"));
}

TEST(wire_golden, a_long_message_in_chunks) {
    chunker out;
    out.set_limits({.max_message_bytes = 1 << 20, .max_chunk_bytes = 4, .max_requests_in_flight = 1});
    out.push_message(frame_type::result, {2}, {1}, {shared_bytes::own(from_hex_text("aabbcc ddeeff 112233"))});
    EXPECT_EQ(to_hex(drain(out)), to_hex(from_hex_text("01 04 0100 02000000 0100000000000000 0400000000000000 aabbccdd"
                                                       "01 04 0100 02000000 0100000000000000 0400000000000000 eeff1122"
                                                       "01 04 0000 02000000 0100000000000000 0100000000000000 33")));
}

}  // namespace
}  // namespace kvasir::wire
