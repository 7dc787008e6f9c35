// The priority of a load among all programs of the machine. Somebody waits for a load, so it runs like any other program,
// except while streams of this daemon are computed, which no load may slow down.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "base/system/thread_name.h"

namespace uma::pool {

// The niceness of the thread that loads, or of the process that tries a file. `usual`: that of the daemon.
[[nodiscard]] constexpr int load_niceness(bool has_streams, int usual) {
  constexpr int kBesideStreams = 15;
  return has_streams ? std::max(usual, kBesideStreams) : usual;
}

// Keeps the niceness of one thread at load_niceness(). A thread that streams have slowed down stays slow if the system does not
// let its priority be raised again (set_niceness()). Owned by the thread that watches the other one.
class LoadPriority {
 public:
  // `set` changes the niceness; false: the system refuses. It is `usual` at first.
  explicit LoadPriority(std::function<bool(int niceness)> set, int usual = own_niceness())
      : set_(std::move(set)), usual_(usual) {}

  // Called again and again while the other thread works.
  void update(bool has_streams) {
    const int wanted = load_niceness(has_streams, usual_);
    if (wanted != niceness_ && set_(wanted)) niceness_ = wanted;
  }

 private:
  const std::function<bool(int niceness)> set_;
  const int usual_;
  int niceness_ = usual_;
};

}  // namespace uma::pool
