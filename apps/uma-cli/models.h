// The daemon's models.
#pragma once

#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// The entry of `models` called `name`, or the default model (the first) when `name` is empty. Waits while that model is
// loading, showing on a terminal's standard error how far it is. An empty object: unknown; the daemon will say so to the
// request.
Result<boost::json::object> find_model(Client& client, const std::string& name, Interrupts& interrupts);

Result<void> print_models(Client& client, Output& output, bool as_json);

}  // namespace uma::cli
