// Names the calling thread (at most 15 bytes) for debuggers, top and logs. docs/threads.md lists the names.
#pragma once

namespace uma {

void set_thread_name(const char* name);

// The calling thread gives way to the others of the machine that have something to compute.
void yield_to_others();

}  // namespace uma
