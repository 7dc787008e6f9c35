// How results leave the bench: a table for people, JSON for scripts, CSV for plots.
#pragma once

#include <string>
#include <string_view>

#include "scenarios.h"

namespace uma::bench {

// One line a figure, then the failures.
[[nodiscard]] std::string format_table(std::string_view scenario, std::string_view path, const Outcome& outcome);

// {"scenario","path","figures":{name: number or null},"failures":[{"message","count"}]}
[[nodiscard]] std::string format_json(std::string_view scenario, std::string_view path, const Outcome& outcome);

// 0 all answered, 2 the server failed, 3 it broke the protocol.
[[nodiscard]] int exit_code(Failure::Kind kind);
[[nodiscard]] int exit_code(const Outcome& outcome);

}  // namespace uma::bench
