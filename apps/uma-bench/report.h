// Formats results as a table for people, JSON for scripts, CSV for plots.
#pragma once

#include <string>
#include <string_view>

#include "uma-bench/scenarios.h"

namespace uma::bench {

// One line per figure, then the failures.
[[nodiscard]] std::string format_table(std::string_view scenario, std::string_view path, const Outcome& outcome);

// {"scenario","path","figures":{name: number or null},"failures":[{"message","count"}]}
[[nodiscard]] std::string format_json(std::string_view scenario, std::string_view path, const Outcome& outcome);

// Exit codes: 2 for a failure of the server, 3 for a broken protocol.
[[nodiscard]] int exit_code(Failure::Kind kind);
[[nodiscard]] int exit_code(const Outcome& outcome);

}  // namespace uma::bench
