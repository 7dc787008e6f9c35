#include "umad/process/parent_end.h"

#include <chrono>
#include <csignal>
#include <thread>
#include <unistd.h>

#include "base/system/thread_name.h"

namespace uma::umad {

bool end_with_parent() {
  const pid_t parent = ::getppid();
  std::thread([parent] {
    set_thread_name("umad-parent");
    constexpr std::chrono::milliseconds kLookAgain{200};
    while (::getppid() == parent) std::this_thread::sleep_for(kLookAgain);
    ::kill(::getpid(), SIGKILL);
  }).detach();
  return true;
}

}  // namespace uma::umad
