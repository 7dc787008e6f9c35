// Runs a parsed template. Bounded in steps, depth and bytes: whatever the template, it ends soon.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capability/jinja_parser.h"
#include "capability/jinja_value.h"

namespace uma::capability::jinja {

struct Environment {
  std::vector<Value::Entry> variables;
  std::int64_t unix_s = 0;  // what strftime_now() tells
};

// Throws TemplateError, with the line it came to.
[[nodiscard]] Text run(const Body& body, const Environment& environment, Budget& budget);

}  // namespace uma::capability::jinja
