#include "engine/model/model_table.h"

#include <algorithm>
#include <format>

#include "base/check.h"
#include "base/thrown.h"
#include "image/message_images.h"

namespace uma::engine {
namespace {

constexpr Duration kLoadRetry = std::chrono::seconds(5);  // Before another load of a model that could not be loaded.

std::int64_t queued_for(const ServedModel& model) {
  std::int64_t queued = 0;
  for (const Lane* lane : model.lanes) queued += lane->stats().queue_depth.value();
  for (const EmbedLane* lane : model.embed_lanes) queued += lane->backlog();
  return queued;
}

}  // namespace

TimePoint deadline_after(TimePoint received, std::int64_t deadline_ms, const ServedModel* loaded) {
  if (deadline_ms <= 0) return kNever;
  return std::max(received, loaded == nullptr ? received : loaded->loaded_at) + std::chrono::milliseconds(deadline_ms);
}

TimePoint deadline_of_whole(TimePoint received, RequestClass request_class, std::optional<std::int64_t> deadline_ms,
                            std::int64_t usual_ms, const ServedModel& loaded) {
  constexpr std::int64_t kBackgroundMs = 300'000;
  const bool is_background = request_class == RequestClass::background;
  return deadline_after(received, deadline_ms.value_or(is_background ? kBackgroundMs : usual_ms), &loaded);
}

namespace {

// The tokens of an image by its id; null without an encoder.
chat::ImageTokens image_tokens_by(const std::shared_ptr<image::ImageEncoder>& encoder) {
  if (!encoder) return nullptr;
  return [encoder](const std::string& id) -> Expected<std::vector<Token>> {
    const auto image = encoder->find(id);
    if (!image) return std::unexpected(image.error());
    return (*image)->tokens;
  };
}

// The message with this text before its content.
ChatMessage behind_prefix(const std::string& prefix, const ChatMessage& message) {
  std::vector<image::MessageImage> images = image::images_of(message);
  for (image::MessageImage& image : images) image.at += prefix.size();
  return {.role = message.role, .content = prefix + message.content, .extra = image::with_images("", images)};
}

}  // namespace

ServedModel chat_model(std::shared_ptr<const llm::Model> model, std::vector<Lane*> lanes,
                       std::shared_ptr<image::ImageEncoder> encoder, ModelDefaults defaults) {
  UMA_CHECK(model != nullptr && !lanes.empty());
  auto chat = std::make_shared<const chat::ChatFormat>(model, image_tokens_by(encoder), defaults.family);
  return {.model = std::move(model),
          .chat = std::move(chat),
          .grammars = std::make_shared<GrammarCache>(),
          .lanes = std::move(lanes),
          .image_encoder = std::move(encoder),
          .defaults = std::move(defaults)};
}

ServedModel text_model(std::shared_ptr<const llm::TextEmbedder> embedder, std::vector<EmbedLane*> lanes,
                       std::shared_ptr<image::ImageEncoder> encoder) {
  UMA_CHECK(embedder != nullptr && !lanes.empty());
  return {.image_encoder = std::move(encoder), .embedder = std::move(embedder), .embed_lanes = std::move(lanes)};
}

ServedModel picture_model(std::shared_ptr<const llm::PictureModel> model, PictureLane& lane) {
  UMA_CHECK(model != nullptr);
  return {.picture_model = std::move(model), .picture_lane = &lane};
}

Error ServedModel::wrong_capability(std::string_view advice) const {
  return {ErrorCode::model_capability,
          std::format("model \"{}\" is for {}: {} (`models` lists capabilities)", name, capability_name(capability()), advice)};
}

llm::InputFormat input_format(const std::shared_ptr<const llm::Model>& model, const llm::EmbeddingShape& shape,
                              const std::shared_ptr<image::ImageEncoder>& encoder, const ModelDefaults& defaults) {
  const bool reads_images = shape.reads_images && encoder != nullptr;
  const bool has_template = !model->facts().chat_template.empty();
  llm::InputFormat format{.is_chat = defaults.has_chat_frame.value_or(reads_images && has_template),
                          .instruction = defaults.system};
  if (!format.is_chat && !reads_images) return format;
  const auto chat =
      std::make_shared<const chat::ChatFormat>(model, image_tokens_by(encoder));  // Shared by the format's copies.
  format.write = [chat, is_chat = format.is_chat](const std::string& instruction,
                                                  const ChatMessage& message) -> Expected<std::vector<Token>> {
    if (!is_chat) return chat->tokenize_content(behind_prefix(instruction, message));
    std::vector<ChatMessage> messages;
    if (!instruction.empty()) messages.push_back({.role = "system", .content = instruction});
    messages.push_back(message);
    auto written = chat::tokenize_chat(*chat, {}, messages);
    if (!written) return std::unexpected(written.error());
    return std::move(written->tokens);
  };
  return format;
}

ModelLease::ModelLease(const ServedModel& model, std::shared_ptr<ModelLeases> leases, bool is_background)
    : model_(&model), leases_(std::move(leases)), is_background_(is_background) {
  leases_->last_used.store(leases_->clock.now());
  leases_->all.fetch_add(1);
  if (is_background_) leases_->background.fetch_add(1);
}

ModelLease::~ModelLease() {
  if (leases_ == nullptr) return;
  leases_->last_used.store(leases_->clock.now());
  leases_->all.fetch_sub(1);
  if (is_background_) leases_->background.fetch_sub(1);
}

// A request's entry in the list of waiting requests.
class ModelTable::WaitingEntry {
 public:
  WaitingEntry(ModelTable& models, Entry& entry, bool is_background)
      : models_(models),
        entry_(entry),
        place_(entry.waiting.insert(entry.waiting.end(), Waiting{.is_background = is_background, .reply = {}})) {}
  WaitingEntry(const WaitingEntry&) = delete;
  ~WaitingEntry() { models_.stop_waiting(entry_, place_); }
  void wait(Promise<ModelLease> reply) { place_->reply = std::move(reply); }

 private:
  ModelTable& models_;
  Entry& entry_;
  const std::list<Waiting>::iterator place_;
};

Task<Expected<ModelLease>> ModelTable::lease(std::string name, bool is_background) {
  const auto known = source_.resolve(name);
  if (!known) co_return known.error();
  Entry& entry = entry_of(*known);
  take_out_if_lost(entry);
  if (entry.state == Entry::State::ready && !(is_background && entry.holds_background)) {
    co_return ModelLease(entry.model, entry.leases, is_background);
  }
  if (entry.state == Entry::State::unloaded && entry.error && clock_.now() < entry.retry_at) co_return *entry.error;
  WaitingEntry place(*this, entry, is_background);
  if (entry.state == Entry::State::unloaded) request_load(entry);
  co_return co_await tasks_.ask<ModelLease>([&](Promise<ModelLease> reply) { place.wait(std::move(reply)); });
}

Task<Expected<ModelLease>> ModelTable::lease_chat(std::string name, bool is_background) {
  auto leased = co_await lease(std::move(name), is_background);
  if (!leased || (*leased)->capability() == Capability::chat) co_return std::move(leased);
  co_return (*leased)->wrong_capability("name a chat model to generate text");
}

// Removes a waiting request. A load without waiting requests is cancelled.
void ModelTable::stop_waiting(Entry& entry, std::list<Waiting>::iterator place) {
  const bool has_given_up = !place->is_answered;
  entry.waiting.erase(place);
  if (!has_given_up || !entry.waiting.empty() || entry.state != Entry::State::loading) return;
  entry.is_wanted = false;
  source_.cancel_load(entry.model.name);
}

void ModelTable::refuse_waiting(const Error& error) {
  for (auto& [name, entry] : entries_) {
    for (Waiting& next : entry.waiting) {
      if (!std::exchange(next.is_answered, true)) next.reply(std::unexpected(error));
    }
  }
}

void ModelTable::add(const std::string& name, ServedModel loaded) {
  Entry& entry = entry_of(name);
  entry.state = Entry::State::ready;
  entry.model = std::move(loaded);
  entry.model.name = name;
  entry.model.loaded_at = clock_.now();
  answer_waiting(entry);
}

void ModelTable::set_failed(const std::string& name, const Error& error) {
  Entry& entry = entry_of(name);
  entry.state = Entry::State::unloaded;
  if (!entry.is_wanted) {
    // The load was cancelled, but requests may have come since.
    if (!entry.waiting.empty()) request_load(entry);
    return;
  }
  entry.error = error;
  entry.retry_at = clock_.now() + kLoadRetry;
  answer_waiting(entry);
}

void ModelTable::set_bytes_wanted(const std::string& name, std::uint64_t bytes) {
  entries_.at(name).bytes_wanted = bytes;
}

std::uint64_t ModelTable::bytes_wanted(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() || found->second.state != Entry::State::loading ? 0 : found->second.bytes_wanted;
}

void ModelTable::add_lanes(const std::string& name, std::span<Lane* const> lanes, std::span<EmbedLane* const> embed_lanes) {
  Entry& entry = entries_.at(name);
  UMA_CHECK(entry.state == Entry::State::ready || entry.state == Entry::State::lost);
  entry.model.lanes.insert(entry.model.lanes.end(), lanes.begin(), lanes.end());
  entry.model.embed_lanes.insert(entry.model.embed_lanes.end(), embed_lanes.begin(), embed_lanes.end());
}

bool ModelTable::shrink_lanes(const std::string& name, std::size_t count) {
  UMA_CHECK(count > 0);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  if (entry.state != Entry::State::ready || entry.leases->all.load() > 0) return false;
  entry.model.lanes.resize(std::min(entry.model.lanes.size(), count));
  entry.model.embed_lanes.resize(std::min(entry.model.embed_lanes.size(), count));
  return true;
}

void ModelTable::hold_background(const std::string& name, bool holds) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;
  found->second.holds_background = holds;
  if (!holds && found->second.state == Entry::State::ready) answer_waiting(found->second);
}

bool ModelTable::retire(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  const bool is_in_service = entry.state == Entry::State::ready || entry.state == Entry::State::lost;
  if (!is_in_service || entry.leases->all.load() > 0) return false;
  entry.state = Entry::State::retiring;
  entry.model = {.name = name};
  return true;
}

void ModelTable::set_retired(const std::string& name) {
  Entry& entry = entries_.at(name);
  UMA_CHECK(entry.state == Entry::State::retiring);
  entry.state = Entry::State::unloaded;
  if (!entry.waiting.empty()) request_load(entry);
}

void ModelTable::take_out_lost() {
  for (auto& [name, entry] : entries_) take_out_if_lost(entry);
}

void ModelTable::take_out_if_lost(Entry& entry) {
  if (entry.state != Entry::State::ready || !entry.model.is_lost()) return;
  entry.state = Entry::State::lost;
  source_.report_lost(entry.model.name);
}

const ServedModel* ModelTable::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() || found->second.state != Entry::State::ready ? nullptr : &found->second.model;
}

std::vector<const ServedModel*> ModelTable::loaded() const {
  std::vector<const ServedModel*> models;
  for (const auto& [name, entry] : entries_) {
    if (entry.state == Entry::State::ready) models.push_back(&entry.model);
  }
  return models;
}

std::vector<ModelUsage> ModelTable::usage() const {
  std::vector<ModelUsage> usages;
  for (const auto& [name, entry] : entries_) {
    const auto waits = [](const Waiting& waiting) { return !waiting.is_answered; };
    const auto waits_in_background = [](const Waiting& waiting) { return !waiting.is_answered && waiting.is_background; };
    usages.push_back({.name = name,
                      .uses = entry.leases->all.load(),
                      .waiting = std::ranges::count_if(entry.waiting, waits),
                      .background_uses = entry.leases->background.load(),
                      .background_waiting = std::ranges::count_if(entry.waiting, waits_in_background),
                      .queued = queued_for(entry.model),
                      .idle_s = to_ms(clock_.now() - entry.leases->last_used.load()) / 1000,
                      .is_loaded = entry.state == Entry::State::ready});
  }
  return usages;
}

ModelTable::Entry& ModelTable::entry_of(const std::string& name) {
  Entry& entry = entries_[name];
  if (entry.leases == nullptr) entry.leases = std::make_shared<ModelLeases>(clock_);
  entry.model.name = name;
  return entry;
}

void ModelTable::request_load(Entry& entry) {
  source_.load(entry.model.name);
  entry.state = Entry::State::loading;
  entry.bytes_wanted = 0;
  entry.is_wanted = true;
  entry.error.reset();
}

// Requests that are held back continue to wait.
void ModelTable::answer_waiting(Entry& entry) {
  entry.leases->last_used.store(clock_.now());
  const bool is_ready = entry.state == Entry::State::ready;
  for (Waiting& next : entry.waiting) {
    if (next.is_answered || (is_ready && entry.holds_background && next.is_background)) continue;
    next.is_answered = true;
    next.reply(is_ready ? Expected<ModelLease>(ModelLease(entry.model, entry.leases, next.is_background))
                        : std::unexpected(*entry.error));
  }
}

}  // namespace uma::engine
