// A function that can be moved but not copied, so that it may own what only one may own. It is std::move_only_function, which
// libc++ does not have, or a stand-in for it.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace uma {

// The stand-in: the part of std::move_only_function that this program uses. Every callable takes an allocation of its own.
template <class Signature>
class OwnMoveOnlyFunction;

template <class Result, class... Arguments>
class OwnMoveOnlyFunction<Result(Arguments...)> {
 public:
  OwnMoveOnlyFunction() = default;
  // NOLINTBEGIN(google-explicit-constructor): they convert, as those of the standard do.
  OwnMoveOnlyFunction(std::nullptr_t) {}
  template <class Callable>
    requires(!std::same_as<std::remove_cvref_t<Callable>, OwnMoveOnlyFunction> &&
             std::is_invocable_r_v<Result, std::decay_t<Callable>&, Arguments...>)
  OwnMoveOnlyFunction(Callable&& callable)
      : held_(std::make_unique<Holder<std::decay_t<Callable>>>(std::forward<Callable>(callable))) {}
  // NOLINTEND(google-explicit-constructor)

  explicit operator bool() const { return held_ != nullptr; }
  friend bool operator==(const OwnMoveOnlyFunction& function, std::nullptr_t) { return !function; }

  // Requires: it is not empty.
  Result operator()(Arguments... arguments) { return held_->call(std::forward<Arguments>(arguments)...); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual Result call(Arguments... arguments) = 0;
  };
  template <class Callable>
  struct Holder final : Base {
    explicit Holder(Callable given) : callable(std::move(given)) {}
    Result call(Arguments... arguments) override {
      return std::invoke_r<Result>(callable, std::forward<Arguments>(arguments)...);
    }
    Callable callable;
  };

  std::unique_ptr<Base> held_;
};

#ifdef __cpp_lib_move_only_function
template <class Signature>
using MoveOnlyFunction = std::move_only_function<Signature>;
#else
template <class Signature>
using MoveOnlyFunction = OwnMoveOnlyFunction<Signature>;
#endif

}  // namespace uma
