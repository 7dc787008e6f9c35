set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# A unity build compiles the sources of a target in batches: headers and templates are compiled once for a batch, not for a
# file. Therefore names in anonymous namespaces must differ within a module. The presets debug and lint compile file by file.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC warns about anonymous namespaces in included files, and a batch includes its sources.
  add_compile_options(-Wno-subobject-linkage)
endif()

# Paths in messages and debug information begin at the root of the repository.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
add_compile_options(-Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_compile_options(-Wthread-safety)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

if(CMAKE_SYSTEM_NAME STREQUAL Linux AND NOT UMA_PORTABLE)
  set(UMA_PLATFORM linux)
else()
  set(UMA_PLATFORM portable)
endif()
# Until version 20, libc++ has std::jthread and std::stop_token only with this flag.
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  include(CheckCXXSourceCompiles)
  check_cxx_source_compiles("#include <stop_token>\nint main() { return std::stop_source().stop_requested(); }" UMA_HAS_STOP_TOKEN)
  if(NOT UMA_HAS_STOP_TOKEN)
    add_compile_options(-fexperimental-library)
    add_link_options(-fexperimental-library)
  endif()
endif()

if(UMA_SANITIZE)
  add_compile_options(-fsanitize=${UMA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${UMA_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # With sanitizers, GCC's flow analysis reports errors that cannot happen.
    add_compile_options(-Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overread -Wno-stringop-overflow -Wno-tsan)
  endif()
endif()
if(UMA_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 21)
  add_compile_definitions(__SANITIZE_ADDRESS__)  # GCC and later versions of clang define it
endif()
if(UMA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(UMA_COVERAGE)
  add_compile_options(-fprofile-instr-generate -fcoverage-mapping -fcoverage-compilation-dir=${CMAKE_SOURCE_DIR})
  add_link_options(-fprofile-instr-generate)
endif()
