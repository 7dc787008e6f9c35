// A limit for something that a coroutine waits for.
#pragma once

#include <exception>
#include <expected>
#include <optional>
#include <utility>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/clock.h"

namespace uma::server {

// What the operation returned or threw, as a value.
template <class T>
boost::asio::awaitable<std::expected<T, std::exception_ptr>> caught(boost::asio::awaitable<T> operation) {
  try {
    co_return co_await std::move(operation);
  } catch (...) {
    co_return std::unexpected(std::current_exception());
  }
}

// What the operation returns, or nothing where it took longer than `limit`; then it was cancelled. What it throws is thrown at
// once: without caught() the operator would take it for a failed attempt, and wait for the timer.
template <class T>
boost::asio::awaitable<std::optional<T>> within(Duration limit, boost::asio::awaitable<T> operation) {
  using boost::asio::experimental::awaitable_operators::operator||;
  boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
  timer.expires_after(limit);
  auto first = co_await (caught(std::move(operation)) || timer.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable)));
  if (first.index() != 0) co_return std::nullopt;
  auto outcome = std::get<0>(std::move(first));
  if (!outcome) std::rethrow_exception(outcome.error());
  co_return std::move(*outcome);
}

}  // namespace uma::server
