#include "server/flush_queue.h"

#include <utility>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/post.hpp>

#include "base/check.h"

namespace uma::server {
namespace {

// Allocates HandlerMemory, which suffices because one handler is posted at a time.
template <class T>
class HandlerAllocator {
 public:
  using value_type = T;

  explicit HandlerAllocator(FlushQueue::HandlerMemory& memory) : memory_(&memory) {}
  template <class U>
  explicit(false) HandlerAllocator(const HandlerAllocator<U>& other) : memory_(other.memory()) {}

  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= alignof(std::max_align_t));
    UMA_CHECK(!memory_->in_use && count * sizeof(T) <= sizeof(memory_->bytes));
    memory_->in_use = true;
    return reinterpret_cast<T*>(memory_->bytes);
  }
  void deallocate(T*, std::size_t) { memory_->in_use = false; }

  [[nodiscard]] FlushQueue::HandlerMemory* memory() const { return memory_; }
  bool operator==(const HandlerAllocator& other) const { return memory_ == other.memory_; }

 private:
  FlushQueue::HandlerMemory* memory_;
};

}  // namespace

void FlushQueue::push(std::weak_ptr<Flushable> connection) {
  const MutexLock lock(mutex_);
  if (closed_) return;
  waiting_.push_back(std::move(connection));
  if (!std::exchange(posted_, true)) post();
}

void FlushQueue::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  waiting_.clear();
}

// Called under the lock, so that io_, which ends with the server, is not used after close().
void FlushQueue::post() {
  boost::asio::post(io_, boost::asio::bind_allocator(HandlerAllocator<std::byte>(handler_memory_),
                                                     [self = shared_from_this()] { self->flush_all(); }));
}

void FlushQueue::flush_all() {
  {
    const MutexLock lock(mutex_);
    posted_ = false;
    flushing_.swap(waiting_);
  }
  for (const std::weak_ptr<Flushable>& waiting : flushing_) {
    if (const std::shared_ptr<Flushable> connection = waiting.lock()) connection->flush();
  }
  flushing_.clear();
}

}  // namespace uma::server
