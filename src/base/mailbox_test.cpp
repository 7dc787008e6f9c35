#include "base/mailbox.h"

#include <thread>

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(Mailbox, KeepsTheOrderOfOneSender) {
  Mailbox<int> mailbox;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(mailbox.push(i));
  std::vector<int> out;
  mailbox.drain(out);
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Mailbox, RefusesAfterCloseButStillGivesWhatWaits) {
  Mailbox<int> mailbox;
  mailbox.push(1);
  mailbox.close();
  EXPECT_FALSE(mailbox.push(2));
  std::vector<int> out;
  EXPECT_TRUE(mailbox.wait_drain(out, kNever));
  EXPECT_EQ(out, std::vector<int>{1});
  out.clear();
  EXPECT_FALSE(mailbox.wait_drain(out, kNever));
}

TEST(Mailbox, ReceivesEverythingFromManySenders) {
  Mailbox<int> mailbox;
  std::vector<std::thread> senders;
  for (int sender = 0; sender < 4; ++sender) {
    senders.emplace_back([&mailbox] {
      for (int i = 0; i < 1000; ++i) mailbox.push(i);
    });
  }
  std::vector<int> received;
  while (received.size() < 4000) mailbox.wait_drain(received, kNever);
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(received.size(), 4000u);
}

}  // namespace
}  // namespace uma
