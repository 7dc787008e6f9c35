#include "server/outbox.h"

#include <iterator>

#include "base/check.h"

namespace uma::server {

void Outbox::take(std::string& bytes, std::vector<std::string>& finished_ids) {
  const MutexLock lock(mutex_);
  wake_sent_ = false;
  if (bytes.empty()) {
    bytes.swap(bytes_);  // both buffers keep their capacity: a steady stream allocates nothing
  } else {
    bytes.append(bytes_);
  }
  bytes_.clear();
  finished_ids.insert(finished_ids.end(), std::make_move_iterator(finished_ids_.begin()),
                      std::make_move_iterator(finished_ids_.end()));
  finished_ids_.clear();
}

void Outbox::mark_written(std::size_t bytes) {
  const MutexLock lock(mutex_);
  UMA_CHECK(bytes <= unsent_);
  unsent_ -= bytes;
}

std::size_t Outbox::bytes_unsent() const {
  const MutexLock lock(mutex_);
  return unsent_;
}

void Outbox::seal() {
  const MutexLock lock(mutex_);
  sealed_ = true;
}

}  // namespace uma::server
