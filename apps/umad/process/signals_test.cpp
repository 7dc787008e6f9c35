#include "umad/process/signals.h"

#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/mailbox.h"

namespace uma::umad {
namespace {

TEST(SignalThread, HandsOverEverySignalAndIgnoresBrokenPipes) {
  block_signals();
  Mailbox<int> seen;
  std::vector<int> signals;
  {
    const SignalThread thread([&seen](int signal, pid_t sender) { seen.push(sender == ::getpid() ? signal : 0); });
    ::kill(::getpid(), SIGPIPE);
    // One after the other: signals that wait together have no order.
    for (const int signal : {SIGUSR1, SIGHUP, SIGINT, SIGTERM, SIGTERM}) {
      ::kill(::getpid(), signal);
      ASSERT_TRUE(seen.wait_drain(signals, kNever));
    }
  }
  EXPECT_EQ(signals, (std::vector<int>{SIGUSR1, SIGHUP, SIGINT, SIGTERM, SIGTERM}));
}

TEST(SignalThread, EndsThoughNoSignalComes) {
  block_signals();
  int calls = 0;
  {
    const SignalThread thread([&calls](int, pid_t) { ++calls; });
  }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace uma::umad
