#include "server/http/background_responses.h"

#include <algorithm>
#include <utility>

namespace uma::server {

std::size_t BackgroundResponses::bytes_of(const Entry& entry) {
  return std::max(entry.json.size(), kEndedBytesMin);
}

std::string BackgroundResponses::find(const std::string& id, const TenantId& tenant) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() || found->second.tenant != tenant ? "" : found->second.json;
}

void BackgroundResponses::begin(const std::string& id, TenantId tenant, std::string json) {
  const MutexLock lock(mutex_);
  entries_.insert_or_assign(id, Entry{.tenant = std::move(tenant), .json = std::move(json)});
}

void BackgroundResponses::remove(const std::string& id) {
  const MutexLock lock(mutex_);
  entries_.erase(id);
}

void BackgroundResponses::keep_ended(const std::string& id, std::string json) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.json = std::move(json);
  entry.has_ended = true;
  Ended& ended = ended_[entry.tenant];
  ended.ids.push_back(id);
  ended.bytes += bytes_of(entry);
  ended_bytes_ += bytes_of(entry);
  while (ended_bytes_ > kEndedBytesMax) drop_oldest();
}

bool BackgroundResponses::forget_ended(const std::string& id, const TenantId& tenant) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.tenant != tenant || !found->second.has_ended) return false;
  drop_ended(std::string(id));
  return true;
}

void BackgroundResponses::drop_oldest() {
  const auto largest = std::ranges::max_element(ended_, {}, [](const auto& entry) { return entry.second.bytes; });
  drop_ended(std::string(largest->second.ids.front()));
}

void BackgroundResponses::drop_ended(const std::string& id) {
  const auto found = entries_.find(id);
  const auto of_tenant = ended_.find(found->second.tenant);
  Ended& ended = of_tenant->second;
  std::erase(ended.ids, id);
  ended.bytes -= bytes_of(found->second);
  ended_bytes_ -= bytes_of(found->second);
  if (ended.ids.empty()) ended_.erase(of_tenant);
  entries_.erase(found);
}

BackgroundSink::BackgroundSink(std::shared_ptr<BackgroundResponses> responses, std::shared_ptr<BusyCount> busy,
                               RequestShare share, TenantId tenant, wire::ResponseEncoder encoder, Reply<std::string> on_begun)
    : responses_(std::move(responses)),
      busy_(std::move(busy)),
      share_(std::move(share)),
      tenant_(std::move(tenant)),
      encoder_(std::move(encoder)),
      on_begun_(std::move(on_begun)) {
  busy_->add(1);
}

bool BackgroundSink::deliver(const Event& event) {
  if (const auto* place = std::get_if<ResponseBegunEvent>(&event)) {
    encoder_.set_place(*place);
    has_begun_ = true;
    std::string json = encoder_.json_in_progress();
    responses_->begin(encoder_.id(), tenant_, json);
    on_begun_(std::move(json));
  } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
    end(*eos);
  } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
    end({.reason = FinishReason::error, .usage = {}, .text = "", .error = failure->error});
  }
  return true;
}

void BackgroundSink::end(const EosEvent& eos) {
  // The engine stores a reply with tokens, and an empty one that the model has ended. One that failed after its first token is
  // stored, too, but its turn does not tell the failure: this answer is kept beside it.
  const bool is_stored = !eos.error && (eos.usage.completion_tokens > 0 || eos.reason == FinishReason::stop);
  if (!has_begun_) {
    on_begun_(std::unexpected(eos.error.value_or(Error{ErrorCode::limit_wait, "the response was cancelled"})));
  } else if (is_stored) {
    responses_->remove(encoder_.id());
  } else {
    responses_->keep_ended(encoder_.id(), encoder_.json(eos));
  }
}

}  // namespace uma::server
