// The models that could be served: cards of models.yaml, and files in folders. Read without loading any; thousands take
// milliseconds. A registry is a snapshot that never changes, so any thread may use it; reload() makes the next one, for which
// only files that have changed are read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "llm/gguf_header.h"
#include "pool/model_card.h"

namespace uma::pool {

struct RegistryOptions {
  std::string cards_file;            // models.yaml; empty: none
  bool needs_cards_file = false;     // that it is absent is a mistake
  std::vector<std::string> folders;  // *.gguf in them are models; of two with one name the first folder's counts
};

// A file as it was found: read once, as long as its size and time stay.
struct ModelFile {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  Expected<llm::GgufHeader> header;
};

struct RegisteredModel {
  ModelCard card;
  std::string path;            // of its first file; empty: it was not fetched yet
  std::string projector_path;  // empty: none
  Capability capability = Capability::chat;
  std::shared_ptr<const ModelFile> file;  // shared between snapshots; null: there is none
  bool is_from_folder = false;
  std::string problem;  // why it cannot be loaded; empty: nothing is known against it

  // 0 where they are not known.
  [[nodiscard]] std::uint64_t weight_bytes() const { return header() == nullptr ? 0 : header()->weight_bytes; }
  // Null: it has no file, or a bad one.
  [[nodiscard]] const llm::GgufHeader* header() const { return file && file->header ? &*file->header : nullptr; }
};

class ModelRegistry {
 public:
  // Errors: every mistake in models.yaml, with its line. A model whose file is absent or bad is registered with its problem.
  [[nodiscard]] static std::expected<std::shared_ptr<const ModelRegistry>, std::vector<std::string>> read(
      RegistryOptions options);
  // As the files are now.
  [[nodiscard]] std::expected<std::shared_ptr<const ModelRegistry>, std::vector<std::string>> reload() const;

  // Those of models.yaml in its order, then those of the folders by name.
  [[nodiscard]] std::span<const RegisteredModel> models() const { return models_; }
  // By name or alias. Errors: E_MODEL_001 with the nearest names.
  [[nodiscard]] Expected<const RegisteredModel*> find(std::string_view name) const;
  // Files that are no models and of no use to any, and others that two models could use, each with the reason.
  [[nodiscard]] std::span<const std::string> remarks() const { return remarks_; }

 private:
  friend class RegistryReader;
  ModelRegistry() = default;

  RegistryOptions options_;
  std::string cards_text_;  // of models.yaml, as it was read
  std::vector<ModelCard> cards_;
  std::map<std::string, std::shared_ptr<const ModelFile>> files_;  // by path
  std::vector<RegisteredModel> models_;
  std::unordered_map<std::string, std::size_t> by_name_;  // names and aliases -> index in models_
  std::vector<std::string> remarks_;
};

// What a file can do, as far as it says so itself.
[[nodiscard]] Capability capability_of(const llm::GgufHeader& header);

// What a model's and its projector's file names have in common: lower case, without "mmproj" and the words at the end that say
// how numbers are kept ("mmproj-Gemma-3-4b-it-F16" and "gemma-3-4b-it-Q4_K_M" are both "gemma-3-4b-it").
[[nodiscard]] std::string pairing_name(std::string_view stem);

}  // namespace uma::pool
