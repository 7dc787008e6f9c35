// The models that can be served: cards of models.yaml, and files in folders. Nothing is loaded for that; thousands of files
// take milliseconds. A registry is an immutable snapshot that any thread may use. reload() makes the next one and reads only
// changed files again.
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
#include "core/model_defaults.h"
#include "core/sampling_fields.h"
#include "core/session_info.h"
#include "llm/file/gguf_header.h"
#include "pool/folder_time.h"
#include "pool/model_card.h"
#include "pool/stores/model_stores.h"

namespace uma::pool {

struct RegistryOptions {
  std::string cards_file;            // Path of models.yaml; empty: none.
  bool needs_cards_file = false;     // Whether a missing file is an error.
  std::string model_path{};          // A file that is always a model; empty: none.
  std::vector<std::string> folders;  // Folders whose *.gguf files are models. If two have one name, the first folder wins.
  // Further names of models, one `ALIAS MODEL` a line; empty: none. A name that another model has is ignored.
  std::string aliases_file{};
  StoreFolders stores{};  // Stores of other programs, whose models come last.
};

// A file and its header, read once until its size or time changes.
struct ModelFile {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  Expected<llm::GgufHeader> header;
};

struct RegisteredModel {
  ModelCard card;
  std::string path;            // Path of its first file; empty: not downloaded yet.
  std::string projector_path;  // Empty: none.
  llm::Encoders encoders{};    // Encoders of its projector.
  std::vector<llm::AdapterSource> adapters{};
  Capability capability = Capability::chat;
  llm::PictureSource picture{};           // Source of a model that draws.
  std::int32_t picture_size = 0;          // See ModelInfo.
  std::shared_ptr<const ModelFile> file;  // Shared between snapshots; null: no file.
  std::vector<SamplingDefault> sampling;  // Defaults of its card, its file and its family.
  std::string_view family;                // The family that has defaults; empty: none, or it is unknown.
  bool is_from_folder = false;
  std::string_view store{};  // The program that has stored the file; empty: none has.
  std::string sha256{};      // See StoredModel.
  std::string settings{};    // See StoredModel.
  std::string problem;       // Why it cannot be loaded; empty: no known problem.

  // Bytes of its weights; 0 if unknown.
  [[nodiscard]] std::uint64_t weight_bytes() const { return header() == nullptr ? 0 : header()->weight_bytes; }
  // Null: it has no file, or an invalid one.
  [[nodiscard]] const llm::GgufHeader* header() const { return file && file->header ? &*file->header : nullptr; }
};

class ModelRegistry {
 public:
  // Errors: every mistake in models.yaml, with its line. A model whose file is missing or invalid is registered with its
  // problem.
  [[nodiscard]] static std::expected<std::shared_ptr<const ModelRegistry>, std::vector<std::string>> read(
      RegistryOptions options);
  // A new snapshot of the present files and of models.yaml.
  [[nodiscard]] std::expected<std::shared_ptr<const ModelRegistry>, std::vector<std::string>> reload() const;
  // A snapshot of the present files and of this text of models.yaml, in order to examine the text. Errors: as read().
  [[nodiscard]] std::expected<std::shared_ptr<const ModelRegistry>, std::vector<std::string>> with_cards(
      const std::string& text) const;
  // A new snapshot of the present files, with the cards as they were read.
  [[nodiscard]] std::shared_ptr<const ModelRegistry> rescan() const;
  // Whether files have been added to the folders and stores, or removed, since the snapshot was made. A system call for each
  // folder.
  [[nodiscard]] bool have_folders_changed() const;
  // Whether an invalid file has changed: it may have been incomplete. A system call for each invalid file.
  [[nodiscard]] bool have_invalid_files_changed() const;

  // Path of models.yaml; empty: none.
  [[nodiscard]] const std::string& cards_file() const { return options_.cards_file; }
  // The models: first that of model_path, then those of models.yaml in its order, then those of the folders by name, then those
  // of other programs' stores. A file with the content of an earlier one is no further model: its names are that one's aliases.
  [[nodiscard]] std::span<const RegisteredModel> models() const { return models_; }
  // Finds a model by name or alias. Errors: E_MODEL_001 with the most similar names.
  [[nodiscard]] Expected<const RegisteredModel*> find(std::string_view name) const;
  // Finds the model that a name means in another spelling (likeness()); null: none, or several. Linear in the models.
  [[nodiscard]] const RegisteredModel* find_spelled(std::string_view name) const;
  // Files that are not models and not used by any, and files that several models could use, each with the reason.
  [[nodiscard]] std::span<const std::string> remarks() const { return remarks_; }

 private:
  friend class RegistryReader;
  ModelRegistry() = default;

  RegistryOptions options_;
  std::string cards_text_;  // Text of models.yaml as it was read.
  std::vector<ModelCard> cards_;
  std::map<std::string, std::shared_ptr<const ModelFile>> files_;  // Keyed by path.
  std::vector<FolderTime> folders_read_;
  std::vector<RegisteredModel> models_;
  std::unordered_map<std::string, std::size_t> by_name_;  // From names and aliases to indices in models_.
  std::vector<std::string> remarks_;
};

// The defaults for requests to the model.
[[nodiscard]] ModelDefaults defaults_of(const RegisteredModel& model);

// The vectors that the model's vectors of images can be compared with, if its projector is this one.
[[nodiscard]] ImageVectors image_vectors_of(const RegisteredModel& model, const llm::Encoders& encoders);

// Description of a model that is not loaded, for clients.
[[nodiscard]] ModelInfo info_of(const RegisteredModel& model);

// The capability that the header of a file indicates.
[[nodiscard]] Capability capability_of(const llm::GgufHeader& header);

}  // namespace uma::pool
