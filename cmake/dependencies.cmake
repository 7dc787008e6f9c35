find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
if(UMA_TESTS)
  find_package(GTest REQUIRED)
endif()
find_package(Boost 1.81 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
add_library(xxhash ALIAS PkgConfig::xxhash)
pkg_check_modules(hiredis REQUIRED IMPORTED_TARGET hiredis)
# A part of libhiredis from version 1 on.
pkg_check_modules(hiredis_ssl IMPORTED_TARGET hiredis_ssl)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
if(UMA_PLATFORM STREQUAL linux)
  pkg_check_modules(libsystemd REQUIRED IMPORTED_TARGET libsystemd)
  set(UMA_SYSTEMD PkgConfig::libsystemd)
endif()
find_package(CURL 7.88 REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto SSL)
find_package(SQLite3 3.37 REQUIRED)
find_package(PostgreSQL 14 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG 1.6 REQUIRED)
find_package(JPEG REQUIRED)
find_package(GIF 5.1 REQUIRED)
pkg_check_modules(webp REQUIRED IMPORTED_TARGET libwebp libwebpdemux)
pkg_check_modules(sound REQUIRED IMPORTED_TARGET sndfile>=1.1 samplerate)  # Since 1.1 with MP3.

# The minor version of libllama that the test suite was run with. Another one, whose API may differ, is taken if src/llm compiles
# with it; what differs then belongs in a header of that module, llama_compat (docs/LIBLLAMA.md, "Versions").
set(UMA_LLAMA_MINOR 0.7)
find_package(llama CONFIG QUIET)
if(NOT llama_FOUND)
  message(FATAL_ERROR "libllama ${UMA_LLAMA_MINOR} with its headers was not found: install it with script/bootstrap.")
endif()
if(NOT LLAMA_VERSION MATCHES "^0\\.")
  message(FATAL_ERROR "uma-serve is written for libllama ${UMA_LLAMA_MINOR}, this system has ${LLAMA_VERSION}: install ${UMA_LLAMA_MINOR}.")
elseif(NOT LLAMA_VERSION MATCHES "^${UMA_LLAMA_MINOR}\\.")
  message(WARNING
    "uma-serve is tested with libllama ${UMA_LLAMA_MINOR}, this system has ${LLAMA_VERSION}: "
    "run script/test before you rely on this build. If src/llm does not compile, install ${UMA_LLAMA_MINOR}.")
endif()
# In one file only, so that another version compiles no other file again.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/llm/library_version.cpp PROPERTIES
  COMPILE_DEFINITIONS "UMA_LLAMA_MINOR=\"${UMA_LLAMA_MINOR}\";UMA_LLAMA_BUILT=\"${LLAMA_VERSION}\"")
add_library(uma_llama INTERFACE)
# libmtmd, which reads images, comes with libllama, but has no CMake package.
find_library(UMA_MTMD_LIBRARY mtmd)
find_path(UMA_MTMD_HEADERS mtmd-helper.h)
if(NOT UMA_MTMD_LIBRARY OR NOT UMA_MTMD_HEADERS)
  message(FATAL_ERROR "libmtmd with its headers (mtmd.h, mtmd-helper.h) was not found beside libllama: run script/bootstrap.")
endif()
target_link_libraries(uma_llama INTERFACE llama ggml::ggml ${UMA_MTMD_LIBRARY})
target_include_directories(uma_llama SYSTEM INTERFACE ${UMA_MTMD_HEADERS})

# Only the headers of Boost are used. Its functions are compiled once, in src/json/boost_json.cpp and src/wire/boost_asio.cpp.
add_library(uma_boost INTERFACE)
target_include_directories(uma_boost SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
target_compile_definitions(uma_boost INTERFACE BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED BOOST_JSON_NO_LIB BOOST_ALL_NO_LIB)
# Asio's coroutines allocate and free their frames with their own operators. If GCC inlines only one of the two, it reports a
# mismatch.
target_compile_options(uma_boost INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>)
