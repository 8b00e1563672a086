kvasir_test(net_test
    SOURCES net_connection_test.cpp net_endpoint_test.cpp net_server_test.cpp
    DEPENDS kvasir_net kvasir_wire_test_support)
