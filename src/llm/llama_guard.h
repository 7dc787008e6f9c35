// The edge of libllama: its C functions can throw C++ exceptions (a vocabulary without byte tokens, a damaged state), which end
// here, and not all of them may run at the same time.
#pragma once

#include <exception>
#include <format>
#include <mutex>
#include <new>
#include <utility>

#include "core/error.h"

namespace uma::llm {

// Contexts are made and freed one at a time. Those of a model are made before any of it computes and freed after the last one
// has, so making one holds up nobody's computation (docs/decisions/0027).
std::mutex& making_mutex();

// Runs `call`, which returns an Expected; an exception becomes an error with `code` that says what was being done.
template <class Call>
auto guarded(ErrorCode code, const char* doing, Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::bad_alloc&) {
    return fail(code, std::format("{}: out of memory", doing));
  } catch (const std::exception& error) {
    return fail(code, std::format("{}: {}", doing, error.what()));
  } catch (...) {
    return fail(code, std::format("{}: the engine threw something unknown", doing));
  }
}

}  // namespace uma::llm
