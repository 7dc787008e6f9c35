// The choices of the configuration about models: which one is the default, where its draft model and its projector are, and how
// it computes on this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "pool/model_registry.h"
#include "umad/config.h"
#include "umad/tune/compute.h"

namespace uma::umad {

// The registered models and the name of the default model.
struct Models {
  std::shared_ptr<const pool::ModelRegistry> registry;
  std::string default_name;
  std::vector<std::string> shipped_names;  // The registered models that ship with umad.
};
// Errors: mistakes in the list of models, which are also logged; the default model is missing.
[[nodiscard]] Expected<Models> find_models(const Config& config);

// The file with further names of models (local_models.h).
[[nodiscard]] std::string aliases_path(const Config& config);
// The file of a model that the configuration names.
[[nodiscard]] Expected<std::string> find_named(const Config& config, const std::string& name);
// The configured model's file, else the model that ships with umad.
[[nodiscard]] Expected<std::string> choose_model(const Config& config);
// The draft model's file; empty if there is none, or if it would not be used.
[[nodiscard]] Expected<std::string> choose_draft_model(const Config& config);
// How a model computes here: as the configuration says, else as its profile does.
[[nodiscard]] Compute choose_compute_here(const Config& config, const std::string& model_path);

}  // namespace uma::umad
