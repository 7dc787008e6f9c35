#include "pool/registry_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "base/system/file_calls.h"
#include "base/text.h"
#include "core/model_file_name.h"
#include "llm/file/gguf_files.h"
#include "llm/file/safetensors_header.h"
#include "llm/picture/picture_model.h"
#include "pool/card_file.h"
#include "pool/family_sampling.h"
#include "pool/stores/same_content.h"

namespace uma::pool {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::size_t kCardsBytesMax = 16u << 20;

using Problems = std::vector<std::string>;

// The text of models.yaml; empty if the file is missing and optional.
std::expected<std::string, Problems> read_cards_file(const RegistryOptions& options) {
  if (options.cards_file.empty()) return std::string();
  struct stat status{};
  const auto refuse = [&](std::string_view why) {
    return std::unexpected(Problems{std::format("{}: {}", options.cards_file, why)});
  };
  if (::stat(options.cards_file.c_str(), &status) != 0) {
    if (errno == ENOENT && !options.needs_cards_file) return std::string();
    return refuse(std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) return refuse("not a regular file");
  if (static_cast<std::size_t>(status.st_size) > kCardsBytesMax) return refuse("too large for a list of models");
  const std::ifstream file(options.cards_file, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return refuse(std::strerror(errno));
  return std::move(text).str();
}

// Changes with the file; empty: there is none.
std::string version_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return {};
  return std::format("{} {}", status.st_size, modified_ns(status));
}

// Whether there is no such file or folder; another problem may pass.
bool is_gone(const std::error_code& problem) {
  return problem == std::errc::no_such_file_or_directory || problem == std::errc::not_a_directory;
}

std::string file_name_of_url(std::string_view url) {
  url = url.substr(0, std::min(url.find('?'), url.find('#')));
  return std::string(url.substr(url.rfind('/') + 1));
}

}  // namespace

std::string stem_of(const std::string& path) {
  if (const auto split = parse_split_name(path)) return fs::path(split->stem).filename().string();
  return fs::path(path).stem().string();
}

class RegistryReader {
 public:
  RegistryReader(RegistryOptions options, const ModelRegistry* previous) : previous_(previous) {
    next_->options_ = std::move(options);
  }

  RegistryRead read() {
    if (auto problems = read_cards(); !problems.empty()) return std::unexpected(std::move(problems));
    return read_files();
  }

  RegistryRead read_text(const std::string& text) {
    if (auto problems = parse(text); !problems.empty()) return std::unexpected(std::move(problems));
    return read_files();
  }

  // Requires a previous snapshot, whose cards are kept.
  std::shared_ptr<const ModelRegistry> read_with_known_cards() {
    next_->cards_text_ = previous_->cards_text_;
    next_->cards_ = previous_->cards_;
    return read_files();
  }

 private:
  std::shared_ptr<const ModelRegistry> read_files() {
    for (const std::string& folder : next_->options_.folders) scan(folder);
    add_given();
    for (const ModelCard& card : next_->cards_) add_card(card);
    add_files();
    add_aliases();
    add_stored();
    add_aliases();  // Also of those.
    add_adapter_names();
    pair_projectors();
    return std::shared_ptr<const ModelRegistry>(std::move(next_));
  }

  // Cards with unchanged text are not parsed again, because parsing takes longer than the rest.
  Problems read_cards() {
    auto text = read_cards_file(next_->options_);
    if (!text) return text.error();
    return parse(*std::move(text));
  }

  Problems parse(std::string text) {
    next_->cards_text_ = std::move(text);
    if (previous_ != nullptr && previous_->cards_text_ == next_->cards_text_) {
      next_->cards_ = previous_->cards_;
      return {};
    }
    auto cards = parse_cards(next_->cards_text_, next_->options_.cards_file);
    if (!cards) return cards.error();
    next_->cards_ = *std::move(cards);
    return {};
  }

  // The present file; null if it does not exist or cannot be a model.
  std::shared_ptr<const ModelFile> file_at(const std::string& path) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) {
      const bool is_known =
          !is_gone(std::error_code(errno, std::generic_category())) && previous_ != nullptr && previous_->files_.contains(path);
      return is_known ? next_->files_[path] = previous_->files_.at(path) : nullptr;
    }
    if (!S_ISREG(status.st_mode)) return nullptr;
    std::shared_ptr<const ModelFile>& entry = next_->files_[path];
    if (entry) return entry;
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    if (previous_ != nullptr) {
      const auto known = previous_->files_.find(path);
      // The other files of a split model may have been added since, and an invalid file may have been incomplete.
      const bool is_same = known != previous_->files_.end() && known->second->bytes == bytes &&
                           known->second->modified_ns == modified_ns(status) && known->second->header &&
                           !parse_split_name(path);
      if (is_same) return entry = known->second;
    }
    auto header = llm::is_safetensors_name(path) ? llm::read_safetensors_header(path) : llm::read_model_header(path);
    // A file that could not be read is read again, as if it had changed.
    const bool is_unread = !header && header.error().code == ErrorCode::io_failed;
    entry = std::make_shared<const ModelFile>(bytes, is_unread ? 0 : modified_ns(status), std::move(header));
    return entry;
  }

  // The files of a folder that cannot be read now, as they were known before.
  std::vector<std::string> known_paths(const std::string& folder) const {
    std::vector<std::string> paths;
    if (previous_ == nullptr) return paths;
    for (const auto& [path, file] : previous_->files_) {
      if (fs::path(path).parent_path() == fs::path(folder)) paths.push_back(path);
    }
    return paths;
  }

  void scan(const std::string& folder) {
    next_->folders_read_.push_back(time_of(folder));
    std::error_code problem;
    std::vector<std::string> paths;
    for (auto entry = fs::directory_iterator(folder, problem); !problem && entry != fs::directory_iterator();
         entry.increment(problem)) {
      std::string path = entry->path().string();
      if (!lower_ascii(path).ends_with(kExtension) && !llm::is_safetensors_name(path)) continue;
      // The first file of a split model represents it.
      if (const auto split = parse_split_name(path); split && split->index > 0) continue;
      paths.push_back(std::move(path));
    }
    if (problem && !is_gone(problem)) {
      next_->folders_read_.back().modified_ns = std::nullopt;  // It is read again.
      paths = known_paths(folder);
    }
    std::ranges::sort(paths);
    for (std::string& path : paths) {
      auto file = file_at(path);
      if (!file) continue;
      // Safetensors files are served for Stable Diffusion only. Others may lie there for other programs.
      if (llm::is_safetensors_name(path) && file->header && !file->header->is_diffusion()) continue;
      const bool is_projector = file->header ? file->header->is_projector() : lower_ascii(stem_of(path)).contains("mmproj");
      if (!file->header && llm::read_gguf_header(path, llm::GgufKind::adapter)) {
        adapters_.push_back(path);
        continue;
      }
      (is_projector ? projectors_ : found_).emplace_back(std::move(path), std::move(file));
    }
  }

  // Resolves `written`: a path, relative to the folder of models.yaml, or a file name in a model folder.
  std::string resolve(const std::string& written) {
    const fs::path path(written);
    const fs::path beside = fs::path(next_->options_.cards_file).parent_path() / path;
    std::error_code problem;
    if (path.is_absolute() || path.has_parent_path() || fs::exists(beside, problem)) return beside.lexically_normal().string();
    for (const std::string& folder : next_->options_.folders) {
      for (const std::string_view extension : {std::string_view(), kExtension, kSafetensors}) {
        const fs::path candidate = fs::path(folder) / (written + std::string(extension));
        if (fs::is_regular_file(candidate, problem)) return candidate.string();
      }
    }
    return beside.lexically_normal().string();
  }

  std::string path_of(const ModelCard& card) { return resolve(card.path.empty() ? file_name_of_url(card.url) : card.path); }

  // Adds the file of model_path; a card for that file applies to it.
  void add_given() {
    const std::string& path = next_->options_.model_path;
    if (path.empty()) return;
    const auto is_same = [&](const ModelCard& card) {
      std::error_code problem;
      return fs::equivalent(path_of(card), path, problem);
    };
    if (std::ranges::any_of(next_->cards_, is_same)) return;
    RegisteredModel model;
    model.path = path;
    model.file = file_at(path);
    if (!model.file) model.problem = std::format("{}: no such file", path);
    model.card.name = stem_of(path);
    model.card.path = path;
    used_.insert(path);
    add(std::move(model));
  }

  void add_card(const ModelCard& card) {
    if (next_->by_name_.contains(card.name)) {
      next_->remarks_.push_back(std::format("{}: the card of \"{}\" is not used, because the name belongs to {}",
                                            next_->options_.cards_file, card.name, next_->options_.model_path));
      return;
    }
    RegisteredModel model;
    model.card = card;
    model.path = path_of(card);
    model.file = file_at(model.path);
    if (!model.file) {
      model.problem = card.url.empty() ? std::format("{}: no such file", model.path)
                                       : std::format("it was not downloaded yet: run uma-cli pull {}", card.url);
      if (!card.url.empty()) model.path.clear();
    }
    if (!card.projector.empty()) {
      model.projector_path = resolve(card.projector);
      const auto projector = file_at(model.projector_path);
      if (!projector) model.problem = std::format("its projector {}: no such file", model.projector_path);
      if (projector && !projector->header) model.problem = projector->header.error().message;
      if (projector && projector->header) model.encoders = projector->header->encoders;
    }
    for (llm::AdapterSource adapter : card.adapters) {
      adapter.path = resolve(adapter.path);
      adapter.version = version_of(adapter.path);
      used_.insert(adapter.path);
      model.adapters.push_back(std::move(adapter));
    }
    used_.insert(model.path);
    used_.insert(model.projector_path);
    add(std::move(model));
  }

  void add_files() {
    for (auto& [path, file] : found_) {
      if (used_.contains(path)) continue;
      RegisteredModel model;
      model.path = path;
      model.file = file;
      model.card.name = stem_of(path);
      model.card.path = path;
      model.is_from_folder = true;
      if (!is_model_name(model.card.name)) {
        next_->remarks_.push_back(std::format("{}: not registered, because its name has blanks or is too long", path));
      } else if (next_->by_name_.contains(model.card.name)) {
        next_->remarks_.push_back(std::format("{}: not registered, because another model has that name", path));
      } else {
        add(std::move(model));
      }
    }
  }

  void add(RegisteredModel model) {
    if (model.file && !model.file->header && model.problem.empty()) model.problem = model.file->header.error().message;
    if (const llm::GgufHeader* header = model.header()) {
      model.capability = capability_of(*header);
      if (header->draws_pictures() && model.problem.empty()) {
        model.picture = model.card.picture;
        model.picture.path = model.path;
        if (!model.card.picture.vae_path.empty()) {
          model.picture.vae_path = resolve(model.card.picture.vae_path);
          used_.insert(model.picture.vae_path);
        }
        const auto sizes = llm::picture_sizes_of(model.picture);
        if (sizes) model.picture_size = sizes->native;
        if (!sizes) model.problem = sizes.error().message;
      }
      if (llm::is_safetensors_name(model.path) && !header->draws_pictures())
        model.problem = std::format("{}: of safetensors files only those of Stable Diffusion are served", model.path);
      if (!header->draws_pictures() && !model.card.picture.is_empty())
        model.problem = "its card says how it draws, and it does not";
      if (header->is_projector())
        model.problem = std::format("{}: a projector; choose the model that belongs to it", model.path);
    }
    if (model.card.pooling) model.capability = Capability::text_embedding;
    if (model.card.capability) model.capability = *model.card.capability;
    add_sampling(model);
    const std::size_t index = next_->models_.size();
    next_->by_name_.emplace(model.card.name, index);
    for (const std::string& alias : model.card.aliases) next_->by_name_.emplace(alias, index);
    next_->models_.push_back(std::move(model));
  }

  // Collects the defaults of sampling: the card's, else the file's, else the family's.
  static void add_sampling(RegisteredModel& model) {
    const llm::GgufHeader* header = model.header();
    const bool generates = model.capability == Capability::chat || model.capability == Capability::vision;
    const auto family = header != nullptr && generates ? family_sampling(*header) : std::nullopt;
    if (family) model.family = family->family;
    for (const SamplingFieldInfo& info : sampling_fields()) {
      const SamplingField field = info.field;
      const auto add = [&](const std::optional<double>& value, SamplingSource source) {
        if (value) model.sampling.push_back({field, *value, source});
        return value.has_value();
      };
      if (add(model.card.defaults.sampling[field], SamplingSource::card)) continue;
      if (header != nullptr && add(header->sampling[field], SamplingSource::file)) continue;
      if (family) add(family->values[field], SamplingSource::family);
    }
  }

  void add_aliases() {
    std::ifstream file(next_->options_.aliases_file);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string alias;
      std::string model;
      words >> alias >> model;
      const auto found = next_->by_name_.find(model);
      if (!is_model_name(alias) || found == next_->by_name_.end() || next_->by_name_.contains(alias)) continue;
      next_->models_[found->second].card.aliases.push_back(alias);
      next_->by_name_.emplace(alias, found->second);
    }
  }

  // A name that another model has means that model.
  void add_adapter_names() {
    for (std::size_t index = 0; index < next_->models_.size(); ++index) {
      const RegisteredModel& model = next_->models_[index];
      for (const llm::AdapterSource& adapter : model.adapters) {
        next_->by_name_.emplace(model.card.name + ":" + adapter.name, index);
        for (const std::string& alias : model.card.aliases) next_->by_name_.emplace(alias + ":" + adapter.name, index);
      }
    }
    for (const std::string& path : adapters_) {
      if (used_.contains(path)) continue;
      next_->remarks_.push_back(std::format("{}: a LoRA adapter: name it under `adapters` in the card of its model", path));
    }
  }

  // Assigns a projector to the models in its folder that match in name and width: the quantizations of a model share theirs. A
  // projector without a name belongs to the only model there.
  void pair_projectors() {
    for (const auto& [path, file] : projectors_) {
      if (used_.contains(path)) continue;
      if (!file->header) {
        next_->remarks_.push_back(file->header.error().message);
        continue;
      }
      const std::string name = pairing_name(fs::path(path).stem().string());
      std::vector<RegisteredModel*> fitting = models_for(path, *file->header, name);
      const std::string example = fitting.empty() ? "" : fitting.front()->card.name;
      if (name.empty() && fitting.size() > 1) fitting.clear();
      std::erase_if(fitting, [](const RegisteredModel* model) { return !model->projector_path.empty(); });
      for (RegisteredModel* model : fitting) give_projector(*model, path, *file->header);
      if (!fitting.empty()) continue;
      next_->remarks_.push_back(example.empty()
                                    ? std::format("{}: a projector without a model of the same name in its folder", path)
                                    : std::format("{}: a projector that fits {}: choose a model by `projector: {}` in its card",
                                                  path, example, fs::path(path).filename().string()));
    }
  }

  static void give_projector(RegisteredModel& model, const std::string& path, const llm::GgufHeader& projector) {
    model.projector_path = path;
    model.encoders = projector.encoders;
    if (model.capability == Capability::chat && !model.card.capability && projector.encoders.images)
      model.capability = Capability::vision;
  }

  static bool has_width(const llm::GgufHeader& projector, const llm::GgufHeader& model) {
    return !projector.projection_size || *projector.projection_size == model.embedding_length;
  }

  // --- Models in the stores of other programs

  void add_stored() {
    StoreContents contents = read_stores(next_->options_.stores);
    std::ranges::move(contents.folders, std::back_inserter(next_->folders_read_));
    std::ranges::move(contents.remarks, std::back_inserter(next_->remarks_));
    for (StoredModel& stored : contents.models) {
      auto file = file_at(stored.path);
      const bool is_adapter = file && !file->header && llm::read_gguf_header(stored.path, llm::GgufKind::adapter);
      const bool is_projector = file && file->header && file->header->is_projector();
      if (is_adapter || is_projector) continue;  // Their models are not known.
      if (RegisteredModel* same = file ? find_same(stored, *file) : nullptr) {
        take_names(*same, stored);
      } else {
        add(std::move(stored), std::move(file));
      }
    }
  }

  // The registered model with this content and with settings that do not differ; null: there is none.
  RegisteredModel* find_same(const StoredModel& stored, const ModelFile& file) {
    const auto is_same = [&](const RegisteredModel& model) {
      if (!model.file || model.file->bytes != file.bytes || !model.card.picture.is_empty()) return false;
      // Another program's copy takes sampling and the window, but never a system message.
      const bool may_take = model.settings.empty() && model.store != stored.store && stored.defaults.system.empty();
      if (!used_.contains(model.path) && model.settings != stored.settings && !may_take) return false;
      std::error_code problem;
      if (fs::equivalent(model.path, stored.path, problem)) return true;
      if (!model.sha256.empty() && !stored.sha256.empty()) return model.sha256 == stored.sha256;
      return have_same_content(model.path, stored.path);
    };
    const auto found = std::ranges::find_if(next_->models_, is_same);
    return found == next_->models_.end() ? nullptr : &*found;
  }

  void take_names(RegisteredModel& model, const StoredModel& stored) {
    const auto index = static_cast<std::size_t>(&model - next_->models_.data());
    for (const std::string& name : stored.names) {
      if (is_model_name(name) && next_->by_name_.emplace(name, index).second) model.card.aliases.push_back(name);
    }
    if (model.sha256.empty()) model.sha256 = stored.sha256;
    if (!model.settings.empty() || stored.settings.empty() || used_.contains(model.path)) return;  // A card's settings stay.
    model.settings = stored.settings;
    model.card.defaults = stored.defaults;
    model.card.sequence_cells = stored.sequence_cells;
    model.sampling.clear();
    add_sampling(model);
  }

  void add(StoredModel stored, std::shared_ptr<const ModelFile> file) {
    std::vector<std::string> names;
    for (std::string& name : stored.names) {
      if (is_model_name(name) && !next_->by_name_.contains(name)) names.push_back(std::move(name));
    }
    if (names.empty()) {
      next_->remarks_.push_back(std::format("{}: not registered, because other models have its names", stored.path));
      return;
    }
    RegisteredModel model;
    model.path = stored.path;
    model.file = std::move(file);
    if (!model.file)
      model.problem = std::format("{}: no such file; {} may not have fetched it to its end", stored.path, stored.store);
    model.store = stored.store;
    model.sha256 = std::move(stored.sha256);
    model.settings = std::move(stored.settings);
    model.card.name = std::move(names.front());
    model.card.aliases.assign(std::make_move_iterator(names.begin() + 1), std::make_move_iterator(names.end()));
    model.card.path = stored.path;
    model.card.sequence_cells = stored.sequence_cells;
    model.card.defaults = std::move(stored.defaults);
    add(std::move(model));
    RegisteredModel& added = next_->models_.back();
    for (const std::string& path : stored.projectors) {
      const auto projector = added.header() == nullptr ? nullptr : file_at(path);
      if (!projector || !projector->header || !projector->header->is_projector()) continue;
      if (has_width(*projector->header, *added.header())) return give_projector(added, path, *projector->header);
    }
  }

  std::vector<RegisteredModel*> models_for(const std::string& path, const llm::GgufHeader& projector,
                                           const std::string& wanted) {
    std::vector<RegisteredModel*> fitting;
    for (RegisteredModel& model : next_->models_) {
      const llm::GgufHeader* header = model.header();
      if (header == nullptr || fs::path(model.path).parent_path() != fs::path(path).parent_path()) continue;
      const bool has_name = wanted.empty() || pairing_name(stem_of(model.path)) == wanted;
      if (has_width(projector, *header) && has_name && model.card.projector.empty()) fitting.push_back(&model);
    }
    return fitting;
  }

  const ModelRegistry* previous_;
  std::shared_ptr<ModelRegistry> next_{new ModelRegistry};
  std::vector<std::pair<std::string, std::shared_ptr<const ModelFile>>> found_;
  std::vector<std::pair<std::string, std::shared_ptr<const ModelFile>>> projectors_;
  std::vector<std::string> adapters_;  // Paths of adapters in the folders.
  std::set<std::string> used_;         // Paths in cards.
};

RegistryRead read_registry(RegistryOptions options, const ModelRegistry* previous) {
  return RegistryReader(std::move(options), previous).read();
}

RegistryRead read_registry(RegistryOptions options, const ModelRegistry& previous, const std::string& cards) {
  return RegistryReader(std::move(options), &previous).read_text(cards);
}

std::shared_ptr<const ModelRegistry> read_files_again(RegistryOptions options, const ModelRegistry& previous) {
  return RegistryReader(std::move(options), &previous).read_with_known_cards();
}

}  // namespace uma::pool
