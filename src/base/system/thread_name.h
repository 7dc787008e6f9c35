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

// Identifies the calling thread to set_niceness(). Of a process's first thread it is the process's number.
[[nodiscard]] int own_thread_id();

// The priority of the calling thread, as yield_to_others() has it.
[[nodiscard]] int own_niceness();

// Sets the priority of a thread of this user, as yield_to_others(). Systems let it be raised again only with a permission: on
// Linux RLIMIT_NICE of 20 or more, or CAP_SYS_NICE. False: it is unchanged.
bool set_niceness(int thread_id, int niceness);

}  // namespace uma
