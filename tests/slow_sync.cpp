// A disk that takes 50 ms longer to sync, for script/matrix: preloaded into the tests and the daemons they start.
#include <chrono>
#include <dlfcn.h>
#include <thread>

namespace {

int sync_late(const char* name, int fd) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" int fsync(int fd) {
  return sync_late("fsync", fd);
}
extern "C" int fdatasync(int fd) {
  return sync_late("fdatasync", fd);
}
