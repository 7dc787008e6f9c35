// The daemon's models.
#pragma once

#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/models_file.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// The entry of `models` called `name`, or the default model (the first) when `name` is empty. Waits while that model is
// loading, showing on a terminal's standard error how far it is. An empty object: unknown; the daemon will say so to the
// request.
Result<boost::json::object> find_model(Client& client, const std::string& name, Interrupts& interrupts);

Result<void> print_models(Client& client, Output& output, bool as_json);

// Adds a model to models.yaml, or removes it, and says what makes the daemon see that. `file` may be empty: where umad looks. A
// source that is a file must be a GGUF file, whose absolute path is noted.
Result<void> add_model(const std::string& file, NewModel model, Output& output);
Result<void> remove_model(const std::string& file, const std::string& name, Output& output);

}  // namespace uma::cli
