#include "chat/reply/logprob_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LogprobQueueTest : public ::testing::Test {
 protected:
  // Adds a token with a text of `length` bytes.
  void push(Token token, std::size_t length) {
    queue_.push({.chosen = {.token = token}}, text_, text_ + length);
    text_ += length;
  }
  std::vector<Token> take(std::size_t begin, std::size_t end) {
    std::vector<TokenLogprobs> taken;
    queue_.take(begin, end, taken);
    std::vector<Token> tokens;
    for (const TokenLogprobs& logprobs : taken) tokens.push_back(logprobs.chosen.token);
    return tokens;
  }

  LogprobQueue queue_;
  std::size_t text_ = 0;
};

TEST_F(LogprobQueueTest, ReportsTokensWithTheirText) {
  push(1, 3);
  EXPECT_THAT(take(0, 3), ElementsAre(1));
  push(2, 2);
  push(3, 2);
  EXPECT_THAT(take(3, 4), ElementsAre(2)) << "a part of it is enough";
  EXPECT_THAT(take(4, 7), ElementsAre(3));
}

TEST_F(LogprobQueueTest, ReportsTheTokensOfACharacterTogether) {
  push(1, 0);
  push(2, 0);
  EXPECT_THAT(take(0, 0), IsEmpty());
  push(3, 3);
  EXPECT_THAT(take(0, 3), ElementsAre(1, 2, 3));
}

TEST_F(LogprobQueueTest, KeepsWhatIsNotShownYet) {
  push(1, 2);
  push(2, 2);
  EXPECT_THAT(take(0, 2), ElementsAre(1));
  EXPECT_THAT(take(2, 2), IsEmpty());
  EXPECT_THAT(take(2, 4), ElementsAre(2));
}

TEST_F(LogprobQueueTest, LeavesOutWhatIsNoContent) {
  push(1, 2);
  push(2, 5);  // A mark, and the first letter behind it.
  push(3, 2);
  EXPECT_THAT(take(0, 2), ElementsAre(1));
  EXPECT_THAT(take(6, 8), ElementsAre(2, 3));
  push(4, 5);  // Reasoning.
  push(5, 5);
  EXPECT_THAT(take(14, 15), ElementsAre(5));
}

}  // namespace
}  // namespace uma::chat
