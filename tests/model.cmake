# Shared helpers for tests: temporary directories, running programs, model files.
add_library(kvasir_test_support STATIC
    support/model_builder.cpp
    support/raw_gguf.cpp
    support/run_program.cpp
    support/temporary_directory.cpp)
target_include_directories(kvasir_test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
target_compile_options(kvasir_test_support PRIVATE ${KVASIR_WARNINGS})
target_link_libraries(kvasir_test_support PUBLIC ggml-base)

kvasir_test(model_gguf_test
    SOURCES model_gguf_test.cpp
    DEPENDS kvasir_model kvasir_test_support ggml-base)
kvasir_test(model_hostile_test
    SOURCES model_hostile_test.cpp
    DEPENDS kvasir_model kvasir_test_support ggml-base)
kvasir_test(model_experts_test
    SOURCES model_experts_test.cpp
    DEPENDS kvasir_model kvasir_test_support ggml-base)
kvasir_test(model_selection_test
    SOURCES model_selection_test.cpp
    DEPENDS kvasir_model kvasir_test_support ggml-base)
kvasir_test(model_slice_test
    SOURCES model_slice_test.cpp
    DEPENDS kvasir_model kvasir_test_support ggml-base)
kvasir_test(model_manifest_test
    SOURCES model_manifest_test.cpp
    DEPENDS kvasir_model kvasir_test_support nlohmann_json::nlohmann_json ggml-base)
kvasir_test(model_verify_test
    SOURCES model_verify_test.cpp
    DEPENDS kvasir_model kvasir_test_support ggml-base)
kvasir_test(model_cli_test
    SOURCES model_cli_test.cpp
    DEPENDS kvasir_model kvasir_test_support nlohmann_json::nlohmann_json ggml-base
    RUNS_KVASIR)
