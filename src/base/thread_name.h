// Names the calling thread (at most 15 bytes) for debuggers, top and logs. docs/threads.md lists the names.
#pragma once

namespace uma {

void set_thread_name(const char* name);

// Lowers the priority of the calling thread and of threads that it starts: 0 changes nothing, 19 leaves the processor to nearly
// all others.
void yield_to_others(int niceness);

}  // namespace uma
