// What every shared store does with the states of prefixes.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/shared/shared_prefix.h"
#include "kv/shared/shared_store.h"
#include "kv/shared/shared_store_test_support.h"

namespace uma::kv {

// `a` and `b` are the stores of two daemons.
inline void expect_prefixes_of_tenants_apart(SharedStore& a, SharedStore& b) {
  const std::vector<std::string> identities = {"model|a"};
  BytePool pool(0);
  const Snapshot state = shared_snapshot(1, {100, 9000});
  const StateOwner mine = prefix_owner(TenantId{"uid:1000"}, false, state.tokens);
  const StateOwner everybodys = prefix_owner(TenantId{"uid:1000"}, true, state.tokens);
  for (const StateOwner& owner : {mine, everybodys}) {
    EXPECT_TRUE(b.find(owner.tenant, owner.session, identities).value().empty());
    const auto written = a.write(owner, state);
    ASSERT_TRUE(written) << written.error().message;
    ASSERT_TRUE(b.write(owner, state)) << "another daemon had the same idea";
    const auto heads = b.find(owner.tenant, owner.session, identities).value();
    ASSERT_EQ(heads.size(), 1U);
    EXPECT_EQ(heads[0].owner, owner);
    EXPECT_EQ(heads[0].tokens, state.tokens);
    const auto read = b.read(heads[0].name, owner, heads[0].bytes, pool);
    ASSERT_TRUE(read && *read);
    expect_same(**read, state);
    EXPECT_FALSE(b.read(heads[0].name, prefix_owner(TenantId{"uid:2000"}, false, state.tokens), heads[0].bytes, pool))
        << "it belongs to somebody else, and is removed";
  }
  const StateOwner others = prefix_owner(TenantId{"uid:2000"}, false, state.tokens);
  EXPECT_TRUE(b.find(others.tenant, others.session, identities).value().empty());
}

}  // namespace uma::kv
