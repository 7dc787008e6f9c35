// Counts which sessions refer to which images, so that unreferenced files can be removed. Changed by the router's thread;
// is_used() may be called on any thread.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "core/ids.h"

namespace uma::image {

class ImageReferences {
 public:
  // Sets the images of the session. Returns its former images that no session refers to any more.
  [[nodiscard]] std::vector<std::string> set(const SessionId& session, std::unordered_set<std::string> images) {
    const MutexLock lock(mutex_);
    for (const std::string& image : images) ++sessions_[image];
    std::vector<std::string> free;
    for (const std::string& image : std::exchange(images_[session], std::move(images))) {
      const auto found = sessions_.find(image);
      if (--found->second > 0) continue;
      sessions_.erase(found);
      free.push_back(image);
    }
    if (images_.at(session).empty()) images_.erase(session);
    return free;
  }
  [[nodiscard]] bool has_any(const SessionId& session) const {
    const MutexLock lock(mutex_);
    return images_.contains(session);
  }
  [[nodiscard]] bool is_used(const std::string& image) const {
    const MutexLock lock(mutex_);
    return sessions_.contains(image);
  }
  [[nodiscard]] std::unordered_set<std::string> all() const {
    const MutexLock lock(mutex_);
    std::unordered_set<std::string> used;
    for (const auto& [image, count] : sessions_) used.insert(image);
    return used;
  }

 private:
  mutable Mutex mutex_;
  // Sessions with at least one image.
  std::unordered_map<SessionId, std::unordered_set<std::string>> images_ GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::size_t> sessions_ GUARDED_BY(mutex_);  // Number of sessions that refer to the image.
};

}  // namespace uma::image
