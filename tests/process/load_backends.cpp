// llama.cpp's test-llama-archs expects backends that are linked in; this build loads them from files. Linked into that
// program, this does so before main().
#include <ggml-backend.h>

namespace {

const bool backends_are_loaded = (ggml_backend_load_all(), true);

}  // namespace
