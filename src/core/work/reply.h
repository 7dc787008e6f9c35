// A callback for exactly one answer. A Reply that is destroyed unused answers with an error on the destroying thread, so that
// neither an exception nor a closed queue leaves a client waiting.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/move_only_function.h"
#include "base/thrown.h"
#include "core/error.h"

namespace uma {

template <class T>
class Reply {
 public:
  Reply() = default;  // Nobody waits.
  template <std::invocable<Expected<T>> Call>
    requires(!std::same_as<std::remove_cvref_t<Call>, Reply>)
  Reply(Call call) : call_(std::move(call)) {}  // NOLINT(google-explicit-constructor): whoever can be called can wait
  Reply(Reply&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  Reply& operator=(Reply&& other) noexcept {
    std::swap(call_, other.call_);
    return *this;
  }
  ~Reply() {
    if (call_) {
      run_noting(
          [this] { (*this)(fail(ErrorCode::runtime_decode, "the daemon ended this request before it was done: try again")); });
    }
  }

  // Called once. Requires: somebody waits.
  void operator()(Expected<T> value) {
    UMA_CHECK(call_);
    std::exchange(call_, nullptr)(std::move(value));
  }

 private:
  MoveOnlyFunction<void(Expected<T>)> call_;
};

}  // namespace uma
