kvasir_test(backend_test
    SOURCES backend_claims_test.cpp backend_device_test.cpp backend_environment_test.cpp backend_moe_graph.cpp
        backend_reader_test.cpp
    DEPENDS kvasir_backend kvasir_test_support ggml fmt::fmt)
add_dependencies(backend_test ggml-cpu)

if(NOT KVASIR_SANITIZE)
    # llama.cpp's own test of all architectures, with the plug-in as a device. (test-backend-ops has no such use: it names
    # its tensors "a" and "b", and KVASIR takes experts' weights by their names only, so every operation is "not supported"
    # and nothing is compared. What the device answers to all its operations is tested below.)
    add_executable(archs_with_plugin
        ${KVASIR_LLAMA_CPP_SOURCE}/tests/test-llama-archs.cpp process/load_backends.cpp backend_no_tensor_split.cpp)
    target_link_libraries(archs_with_plugin PRIVATE llama llama-common)
    target_include_directories(archs_with_plugin PRIVATE
        ${KVASIR_LLAMA_CPP_SOURCE}/tests ${KVASIR_LLAMA_CPP_SOURCE}/src)
    add_dependencies(archs_with_plugin ggml-cpu)

    kvasir_test(backend_stock_test
        SOURCES backend_stock_test.cpp
        DEPENDS kvasir_model kvasir_test_support ggml-base
        LABELS process
        TIMEOUT 300)
    target_compile_definitions(backend_stock_test PRIVATE
        KVASIR_PLUGIN="$<TARGET_FILE:ggml-kvasir>"
        LLAMA_BENCH="$<TARGET_FILE:llama-bench>"
        TEST_BACKEND_OPS="$<TARGET_FILE:test-backend-ops>"
        ARCHS_WITH_PLUGIN="$<TARGET_FILE:archs_with_plugin>"
        DEMO_MODEL="${CMAKE_SOURCE_DIR}/demo/kvasir-demo.gguf")
    # test-backend-ops is made by process.cmake.
    add_dependencies(backend_stock_test ggml-kvasir llama-bench test-backend-ops archs_with_plugin)
endif()

# The loader in front of programs that have no ggml, another ggml or this one.
kvasir_program(plugin_host SOURCES backend_plugin_host.cpp DEPENDS ${CMAKE_DL_LIBS})
foreach(version 9.9.9 ${KVASIR_GGML_VERSION})
    set(fake fake_ggml_${version})
    add_library(${fake} MODULE backend_fake_ggml.cpp)
    target_compile_definitions(${fake} PRIVATE FAKE_VERSION="${version}")
    set_target_properties(${fake} PROPERTIES
        PREFIX "" OUTPUT_NAME libggml-base SUFFIX .so.0
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake-ggml-${version})
endforeach()
kvasir_test(backend_loader_test
    SOURCES backend_loader_test.cpp
    DEPENDS kvasir_test_support
    LABELS process)
target_compile_definitions(backend_loader_test PRIVATE
    PLUGIN_HOST="$<TARGET_FILE:plugin_host>"
    KVASIR_PLUGIN="$<TARGET_FILE:ggml-kvasir>"
    GGML="$<TARGET_FILE:ggml>"
    GGML_VERSION_HERE="${KVASIR_GGML_VERSION}"
    FAKE_GGML_OTHER="$<TARGET_FILE:fake_ggml_9.9.9>"
    FAKE_GGML_HOLLOW="$<TARGET_FILE:fake_ggml_${KVASIR_GGML_VERSION}>")
add_dependencies(backend_loader_test
    plugin_host ggml-kvasir ggml ggml-cpu fake_ggml_9.9.9 fake_ggml_${KVASIR_GGML_VERSION})

# The libraries of llama.cpp that npm ships prebuilt, of the same release: other compiler flags, other library names,
# loaded privately. Not with sanitizers, whose run-time library such a program lacks; and only where they run.
set(npm_llama_package @node-llama-cpp/linux-x64)
set(npm_llama_sha512
    4e8b63e914c3306a371682b6c8d51acffa069990f4a2502a4eb465b855169aed245b68bd4cecc7496d0e5820221a4cd10955f45ac5360b2510a3f5b6358b5d3c)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND NOT KVASIR_SANITIZE)
    set(npm_llama_dir ${KVASIR_DEPS_DIR}/node-llama-cpp-linux-x64-${KVASIR_LLAMA_CPP_PACKAGE_VERSION})
    function(fetch_npm_llama)
        # What kvasir_fetch_npm() advises in the end.
        set(KVASIR_LLAMA_CPP_OTHERWISE
            "It is needed for a test only: -DKVASIR_BUILD_TESTS=OFF configures without it.")
        file(MAKE_DIRECTORY ${KVASIR_DEPS_DIR})
        file(LOCK ${KVASIR_DEPS_DIR}/lock GUARD FUNCTION TIMEOUT 1800)
        kvasir_fetch_npm(
            ${npm_llama_package} ${KVASIR_LLAMA_CPP_PACKAGE_VERSION} ${npm_llama_sha512} ${npm_llama_dir})
    endfunction()
    fetch_npm_llama()

    kvasir_program(npm_logits SOURCES backend_npm_logits.cpp DEPENDS ${CMAKE_DL_LIBS})
    target_include_directories(npm_logits SYSTEM PRIVATE
        ${KVASIR_LLAMA_CPP_SOURCE}/include ${KVASIR_LLAMA_CPP_SOURCE}/ggml/include)
    kvasir_test(backend_npm_test
        SOURCES backend_npm_test.cpp process/swarm_fixture.cpp ${CMAKE_SOURCE_DIR}/src/cli/child_process.cpp
        DEPENDS kvasir_test_support kvasir_model ggml-base
        LABELS process
        RUNS_KVASIR)
    target_compile_definitions(backend_npm_test PRIVATE
        NPM_LOGITS="$<TARGET_FILE:npm_logits>"
        NPM_LIBRARIES="${npm_llama_dir}/package/bins/linux-x64"
        KVASIR_PLUGIN="$<TARGET_FILE:ggml-kvasir>"
        DEMO_MODEL="${CMAKE_SOURCE_DIR}/demo/kvasir-demo.gguf")
    add_dependencies(backend_npm_test npm_logits ggml-kvasir)
endif()
