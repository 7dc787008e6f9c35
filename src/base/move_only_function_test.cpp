#include "base/move_only_function.h"

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace uma {
namespace {

template <template <class> class Function>
struct Kind {
  template <class Signature>
  using Of = Function<Signature>;
};

template <class Kind>
class MoveOnlyFunctions : public testing::Test {};
using Kinds = testing::Types<Kind<MoveOnlyFunction>, Kind<OwnMoveOnlyFunction>>;
TYPED_TEST_SUITE(MoveOnlyFunctions, Kinds);

TYPED_TEST(MoveOnlyFunctions, OwnsAndMovesItsCallable) {
  using Function = typename TypeParam::template Of<int(std::unique_ptr<int>)>;
  Function first = [held = std::make_unique<int>(40)](std::unique_ptr<int> added) { return *held + *added; };
  Function second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): it is empty, which is asserted here.
  ASSERT_TRUE(second);
  EXPECT_EQ(second(std::make_unique<int>(2)), 42);
}

TYPED_TEST(MoveOnlyFunctions, IsEmptyWithoutCallable) {
  using Function = typename TypeParam::template Of<void()>;
  Function function;
  EXPECT_TRUE(function == nullptr);
  function = [] {};
  EXPECT_FALSE(function == nullptr);
  function = nullptr;
  EXPECT_FALSE(function);
}

TYPED_TEST(MoveOnlyFunctions, KeepsTheStateOfItsCallable) {
  using Function = typename TypeParam::template Of<int()>;
  Function function = [count = 0]() mutable { return ++count; };
  EXPECT_EQ(function(), 1);
  EXPECT_EQ(function(), 2);
}

TYPED_TEST(MoveOnlyFunctions, PassesReferencesAndDropsUnwantedResults) {
  using Function = typename TypeParam::template Of<void(std::string&)>;
  Function function = [](std::string& text) { return text += "!"; };
  std::string text = "so";
  function(text);
  EXPECT_EQ(text, "so!");
}

}  // namespace
}  // namespace uma
