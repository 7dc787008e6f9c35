include(GoogleTest)

# uma_module(name [MODULES ...] [LIBRARIES ...] [TEST_MODULES ...]): one module of src/ as a static library uma_<name>, from its sources,
# and its unit tests, *_test.cpp beside them, as the program <name>_test.
function(uma_module name)
  cmake_parse_arguments(MODULE "" "" "MODULES;LIBRARIES;TEST_MODULES" ${ARGN})
  set(folder ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp ${folder}/*/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
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

# uma_test(name SOURCES ... LIBRARIES ...): a GoogleTest program whose tests ctest runs one by one.
# The variable UMA_TEST_MODEL names the tiny random-weight model that the build makes (one variable: of several, ctest would get
# only the first), the macro UMA_SHIPPED_MODEL the one that ships.
function(uma_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LIBRARIES} GTest::gtest_main GTest::gmock)
  # A quarter less to compile than with -O2; what the tests call is optimized as it ships.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_compile_definitions(${name} PRIVATE UMA_SHIPPED_MODEL="${CMAKE_SOURCE_DIR}/models/uma-tiny.gguf")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES
    ENVIRONMENT "UMA_TEST_MODEL=${CMAKE_BINARY_DIR}/models/tiny.gguf")
endfunction()
