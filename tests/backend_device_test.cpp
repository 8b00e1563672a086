// The device KVASIR through ggml's own interfaces: what it says of itself, and that a layer scheduled over it and the
// CPU has the CPU's bits: in one piece when there are no workers, with one graph for the experts when some are named.
#include <ggml-backend.h>
#include <gmock/gmock.h>

#include <cstring>

#include "backend/backend.hpp"
#include "backend_moe_graph.hpp"

namespace kvasir::backend {
namespace {

struct backend_deleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
using backend_ptr = std::unique_ptr<ggml_backend, backend_deleter>;
struct scheduler_deleter {
    void operator()(ggml_backend_sched_t scheduler) const { ggml_backend_sched_free(scheduler); }
};
using scheduler_ptr = std::unique_ptr<ggml_backend_sched, scheduler_deleter>;

ggml_backend_dev_t device() {
    cpu_buffers();
    return ggml_backend_reg_dev_get(registry(), 0);
}

TEST(device, says_what_it_is) {
    EXPECT_STREQ(ggml_backend_reg_name(registry()), "KVASIR");
    ASSERT_EQ(ggml_backend_reg_dev_count(registry()), 1U);
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device(), &props);
    EXPECT_STREQ(props.name, "KVASIR");
    EXPECT_EQ(props.type, GGML_BACKEND_DEVICE_TYPE_ACCEL);
    EXPECT_EQ(props.memory_total, 0U) << "its memory is the host's, which is counted already";
    EXPECT_TRUE(props.caps.buffer_from_host_ptr);
    EXPECT_TRUE(props.caps.mmap_support);
    EXPECT_EQ(ggml_backend_dev_backend_reg(device()), registry());
    EXPECT_EQ(ggml_backend_reg_get_proc_address(registry(), "ggml_backend_no_such_function"), nullptr);
}

TEST(device, has_host_buffers_and_takes_all_host_buffers) {
    ggml_backend_buffer_type_t ours = ggml_backend_dev_buffer_type(device());
    EXPECT_STREQ(ggml_backend_buft_name(ours), "KVASIR");
    EXPECT_TRUE(ggml_backend_buft_is_host(ours));
    EXPECT_EQ(ggml_backend_buft_get_device(ours), device());
    EXPECT_TRUE(ggml_backend_dev_supports_buft(device(), ours));
    EXPECT_TRUE(ggml_backend_dev_supports_buft(device(), cpu_buffers()));
    const buffer_ptr buffer(ggml_backend_buft_alloc_buffer(ours, 4096));
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(ggml_backend_buffer_get_type(buffer.get()), ours);
    EXPECT_GE(ggml_backend_buffer_get_size(buffer.get()), 4096U);

    std::vector<std::byte> memory(8192);
    auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~63ULL);
    const buffer_ptr wrapped(ggml_backend_dev_buffer_from_host_ptr(device(), aligned, 4096, 4096));
    ASSERT_NE(wrapped, nullptr);
    EXPECT_EQ(ggml_backend_buffer_get_base(wrapped.get()), aligned) << "a memory map would be copied";
    EXPECT_EQ(ggml_backend_buffer_get_type(wrapped.get()), ours);
}

/// Names a worker that nobody is, for as long as the object lives.
class named_worker {
  public:
    named_worker() {
        swarm::options settings;
        settings.workers = {{"127.0.0.1", 1}};
        settings.numerics = "none";
        configure(std::move(settings));
    }
    ~named_worker() { reset(); }
    named_worker(const named_worker&) = delete;
    named_worker& operator=(const named_worker&) = delete;
};

/// Whether the device would compute a product of this weight.
bool takes(ggml_tensor* weight) {
    const context_ptr context = make_context();
    ggml_tensor* rows = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 32, 1, 4);
    ggml_tensor* ids = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 3, 4);
    return ggml_backend_dev_supports_op(device(), ggml_mul_mat_id(context.get(), weight, rows, ids));
}

TEST(device, computes_with_expert_weights_only_and_for_workers_only) {
    std::mt19937 random(61);
    const moe_weights ours({}, ggml_backend_dev_buffer_type(device()), random);
    const moe_weights plain({}, cpu_buffers(), random);
    EXPECT_FALSE(takes(ours.up.weight));
    EXPECT_FALSE(takes(plain.up.weight));
    const named_worker one;
    EXPECT_TRUE(takes(ours.up.weight));
    EXPECT_FALSE(takes(plain.up.weight));
    ggml_set_name(ours.up.weight, "blk.5.ffn_up_shexp.weight");
    EXPECT_FALSE(takes(ours.up.weight));
}

/// How llama.cpp asks where a weight shall live: an operation on a weight in an empty buffer.
TEST(device, offers_expert_weights_a_home_even_without_workers) {
    const buffer_ptr empty(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device()), 0));
    const context_ptr context = make_context();
    ggml_tensor* weight = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 32, 48, 6);
    weight->buffer = empty.get();
    for (const char* name :
         {"blk.0.ffn_gate_exps.weight", "blk.77.ffn_down_exps.weight", "blk.1.ffn_gate_up_exps.weight"}) {
        ggml_set_name(weight, name);
        EXPECT_TRUE(takes(weight)) << name;
    }
    for (const char* name : {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_shexp.weight", "blk.0.ffn_up.weight",
                             "output.weight", "blk.0.ffn_up_exps.bias"}) {
        ggml_set_name(weight, name);
        EXPECT_FALSE(takes(weight)) << name;
    }
}

/// The layer's output, computed by a scheduler over these backends.
std::vector<float> compute(const moe_shape& shape, const moe_weights& weights, std::vector<float> input,
                           std::vector<ggml_backend_t> backends, int& n_splits) {
    const context_ptr context = make_context();
    const moe_layer_nodes layer = build_layer(context.get(), shape, weights);
    const scheduler_ptr scheduler(ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()),
                                                         GGML_DEFAULT_GRAPH_SIZE, false, false));
    EXPECT_TRUE(ggml_backend_sched_alloc_graph(scheduler.get(), layer.graph));
    n_splits = ggml_backend_sched_get_n_splits(scheduler.get());
    EXPECT_EQ(ggml_backend_sched_get_n_copies(scheduler.get()), 1);
    ggml_backend_tensor_set(layer.input, input.data(), 0, input.size() * sizeof(float));
    EXPECT_EQ(ggml_backend_sched_graph_compute(scheduler.get(), layer.graph), GGML_STATUS_SUCCESS);
    std::vector<float> output(input.size());
    ggml_backend_tensor_get(layer.output, output.data(), 0, output.size() * sizeof(float));
    return output;
}

/// Computes every shape on the CPU alone and then with the experts' weights in the device's buffers.
void expect_the_bits_of_the_cpu(int expected_n_splits) {
    const backend_ptr cpu((cpu_buffers(), ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)));
    const backend_ptr ours(ggml_backend_dev_init(device(), nullptr));
    ASSERT_TRUE(cpu && ours);
    for (const auto& backend : {cpu.get(), ours.get()}) {
        const auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), "ggml_backend_set_n_threads"));
        ASSERT_NE(set_n_threads, nullptr);
        set_n_threads(backend, 1);
    }

    std::mt19937 random(62);
    for (moe_shape shape : all_moe_shapes()) {
        if (shape.biases) {
            shape.type = GGML_TYPE_Q4_K;
            shape.n_embd = shape.n_ff = 256;
        }
        for (const std::int64_t n_tokens : {1, 7}) {
            shape.n_tokens = n_tokens;
            SCOPED_TRACE(shape.text() + ", " + std::to_string(n_tokens) + " tokens");
            std::uniform_real_distribution<float> value(-1.0F, 1.0F);
            std::vector<float> input(static_cast<std::size_t>(shape.n_embd * shape.n_tokens));
            for (float& v : input)
                v = value(random);
            const auto seed = random();
            std::mt19937 plain_random(seed);
            const moe_weights plain(shape, cpu_buffers(), plain_random);
            std::mt19937 our_random(seed);
            const moe_weights expert_weights(shape, ggml_backend_dev_buffer_type(device()), our_random);

            int n_splits = 0;
            const auto expected = compute(shape, plain, input, {cpu.get()}, n_splits);
            EXPECT_EQ(n_splits, 1);
            const auto computed = compute(shape, expert_weights, input, {ours.get(), cpu.get()}, n_splits);
            EXPECT_EQ(n_splits, expected_n_splits);
            EXPECT_EQ(std::memcmp(expected.data(), computed.data(), expected.size() * sizeof(float)), 0);
        }
    }
}

TEST(device, does_not_cut_the_graph_without_workers) {
    expect_the_bits_of_the_cpu(1);
}

/// Router, experts, sum. The worker cannot be reached: each experts' graph is recognised and computed here.
TEST(device, makes_one_graph_of_the_experts_when_workers_are_named) {
    const named_worker one;
    expect_the_bits_of_the_cpu(3);
    const graph_counts seen = counts();
    EXPECT_EQ(seen.unrecognised, 0U);
    EXPECT_EQ(seen.dispatched, 0U);
    EXPECT_EQ(seen.all_local, 2 * all_moe_shapes().size());
    ASSERT_EQ(swarm_statistics().workers.size(), 1U);
    EXPECT_EQ(swarm_statistics().workers[0].state, swarm::worker_state::gone);
    disconnect();
    EXPECT_EQ(counts().all_local, seen.all_local) << "the counts stay";
    EXPECT_EQ(swarm_statistics().workers.size(), 1U);
}

TEST(device, reaches_for_nobody_after_disconnect) {
    const named_worker one;
    disconnect();
    connect();
    EXPECT_TRUE(swarm_statistics().workers.empty());
    const backend_ptr ours(ggml_backend_dev_init(device(), nullptr));
    const backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    std::mt19937 random(63);
    const moe_weights weights({}, ggml_backend_dev_buffer_type(device()), random);
    int n_splits = 0;
    compute({}, weights, std::vector<float>(128, 1.0F), {ours.get(), cpu.get()}, n_splits);
    EXPECT_EQ(counts().all_local, 1U);
    EXPECT_TRUE(swarm_statistics().workers.empty());
}

TEST(device, counts_nothing_without_workers) {
    configure({});
    connect();
    const graph_counts none = counts();
    EXPECT_EQ(none.dispatched + none.all_local + none.unrecognised, 0U);
    EXPECT_TRUE(swarm_statistics().workers.empty());
    disconnect();
    reset();
    EXPECT_TRUE(swarm_statistics().workers.empty());
}

}  // namespace
}  // namespace kvasir::backend
