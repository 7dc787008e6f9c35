#include "core/work/promise.h"

#include <optional>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/thrown.h"

namespace uma {
namespace {

TEST(Promise, AnswersOnceHoweverOftenItIsMoved) {
  int answers = 0;
  {
    Promise<int> reply([&](const Expected<int>& value) {
      ++answers;
      EXPECT_EQ(*value, 7);
    });
    Promise<int> moved = std::move(reply);
    Promise<int> assigned;
    assigned = std::move(moved);
    assigned(7);
  }
  EXPECT_EQ(answers, 1);
}

TEST(Promise, ThatIsLetGoOfAnswersWithAnError) {
  std::optional<ErrorCode> code;
  {
    const Promise<int> reply([&](const Expected<int>& value) { code = value.error().code; });
  }
  EXPECT_EQ(code, ErrorCode::runtime_decode);
}

TEST(Promise, ThatThrowsWhenItIsLetGoOfIsNoted) {
  init_log(LogLevel::error);
  const std::uint64_t before = thrown_count();
  {
    const Promise<int> reply([](const Expected<int>&) { throw std::runtime_error("nobody is there"); });
  }
  EXPECT_EQ(thrown_count(), before + 1);
}

TEST(Contain, MakesAnErrorOfWhatIsThrown) {
  const auto made = contain([]() -> Expected<int> { throw std::bad_alloc(); });
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::runtime_decode);
  EXPECT_EQ(*contain([]() -> Expected<int> { return 3; }), 3);
}

}  // namespace
}  // namespace uma
