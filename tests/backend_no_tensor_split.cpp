// Linked into llama.cpp's test-llama-archs in place of libllama's function of this name: no architecture is tried with
// its tensors divided among GPUs. The program counts every device with a buffer type of its own as such a GPU, but
// KVASIR computes experts only, and ggml's device for divided tensors has nowhere to put the rest.
#include <llama-arch.h>

bool llm_arch_supports_sm_tensor(const llm_arch&) {
    return false;
}
