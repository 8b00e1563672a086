# The rules of the source tree: include directions, foreign headers, file lengths.
kvasir_test(structure_test
    SOURCES structure/structure_test.cpp structure/structure_rules.cpp
    DEPENDS fmt::fmt
    LABELS structure)
target_compile_definitions(structure_test PRIVATE KVASIR_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
