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
set(KVASIR_GGML_BACKEND_API_VERSION 2)
set(KVASIR_DEPS_DIR ${CMAKE_SOURCE_DIR}/build/deps)

# What to do without npm, git or a network: the last sentence of every fetch error.
set(KVASIR_LLAMA_CPP_OTHERWISE
    "Or give a llama.cpp ${KVASIR_LLAMA_CPP_VERSION} checkout of your own with -DKVASIR_LLAMA_CPP_DIR=<directory>.")

# kvasir_gist(TEXT OUT): the first lines of what a program complained about, indented: its stack traces and advice left out.
function(kvasir_gist text out)
    string(REPLACE ";" "," text "${text}")
    string(REGEX REPLACE "\r?\n" ";" lines "${text}")
    list(FILTER lines EXCLUDE REGEX "^npm (error|ERR!)( +at .*| *| A complete log of this run.*)$")
    list(FILTER lines EXCLUDE REGEX "^ *$")
    list(SUBLIST lines 0 5 lines)
    list(JOIN lines "\n  " gist)
    set(${out} "  ${gist}" PARENT_SCOPE)
endfunction()

# kvasir_fetch_npm(PACKAGE VERSION SHA512 DIR): unpacks an npm package as DIR (its files are in DIR/package), once.
# npm checks the archive against the registry's integrity hash; we check it against ours.
# The caller holds the lock on KVASIR_DEPS_DIR. DIR appears under its name only when it is whole.
function(kvasir_fetch_npm package version sha512 dir)
    if(EXISTS ${dir}/.complete)
        return()
    endif()
    find_program(npm npm NO_CACHE)
    if(NOT npm)
        message(FATAL_ERROR
            "npm is missing, and ${package} ${version} (llama.cpp's pinned sources) cannot be fetched without it. "
            "Install it: scripts/setup does. ${KVASIR_LLAMA_CPP_OTHERWISE}")
    endif()

    # Asked first and with a short limit, because downloads need a long one: nobody waits ten minutes for no network.
    message(STATUS "Fetching ${package} ${version} with npm")
    execute_process(
        COMMAND ${npm} view --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=30000
            ${package}@${version} dist.integrity
        WORKING_DIRECTORY ${KVASIR_DEPS_DIR}
        RESULT_VARIABLE status OUTPUT_VARIABLE answer ERROR_VARIABLE complaint TIMEOUT 90)
    string(STRIP "${answer}" answer)
    if(NOT status EQUAL 0 OR answer STREQUAL "")
        kvasir_gist("${complaint}" gist)
        message(FATAL_ERROR
            "npm's registry did not say what ${package} ${version} is (${status}). npm says:\n"
            "${gist}\n"
            "Check the network, a proxy, and the registry that `npm config get registry` names. ${KVASIR_LLAMA_CPP_OTHERWISE}")
    endif()

    set(partial ${dir}.partial)
    file(REMOVE_RECURSE ${partial})
    file(MAKE_DIRECTORY ${partial})
    execute_process(
        COMMAND ${npm} pack --loglevel=error --ignore-scripts --fetch-retries=2 --fetch-retry-maxtimeout=10000
            ${package}@${version}
        WORKING_DIRECTORY ${partial}
        RESULT_VARIABLE status OUTPUT_VARIABLE answer ERROR_VARIABLE complaint TIMEOUT 900)
    file(GLOB archive ${partial}/*.tgz)
    list(LENGTH archive n_archives)
    if(NOT status EQUAL 0 OR NOT n_archives EQUAL 1)
        file(REMOVE_RECURSE ${partial})
        kvasir_gist("${complaint}" gist)
        message(FATAL_ERROR
            "npm could not download ${package} ${version} (${status}). npm says:\n"
            "${gist}\n"
            "Check the network and the free space on the disk, then configure again. ${KVASIR_LLAMA_CPP_OTHERWISE}")
    endif()
    file(SHA512 ${archive} actual)
    if(NOT actual STREQUAL sha512)
        file(REMOVE_RECURSE ${partial})
        message(FATAL_ERROR
            "${package} ${version} is not the archive that this build is pinned to, and was thrown away.\n"
            "  SHA-512 expected ${sha512}\n"
            "  SHA-512 received ${actual}\n"
            "Check the registry that `npm config get registry` names. ${KVASIR_LLAMA_CPP_OTHERWISE}")
    endif()
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${partial})
    file(REMOVE ${archive})
    file(TOUCH ${partial}/.complete)
    file(REMOVE_RECURSE ${dir})
    file(RENAME ${partial} ${dir})
endfunction()

# kvasir_fetch_llama_cpp(DIR): llama.cpp's pinned sources as the git checkout DIR, fetched when they are not there yet.
function(kvasir_fetch_llama_cpp dir)
    if(EXISTS ${dir}/.git/kvasir-complete)
        return()
    endif()
    # Several presets may be configured at the same time; the first one fetches, the others find it done.
    file(MAKE_DIRECTORY ${KVASIR_DEPS_DIR})
    file(LOCK ${KVASIR_DEPS_DIR}/lock GUARD FUNCTION TIMEOUT 1800 RESULT_VARIABLE lock_status)
    if(NOT lock_status EQUAL 0)
        message(FATAL_ERROR
            "Another configure run holds ${KVASIR_DEPS_DIR}/lock (${lock_status}). Wait for it or end it, then configure again.")
    endif()
    if(EXISTS ${dir}/.git/kvasir-complete)
        return()
    endif()
    find_program(git git NO_CACHE)
    if(NOT git)
        message(FATAL_ERROR
            "git is missing, and llama.cpp's sources (a git bundle) cannot be unpacked without it. "
            "Install it: scripts/setup does. ${KVASIR_LLAMA_CPP_OTHERWISE}")
    endif()

    set(package ${KVASIR_DEPS_DIR}/${KVASIR_LLAMA_CPP_PACKAGE}-${KVASIR_LLAMA_CPP_PACKAGE_VERSION})
    kvasir_fetch_npm(
        ${KVASIR_LLAMA_CPP_PACKAGE} ${KVASIR_LLAMA_CPP_PACKAGE_VERSION} ${KVASIR_LLAMA_CPP_PACKAGE_SHA512} ${package})

    set(partial ${dir}.partial)
    file(REMOVE_RECURSE ${partial})
    # Variables that a calling git hook sets would make git look at the wrong repository.
    execute_process(
        COMMAND ${CMAKE_COMMAND} -E env --unset=GIT_DIR --unset=GIT_WORK_TREE --unset=GIT_INDEX_FILE
            ${git} clone --quiet -c advice.detachedHead=false ${package}/package/llama/gitRelease.bundle ${partial}
        RESULT_VARIABLE status ERROR_VARIABLE complaint TIMEOUT 600)
    if(NOT status EQUAL 0)
        file(REMOVE_RECURSE ${partial} ${package})
        kvasir_gist("${complaint}" gist)
        message(FATAL_ERROR
            "git could not unpack llama.cpp's sources (${status}). git says:\n"
            "${gist}\n"
            "Check the free space on the disk, then configure again: they are fetched anew.")
    endif()
    file(TOUCH ${partial}/.git/kvasir-complete)
    file(REMOVE_RECURSE ${dir})
    file(RENAME ${partial} ${dir})
endfunction()

# kvasir_check_llama_cpp(DIR): refuses what is no llama.cpp checkout and what this backend cannot be built for; warns of
# a version whose bits nobody has compared.
function(kvasir_check_llama_cpp dir)
    set(backend_header ${dir}/ggml/src/ggml-backend-impl.h)
    foreach(file CMakeLists.txt ggml/CMakeLists.txt ggml/src/ggml-backend-impl.h include/llama.h)
        if(NOT EXISTS ${dir}/${file})
            message(FATAL_ERROR
                "${dir} is not a llama.cpp checkout: it has no ${file}. "
                "Set KVASIR_LLAMA_CPP_DIR to the top folder of a llama.cpp ${KVASIR_LLAMA_CPP_VERSION} checkout, "
                "or take it away (cmake -UKVASIR_LLAMA_CPP_DIR) to have that version fetched.")
        endif()
    endforeach()

    file(STRINGS ${backend_header} api_line REGEX "define GGML_BACKEND_API_VERSION")
    if(NOT api_line MATCHES "GGML_BACKEND_API_VERSION +${KVASIR_GGML_BACKEND_API_VERSION}$")
        message(FATAL_ERROR
            "${dir} has another ggml backend interface than version ${KVASIR_GGML_BACKEND_API_VERSION}, which Kvasir implements "
            "(ggml/src/ggml-backend-impl.h says: ${api_line}). Use llama.cpp ${KVASIR_LLAMA_CPP_VERSION}.")
    endif()

    set(version)
    foreach(component MAJOR MINOR PATCH)
        file(STRINGS ${dir}/ggml/CMakeLists.txt line REGEX "^set\\(GGML_VERSION_${component} ")
        string(REGEX REPLACE "[^0-9]" "" number "${line}")
        list(APPEND version "${number}")
    endforeach()
    list(JOIN version "." version)
    if(NOT version STREQUAL KVASIR_GGML_VERSION)
        message(WARNING
            "${dir} is ggml ${version}; this project is tested with ggml ${KVASIR_GGML_VERSION} "
            "(llama.cpp ${KVASIR_LLAMA_CPP_VERSION}) only. It may not compile, and its nodes compute other bits than theirs.")
    endif()
endfunction()

if(KVASIR_LLAMA_CPP_DIR)
    get_filename_component(KVASIR_LLAMA_CPP_SOURCE ${KVASIR_LLAMA_CPP_DIR} ABSOLUTE)
else()
    set(KVASIR_LLAMA_CPP_SOURCE ${KVASIR_DEPS_DIR}/llama.cpp-${KVASIR_LLAMA_CPP_VERSION})
    kvasir_fetch_llama_cpp(${KVASIR_LLAMA_CPP_SOURCE})
endif()
kvasir_check_llama_cpp(${KVASIR_LLAMA_CPP_SOURCE})
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
if(KVASIR_SANITIZE MATCHES "undefined")
    # ggml's kernels read packed blocks through wider pointers, on purpose, on machines that allow it.
    foreach(target ggml-base ggml ggml-cpu)
        target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
    endforeach()
endif()
if(KVASIR_SANITIZE)
    # libllama is compiled exactly as in the preset release: our threads and our buffers are in ggml and above it, and
    # ccache then has these objects already, which are the greater part of a sanitizer build.
    foreach(target llama llama-common)
        get_target_property(options ${target} COMPILE_OPTIONS)
        list(REMOVE_ITEM options ${KVASIR_SANITIZE_OPTIONS})
        set_target_properties(${target} PROPERTIES COMPILE_OPTIONS "${options}")
    endforeach()
endif()
unset(BUILD_SHARED_LIBS)

# The headers alone: parts use ggml's interface, the final program decides which libraries serve it. That is what lets
# libggml-kvasir.so work inside a program that brings its own ggml.
add_library(kvasir_ggml_headers INTERFACE)
target_include_directories(kvasir_ggml_headers SYSTEM INTERFACE
    ${KVASIR_LLAMA_CPP_SOURCE}/ggml/include)
# ggml's private backend interface, for the backend part only.
add_library(kvasir_ggml_backend_headers INTERFACE)
target_include_directories(kvasir_ggml_backend_headers SYSTEM INTERFACE
    ${KVASIR_LLAMA_CPP_SOURCE}/ggml/src ${KVASIR_LLAMA_CPP_SOURCE}/ggml/include)
