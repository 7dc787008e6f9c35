// Renders chat templates for tests/e2e/test_templates.py, which compares with other engines. One JSON object a line on standard
// input, {"template": "...", "input": {...}} (json_input.h); for each one a line {"text": "..."} or {"error": "..."}.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <boost/json.hpp>

#include "jinja/chat_template.h"
#include "json_input.h"

namespace {

boost::json::object answer(const std::string& line) {
  const boost::json::object request = boost::json::parse(line).as_object();
  const auto made = uma::jinja::ChatTemplate::parse(std::string(request.at("template").as_string()));
  if (!made) return {{"error", made.error().message}};
  const auto text = made->render(uma::input_from_json(request.at("input").as_object()));
  if (!text) return {{"error", text.error().message}};
  return {{"text", text->bytes()}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << boost::json::serialize(answer(line)) << '\n' << std::flush;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "render_template: %s\n", problem.what());
      return 1;
    }
  }
  return 0;
}
