// Lists the daemon's models and edits models.yaml.
#pragma once

#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/models/models_file.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Whether `name` is the name of this entry of `models`, or an alias.
[[nodiscard]] bool is_called(const boost::json::object& model, const std::string& name);

// Returns the entry of `models` called `name`, or the default model (the first entry) if `name` is empty. Waits while the model
// is loading and shows the progress if standard error is a terminal. Returns an empty object for an unknown model, which the
// daemon itself will refuse.
Result<boost::json::object> find_model(Client& client, const std::string& name, Interrupts& interrupts);

Result<void> print_models(Client& client, Output& output, bool as_json);

// Adds a model to models.yaml, or removes one, and explains how to make the daemon read the file. An empty `file` means umad's
// default path. A source that is a file must be a GGUF file; its absolute path is stored.
Result<void> add_model(const std::string& file, NewModel model, Output& output);
Result<void> remove_model(const std::string& file, const std::string& name, Output& output);

}  // namespace uma::cli
