#include "base/thread_name.h"

#include <array>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace uma {

void set_thread_name(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

std::string thread_name() {
  std::array<char, 16> name{};
  return ::pthread_getname_np(::pthread_self(), name.data(), name.size()) == 0 ? name.data() : "";
}

void yield_to_others(int niceness) {
  // On Linux the priority belongs to the thread. A failure leaves it unchanged.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), niceness);
}

}  // namespace uma
