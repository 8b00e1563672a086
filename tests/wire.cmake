# Shared with the tests of net and node.
add_library(kvasir_wire_test_support STATIC wire_support.cpp)
target_include_directories(kvasir_wire_test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(kvasir_wire_test_support PRIVATE ${KVASIR_WARNINGS})
target_link_libraries(kvasir_wire_test_support PUBLIC kvasir_wire GTest::gtest)

kvasir_test(wire_test
    SOURCES wire_conversation_test.cpp wire_golden_test.cpp wire_hostile_test.cpp wire_messages_test.cpp
        wire_stream_test.cpp
    DEPENDS kvasir_wire kvasir_wire_test_support)
