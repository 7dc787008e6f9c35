#include "server/within.h"

#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

namespace uma::server {
namespace {

namespace asio = boost::asio;

asio::awaitable<int> return_seven() {
  co_return 7;
}
asio::awaitable<int> throw_something() {
  throw std::runtime_error("out of something");
  co_return 0;
}
asio::awaitable<int> wait_for_ever() {
  asio::steady_timer never(co_await asio::this_coro::executor, asio::steady_timer::time_point::max());
  co_await never.async_wait(asio::use_awaitable);
  co_return 0;
}

// What comes of the operation; a failure where nothing comes long before the hour that it may take.
std::future<std::optional<int>> outcome_of(asio::awaitable<int> operation, Duration limit = std::chrono::hours(1)) {
  asio::io_context io;
  auto outcome = asio::co_spawn(io, within(limit, std::move(operation)), asio::use_future);
  io.run_for(std::chrono::seconds(20));
  EXPECT_TRUE(io.stopped()) << "it still waits for the timer";
  return outcome;
}

TEST(Within, ReturnsWhatTheOperationReturns) {
  EXPECT_EQ(outcome_of(return_seven()).get(), 7);
}

TEST(Within, ReturnsNothingAndCancelsWhatTakesTooLong) {
  EXPECT_EQ(outcome_of(wait_for_ever(), std::chrono::milliseconds(1)).get(), std::nullopt);
}

TEST(Within, ThrowsWhatTheOperationThrowsAtOnce) {
  EXPECT_THROW(outcome_of(throw_something()).get(), std::runtime_error);
}

}  // namespace
}  // namespace uma::server
