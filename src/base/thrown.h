// Unexpected exceptions: lack of memory, and bugs of libraries and of this program. Every thread's loop logs an exception and
// continues; the affected request ends with an error (docs/decisions/0046).
#pragma once

#include <cstdint>
#include <source_location>
#include <utility>

namespace uma {

// Counts the exception being handled, and logs its text, the thread and the place of the step that threw it.
void note_thrown(const std::source_location& place = std::source_location::current());

// Exceptions since the start of the process.
[[nodiscard]] std::uint64_t thrown_count();

// Runs the work. An exception is logged and counted.
template <class Work>
void run_noting(Work&& work, const std::source_location& place = std::source_location::current()) {
  try {
    std::forward<Work>(work)();
  } catch (...) {
    note_thrown(place);
  }
}

// Runs an event loop (asio::io_context) until it stops.
template <class Loop>
void run_to_end(Loop& loop, const std::source_location& place = std::source_location::current()) {
  while (true) {
    try {
      loop.run();
      return;
    } catch (...) {
      note_thrown(place);
    }
  }
}

}  // namespace uma
