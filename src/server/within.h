// A time limit for an operation that a coroutine waits for.
#pragma once

#include <exception>
#include <expected>
#include <optional>
#include <utility>
#include <variant>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>

#include "base/clock.h"
#include "server/awaitable.h"

namespace uma::server {

// The operation's result or exception, as a value.
template <class T>
Awaitable<std::expected<T, std::exception_ptr>> caught(Awaitable<T> operation) {
  try {
    co_return co_await std::move(operation);
  } catch (...) {
    co_return std::unexpected(std::current_exception());
  }
}

// The result of caught(); throws its exception. Not inlined, because GCC 14 warns about the exception of an outcome that has a
// value (-Wmaybe-uninitialized).
template <class T>
[[gnu::noinline]] T value_of(std::expected<T, std::exception_ptr> outcome) {
  if (!outcome) std::rethrow_exception(outcome.error());
  return *std::move(outcome);
}

// Returns the operation's result, or nullopt if it took longer than `limit` and was cancelled. An exception of the operation is
// thrown at once: without caught(), the operator would take it for a failed attempt and wait for the timer.
template <class T>
Awaitable<std::optional<T>> within(Duration limit, Awaitable<T> operation) {
  using boost::asio::experimental::awaitable_operators::operator||;
  boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
  timer.expires_after(limit);
  auto first = co_await (caught(std::move(operation)) || timer.async_wait(kAwait));
  if (first.index() != 0) co_return std::nullopt;
  co_return value_of(std::get<0>(std::move(first)));
}

}  // namespace uma::server
