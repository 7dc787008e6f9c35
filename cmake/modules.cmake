if(UMA_TESTS)
  include(GoogleTest)
endif()

# uma_keep_platform(LIST): leaves out the sources of other platforms. A file *_linux.cpp uses what only Linux has; *_portable.cpp,
# if it exists, is its twin for every other system.
function(uma_keep_platform list)
  set(sources ${${list}})
  if(UMA_PLATFORM STREQUAL linux)
    list(FILTER sources EXCLUDE REGEX "_portable\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_linux\\.cpp$")
  endif()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()

# uma_module(name [MODULES ...] [LIBRARIES ...] [TEST_MODULES ...]): makes the static library uma_<name> from the sources of one
# module of src/, and the program <name>_test from its unit tests, the files *_test.cpp beside them.
function(uma_module name)
  cmake_parse_arguments(MODULE "" "" "MODULES;LIBRARIES;TEST_MODULES" ${ARGN})
  set(folder ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  uma_keep_platform(sources)
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM MODULE_MODULES PREPEND uma_)
  list(TRANSFORM MODULE_TEST_MODULES PREPEND uma_)
  if(sources)
    add_library(uma_${name} STATIC ${sources})
    target_include_directories(uma_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(uma_${name} PUBLIC ${MODULE_MODULES} ${MODULE_LIBRARIES})
  else()
    add_library(uma_${name} INTERFACE)
    target_include_directories(uma_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(uma_${name} INTERFACE ${MODULE_MODULES} ${MODULE_LIBRARIES})
  endif()
  if(tests)
    uma_test(${name}_test SOURCES ${tests} LIBRARIES uma_${name} ${MODULE_TEST_MODULES})
  endif()
endfunction()

# uma_test(name [LABEL simulator] SOURCES ... LIBRARIES ...): makes a GoogleTest program whose tests ctest runs one by one.
# script/test runs those of a label together (default: unit).
# The environment variable UMA_TEST_MODEL names the tiny random-weight model that the build makes, the macro UMA_SHIPPED_MODEL
# the model that ships with umad. There is only one environment variable, because ctest would get only the first of several.
# Without UMA_TESTS it does nothing.
function(uma_test name)
  if(NOT UMA_TESTS)
    return()
  endif()
  cmake_parse_arguments(TEST "" "LABEL" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT TEST_LABEL)
    set(TEST_LABEL unit)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LIBRARIES} GTest::gtest_main GTest::gmock)
  # With -O1 compiling takes a quarter less time than with -O2. The modules under test are optimized as usual.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_compile_definitions(${name} PRIVATE UMA_SHIPPED_MODEL="${CMAKE_SOURCE_DIR}/models/uma-tiny.gguf")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${TEST_LABEL}
    ENVIRONMENT "UMA_TEST_MODEL=${CMAKE_BINARY_DIR}/models/tiny.gguf")
endfunction()
