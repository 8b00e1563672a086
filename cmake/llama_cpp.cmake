# llama.cpp: fetched, pinned and built as a subdirectory, unmodified.
#
# The npm package node-llama-cpp carries llama/gitRelease.bundle, a git bundle of one llama.cpp release. The package is
# named by version and by the SHA-512 of its archive, so what is built is always the same bytes. All build
# directories share one checkout below build/deps. -DKVASIR_LLAMA_CPP_DIR=<checkout> uses another tree.

set(KVASIR_LLAMA_CPP_PACKAGE node-llama-cpp)
set(KVASIR_LLAMA_CPP_PACKAGE_VERSION 3.21.1)
set(KVASIR_LLAMA_CPP_PACKAGE_SHA512
    13737412fd956b4c33c9dbd7605c0cf47bf2a34ecfa168edf13ffd18c738dc2bedf18915fcd53fb5852010c0b582b4cfbf6a3d3d18d08b41b759be4ffdac2232)
set(KVASIR_LLAMA_CPP_VERSION v0.4.0)
set(KVASIR_GGML_VERSION 0.23.0)
set(KVASIR_DEPS_DIR ${CMAKE_SOURCE_DIR}/build/deps)

# kvasir_fetch_npm(PACKAGE VERSION SHA512 OUT_DIR): unpacks an npm package below KVASIR_DEPS_DIR, once.
# npm checks the archive against the registry's integrity hash; we check it against ours.
function(kvasir_fetch_npm package version sha512 out_dir)
    string(REGEX REPLACE "[^A-Za-z0-9.-]" "-" file_name "${package}-${version}")
    string(REGEX REPLACE "^-" "" file_name "${file_name}")
    set(dir ${KVASIR_DEPS_DIR}/${file_name})
    set(${out_dir} ${dir}/package PARENT_SCOPE)
    if(EXISTS ${dir}/.complete)
        return()
    endif()
    find_program(KVASIR_NPM npm)
    if(NOT KVASIR_NPM)
        message(FATAL_ERROR
            "npm is missing, and with it llama.cpp's pinned sources cannot be fetched. "
            "Install it (scripts/setup does), or give a llama.cpp ${KVASIR_LLAMA_CPP_VERSION} checkout with -DKVASIR_LLAMA_CPP_DIR=<dir>.")
    endif()
    message(STATUS "Fetching ${package} ${version} with npm")
    file(REMOVE_RECURSE ${dir})
    file(MAKE_DIRECTORY ${dir})
    execute_process(
        COMMAND ${KVASIR_NPM} pack --silent ${package}@${version}
        WORKING_DIRECTORY ${dir}
        RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE error TIMEOUT 600)
    file(GLOB archive ${dir}/*.tgz)
    if(NOT result EQUAL 0 OR NOT archive)
        message(FATAL_ERROR
            "npm could not fetch ${package} ${version}: ${error}${output}\n"
            "Is the network there, and does `npm view ${package}` answer? "
            "Without a network give a llama.cpp ${KVASIR_LLAMA_CPP_VERSION} checkout with -DKVASIR_LLAMA_CPP_DIR=<dir>.")
    endif()
    file(SHA512 ${archive} actual)
    if(NOT actual STREQUAL sha512)
        file(REMOVE_RECURSE ${dir})
        message(FATAL_ERROR
            "${package} ${version} is not the archive this build was pinned to: its SHA-512 is ${actual}, expected ${sha512}. "
            "Nothing was kept. Check the registry that npm uses.")
    endif()
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${dir})
    file(REMOVE ${archive})
    file(TOUCH ${dir}/.complete)
endfunction()

function(kvasir_fetch_llama_cpp out_dir)
    set(dir ${KVASIR_DEPS_DIR}/llama.cpp-${KVASIR_LLAMA_CPP_VERSION})
    set(${out_dir} ${dir} PARENT_SCOPE)
    if(EXISTS ${dir}/.git/kvasir-complete)
        return()
    endif()
    find_program(KVASIR_GIT git)
    if(NOT KVASIR_GIT)
        message(FATAL_ERROR
            "git is missing, and with it llama.cpp's bundle cannot be unpacked. "
            "Install it (scripts/setup does), or give a llama.cpp checkout with -DKVASIR_LLAMA_CPP_DIR=<dir>.")
    endif()
    kvasir_fetch_npm(${KVASIR_LLAMA_CPP_PACKAGE} ${KVASIR_LLAMA_CPP_PACKAGE_VERSION} ${KVASIR_LLAMA_CPP_PACKAGE_SHA512} package)
    file(REMOVE_RECURSE ${dir})
    execute_process(
        COMMAND ${KVASIR_GIT} clone --quiet -c advice.detachedHead=false ${package}/llama/gitRelease.bundle ${dir}
        RESULT_VARIABLE result ERROR_VARIABLE error TIMEOUT 600)
    if(NOT result EQUAL 0)
        file(REMOVE_RECURSE ${dir})
        message(FATAL_ERROR "git could not unpack llama.cpp's bundle ${package}/llama/gitRelease.bundle: ${error}")
    endif()
    file(TOUCH ${dir}/.git/kvasir-complete)
endfunction()

if(KVASIR_LLAMA_CPP_DIR)
    if(NOT EXISTS ${KVASIR_LLAMA_CPP_DIR}/ggml/src/ggml-backend-impl.h)
        message(FATAL_ERROR "KVASIR_LLAMA_CPP_DIR=${KVASIR_LLAMA_CPP_DIR} is not a llama.cpp checkout (no ggml/src/ggml-backend-impl.h in it).")
    endif()
    get_filename_component(KVASIR_LLAMA_CPP_SOURCE ${KVASIR_LLAMA_CPP_DIR} ABSOLUTE)
else()
    kvasir_fetch_llama_cpp(KVASIR_LLAMA_CPP_SOURCE)
endif()
message(STATUS "llama.cpp sources: ${KVASIR_LLAMA_CPP_SOURCE}")

# How llama.cpp is built. The CPU backend is a module loaded at run time (GGML_BACKEND_DL), so that stock programs of
# this build read GGML_BACKEND_PATH; and it is built for a fixed instruction-set level instead of this very processor,
# so that all machines of that level compute the same bits (docs/numerics.md).
set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
set(GGML_NATIVE OFF CACHE BOOL "" FORCE)
set(GGML_RPC ON CACHE BOOL "" FORCE)
set(GGML_ALL_WARNINGS OFF CACHE BOOL "" FORCE)
set(LLAMA_ALL_WARNINGS OFF CACHE BOOL "" FORCE)
set(LLAMA_OPENSSL OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_UI OFF CACHE BOOL "" FORCE)
set(LLAMA_USE_PREBUILT_UI OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)
set(LLAMA_BUILD_TOOLS ON CACHE BOOL "" FORCE)
set(LLAMA_BUILD_SERVER ${KVASIR_BUILD_SERVER} CACHE BOOL "" FORCE)
if(KVASIR_SANITIZE MATCHES "thread")
    # ThreadSanitizer does not see libgomp's synchronisation; ggml's own thread pool is visible to it.
    set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
endif()

if(KVASIR_BUILD_FUZZERS)
    # Only gguf.cpp and what it needs.
    set(GGML_CPU OFF CACHE BOOL "" FORCE)
    set(GGML_RPC OFF CACHE BOOL "" FORCE)
    add_subdirectory(${KVASIR_LLAMA_CPP_SOURCE}/ggml ${CMAKE_BINARY_DIR}/ggml EXCLUDE_FROM_ALL)
else()
    add_subdirectory(${KVASIR_LLAMA_CPP_SOURCE} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL)
endif()
unset(BUILD_SHARED_LIBS)

if(GGML_VERSION AND NOT GGML_VERSION MATCHES "^${KVASIR_GGML_VERSION}")
    message(WARNING "ggml ${GGML_VERSION} is not the version this project was proven with (${KVASIR_GGML_VERSION}).")
endif()

# The headers alone: parts use ggml's interface, the final program decides which libraries serve it. That is what lets
# libggml-kvasir.so work inside a program that brings its own ggml.
add_library(kvasir_ggml_headers INTERFACE)
target_include_directories(kvasir_ggml_headers SYSTEM INTERFACE
    ${KVASIR_LLAMA_CPP_SOURCE}/ggml/include)
# ggml's private backend interface, for the backend part only.
add_library(kvasir_ggml_backend_headers INTERFACE)
target_include_directories(kvasir_ggml_backend_headers SYSTEM INTERFACE
    ${KVASIR_LLAMA_CPP_SOURCE}/ggml/src ${KVASIR_LLAMA_CPP_SOURCE}/ggml/include)
