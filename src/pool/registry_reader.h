// Makes the snapshots of ModelRegistry: reads models.yaml, folders, stores of other programs, and the headers of files.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "pool/model_registry.h"

namespace uma::pool {

using RegistryRead = std::expected<std::shared_ptr<const ModelRegistry>, std::vector<std::string>>;

// A snapshot of the present files. What has not changed since `previous` is taken from there; null: there is none. Errors:
// every mistake in models.yaml.
[[nodiscard]] RegistryRead read_registry(RegistryOptions options, const ModelRegistry* previous);
// A snapshot with this text of models.yaml.
[[nodiscard]] RegistryRead read_registry(RegistryOptions options, const ModelRegistry& previous, const std::string& cards);
// A snapshot with the cards of `previous`.
[[nodiscard]] std::shared_ptr<const ModelRegistry> read_files_again(RegistryOptions options, const ModelRegistry& previous);

// The name of a model's file without its ending, and without the number of a part.
[[nodiscard]] std::string stem_of(const std::string& path);

}  // namespace uma::pool
