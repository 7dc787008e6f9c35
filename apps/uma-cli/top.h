// `uma-cli top` shows what the daemon does and refreshes it in place: the live view of the page at /, for a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Formats one picture of a snapshot of `watch` for 80 columns. `before` is the snapshot of the picture before, from which rates
// are computed; null: there is none.
[[nodiscard]] std::string top_text(const boost::json::object& snapshot, const boost::json::object* before);

// `text` from line `first` on, cut to a window of `rows` lines and `columns`, without a newline at the end. The last lines fill
// the window: a larger `first` is made smaller.
[[nodiscard]] std::string fit_to_window(const std::string& text, std::size_t rows, std::size_t columns, std::size_t& first);

// On a terminal, refreshes every `interval_s` until q or Ctrl-C, which are its normal ends; arrows and page keys scroll.
// Otherwise prints one picture.
Result<void> run_top(Client& client, Output& output, Interrupts& interrupts, double interval_s);

}  // namespace uma::cli
