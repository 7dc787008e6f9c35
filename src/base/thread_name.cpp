#include "base/thread_name.h"

#include <pthread.h>

namespace uma {

void set_thread_name(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

}  // namespace uma
