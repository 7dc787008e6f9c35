// Runs a parsed template. Steps, depth and bytes are bounded, so every template ends soon. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "jinja/parser.h"
#include "jinja/value.h"

namespace uma::jinja {

struct Environment {
  std::vector<Value::Entry> variables;
  std::int64_t unix_s = 0;  // The time of strftime_now().
};

// Throws TemplateError, with the current line.
[[nodiscard]] Text run(const Body& body, const Environment& environment, Budget& budget);

}  // namespace uma::jinja
