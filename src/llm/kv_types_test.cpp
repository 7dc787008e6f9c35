#include "llm/kv_types.h"

#include <gtest/gtest.h>

namespace uma::llm {
namespace {

TEST(KvTypes, AreReadFromTheirText) {
  for (const KvTypeFacts& keys : kKvTypes) {
    EXPECT_EQ(facts_of(keys.type).name, keys.name);
    for (const KvTypeFacts& values : kKvTypes) {
      const KvTypes types{keys.type, values.type};
      EXPECT_EQ(kv_types_of(kv_types_text(types)), types) << kv_types_text(types);
    }
  }
  EXPECT_EQ(kv_types_text(KvTypes::both(KvType::q8_0)), "q8_0");
  EXPECT_EQ(kv_types_text({KvType::q8_0, KvType::q4_0}), "q8_0/q4_0");
}

TEST(KvTypes, AnotherTextIsNone) {
  for (const char* text : {"", "/", "q8_0/", "/q8_0", "q8_0/q4_0/q4_0", "Q8_0", "f32", " f16"})
    EXPECT_FALSE(kv_types_of(text)) << text;
}

}  // namespace
}  // namespace uma::llm
