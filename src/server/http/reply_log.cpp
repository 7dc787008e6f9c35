#include "server/http/reply_log.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/thrown.h"

namespace uma::server {
namespace {

// Ends an event. The data of an event is JSON, which has no line breaks.
constexpr std::string_view kEventEnd = "\n\n";

}  // namespace

void ReplyLog::append(std::string_view events) {
  if (events.empty()) return;
  Wakes waiting;
  {
    const MutexLock lock(mutex_);
    if (blocks_.empty() || blocks_.back().bytes.size() >= kBlockBytes) {
      blocks_.push_back({.bytes = "", .first_event = events_});
    }
    blocks_.back().bytes += events;
    kept_bytes_ += events.size();
    for (std::size_t at = events.find(kEventEnd); at != std::string_view::npos; at = events.find(kEventEnd, at + 2)) ++events_;
    limit_bytes();
    waiting = take_waiting();
  }
  call(waiting);
}

void ReplyLog::end() noexcept {
  Wakes waiting;
  {
    const MutexLock lock(mutex_);
    has_ended_ = true;
    waiting = take_waiting();
  }
  call(waiting);
}

std::size_t ReplyLog::bytes() const {
  const MutexLock lock(mutex_);
  return kept_bytes_;
}

void ReplyLog::limit_bytes() {
  while (kept_bytes_ > kTailBytes + charged_bytes_) {
    if (kept_bytes_ <= kBytesMax && share_->grow(kBlockBytes)) {
      charged_bytes_ += kBlockBytes;
      continue;
    }
    if (blocks_.size() == 1) return;
    const std::size_t bytes = blocks_.front().bytes.size();
    dropped_bytes_ += bytes;
    kept_bytes_ -= bytes;
    blocks_.pop_front();
  }
}

ReplyLog::Wakes ReplyLog::take_waiting() noexcept {
  Wakes waiting;
  auto next = waiting.begin();
  for (Reader* reader : readers_) {
    if (std::exchange(reader->waits_, false)) *next++ = reader->wake_;
  }
  return waiting;
}

// A reader that cannot be woken does not keep others from it.
void ReplyLog::call(const Wakes& wakes) noexcept {
  for (const auto& wake : wakes) {
    if (wake == nullptr) return;
    run_noting(*wake);
  }
}

// Bytes of the stream before the event; nullopt: it was dropped. An event that does not exist yet begins at the end.
std::optional<std::size_t> ReplyLog::position_of(std::uint64_t event) const {
  if (event >= events_) return dropped_bytes_ + kept_bytes_;
  if (event < blocks_.front().first_event) return std::nullopt;
  std::size_t position = dropped_bytes_;
  auto block = blocks_.begin();
  for (auto next = std::next(block); next != blocks_.end() && next->first_event <= event; ++next) {
    position += block->bytes.size();
    block = next;
  }
  std::size_t within = 0;
  for (std::uint64_t number = block->first_event; number < event; ++number) {
    within = block->bytes.find(kEventEnd, within) + kEventEnd.size();
  }
  return position + within;
}

Expected<std::unique_ptr<ReplyLog::Reader>> ReplyLog::open_reader(std::optional<std::uint64_t> after,
                                                                  std::function<void()> wake) {
  const MutexLock lock(mutex_);
  if (readers_.size() >= kReadersMax) {
    return fail(ErrorCode::limit_wait,
                std::format("the response has {} readers, which is the limit: try again later", kReadersMax));
  }
  const auto position = position_of(after ? *after + 1 : 0);
  if (!position) {
    return fail(
        ErrorCode::session_busy,
        std::format("the response is too long to be read again from here: its events before number {} are not kept. Read "
                    "it when it has ended",
                    blocks_.front().first_event));
  }
  // A reader that is destroyed takes the lock, so that nothing may fail once it exists.
  readers_.reserve(readers_.size() + 1);
  auto reader = std::make_unique<Reader>(shared_from_this(), *position, std::move(wake));
  readers_.push_back(reader.get());
  return reader;
}

void ReplyLog::forget(const Reader& reader) {
  const MutexLock lock(mutex_);
  std::erase(readers_, &reader);
}

ReplyLog::Reader::~Reader() {
  log_->forget(*this);
}

ReplyLog::State ReplyLog::Reader::read(std::string& out) {
  const MutexLock lock(log_->mutex_);
  if (position_ < log_->dropped_bytes_) return State::lost;
  std::size_t begin = log_->dropped_bytes_;
  for (const Block& block : log_->blocks_) {
    if (position_ < begin + block.bytes.size()) {
      const std::string_view next = std::string_view(block.bytes).substr(position_ - begin, kBlockBytes);
      out += next;
      position_ += next.size();
      break;
    }
    begin += block.bytes.size();
  }
  const bool has_all = position_ == log_->dropped_bytes_ + log_->kept_bytes_;
  waits_ = has_all && !log_->has_ended_;
  return has_all && log_->has_ended_ ? State::ended : State::open;
}

}  // namespace uma::server
