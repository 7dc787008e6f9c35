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

// Returns the operation's result, or nullopt if it took longer than `limit` and was cancelled. An exception of the operation is
// thrown at once: without caught(), the operator would take it for a failed attempt and wait for the timer.
template <class T>
Awaitable<std::optional<T>> within(Duration limit, Awaitable<T> operation) {
  using boost::asio::experimental::awaitable_operators::operator||;
  boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
  timer.expires_after(limit);
  auto first = co_await (caught(std::move(operation)) || timer.async_wait(kAwait));
  if (first.index() != 0) co_return std::nullopt;
  auto outcome = std::get<0>(std::move(first));
  if (!outcome) std::rethrow_exception(outcome.error());
  co_return std::move(*outcome);
}

}  // namespace uma::server
