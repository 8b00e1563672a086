# The measuring tools that are programs of their own.
kvasir_test(delay_proxy_test
    SOURCES bench_delay_proxy_test.cpp bench_link_schedule_test.cpp ${CMAKE_SOURCE_DIR}/src/cli/child_process.cpp
    DEPENDS kvasir_delay_proxy kvasir_test_support
    TIMEOUT 120)
target_compile_definitions(delay_proxy_test PRIVATE DELAY_PROXY="$<TARGET_FILE:kvasir-delay-proxy>")
add_dependencies(delay_proxy_test kvasir-delay-proxy)

if(KVASIR_BUILD_BENCHMARKS)
    kvasir_test(bench_programs_test
        SOURCES bench_programs_test.cpp
        DEPENDS kvasir_test_support nlohmann_json::nlohmann_json
        LABELS process
        TIMEOUT 120)
    target_compile_definitions(bench_programs_test PRIVATE DEMO_MODEL="${CMAKE_SOURCE_DIR}/demo/kvasir-demo.gguf")
    foreach(benchmark churn latency overhead scaling)
        string(TOUPPER ${benchmark} name)
        target_compile_definitions(bench_programs_test PRIVATE
            BENCH_${name}="$<TARGET_FILE:kvasir-bench-${benchmark}>")
        add_dependencies(bench_programs_test kvasir-bench-${benchmark})
    endforeach()
endif()
