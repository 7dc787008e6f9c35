// Names the calling thread (at most 15 bytes) for debuggers, top and logs. docs/threads.md lists the names.
#pragma once

namespace uma {

void set_thread_name(const char* name);

}  // namespace uma
