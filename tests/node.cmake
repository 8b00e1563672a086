kvasir_test(node_test
    SOURCES node_paced_worker_test.cpp node_process_test.cpp node_request_check_test.cpp node_row_pace_test.cpp node_slice_test.cpp node_worker_test.cpp
    DEPENDS kvasir_node kvasir_test_support kvasir_wire_test_support nlohmann_json::nlohmann_json ggml ggml-base
    RUNS_KVASIR
    TIMEOUT 120)
