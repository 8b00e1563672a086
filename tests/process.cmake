# Tests with real processes: kvasir workers and backbones, and stock llama.cpp programs of the same build.

kvasir_test(commands_test
    SOURCES process/commands_test.cpp process/swarm_fixture.cpp ${CMAKE_SOURCE_DIR}/src/cli/child_process.cpp
    DEPENDS kvasir_test_support kvasir_model nlohmann_json::nlohmann_json Boost::headers ggml-base
    LABELS process
    TIMEOUT 300
    RUNS_KVASIR)
target_compile_definitions(commands_test PRIVATE
    KVASIR_PLUGIN="$<TARGET_FILE:ggml-kvasir>"
    DEMO_MODEL="${CMAKE_SOURCE_DIR}/demo/kvasir-demo.gguf")
if(KVASIR_BUILD_SERVER)
    target_compile_definitions(commands_test PRIVATE KVASIR_HAS_SERVER)
endif()

# The rest needs llama.cpp's own programs, and hours in a sanitizer that would look at llama.cpp and not at us.
if(KVASIR_SANITIZE)
    return()
endif()

# llama.cpp's own tests, from its unmodified sources. test-llama-archs also writes a small random model of every
# architecture it knows.
foreach(program test-llama-archs test-backend-ops)
    add_executable(${program} ${KVASIR_LLAMA_CPP_SOURCE}/tests/${program}.cpp process/load_backends.cpp)
    target_link_libraries(${program} PRIVATE llama llama-common)
    add_dependencies(${program} ggml-cpu)
    target_include_directories(${program} PRIVATE ${KVASIR_LLAMA_CPP_SOURCE}/tests ${KVASIR_LLAMA_CPP_SOURCE}/src)
endforeach()

# What a stock program computes; and the same program with the plug-in.
kvasir_program(stock_logits SOURCES process/stock_logits.cpp DEPENDS llama ggml)
add_dependencies(stock_logits ggml-cpu)

kvasir_test(exactness_test
    SOURCES process/exactness_test.cpp process/swarm_fixture.cpp ${CMAKE_SOURCE_DIR}/src/cli/child_process.cpp
    DEPENDS kvasir_test_support kvasir_model ggml-base
    LABELS process
    TIMEOUT 1200
    RUNS_KVASIR)
target_compile_definitions(exactness_test PRIVATE
    KVASIR_PLUGIN="$<TARGET_FILE:ggml-kvasir>"
    STOCK_LOGITS="$<TARGET_FILE:stock_logits>"
    TEST_LLAMA_ARCHS="$<TARGET_FILE:test-llama-archs>"
    LLAMA_QUANTIZE="$<TARGET_FILE:llama-quantize>"
    LLAMA_GGUF_SPLIT="$<TARGET_FILE:llama-gguf-split>"
    LLAMA_COMPLETION="$<TARGET_FILE:llama-completion>"
    DEMO_MODEL="${CMAKE_SOURCE_DIR}/demo/kvasir-demo.gguf")
add_dependencies(exactness_test
    ggml-kvasir stock_logits test-llama-archs llama-quantize llama-gguf-split llama-completion)

kvasir_test(demo_reference_test
    SOURCES process/demo_reference_test.cpp
    DEPENDS kvasir_test_support kvasir_base nlohmann_json::nlohmann_json llama ggml
    LABELS process
    TIMEOUT 300)
target_compile_definitions(demo_reference_test PRIVATE
    LLAMA_QUANTIZE="$<TARGET_FILE:llama-quantize>"
    DEMO_MODEL="${CMAKE_SOURCE_DIR}/demo/kvasir-demo.gguf"
    REFERENCE_DIR="${CMAKE_SOURCE_DIR}/tests/demo_reference")
add_dependencies(demo_reference_test llama-quantize ggml-cpu)
