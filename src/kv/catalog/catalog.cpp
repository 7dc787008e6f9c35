#include "kv/catalog/catalog.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"
#include "core/metadata.h"
#include "kv/catalog/record_check.h"

namespace uma::kv {

bool Turn::operator==(const Turn& other) const {
  const bool has_same_receipt =
      receipt == other.receipt || (receipt != nullptr && other.receipt != nullptr && *receipt == *other.receipt);
  return tokens_begin == other.tokens_begin && reply_begin == other.reply_begin && messages_begin == other.messages_begin &&
         has_same_receipt;
}

bool SessionSummary::operator==(const SessionSummary& other) const {
  return static_cast<const SessionHead&>(*this) == static_cast<const SessionHead&>(other) &&
         tokens_count == other.tokens_count && pending_tokens_count == other.pending_tokens_count &&
         pending_messages_count == other.pending_messages_count && turns_count == other.turns_count &&
         metadata == other.metadata;
}

SessionSummary summary_of(const SessionRecord& record) {
  return {{static_cast<const SessionHead&>(record)},
          static_cast<std::int32_t>(record.chain.size()),
          static_cast<std::int32_t>(record.pending.size()),
          static_cast<std::int32_t>(record.pending_messages.size()),
          static_cast<std::int32_t>(record.turns.size()),
          static_cast<std::int64_t>(stored_bytes(record)),
          listed_metadata(record.metadata)};
}

std::vector<Token> all_tokens(const SessionRecord& record) {
  std::vector<Token> all = record.chain;
  all.insert(all.end(), record.pending.begin(), record.pending.end());
  return all;
}

bool operator==(const SessionRecord& a, const SessionRecord& b) {
  const auto is_equal = [](const ResponsePtr& one, const ResponsePtr& other) { return one == other || *one == *other; };
  return static_cast<const SessionHead&>(a) == static_cast<const SessionHead&>(b) && a.chain == b.chain &&
         a.pending == b.pending && a.messages == b.messages && a.pending_messages == b.pending_messages && a.turns == b.turns &&
         a.metadata == b.metadata && std::ranges::equal(a.responses, b.responses, is_equal);
}

std::size_t bytes_of(const SessionRecord& record) {
  std::size_t total =
      sizeof record + record.metadata.capacity() + record.tools.capacity() + record.template_arguments.capacity() +
      (record.chain.capacity() + record.pending.capacity()) * sizeof(Token) + record.turns.capacity() * sizeof(Turn);
  for (const std::vector<ChatMessage>* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      total += sizeof message + message.role.capacity() + message.content.capacity() + message.extra.capacity();
    }
  }
  for (const Turn& turn : record.turns) total += turn.receipt == nullptr ? 0 : sizeof *turn.receipt;
  for (const ResponsePtr& response : record.responses) {
    total += sizeof response + sizeof *response + response->id.capacity() + response->request.capacity();
  }
  return total;
}

std::size_t source_bytes(const SessionRecord& record) {
  std::size_t total = record.tools.size() + record.template_arguments.size();
  for (const std::vector<ChatMessage>* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) total += message.role.size() + message.content.size() + message.extra.size();
  }
  return total;
}

std::size_t stored_bytes(const SessionRecord& record) {
  std::size_t total =
      record.metadata.size() + source_bytes(record) + (record.chain.size() + record.pending.size()) * sizeof(Token);
  for (const ResponsePtr& response : record.responses) total += response->id.size() + response->request.size();
  return total;
}

std::vector<std::string> image_extras(const SessionRecord& record) {
  std::vector<std::string> extras;
  for (const auto* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      if (message.extra.contains("\"images\"")) extras.push_back(message.extra);
    }
  }
  return extras;
}

std::vector<SessionSummary> MemoryCatalog::load() {
  const MutexLock lock(mutex_);
  std::vector<SessionSummary> summaries;
  for (const auto& [id, record] : records_) summaries.push_back(summary_of(*record));
  return summaries;
}

std::unordered_map<SessionId, std::vector<std::string>> MemoryCatalog::load_image_extras() {
  const MutexLock lock(mutex_);
  std::unordered_map<SessionId, std::vector<std::string>> all;
  for (const auto& [id, record] : records_) {
    if (auto extras = image_extras(*record); !extras.empty()) all.emplace(id, std::move(extras));
  }
  return all;
}

void MemoryCatalog::commit(RecordPtr record, RecordPtr before, Done done) {
  UMA_CHECK(impossible_part(*record).empty());
  {
    const MutexLock lock(mutex_);
    RecordPtr& kept = records_[record->id];
    UMA_CHECK(kept == before);
    kept = std::move(record);
  }
  done(Unit{});
}

void MemoryCatalog::remove(const SessionId& id, Done done) {
  {
    const MutexLock lock(mutex_);
    records_.erase(id);
  }
  done(Unit{});
}

void MemoryCatalog::read(const SessionId& id, OnRead on_read) {
  if (RecordPtr record = find(id)) return on_read(std::move(record));
  on_read(fail(ErrorCode::io_failed, std::format("session {} is not in the catalog", id.value)));
}

RecordPtr MemoryCatalog::find(const SessionId& id) const {
  const MutexLock lock(mutex_);
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : found->second;
}

std::size_t MemoryCatalog::size() const {
  const MutexLock lock(mutex_);
  return records_.size();
}

}  // namespace uma::kv
