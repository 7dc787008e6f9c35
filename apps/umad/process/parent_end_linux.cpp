#include "umad/process/parent_end.h"

#include <csignal>
#include <sys/prctl.h>

namespace uma::umad {

bool end_with_parent() {
  return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
}

}  // namespace uma::umad
