#include "sched/thread_control.h"

#include <gtest/gtest.h>

namespace uma::sched {
namespace {

void observe(ThreadControl& control, double busy_cores, int times) {
  for (int i = 0; i < times; ++i) control.observe(busy_cores);
}

TEST(ThreadControl, GivesAThreadUpForEachBusyCore) {
  ThreadControl control(4);
  observe(control, 0.1, 20);
  EXPECT_EQ(control.threads(), 4);
  observe(control, 1.0, 2);
  EXPECT_EQ(control.threads(), 3);
  observe(control, 2.1, 2);
  EXPECT_EQ(control.threads(), 2);
  observe(control, 9, 2);
  EXPECT_EQ(control.threads(), 1);
}

TEST(ThreadControl, AMomentOfWorkChangesNothing) {
  ThreadControl control(2);
  for (int i = 0; i < 10; ++i) {
    observe(control, 1.0, 1);
    observe(control, 0.0, 1);
    EXPECT_EQ(control.threads(), 2);
  }
}

TEST(ThreadControl, ComesBackWhenTheCoreHasBeenFreeForAWhile) {
  ThreadControl control(2);
  observe(control, 1.0, 5);
  EXPECT_EQ(control.threads(), 1);
  observe(control, 0.3, 20);
  EXPECT_EQ(control.threads(), 1) << "not free enough";
  observe(control, 0.1, 4);
  EXPECT_EQ(control.threads(), 1);
  observe(control, 0.1, 1);
  EXPECT_EQ(control.threads(), 2);
}

}  // namespace
}  // namespace uma::sched
