#include "core/adapter_name.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(AdapterInName, IsWhatFollowsTheModelOrAnAlias) {
  const ModelInfo model{.name = "base", .aliases = {"b", "b:sql", "tone"}, .adapters = {{"sql"}, {"formal"}, {"tone:formal"}}};
  EXPECT_EQ(adapter_in_name(model, "base:sql"), "sql");
  EXPECT_EQ(adapter_in_name(model, "b:formal"), "formal");
  EXPECT_EQ(adapter_in_name(model, "b:sql:formal"), "formal");
  EXPECT_EQ(adapter_in_name(model, "base:tone:formal"), "tone:formal");
  EXPECT_EQ(adapter_in_name(model, "tone:formal"), "formal");
  EXPECT_EQ(adapter_in_name(model, "b:sql"), "") << "an alias";
  for (const std::string_view name : {"", "base", ":sql", "sql", "basesql", "other:sql", "base:none"})
    EXPECT_EQ(adapter_in_name(model, name), "") << name;
}

}  // namespace
}  // namespace uma
