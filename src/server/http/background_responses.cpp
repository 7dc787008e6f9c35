#include "server/http/background_responses.h"

#include <utility>

namespace uma::server {

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

void BackgroundResponses::keep_failed(const std::string& id, std::string json) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  found->second.json = std::move(json);
  failed_bytes_ += found->second.json.size();
  failed_.push_back(id);
  while (failed_.size() > kFailedMax || failed_bytes_ > kFailedBytesMax) {
    const auto oldest = entries_.find(failed_.front());
    failed_bytes_ -= oldest->second.json.size();
    entries_.erase(oldest);
    failed_.pop_front();
  }
}

BackgroundSink::BackgroundSink(std::shared_ptr<BackgroundResponses> responses, TenantId tenant, wire::ResponseEncoder encoder,
                               Reply<std::string> on_begun)
    : responses_(std::move(responses)),
      tenant_(std::move(tenant)),
      encoder_(std::move(encoder)),
      on_begun_(std::move(on_begun)) {}

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
  if (!has_begun_) {
    on_begun_(std::unexpected(eos.error.value_or(Error{ErrorCode::limit_wait, "the response was cancelled"})));
  } else if (eos.error) {
    responses_->keep_failed(encoder_.id(), encoder_.json(eos));
  } else {
    responses_->remove(encoder_.id());
  }
}

}  // namespace uma::server
