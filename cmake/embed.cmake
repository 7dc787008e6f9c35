# uma_embed(target file header namespace function): compiles a text file into a target. `function` of `header` returns it as a
# std::string_view.
function(uma_embed target file header namespace function)
  get_filename_component(path ${file} ABSOLUTE)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/embedded/${function}.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} text)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [=[// Made of @file@.
#include "@header@"

namespace @namespace@ {

std::string_view @function@() { return R"UMA(@text@)UMA"; }

}  // namespace @namespace@
]=])
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -Wno-overlength-strings)
  target_sources(${target} PRIVATE ${source})
endfunction()
