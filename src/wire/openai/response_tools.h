// The tools of /v1/responses. A model knows functions only, so the other kinds become functions for it, and its calls are
// written back in the client's form:
//
//   a function in a namespace   the function NAMESPACE__NAME; the call has `namespace` and the bare name
//   a custom tool               a function with the text `input`; the call is a custom_tool_call
//   tools of OpenAI's servers   left out, because nobody here can run them
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"

namespace uma::wire {

// The client's name of a function.
struct ResponseTool {
  std::string space;  // Empty: the tool is in no namespace.
  std::string name;
  bool is_custom = false;
};

class ResponseTools {
 public:
  ResponseTools() = default;
  // Reads `tools` of a request. Errors: a field of a tool.
  explicit ResponseTools(json::FieldReader& request);
  // The tools that ResponseRequest::request repeats.
  [[nodiscard]] static ResponseTools of_stored(std::string_view request);

  // The functions for the model, in the form {"type": "function", "name", ...}.
  [[nodiscard]] const boost::json::array& functions() const { return functions_; }
  // The tools of the request as the response repeats them.
  [[nodiscard]] const boost::json::array& given() const { return given_; }
  // The types of the tools that are left out.
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }
  // Frees functions() and given(); find() needs only the names.
  void drop_definitions();
  // The client's name of a function that the model calls.
  [[nodiscard]] ResponseTool find(std::string_view function) const;

 private:
  void add(json::FieldReader& tool, const boost::json::object& object, const std::string& space);
  // Returns the tool's name for the model.
  std::string add_name(json::FieldReader& tool, const std::string& space, bool is_custom);
  void add_function(json::FieldReader& tool, const boost::json::object& object, const std::string& space);
  void add_custom(json::FieldReader& tool, const boost::json::object& object, const std::string& space);

  boost::json::array functions_;
  boost::json::array given_;
  std::vector<std::string> left_out_;
  std::unordered_map<std::string, ResponseTool> by_function_;
};

// The function, without a type, that a model gets for a custom tool: {"name", "description", "format"}.
[[nodiscard]] boost::json::object custom_function(const boost::json::object& tool, std::string_view name);
// The name of a client's function for the model; `space` may be empty.
[[nodiscard]] std::string function_name(std::string_view space, std::string_view name);
// The arguments of a call of a custom tool, and the input that such arguments have; text that is no such object is the input.
[[nodiscard]] std::string arguments_of_input(std::string_view input);
[[nodiscard]] std::string input_of_arguments(std::string_view arguments);

}  // namespace uma::wire
