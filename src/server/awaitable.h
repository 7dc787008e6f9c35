// The types and completion token of this module's coroutines.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace uma::server {

template <class T>
using Awaitable = boost::asio::awaitable<T>;

// Waits for an Asio operation and returns its results, the error first, instead of throwing.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace uma::server
