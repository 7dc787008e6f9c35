// `uma-cli top`: the daemon at a glance, refreshed in place.
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

// One picture. `tokens_per_s` is the rate since the picture before; without one the line does not show it.
[[nodiscard]] std::string top_text(const boost::json::object& metrics, const boost::json::array& sessions, std::int64_t now_s,
                                   std::optional<double> tokens_per_s);

// `text` cut to a window: at most `rows` lines of at most `columns`; no newline at the end.
[[nodiscard]] std::string fit_to_window(const std::string& text, std::size_t rows, std::size_t columns);

// On a terminal: refreshes every `interval_s` until Ctrl-C, which is its normal end. Elsewhere one picture.
Result<void> run_top(Client& client, Output& output, Interrupts& interrupts, double interval_s);

}  // namespace uma::cli
