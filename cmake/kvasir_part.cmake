# kvasir_part(NAME SOURCES … DEPENDS …): the static library of one part of the table in docs/architecture.md.
# DEPENDS names the parts below it (base, wire, …) or plain CMake targets. Include paths are `<part>/<header>.hpp`.

set(KVASIR_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Werror)
if(KVASIR_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Checks that a sanitizer adds hide from this warning what has been set; without them it is an error as ever.
    list(APPEND KVASIR_WARNINGS -Wno-maybe-uninitialized)
endif()

function(kvasir_part name)
    cmake_parse_arguments(PART "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
    set(target kvasir_${name})
    add_library(${target} STATIC ${PART_SOURCES})
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_compile_options(${target} PRIVATE ${KVASIR_WARNINGS})
    target_link_libraries(${target} PUBLIC ${PART_DEPENDS} PRIVATE ${PART_PRIVATE_DEPENDS})
endfunction()

# kvasir_program(NAME SOURCES … DEPENDS …): an executable of our own code. It links ggml (and what else DEPENDS names).
function(kvasir_program name)
    cmake_parse_arguments(PROGRAM "" "" "SOURCES;DEPENDS" ${ARGN})
    add_executable(${name} ${PROGRAM_SOURCES})
    target_compile_options(${name} PRIVATE ${KVASIR_WARNINGS})
    target_link_libraries(${name} PRIVATE ${PROGRAM_DEPENDS})
endfunction()
