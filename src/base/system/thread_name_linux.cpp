#include "base/system/thread_name.h"

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
  (void)set_niceness(own_thread_id(), niceness);
}

int own_thread_id() {
  return ::gettid();
}

int own_niceness() {
  return ::getpriority(PRIO_PROCESS, static_cast<id_t>(own_thread_id()));
}

// On Linux the priority belongs to the thread.
bool set_niceness(int thread_id, int niceness) {
  return ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id), niceness) == 0;
}

}  // namespace uma
