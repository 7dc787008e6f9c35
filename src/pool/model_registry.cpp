#include "pool/model_registry.h"

#include <algorithm>
#include <format>
#include <sys/stat.h>
#include <utility>

#include "base/edit_distance.h"
#include "base/system/file_calls.h"
#include "base/text.h"
#include "llm/context_layout.h"
#include "llm/embedding.h"
#include "llm/file/file_type.h"
#include "pool/registry_reader.h"
#include "pool/unknown_model.h"

namespace uma::pool {
namespace {

constexpr std::size_t kNearestMax = 3;
constexpr std::size_t kNameBytesMax = 512;   // Limit of a requested name that is compared.
constexpr std::size_t kShownBytesMax = 128;  // Limit of a requested name in a message.

}  // namespace

RegistryRead ModelRegistry::read(RegistryOptions options) {
  return read_registry(std::move(options), nullptr);
}

RegistryRead ModelRegistry::reload() const {
  return read_registry(options_, this);
}

RegistryRead ModelRegistry::with_cards(const std::string& text) const {
  return read_registry(options_, *this, text);
}

std::shared_ptr<const ModelRegistry> ModelRegistry::rescan() const {
  return read_files_again(options_, *this);
}

bool ModelRegistry::have_folders_changed() const {
  return std::ranges::any_of(folders_read_, has_changed);
}

bool ModelRegistry::have_invalid_files_changed() const {
  return std::ranges::any_of(files_, [](const auto& entry) {
    const auto& [path, file] = entry;
    struct stat status{};
    if (file->header || ::stat(path.c_str(), &status) != 0) return false;
    return static_cast<std::uint64_t>(status.st_size) != file->bytes || modified_ns(status) != file->modified_ns;
  });
}

Expected<const RegisteredModel*> ModelRegistry::find(std::string_view name) const {
  if (const auto found = by_name_.find(std::string(name)); found != by_name_.end()) return &models_[found->second];
  const std::string wanted = lower_ascii(name.substr(0, kShownBytesMax));
  const std::size_t far = std::max<std::size_t>(2, wanted.size() / 3);
  std::vector<std::pair<std::size_t, std::string_view>> nearest;
  for (const auto& [other, index] : by_name_) {
    const std::string lower = lower_ascii(other);
    const bool is_part = wanted.size() >= 3 && lower.contains(wanted);
    const std::size_t apart = is_part ? 1 : edit_distance(wanted, lower, far);
    if (apart <= far) nearest.emplace_back(apart, other);
  }
  const std::size_t shown = std::min(nearest.size(), kNearestMax);
  std::ranges::partial_sort(nearest, nearest.begin() + static_cast<std::ptrdiff_t>(shown));
  std::string names;
  for (std::size_t i = 0; i < shown; ++i) names += std::format("{}{}", i == 0 ? "" : ", ", nearest[i].second);
  return fail(ErrorCode::model_unknown,
              std::format("no model \"{}\" among {}{}", name.substr(0, kShownBytesMax), models_.size(),
                          names.empty() ? ": list the models to see their names" : "; similar names: " + names));
}

const RegisteredModel* ModelRegistry::find_spelled(std::string_view name) const {
  if (name.size() > kNameBytesMax) return nullptr;
  Likeness best = Likeness::beginning;
  std::vector<const RegisteredModel*> alike;
  for (const RegisteredModel& model : models_) {
    Likeness like = likeness(name, model.card.name);
    for (const std::string& alias : model.card.aliases) like = std::max(like, likeness(name, alias));
    if (!model.path.empty()) like = std::max(like, likeness(name, stem_of(model.path)));
    if (like > best) alike.clear();
    best = std::max(best, like);
    if (like == best) alike.push_back(&model);
  }
  // A file that is registered under several names is one model.
  const auto is_first = [&](const RegisteredModel* model) {
    return model->path == alike.front()->path && !model->path.empty();
  };
  return alike.size() == 1 || (!alike.empty() && std::ranges::all_of(alike, is_first)) ? alike.front() : nullptr;
}

ModelDefaults defaults_of(const RegisteredModel& model) {
  ModelDefaults defaults = model.card.defaults;
  for (const SamplingDefault& value : model.sampling) defaults.sampling[value.field] = value.value;
  return defaults;
}

ImageVectors image_vectors_of(const RegisteredModel& model, const llm::Encoders& encoders) {
  constexpr std::int64_t kLast = 3;
  if (model.capability != Capability::vision && !encoders.images) return ImageVectors::none;
  const llm::GgufHeader* header = model.header();
  if (header == nullptr || model.capability != Capability::text_embedding) return ImageVectors::projector;
  const bool is_last = model.card.pooling ? *model.card.pooling == llm::Pooling::last : header->pooling_type == kLast;
  return is_last && header->causal_attention != false ? ImageVectors::shared : ImageVectors::projector;
}

ModelInfo info_of(const RegisteredModel& model) {
  ModelInfo info{.name = model.card.name};
  if (const llm::GgufHeader* header = model.header()) {
    info.description = header->architecture;
    info.bytes = header->weight_bytes;
    info.parameters = header->parameters;
    info.train_tokens = static_cast<std::int32_t>(header->context_length);
    const std::int32_t given = model.card.sequence_cells.value_or(0);
    const std::int32_t usual = model.capability == Capability::chat ? llm::kLongWindow : llm::kTextTokensMax;
    info.sequence_tokens_max = std::min(info.train_tokens, given > 0 ? given : usual);
    info.vocabulary = static_cast<std::int32_t>(header->vocabulary_size);
    info.has_chat_template = header->has_chat_template;
    info.file.architecture = header->architecture;
    info.file.title = header->name;
    if (header->file_type) info.file.quantization = llm::file_type_name(*header->file_type);
    info.file.embedding_length = static_cast<std::int32_t>(header->embedding_length);
  }
  if (model.file) {
    info.file.bytes = model.file->bytes;
    info.file.modified_s = model.file->modified_ns / 1'000'000'000;
  }
  info.capability = model.capability;
  info.picture_size = model.picture_size;
  info.reads_images = model.capability == Capability::vision || model.encoders.images;
  info.reads_audio = model.encoders.audio;
  info.image_vectors = image_vectors_of(model, model.encoders);
  info.aliases = model.card.aliases;
  info.sampling = {.values = model.sampling,
                   .dry_sequence_breakers = model.card.defaults.dry_sequence_breakers,
                   .family = std::string(model.family)};
  for (const llm::AdapterSource& adapter : model.adapters) info.adapters.push_back({adapter.name, adapter.scale});
  info.store = model.store;
  info.problem = model.problem;
  if (!model.problem.empty()) info.state = ModelState::failed;
  return info;
}

Capability capability_of(const llm::GgufHeader& header) {
  constexpr std::int64_t kRank = 4;
  if (header.draws_pictures()) return Capability::text_to_image;
  if (header.pooling_type == kRank) return Capability::rerank;
  const bool pools = header.pooling_type.value_or(0) != 0;
  return pools || header.causal_attention == false ? Capability::text_embedding : Capability::chat;
}

}  // namespace uma::pool
