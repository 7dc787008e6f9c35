#include "kv/catalog.h"

#include <format>
#include <utility>

#include "base/check.h"

namespace uma::kv {

SessionSummary summary_of(const SessionRecord& record) {
  return {{static_cast<const SessionHead&>(record)},
          static_cast<std::int32_t>(record.chain.size()),
          static_cast<std::int32_t>(record.pending.size()),
          static_cast<std::int32_t>(record.turns.size())};
}

std::size_t bytes_of(const SessionRecord& record) {
  std::size_t total = sizeof record + (record.chain.capacity() + record.pending.capacity()) * sizeof(Token) +
                      record.turns.capacity() * sizeof(Turn) + record.tools.capacity() + record.template_arguments.capacity();
  for (const std::vector<ChatMessage>* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      total += sizeof message + message.role.capacity() + message.content.capacity() + message.extra.capacity();
    }
  }
  return total;
}

std::vector<SessionSummary> MemoryCatalog::load() {
  const MutexLock lock(mutex_);
  std::vector<SessionSummary> summaries;
  for (const auto& [id, record] : records_) summaries.push_back(summary_of(*record));
  return summaries;
}

void MemoryCatalog::commit(RecordPtr record, RecordPtr before, Done done) {
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
  on_read(fail(ErrorCode::io_short_write, std::format("session {} is not in the catalog", id.value)));
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
