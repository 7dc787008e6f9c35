// Exceptions that nobody expected: memory that is not there, mistakes of libraries, and ours. The loop of every thread notes
// what reaches it and goes on; the request whose work it was ends with an error (docs/decisions/0046).
#pragma once

#include <cstdint>
#include <source_location>
#include <utility>

namespace uma {

// Counts the exception that is being handled, and logs what it says, the thread and the place of the step that threw it.
void note_thrown(const std::source_location& place = std::source_location::current());

// Since the start of the process.
[[nodiscard]] std::uint64_t thrown_count();

// Runs the work. What it throws is logged and counted.
template <class Work>
void run_noting(Work&& work, const std::source_location& place = std::source_location::current()) {
  try {
    std::forward<Work>(work)();
  } catch (...) {
    note_thrown(place);
  }
}

// Runs what an event loop (asio::io_context) has to do until it stops.
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
