#include "base/system/thread_name.h"

#ifdef __APPLE__
#include <pthread.h>
#include <pthread/qos.h>
#endif

namespace uma {
namespace {

thread_local std::string own_name;

}  // namespace

void set_thread_name(const char* name) {
  own_name = name;
#ifdef __APPLE__
  ::pthread_setname_np(name);
#endif
}

std::string thread_name() {
  return own_name;
}

// POSIX lowers the priority of whole processes only.
void yield_to_others([[maybe_unused]] int niceness) {
#ifdef __APPLE__
  if (niceness > 0) ::pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0);
#endif
}

int own_thread_id() {
  return 0;
}

int own_niceness() {
  return 0;
}

bool set_niceness(int /*thread_id*/, int /*niceness*/) {
  return false;
}

}  // namespace uma
