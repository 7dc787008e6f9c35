// The events of one response, for any number of readers that come at any time. The sink of the response appends them; a reader
// takes them at its own pace, from the event it wants. Any thread; nothing here waits for a reader.
//
// Invariants: (1) Events are appended whole and in order, and every reader gets the same bytes. (2) The last kTailBytes, or the
// last block if that is longer, are kept in any case. More is charged to the tenant; where its share may not grow, or above
// kBytesMax, the oldest events are dropped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "core/error.h"
#include "core/work/tenant_budget.h"

namespace uma::server {

class ReplyLog : public std::enable_shared_from_this<ReplyLog> {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{16} << 20;
  static constexpr std::size_t kTailBytes = std::size_t{256} << 10;  // Amount that a connection may leave unsent.
  static constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
  static constexpr std::size_t kReadersMax = 32;

  explicit ReplyLog(RequestShare share) : share_(std::move(share)) {}

  // Appends whole events.
  void append(std::string_view events);
  // Nothing will be appended any more. Needs no memory, because sinks call it when they are destroyed.
  void end() noexcept;
  [[nodiscard]] std::size_t bytes() const;

  enum class State : std::uint8_t {
    open,   // The reader will be woken when there is more.
    ended,  // The reader has taken the last event.
    lost,   // The next event was dropped: the reader was too slow.
  };

  // One reader, used by one thread at a time.
  class Reader {
   public:
    Reader(std::shared_ptr<ReplyLog> log, std::size_t position, std::function<void()> wake)
        : log_(std::move(log)), wake_(std::make_shared<const std::function<void()>>(std::move(wake))), position_(position) {}
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Appends the next bytes, at most a block, if there are any.
    State read(std::string& out);

   private:
    friend class ReplyLog;
    const std::shared_ptr<ReplyLog> log_;                      // Shared with the sink and the other readers.
    const std::shared_ptr<const std::function<void()>> wake_;  // Shared with the thread that calls it.
    std::size_t position_;                                     // Bytes of the whole stream before the next one.
    bool waits_ = false;  // Guarded by the log's lock: it has taken everything and wants to be woken.
  };

  // A reader that begins behind the event with the number `after`; nullopt: with the first one. wake() is called from any
  // thread, when there is more after read() has found nothing. Errors: E_LIMIT_003 if there are too many readers; E_SESSION_002
  // if the wanted events were dropped.
  [[nodiscard]] Expected<std::unique_ptr<Reader>> open_reader(std::optional<std::uint64_t> after, std::function<void()> wake);

 private:
  struct Block {
    std::string bytes;
    std::uint64_t first_event = 0;  // The number of its first event.
  };

  [[nodiscard]] std::optional<std::size_t> position_of(std::uint64_t event) const REQUIRES_LOCK(mutex_);
  void limit_bytes() REQUIRES_LOCK(mutex_);
  // The functions that wake the readers that wait; the rest is null.
  using Wakes = std::array<std::shared_ptr<const std::function<void()>>, kReadersMax>;
  [[nodiscard]] Wakes take_waiting() noexcept REQUIRES_LOCK(mutex_);
  static void call(const Wakes& wakes) noexcept;
  void forget(const Reader& reader);

  mutable Mutex mutex_;
  std::deque<Block> blocks_ GUARDED_BY(mutex_);
  std::size_t dropped_bytes_ GUARDED_BY(mutex_) = 0;  // Bytes of the stream before the first block.
  std::size_t kept_bytes_ GUARDED_BY(mutex_) = 0;
  std::size_t charged_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t events_ GUARDED_BY(mutex_) = 0;
  bool has_ended_ GUARDED_BY(mutex_) = false;
  std::vector<Reader*> readers_ GUARDED_BY(mutex_);
  const RequestShare share_;
};

}  // namespace uma::server
