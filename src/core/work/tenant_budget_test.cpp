#include "core/work/tenant_budget.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace uma {
namespace {

const TenantId kOne{"one"};
const TenantId kOther{"other"};

TEST(TenantBudget, ATenantMayHoldAsMuchAsItLeavesFree) {
  const auto memory = std::make_shared<TenantBudget>(100, "holders", "the limit");
  const auto one = memory->open(kOne);
  EXPECT_TRUE(one->grow(30));
  EXPECT_FALSE(one->grow(21));
  EXPECT_TRUE(one->grow(20));
  EXPECT_FALSE(one->grow(1)) << "half of all is the most that one can have";
  EXPECT_EQ(memory->bytes_used(), 50u);

  const auto other = memory->open(kOther);
  EXPECT_FALSE(other->grow(26));
  EXPECT_TRUE(other->grow(25)) << "there is room for another";
  EXPECT_FALSE(one->grow(1));
  const auto third = memory->open(TenantId{"third"});
  EXPECT_TRUE(third->grow(12));
  EXPECT_FALSE(third->grow(1));
}

TEST(TenantBudget, ItIsTheTenantThatIsBoundedHoweverManyItsRequests) {
  const auto memory = std::make_shared<TenantBudget>(100, "holders", "the limit");
  std::vector<RequestShare> shares;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(shares.emplace_back(memory->open(kOne))->grow(10));
  EXPECT_FALSE(shares.emplace_back(memory->open(kOne))->grow(10));
  shares.erase(shares.begin());
  EXPECT_TRUE(shares.back()->grow(10)) << "what has ended makes room";
}

TEST(TenantBudget, AllComesBack) {
  const auto memory = std::make_shared<TenantBudget>(100, "holders", "the limit");
  {
    const auto share = memory->open(kOne);
    EXPECT_TRUE(share->grow(40));
    EXPECT_FALSE(share->grow(40)) << "refused: nothing changes";
    EXPECT_EQ(memory->bytes_used(), 40u);
    EXPECT_TRUE(share->resize(15));
    EXPECT_EQ(memory->bytes_used(), 15u);
    EXPECT_TRUE(share->resize(35));
    EXPECT_FALSE(share->resize(51));
    EXPECT_EQ(memory->bytes_used(), 35u);
    share->give_back();
    EXPECT_EQ(memory->bytes_used(), 0u);
    EXPECT_TRUE(share->grow(50));
    EXPECT_TRUE(share->grow(0));
    const RequestShare again = share;
  }
  EXPECT_EQ(memory->bytes_used(), 0u);
}

TEST(TenantBudget, HugeNumbersDoNotWrapAround) {
  const auto memory = std::make_shared<TenantBudget>(~0ull, "holders", "the limit");
  const auto share = memory->open(kOne);
  EXPECT_FALSE(share->grow(~0ull));
  EXPECT_TRUE(share->grow(1ull << 62));
  EXPECT_FALSE(share->grow(~0ull));
}

}  // namespace
}  // namespace uma
