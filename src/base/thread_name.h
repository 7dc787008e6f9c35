// Names the calling thread (at most 15 bytes) for debuggers, top and logs. docs/threads.md lists the names.
#pragma once

namespace uma {

void set_thread_name(const char* name);

// The calling thread, and those that it starts, give way to others that have something to compute: 0 not at all, 19 nearly
// always.
void yield_to_others(int niceness);

}  // namespace uma
