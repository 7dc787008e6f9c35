// Names the calling thread (at most 15 bytes) for debuggers, top and logs. docs/threads.md lists the names.
#pragma once

#include <string>

namespace uma {

void set_thread_name(const char* name);

// The name of the calling thread. Empty where the system does not tell.
[[nodiscard]] std::string thread_name();

// Lowers the priority of the calling thread and of threads that it starts: 0 changes nothing, 19 leaves the processor to nearly
// all others.
void yield_to_others(int niceness);

}  // namespace uma
