// Writes the seeds of the wire targets: one honest input of every kind. Run by hand when the protocol changes:
//
//     wire_make_corpus <fuzz/corpus>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "wire/conversation.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::wire;
using bytes = std::vector<std::byte>;

void add(bytes& to, byte_span more) {
    to.insert(to.end(), more.begin(), more.end());
}

bytes operator+(bytes left, const bytes& right) {
    add(left, right);
    return left;
}

bytes one(unsigned value) {
    return {static_cast<std::byte>(value)};
}

bytes joined(const payload_pieces& pieces) {
    bytes all;
    for (const shared_bytes& piece : pieces)
        add(all, piece.bytes);
    return all;
}

bytes frame(frame_type type, std::uint64_t request, const bytes& payload, std::uint32_t layer = 0,
            std::uint16_t flags = 0) {
    const auto header = encode(frame_header{.type = static_cast<std::uint8_t>(type),
                                            .flags = flags,
                                            .layer = {layer},
                                            .request = {request},
                                            .payload_bytes = payload.size()});
    bytes all;
    all.reserve(header.size() + payload.size());
    add(all, header);
    add(all, payload);
    return all;
}

/// As the conversation target takes arriving bytes; the last step may have to be filled up.
bytes arriving(bytes content) {
    bytes steps;
    while (!content.empty()) {
        const std::size_t units = std::min<std::size_t>(0xbf, (content.size() + 2) / 4);
        const std::size_t count = std::min(content.size(), units * 4 + 1);
        add(steps, one(static_cast<unsigned>(units)));
        add(steps, byte_span(content).first(count));
        content.erase(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(count));
    }
    return steps;
}

void save(const std::filesystem::path& path, const bytes& content) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

hello worker_hello() {
    hello said;
    said.role = node_role::worker;
    said.numerics.assign("kernels");
    said.build = "build";
    said.name = "shed";
    said.accepts = {.max_message_bytes = min_max_message_bytes,
                    .max_chunk_bytes = min_max_chunk_bytes,
                    .max_requests_in_flight = 4};
    said.layers = {{.layer = {1},
                    .n_in = 2,
                    .n_out = 3,
                    .encodings = {row_encoding::f32, row_encoding::q8_k},
                    .ranges = {{.first = {0}, .count = 2}, {.first = {5}, .count = 1}}}};
    return said;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "wire_make_corpus: give the directory of the corpora\n");
        return 2;
    }
    const std::filesystem::path root = argv[1];
    const bytes says_worker = *encode(worker_hello());
    hello backbone = worker_hello();
    backbone.role = node_role::backbone;
    backbone.layers.clear();
    const bytes says_backbone = *encode(backbone);

    compute_request request;
    request.layer = {1};
    request.act = {activation_kind::swiglu_oai, 1.7F, 7.0F};
    request.n_rows = 2;
    request.n_values = 2;
    request.rows = shared_bytes::own(std::vector<float>{1.0F, 2.0F, 3.0F, 4.0F});
    request.pairs = {{0, 1}, {1, 0}, {1, 1}};
    const bytes compute = joined(*encode(request));
    const bytes result =
        joined(*encode(compute_result{.n_pairs = 3, .n_values = 3, .rows = shared_bytes::own(std::vector<float>(9))}));
    const bytes short_result =
        joined(*encode(compute_result{.n_pairs = 1, .n_values = 3, .rows = shared_bytes::own(std::vector<float>(3))}));
    const bytes failure = encode(error_message{error_code::busy, "full"});
    const bytes refused = encode(refusal{
        .code = refusal_code::model, .field = "model digest", .ours = "aa", .theirs = "bb", .remedy = "cut it"});
    const bytes token(8, std::byte{7});

    const auto messages = root / "wire_message";
    save(messages / "hello_worker", one(0) + says_worker);
    save(messages / "hello_backbone", one(0) + says_backbone);
    save(messages / "refuse", one(1) + refused);
    save(messages / "error", one(2) + failure);
    save(messages / "compute", one(3) + compute);
    save(messages / "result", one(4) + result);

    const auto frames = root / "wire_frame";
    save(frames / "control", one(1) + frame(frame_type::hello, 0, says_worker) + frame(frame_type::ping, 0, token) +
                                 frame(frame_type::cancel, 9, {}) + frame(frame_type::drain, 0, {}));
    save(frames / "whole",
         one(2) + frame(frame_type::compute, 1, compute, 1) + frame(frame_type::result, 1, bytes(90), 1));
    save(frames / "chunks", one(3) + frame(frame_type::compute, 1, bytes(90), 1, flag_more_chunks) +
                                frame(frame_type::result, 103, bytes(50), 2, flag_more_chunks) +
                                frame(frame_type::pong, 0, token) + frame(frame_type::compute, 1, bytes(20), 1) +
                                frame(frame_type::result, 103, {}, 2));
    save(frames / "optional",
         one(4) + frame(static_cast<frame_type>(0x40), 5, bytes(30)) + frame(frame_type::goodbye, 0, {}));

    const auto talks = root / "wire_conversation";
    const bytes some_time = one(0xea) + one(0xf7);
    save(talks / "worker_from_hello", one(1) + arriving(frame(frame_type::hello, 0, says_backbone)) +
                                          arriving(frame(frame_type::compute, 1, compute, 1)) + one(0xd9) + one(0xf7));
    save(talks / "worker_answers", one(3) + arriving(frame(frame_type::compute, 1, compute, 1)) + one(0xd9) +
                                       arriving(frame(frame_type::compute, 2, compute, 1)) + one(0xe2) + some_time);
    save(talks / "worker_cancelled",
         one(3) + arriving(frame(frame_type::compute, 1, bytes(60), 1, flag_more_chunks)) +
             arriving(frame(frame_type::cancel, 1, {})) + arriving(frame(frame_type::compute, 1, {}, 1)) +
             arriving(frame(frame_type::compute, 2, compute, 1)) + arriving(frame(frame_type::cancel, 2, {})) +
             one(0xda) + one(0xf9) + one(0xf8));
    save(talks / "backbone_result", one(2) + one(0xc0) + one(0xf7) +
                                        arriving(frame(frame_type::result, 1, short_result, 1)) + one(0xc1) +
                                        one(0xf7) + arriving(frame(frame_type::error, 2, failure)));
    save(talks / "backbone_cancels",
         one(2) + one(0xc8) + one(0xf2) + one(0xd0) + one(0xf7) + arriving(frame(frame_type::error, 1, failure)) +
             arriving(frame(frame_type::drain, 0, {})) + arriving(frame(frame_type::goodbye, 0, {})));
    save(talks / "backbone_refused", one(0) + arriving(frame(frame_type::refuse, 0, refused)));
    return 0;
}
