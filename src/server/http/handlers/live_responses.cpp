#include "server/http/handlers/live_responses.h"

#include <algorithm>
#include <utility>

namespace uma::server {

std::size_t LiveResponses::bytes_of(const Entry& entry) {
  return std::max(entry.json.size() + entry.log->bytes(), kEndedBytesMin);
}

std::shared_ptr<ReplyLog> LiveResponses::make_log(TenantId tenant) {
  return std::make_shared<ReplyLog>(memory_->open(std::move(tenant)));
}

std::string LiveResponses::find(const std::string& id, const TenantId& tenant) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() || found->second.tenant != tenant ? "" : found->second.json;
}

std::shared_ptr<ReplyLog> LiveResponses::find_log(const std::string& id, const TenantId& tenant) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() || found->second.tenant != tenant ? nullptr : found->second.log;
}

void LiveResponses::begin(const std::string& id, TenantId tenant, std::string json, std::shared_ptr<ReplyLog> log) {
  const MutexLock lock(mutex_);
  entries_.insert_or_assign(id, Entry{.tenant = std::move(tenant), .json = std::move(json), .log = std::move(log)});
}

void LiveResponses::remove(const std::string& id) {
  const MutexLock lock(mutex_);
  entries_.erase(id);
}

void LiveResponses::keep_ended(const std::string& id, std::string json) {
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

bool LiveResponses::forget_ended(const std::string& id, const TenantId& tenant) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.tenant != tenant || !found->second.has_ended) return false;
  drop_ended(std::string(id));
  return true;
}

void LiveResponses::drop_oldest() {
  const auto largest = std::ranges::max_element(ended_, {}, [](const auto& entry) { return entry.second.bytes; });
  drop_ended(std::string(largest->second.ids.front()));
}

void LiveResponses::drop_ended(const std::string& id) {
  const auto found = entries_.find(id);
  const auto of_tenant = ended_.find(found->second.tenant);
  Ended& ended = of_tenant->second;
  std::erase(ended.ids, id);
  ended.bytes -= bytes_of(found->second);
  ended_bytes_ -= bytes_of(found->second);
  if (ended.ids.empty()) ended_.erase(of_tenant);
  entries_.erase(found);
}

}  // namespace uma::server
