// ggml's out-of-tree backend interface (API version 2) for the device KVASIR. Functions here are called by ggml in C
// fashion: none lets an exception out, and objects go through `context` pointers.
#include "backend/device.hpp"

#include <ggml-backend-impl.h>
#include <ggml-backend.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>

#include "backend/claims.hpp"
#include "backend/instance.hpp"

namespace kvasir::backend {
namespace {

constexpr const char* device_name = "KVASIR";
// What ggml's CPU buffers guarantee, and GGUF files by default.
constexpr std::size_t tensor_alignment_bytes = 32;

/// The one object that ggml's registry keeps pointing at: registry, device, buffer type, and the current session.
struct registration {
    registration();

    ggml_backend_reg registry{};
    ggml_backend_device device{};
    ggml_backend_buffer_type buffer_type{};
    std::mutex mutex;
    std::shared_ptr<session> current;
};

registration& the_registration() {
    static registration instance;
    return instance;
}

// Buffers are the CPU backend's own, under our type: ordinary host memory.

ggml_backend_buffer_t as_ours(ggml_backend_buffer_t buffer) {
    if (buffer != nullptr) buffer->buft = &the_registration().buffer_type;
    return buffer;
}

const char* buffer_type_name(ggml_backend_buffer_type_t) {
    return device_name;
}
ggml_backend_buffer_t buffer_type_alloc(ggml_backend_buffer_type_t, std::size_t size_bytes) {
    return as_ours(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size_bytes));
}
std::size_t buffer_type_alignment(ggml_backend_buffer_type_t) {
    return tensor_alignment_bytes;
}
bool buffer_type_is_host(ggml_backend_buffer_type_t) {
    return true;
}

// Backend instances.

const char* backend_name(ggml_backend_t) {
    return device_name;
}

void backend_free(ggml_backend_t backend) {
    delete static_cast<instance*>(backend->context);
    delete backend;
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
    try {
        return static_cast<instance*>(backend->context)->compute(graph);
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "kvasir: an expert graph could not be computed: %s\n", failure.what());
        return GGML_STATUS_FAILED;
    }
}

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x4b, 0x76, 0x61, 0x73, 0x69, 0x72, 0x2d, 0x65,
                             0x78, 0x70, 0x65, 0x72, 0x74, 0x73, 0x00, 0x01};
    return &guid;
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char*) {
    try {
        auto made = std::make_unique<instance>(current_session());
        auto* backend = new ggml_backend{};
        backend->guid = backend_guid();
        backend->iface.get_name = backend_name;
        backend->iface.free = backend_free;
        backend->iface.graph_compute = backend_compute;
        backend->device = device;
        backend->context = made.release();
        return backend;
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "kvasir: cannot start the backend: %s\n", failure.what());
        return nullptr;
    }
}

// The device.

const char* device_get_name(ggml_backend_dev_t) {
    return device_name;
}
const char* device_description(ggml_backend_dev_t) {
    return "routed experts, here or on other machines";
}
// No memory of its own: what it holds is host memory, which the CPU device reports.
void device_memory(ggml_backend_dev_t, std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = 0;
    *total_bytes = 0;
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
    *props = ggml_backend_dev_props{};
    props->name = device_name;
    props->description = device_description(device);
    props->type = device_type(device);
    props->caps.buffer_from_host_ptr = true;
    props->caps.mmap_support = true;
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
    return &the_registration().buffer_type;
}

ggml_backend_buffer_t device_buffer_from_host_ptr(ggml_backend_dev_t, void* pointer, std::size_t size_bytes,
                                                  std::size_t) {
    return as_ours(ggml_backend_cpu_buffer_from_ptr(pointer, size_bytes));
}

/// llama.cpp asks which weights a device wants to hold by showing it an operation on a weight in an empty buffer.
bool asks_for_a_home(const ggml_tensor* operation) {
    const ggml_tensor* weight = operation->src[0];
    return weight != nullptr && weight->buffer != nullptr && ggml_backend_buffer_get_size(weight->buffer) == 0;
}

/// Without workers the device only holds the weights and computes nothing: ggml's CPU backend reads them where they
/// are, and the scheduler need not cut the graph at every layer.
bool device_supports_op(ggml_backend_dev_t, const ggml_tensor* operation) {
    if (!asks_for_a_home(operation)) {
        const auto shared = current_session();
        if (!shared || !shared->has_workers()) return false;
    }
    return claims(&is_in_kvasir_buffer).accepts(operation);
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buffer_type) {
    return buffer_type == &the_registration().buffer_type || ggml_backend_buft_is_host(buffer_type);
}

// The registry.

void set_n_threads(ggml_backend_t backend, int n_threads) {
    static_cast<instance*>(backend->context)->set_n_threads(n_threads);
}

void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void* data) {
    static_cast<instance*>(backend->context)->set_abort_callback(callback, data);
}

const char* registry_name(ggml_backend_reg_t) {
    return device_name;
}
std::size_t registry_device_count(ggml_backend_reg_t) {
    return 1;
}
ggml_backend_dev_t registry_device(ggml_backend_reg_t, std::size_t) {
    return &the_registration().device;
}

void* registry_function(ggml_backend_reg_t, const char* name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(&set_n_threads);
    if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0) return reinterpret_cast<void*>(&set_abort_callback);
    return nullptr;
}

registration::registration() {
    registry.api_version = GGML_BACKEND_API_VERSION;
    registry.iface.get_name = registry_name;
    registry.iface.get_device_count = registry_device_count;
    registry.iface.get_device = registry_device;
    registry.iface.get_proc_address = registry_function;

    device.iface.get_name = device_get_name;
    device.iface.get_description = device_description;
    device.iface.get_memory = device_memory;
    device.iface.get_type = device_type;
    device.iface.get_props = device_props;
    device.iface.init_backend = device_init;
    device.iface.get_buffer_type = device_buffer_type;
    device.iface.buffer_from_host_ptr = device_buffer_from_host_ptr;
    device.iface.supports_op = device_supports_op;
    device.iface.supports_buft = device_supports_buft;
    device.reg = &registry;

    buffer_type.iface.get_name = buffer_type_name;
    buffer_type.iface.alloc_buffer = buffer_type_alloc;
    buffer_type.iface.get_alignment = buffer_type_alignment;
    buffer_type.iface.is_host = buffer_type_is_host;
    buffer_type.device = &device;
}

}  // namespace

ggml_backend_reg_t the_registry() {
    return &the_registration().registry;
}

bool is_in_kvasir_buffer(const ggml_tensor* tensor) {
    if (tensor == nullptr) return false;
    const ggml_tensor* owner = tensor->view_src != nullptr ? tensor->view_src : tensor;
    return owner->buffer != nullptr && ggml_backend_buffer_get_type(owner->buffer) == &the_registration().buffer_type;
}

std::shared_ptr<session> current_session() {
    registration& all = the_registration();
    const std::lock_guard lock(all.mutex);
    return all.current;
}

void set_current_session(std::shared_ptr<session> chosen) {
    registration& all = the_registration();
    const std::lock_guard lock(all.mutex);
    all.current = std::move(chosen);
}

}  // namespace kvasir::backend
