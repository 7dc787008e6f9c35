// `uma-cli top` shows the daemon's state and refreshes it in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Formats one picture. `tokens_per_s` is the rate since the previous picture; nullopt leaves it out.
[[nodiscard]] std::string top_text(const boost::json::object& metrics, const boost::json::array& sessions, std::int64_t now_s,
                                   std::optional<double> tokens_per_s);

// `text` cut to a window of `rows` lines and `columns`, without a newline at the end.
[[nodiscard]] std::string fit_to_window(const std::string& text, std::size_t rows, std::size_t columns);

// On a terminal, refreshes every `interval_s` until Ctrl-C, which is its normal end. Otherwise prints one picture.
Result<void> run_top(Client& client, Output& output, Interrupts& interrupts, double interval_s);

}  // namespace uma::cli
