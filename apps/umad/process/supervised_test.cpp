#include "umad/process/supervised.h"

#include <csignal>
#include <string>

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

TEST(Supervised, TravelsAsText) {
  const Supervised told{.supervisor = 4711,
                        .made_socket = true,
                        .crashes = 3,
                        .last_signal = SIGSEGV,
                        .last_status = 0,
                        .last_unix_s = 1'700'000'000};
  EXPECT_EQ(parse_supervised(supervised_text(told)), told);
  EXPECT_EQ(parse_supervised(supervised_text(Supervised{})), Supervised{});
}

TEST(Supervised, OtherTextIsNone) {
  for (const std::string text : {"", "1", "yes", "1 1 0 0 0 x", "1 1 0 0 0 0 0", "1 7 0 0 0 0"}) {
    EXPECT_FALSE(parse_supervised(text).has_value()) << text;
  }
}

TEST(Supervised, TheRecordNamesTheCause) {
  EXPECT_EQ(Supervised{}.record().count, 0u);
  EXPECT_EQ(Supervised{}.record().last_cause, "");
  EXPECT_EQ((Supervised{.crashes = 1, .last_signal = SIGKILL}.record().last_cause), "signal 9");
  EXPECT_EQ((Supervised{.crashes = 1, .last_status = 99}.record().last_cause), "status 99");
}

TEST(Supervised, AFaultIsNoSignalThatSomebodySends) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    EXPECT_TRUE((Supervised{.crashes = 1, .last_signal = signal}.ended_by_fault())) << signal;
  }
  for (const int signal : {0, SIGKILL, SIGTERM, SIGQUIT}) {
    EXPECT_FALSE((Supervised{.crashes = 1, .last_signal = signal}.ended_by_fault())) << signal;
  }
}

}  // namespace
}  // namespace uma::umad
