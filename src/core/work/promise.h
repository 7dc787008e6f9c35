// A callback for exactly one answer. A Promise that is destroyed unused answers with an error on the destroying thread, so that
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
class Promise {
 public:
  Promise() = default;  // Nobody waits.
  template <std::invocable<Expected<T>> Call>
    requires(!std::same_as<std::remove_cvref_t<Call>, Promise>)
  Promise(Call call) : call_(std::move(call)) {}  // NOLINT(google-explicit-constructor): whoever can be called can wait
  Promise(Promise&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  Promise& operator=(Promise&& other) noexcept {
    std::swap(call_, other.call_);
    return *this;
  }
  ~Promise() {
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
