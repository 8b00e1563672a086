// A library that calls itself ggml, of some version, and has nothing else to offer.
extern "C" __attribute__((visibility("default"))) const char* ggml_version() {
    return FAKE_VERSION;
}
