// Round trips of every message, with random contents.
#include <gmock/gmock.h>

#include "wire_support.hpp"

namespace kvasir::wire {
namespace {

using ::testing::HasSubstr;

hello random_hello(std::mt19937_64& random) {
    const auto below = [&random](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
    hello made;
    made.minor = static_cast<std::uint16_t>(below(3));
    made.role = below(2) == 0 ? node_role::backbone : node_role::worker;
    for (std::byte& byte : made.model.bytes)
        byte = static_cast<std::byte>(random());
    for (std::byte& byte : made.node.bytes)
        byte = static_cast<std::byte>(random());
    made.numerics = std::string(below(1024), 'n');
    made.build = std::string(below(1024), 'b');
    made.name = std::string(below(65), 'm');
    made.accepts = {random(), below(1U << 31U), below(1U << 31U)};
    std::uint32_t layer = 0;
    for (std::uint32_t i = below(20); i > 0; --i) {
        held_layer held{.layer = {layer += 1 + below(5)}, .n_in = 1 + below(5000), .n_out = 1 + below(5000)};
        if (below(2) == 0) held.encodings.push_back(row_encoding::f32);
        if (below(2) == 0) held.encodings.push_back(row_encoding::q8_k);
        std::uint32_t next = below(10);
        for (std::uint32_t n = 1 + below(5); n > 0; --n) {
            const std::uint32_t count = 1 + below(40);
            held.ranges.push_back({.first = {next}, .count = count});
            next += count + below(9);
        }
        made.layers.push_back(std::move(held));
    }
    return made;
}

TEST(wire_messages, hello_round_trip) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 500; ++i) {
        const hello sent = random_hello(random);
        const auto payload = encode(sent);
        ASSERT_TRUE(payload) << payload.error().message;
        const auto received = decode_hello(*payload);
        ASSERT_TRUE(received) << received.error().message;
        EXPECT_EQ(*received, sent);
    }
}

TEST(wire_messages, held_layer_translates_ids_both_ways) {
    std::mt19937_64 random(2);
    for (int i = 0; i < 200; ++i) {
        for (const held_layer& held : random_hello(random).layers) {
            std::uint32_t next = 0;
            for (const expert_range& range : held.ranges) {
                for (std::uint32_t e = range.first.value; e < range.first.value + range.count; ++e) {
                    EXPECT_EQ(held.local_of({e}), local_expert_id{next});
                    EXPECT_EQ(held.global_of({next}), expert_id{e});
                    ++next;
                }
            }
            EXPECT_EQ(held.n_experts(), next);
            EXPECT_FALSE(held.global_of({next}));
            EXPECT_FALSE(held.global_of({0xffffffff}));
            EXPECT_FALSE(held.local_of({0xffffffff}));
            const expert_range& last = held.ranges.back();
            EXPECT_FALSE(held.local_of({last.first.value + last.count}));
        }
    }
}

TEST(wire_messages, hello_keeps_what_it_does_not_know_out) {
    // A tagged field of a later version, before the name and after it, and an encoding bit that this build does not
    // know.
    hello sent = worker_hello();
    sent.name = "shed";
    auto payload = *encode(sent);
    const byte_vector unknown = from_hex_text("ff7f 04000000 deadbeef");
    payload.insert(payload.end(), unknown.begin(), unknown.end());
    const auto received = decode_hello(payload);
    ASSERT_TRUE(received) << received.error().message;
    EXPECT_EQ(*received, sent);
}

TEST(wire_messages, hello_of_another_major_version_is_not_read_further) {
    auto payload = *encode(worker_hello());
    payload[0] = std::byte{2};
    payload.resize(5);
    const auto received = decode_hello(payload);
    ASSERT_FALSE(received);
    EXPECT_EQ(received.error().code, errc::unsupported);
    EXPECT_EQ(hello_major_version(payload), 2);
}

TEST(wire_messages, hello_too_long_to_say_is_refused_here) {
    hello sent = worker_hello();
    held_layer& held = sent.layers[0];
    held.ranges.clear();
    for (std::uint32_t e = 0; e < 65536; e += 2)
        held.ranges.push_back({.first = {e}, .count = 1});
    const auto payload = encode(sent);
    ASSERT_FALSE(payload);
    EXPECT_EQ(payload.error().code, errc::limit_exceeded);
    EXPECT_THAT(payload.error().message, HasSubstr("hold fewer"));
}

TEST(wire_messages, refusal_round_trip) {
    const refusal sent{
        .code = refusal_code::model, .field = "model digest", .ours = "aa", .theirs = "bb", .remedy = "cut it anew"};
    const auto received = decode_refusal(encode(sent));
    ASSERT_TRUE(received);
    EXPECT_EQ(*received, sent);
    EXPECT_THAT(received->sentence(), HasSubstr("model digest"));
    EXPECT_THAT(received->sentence(), HasSubstr("cut it anew"));
}

TEST(wire_messages, compute_round_trip) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 300; ++i) {
        compute_request sent;
        sent.layer = {static_cast<std::uint32_t>(random() % 100)};
        sent.act = {static_cast<activation_kind>(1 + random() % 11), 0.5F, -2.0F};
        sent.companions = static_cast<std::uint16_t>(random() & all_companions);
        sent.encoding = random() % 2 == 0 ? row_encoding::f32 : row_encoding::q8_k;
        sent.n_rows = static_cast<std::uint32_t>(random() % 6);
        sent.n_values = 256U * static_cast<std::uint32_t>(1 + random() % 3);
        const byte_vector rows = random_bytes(sent.n_rows * *row_size_bytes(sent.encoding, sent.n_values), random);
        sent.rows = shared_bytes::own(rows);
        if (sent.n_rows > 0) {
            for (std::uint64_t n = random() % 20; n > 0; --n)
                sent.pairs.push_back(
                    {static_cast<std::uint32_t>(random() % sent.n_rows), static_cast<std::uint32_t>(random())});
        }
        const auto pieces = encode(sent);
        ASSERT_TRUE(pieces) << pieces.error().message;
        const byte_vector payload = joined(*pieces);
        EXPECT_EQ(payload.size(), sent.payload_bytes());
        const auto received = decode_compute(sent.layer, payload_buffer::copy_of(payload));
        ASSERT_TRUE(received) << received.error().message;
        EXPECT_EQ(received->layer, sent.layer);
        EXPECT_EQ(received->act, sent.act);
        EXPECT_EQ(received->companions, sent.companions);
        EXPECT_EQ(received->encoding, sent.encoding);
        EXPECT_EQ(received->n_rows, sent.n_rows);
        EXPECT_EQ(received->n_values, sent.n_values);
        EXPECT_EQ(received->pairs, sent.pairs);
        EXPECT_TRUE(std::equal(received->rows.begin(), received->rows.end(), rows.begin(), rows.end()));
    }
}

TEST(wire_messages, compute_sends_rows_from_where_they_are) {
    const compute_request sent = small_request(5);
    const auto pieces = encode(sent);
    ASSERT_TRUE(pieces);
    EXPECT_TRUE(std::any_of(pieces->begin(), pieces->end(), [&](const shared_bytes& piece) {
        return piece.bytes.data() == sent.rows.bytes.data() && piece.bytes.size() == sent.rows.bytes.size();
    }));
}

TEST(wire_messages, compute_that_does_not_fit_itself_is_not_sent) {
    compute_request wrong_length = small_request(2);
    wrong_length.n_rows = 3;
    EXPECT_FALSE(encode(wrong_length));

    compute_request wrong_row = small_request(2);
    wrong_row.pairs[1].row = 2;
    EXPECT_FALSE(encode(wrong_row));

    compute_request wrong_encoding = small_request(2);
    wrong_encoding.encoding = row_encoding::q8_k;
    EXPECT_FALSE(encode(wrong_encoding));

    compute_request too_wide = small_request(0);
    too_wide.n_values = max_values_per_row + 1;
    EXPECT_FALSE(encode(too_wide));
}

TEST(wire_messages, result_round_trip_is_bit_exact) {
    std::mt19937_64 random(4);
    for (int i = 0; i < 200; ++i) {
        compute_result sent;
        sent.queue_depth = static_cast<std::uint16_t>(random());
        sent.n_pairs = static_cast<std::uint32_t>(random() % 9);
        sent.n_values = static_cast<std::uint32_t>(1 + random() % 300);
        sent.compute_time_us = static_cast<std::uint32_t>(random());
        sent.queue_time_us = static_cast<std::uint32_t>(random());
        // Any bits, not-a-number with payload included.
        const byte_vector rows = random_bytes(std::size_t{sent.n_pairs} * sent.n_values * sizeof(float), random);
        sent.rows = shared_bytes::own(rows);
        const auto pieces = encode(sent);
        ASSERT_TRUE(pieces) << pieces.error().message;
        const byte_vector payload = joined(*pieces);
        EXPECT_EQ(payload.size(), result_payload_bytes(sent.n_pairs, sent.n_values));
        const auto received = decode_result({9}, payload_buffer::copy_of(payload));
        ASSERT_TRUE(received) << received.error().message;
        EXPECT_EQ(received->layer, layer_id{9});
        EXPECT_EQ(received->queue_depth, sent.queue_depth);
        EXPECT_EQ(received->n_pairs, sent.n_pairs);
        EXPECT_EQ(received->n_values, sent.n_values);
        EXPECT_EQ(received->compute_time_us, sent.compute_time_us);
        EXPECT_EQ(received->queue_time_us, sent.queue_time_us);
        const byte_span values = std::as_bytes(received->values());
        ASSERT_EQ(values.size(), rows.size());
        EXPECT_TRUE(std::equal(values.begin(), values.end(), rows.begin()));
        if (sent.n_pairs > 0) {
            EXPECT_EQ(received->row(sent.n_pairs - 1).size(), sent.n_values);
        }
    }
}

TEST(wire_messages, result_size_does_not_overflow) {
    EXPECT_EQ(result_payload_bytes(0, 0xffffffff), result_head_bytes);
    EXPECT_EQ(result_payload_bytes(0xffffffff, 0), result_head_bytes);
    EXPECT_EQ(result_payload_bytes(2, 3), result_head_bytes + 24);
    EXPECT_FALSE(result_payload_bytes(0xffffffff, 0xffffffff));
    EXPECT_FALSE(result_payload_bytes(1ULL << 62U, 4));
}

TEST(wire_messages, error_round_trip_and_cleaning) {
    const error_message sent{error_code::busy, "too much"};
    EXPECT_EQ(*decode_error(encode(sent)), sent);
    // A number of a later version counts as internal.
    auto payload = encode(sent);
    payload[0] = std::byte{0xff};
    EXPECT_EQ(decode_error(payload)->code, error_code::internal);
    // What a peer says does not reach a terminal as it is.
    EXPECT_EQ(decode_error(encode(error_message{error_code::busy, "a\x1b[2J\nb\xff\xc2\x9b"}))->text, "a [2J b?  ");
    // Too long: cut between characters.
    const std::string umlauts = [] {
        std::string text = "x";
        for (int i = 0; i < 1000; ++i)
            text += "\xc3\xa4";
        return text;
    }();
    const auto cut = decode_error(encode(error_message{error_code::busy, umlauts}));
    ASSERT_TRUE(cut);
    EXPECT_EQ(cut->text, umlauts.substr(0, 1023));
}

TEST(wire_messages, peers_are_checked_field_by_field) {
    const hello ours = backbone_hello();
    const hello good = worker_hello();
    const peer_policy exact{.demand_equal_numerics = true};
    EXPECT_FALSE(check_peer(ours, good, exact));
    EXPECT_FALSE(check_peer(good, ours, exact));

    hello changed = good;
    changed.role = node_role::backbone;
    EXPECT_EQ(check_peer(ours, changed, exact)->code, refusal_code::role);
    changed = good;
    changed.major = 2;
    EXPECT_EQ(check_peer(ours, changed, exact)->code, refusal_code::protocol_version);
    changed = good;
    changed.minor = 9;
    EXPECT_FALSE(check_peer(ours, changed, exact));
    changed = good;
    changed.model.bytes[31] ^= std::byte{1};
    const auto other_model = check_peer(ours, changed, exact);
    ASSERT_TRUE(other_model);
    EXPECT_EQ(other_model->code, refusal_code::model);
    EXPECT_EQ(other_model->theirs, changed.model.hex());
    EXPECT_EQ(other_model->ours, ours.model.hex());
    EXPECT_FALSE(other_model->remedy.empty());
    changed = good;
    changed.numerics += "x";
    EXPECT_EQ(check_peer(ours, changed, exact)->code, refusal_code::numerics);
    EXPECT_FALSE(check_peer(ours, changed, {.demand_equal_numerics = false}));
    for (const limits bad :
         {limits{1, default_max_chunk_bytes, 1}, limits{default_max_message_bytes, 1, 1},
          limits{default_max_message_bytes, default_max_chunk_bytes, 0},
          limits{1ULL << 60U, default_max_chunk_bytes, 1}, limits{default_max_message_bytes, 1U << 31U, 1},
          limits{default_max_message_bytes, default_max_chunk_bytes, 1U << 31U}}) {
        changed = good;
        changed.accepts = bad;
        EXPECT_EQ(check_peer(ours, changed, exact)->code, refusal_code::limits);
    }
}

}  // namespace
}  // namespace kvasir::wire
