// The daemon's metrics, its trace, and `ping`.
#pragma once

#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Each metric with its name, in the daemon's order, then one row per worker.
[[nodiscard]] std::string metrics_text(const boost::json::object& metrics);

Result<void> print_metrics(Client& client, Output& output, bool as_json);

// Prints what the daemon's threads did in the last `seconds`, as JSON in the Trace Event Format.
Result<void> print_trace(Client& client, double seconds, Output& output);

// Prints a line such as "pong from PATH after 0.2 ms".
Result<void> print_ping(Client& client, Output& output);

}  // namespace uma::cli
