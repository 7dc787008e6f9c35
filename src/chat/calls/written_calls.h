// Calls as the models of a family write them, for templates that leave calls out of the past: their models expect them in the
// content.
#pragma once

#include <span>
#include <string>

#include "chat/family.h"
#include "jinja/value.h"

namespace uma::chat {

struct CalledFunction {
  std::string id;
  std::string name;
  jinja::Value arguments;  // A dict; or a text, if the call is broken.
};

// In the first form of the family. The family's marks are words of the template, all else is input of `source`. Requires: the
// form's arguments are JSON or as in Python.
[[nodiscard]] jinja::Text written_calls(const Family& family, std::span<const CalledFunction> calls, jinja::Source source);

}  // namespace uma::chat
