# Compiler-wide settings: ccache when it is there, and sanitizers for everything that is built.

find_program(KVASIR_CCACHE ccache)
if(KVASIR_CCACHE)
    # A base directory and no directory hash: two checkouts of the same sources share their objects.
    set(launcher ${CMAKE_COMMAND} -E env
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros
        ${KVASIR_CCACHE})
    set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()
# llama.cpp would set ccache up again as a global rule.
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)

if(KVASIR_SANITIZE)
    # These follow the build type's own flags, and so prevail over them.
    set(KVASIR_SANITIZE_OPTIONS -O1 -g1 -UNDEBUG -fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer)
    add_compile_options(${KVASIR_SANITIZE_OPTIONS})
    add_link_options(-fsanitize=${KVASIR_SANITIZE})
    if(KVASIR_SANITIZE MATCHES thread)
        # Asio has fences, which this sanitizer does not follow; the mutexes next to them, it does.
        add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
    endif()
endif()
if(KVASIR_BUILD_FUZZERS)
    add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
endif()
