// Guards calls of libllama. Its C functions can throw C++ exceptions (for a vocabulary without byte tokens, or a damaged
// state), which are caught here. Some functions must not run at the same time.
#pragma once

#include <exception>
#include <format>
#include <mutex>
#include <new>
#include <utility>

#include "core/error.h"

namespace uma::llm {

// Held while a context is made or freed, so that only one thread does so at a time. The contexts of a model are made before any
// of them computes and freed after the last computation, so making one blocks no computation (docs/decisions/0027).
std::mutex& making_mutex();

// Runs `call`, which returns an Expected. An exception becomes an error with `code` and the text `doing`.
template <class Call>
auto guarded(ErrorCode code, const char* doing, Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::bad_alloc&) {
    return fail(code, std::format("{}: out of memory", doing));
  } catch (const std::exception& error) {
    return fail(code, std::format("{}: {}", doing, error.what()));
  } catch (...) {
    return fail(code, std::format("{}: libllama threw an unknown exception", doing));
  }
}

}  // namespace uma::llm
