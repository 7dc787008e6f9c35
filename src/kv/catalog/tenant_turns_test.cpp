#include "kv/catalog/tenant_turns.h"

#include <string>

#include <gtest/gtest.h>

namespace uma::kv {
namespace {

TEST(TenantTurns, TakeTheCallsOfATenantInTheirOrderAndTenantsInTurn) {
  TenantTurns<std::string> turns;
  EXPECT_TRUE(turns.empty());
  for (const char* call : {"a1", "a2", "a3", "b1", "b2"}) turns.add(TenantId{std::string(1, *call)}, call);
  std::string order;
  for (int i = 0; i < 3; ++i) order += turns.next() + " ";
  turns.add(TenantId{"c"}, "c1");
  turns.add(TenantId{"a"}, "a4");
  while (!turns.empty()) order += turns.next() + " ";
  EXPECT_EQ(order, "a1 b1 a2 b2 a3 c1 a4 ");
}

}  // namespace
}  // namespace uma::kv
