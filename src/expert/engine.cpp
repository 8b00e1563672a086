// Computes expert calls in bounded pieces: validate, order the pairs by expert, gather their rows, run ggml, scatter.
#include <fmt/core.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "expert/expert.hpp"
#include "expert/ffn_graph.hpp"

namespace kvasir::expert {
namespace {

// Scratch that one piece of a call may take (gathered rows, intermediates, results). Large enough that weights are read
// from memory once per piece for many rows, small enough for a phone.
constexpr std::size_t piece_target_bytes = std::size_t{16} << 20;
// Below this many multiplications per thread, waking the thread costs more than it saves.
constexpr std::int64_t min_products_per_thread = 512 * 1024;

struct backend_deleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct allocator_deleter {
    void operator()(ggml_gallocr_t allocator) const { ggml_gallocr_free(allocator); }
};
struct context_deleter {
    void operator()(ggml_context* context) const { ggml_free(context); }
};

ggml_backend_t start_cpu_backend() {
    ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (backend == nullptr)
        throw std::runtime_error(
            "ggml has no CPU backend: libggml-cpu.so must lie beside the program (or name its directory in "
            "GGML_BACKEND_PATH)");
    return backend;
}

ggml_backend_set_n_threads_t find_set_n_threads(ggml_backend_t backend) {
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    return reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"));
}

result<void> validate_call(const layer_weights& weights, const activation& act, const row_batch& rows,
                           std::span<const row_expert_pair> pairs, std::span<float> out) {
    if (auto valid = validate(weights); !valid) return valid;
    if (auto valid = validate(weights, act); !valid) return valid;
    if (rows.n_values != weights.n_in())
        return error(errc::invalid_input,
                     fmt::format("rows have {} values, the experts take {}", rows.n_values, weights.n_in()));
    if (rows.encoding != row_encoding::f32 && rows.encoding != lossless_encoding(weights))
        return error(errc::invalid_input,
                     fmt::format("rows encoded as {} would change the result of these weight types; send {}",
                                 name_of(rows.encoding), name_of(lossless_encoding(weights))));
    const auto row_bytes = row_size_bytes(rows.encoding, static_cast<std::uint32_t>(rows.n_values));
    if (!row_bytes || rows.bytes.size() / *row_bytes != rows.n_rows || rows.bytes.size() % *row_bytes != 0)
        return error(errc::invalid_input, fmt::format("{} bytes are not {} rows of {} {} values", rows.bytes.size(),
                                                      rows.n_rows, rows.n_values, name_of(rows.encoding)));
    for (const row_expert_pair& pair : pairs) {
        if (pair.row >= rows.n_rows)
            return error(errc::invalid_input, fmt::format("row {} of a batch of {}", pair.row, rows.n_rows));
        if (pair.expert >= weights.n_experts)
            return error(errc::invalid_input, fmt::format("expert {} of {}", pair.expert, weights.n_experts));
    }
    const auto n_out = static_cast<std::size_t>(weights.n_out());
    if (out.size() / n_out != pairs.size() || out.size() % n_out != 0)
        return error(errc::internal, fmt::format("room for {} values, {} pairs of {} values are computed", out.size(),
                                                 pairs.size(), n_out));
    return {};
}

std::size_t scratch_bytes_per_pair(const layer_weights& weights) {
    const std::int64_t n_ff = weights.down.n_in;
    return static_cast<std::size_t>(2 * weights.n_in() + 4 * n_ff + weights.n_out()) * sizeof(float);
}

}  // namespace

struct engine::state {
    explicit state(int threads)
        : cpu(start_cpu_backend()),
          allocator(ggml_gallocr_new(ggml_backend_get_default_buffer_type(cpu.get()))),
          set_backend_threads(find_set_n_threads(cpu.get())),
          n_threads(threads),
          context_memory(ffn_graph_context_bytes()) {}

    void use_threads_for(const layer_weights& weights, std::size_t n_pairs) const {
        if (set_backend_threads == nullptr) return;
        const std::int64_t n_ff = weights.down.n_in;
        const std::int64_t products =
            static_cast<std::int64_t>(n_pairs) * n_ff * (2 * weights.n_in() + weights.n_out());
        const std::int64_t useful = products / min_products_per_thread + 1;
        set_backend_threads(cpu.get(), static_cast<int>(std::min<std::int64_t>(n_threads, useful)));
    }

    /// Fills ids, rows and scales of a piece whose pairs are `order[…]`, in that order.
    void gather(const layer_weights& weights, const row_batch& rows, std::span<const row_expert_pair> pairs,
                std::span<const std::uint32_t> order, std::uint32_t first_expert);
    result<void> compute_piece(const layer_weights& weights, const activation& act, const row_batch& rows,
                               std::span<const row_expert_pair> pairs, std::span<const std::uint32_t> order,
                               std::span<float> out);

    std::unique_ptr<ggml_backend, backend_deleter> cpu;
    std::unique_ptr<ggml_gallocr, allocator_deleter> allocator;
    ggml_backend_set_n_threads_t set_backend_threads;
    int n_threads;
    std::vector<std::byte> context_memory;
    // Reused from call to call.
    std::vector<std::uint32_t> order;
    std::vector<std::byte> gathered_rows;
    std::vector<std::int32_t> ids;
    std::vector<float> up_scales;
    std::vector<float> gate_scales;
    std::vector<float> down_scales;
};

engine::engine(int n_threads) : state_(std::make_unique<state>(std::max(1, n_threads))) {}
engine::~engine() = default;
engine::engine(engine&&) noexcept = default;
engine& engine::operator=(engine&&) noexcept = default;

void engine::set_n_threads(int n_threads) {
    state_->n_threads = std::max(1, n_threads);
}

void engine::state::gather(const layer_weights& weights, const row_batch& rows, std::span<const row_expert_pair> pairs,
                           std::span<const std::uint32_t> order_of_piece, std::uint32_t first_expert) {
    const std::size_t row_bytes = *row_size_bytes(rows.encoding, static_cast<std::uint32_t>(rows.n_values));
    gathered_rows.resize(order_of_piece.size() * row_bytes);
    ids.resize(order_of_piece.size());
    for (std::size_t i = 0; i < order_of_piece.size(); ++i) {
        const row_expert_pair& pair = pairs[order_of_piece[i]];
        std::memcpy(gathered_rows.data() + i * row_bytes, rows.bytes.data() + pair.row * row_bytes, row_bytes);
        ids[i] = static_cast<std::int32_t>(pair.expert - first_expert);
    }
    const auto gather_scales = [&](const expert_tensor& tensor, std::vector<float>& scales) {
        if (tensor.scale == nullptr) return;
        scales.resize(order_of_piece.size());
        for (std::size_t i = 0; i < order_of_piece.size(); ++i)
            scales[i] = tensor.scale[pairs[order_of_piece[i]].expert];
    };
    gather_scales(weights.gate_up ? weights.gate_up : weights.up, up_scales);
    gather_scales(weights.gate, gate_scales);
    gather_scales(weights.down, down_scales);
}

result<void> engine::state::compute_piece(const layer_weights& weights, const activation& act, const row_batch& rows,
                                          std::span<const row_expert_pair> pairs,
                                          std::span<const std::uint32_t> order_of_piece, std::span<float> out) {
    const std::uint32_t first_expert = pairs[order_of_piece.front()].expert;
    const std::uint32_t last_expert = pairs[order_of_piece.back()].expert;
    gather(weights, rows, pairs, order_of_piece, first_expert);

    const std::unique_ptr<ggml_context, context_deleter> context(
        ggml_init({context_memory.size(), context_memory.data(), true}));
    const auto n_pairs = static_cast<std::int64_t>(order_of_piece.size());
    ffn_graph ffn = build_ffn_graph(context.get(), weights, first_expert, last_expert - first_expert + 1, act,
                                    rows.encoding, n_pairs);
    ffn.rows->data = gathered_rows.data();
    ffn.ids->data = ids.data();
    if (ffn.up_scale != nullptr) ffn.up_scale->data = up_scales.data();
    if (ffn.gate_scale != nullptr) ffn.gate_scale->data = gate_scales.data();
    if (ffn.down_scale != nullptr) ffn.down_scale->data = down_scales.data();

    if (!ggml_gallocr_alloc_graph(allocator.get(), ffn.graph))
        return error(errc::limit_exceeded, fmt::format("no memory for an expert call of {} pairs", n_pairs));
    use_threads_for(weights, order_of_piece.size());
    if (ggml_backend_graph_compute(cpu.get(), ffn.graph) != GGML_STATUS_SUCCESS)
        return error(errc::internal, "ggml could not compute an expert call");

    const auto n_out = static_cast<std::size_t>(weights.n_out());
    const auto* results = static_cast<const float*>(ffn.result->data);
    for (std::size_t i = 0; i < order_of_piece.size(); ++i)
        std::memcpy(out.data() + order_of_piece[i] * n_out, results + i * n_out, n_out * sizeof(float));
    return {};
}

result<void> engine::compute(const layer_weights& weights, const activation& act, const row_batch& rows,
                             std::span<const row_expert_pair> pairs, std::span<float> out) {
    if (auto valid = validate_call(weights, act, rows, pairs, out); !valid) return valid;
    if (pairs.empty()) return {};

    // By expert, so that each weight is read once per piece; stable, so that an expert sees its rows in the order in
    // which the monolithic graph would bring them.
    auto& order = state_->order;
    order.resize(pairs.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t left, std::uint32_t right) { return pairs[left].expert < pairs[right].expert; });

    const bool keep_experts_whole = batch_sensitive(weights);
    const std::size_t piece_pairs = std::max<std::size_t>(1, piece_target_bytes / scratch_bytes_per_pair(weights));
    for (std::size_t begin = 0; begin < order.size();) {
        std::size_t end = std::min(order.size(), begin + piece_pairs);
        while (keep_experts_whole && end < order.size() && pairs[order[end]].expert == pairs[order[end - 1]].expert)
            ++end;
        const std::span piece = std::span<const std::uint32_t>(order).subspan(begin, end - begin);
        if (auto computed = state_->compute_piece(weights, act, rows, pairs, piece, out); !computed) return computed;
        begin = end;
    }
    return {};
}

}  // namespace kvasir::expert
