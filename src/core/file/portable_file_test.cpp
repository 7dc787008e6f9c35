#include "core/file/portable_file.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma {
namespace {

TEST(PortableFile, ComesInPartsAndIsReadInOthers) {
  Random random(1);
  Bytes sent(3'000'000);
  for (std::byte& byte : sent) byte = static_cast<std::byte>(random.next_below(256));
  const auto budget = std::make_shared<ByteBudget>(4ul << 20);
  PortableWriter writer(budget);
  for (std::size_t at = 0; at < sent.size();) {
    const std::size_t count = std::min<std::size_t>(random.next_below(200'000), sent.size() - at);
    ASSERT_TRUE(writer.append(std::span(sent).subspan(at, count)));
    at += count;
    EXPECT_EQ(writer.size(), at);
  }
  const PortableFile file = std::move(writer).finish();
  EXPECT_EQ(file.size(), sent.size());
  PortableReader reader(file);
  Bytes read(sent.size());
  for (std::size_t at = 0; at < read.size();) {
    const std::size_t count = std::min<std::size_t>(random.next_below(300'000), read.size() - at);
    reader.read(std::span(read).subspan(at, count));
    at += count;
    EXPECT_EQ(reader.left(), read.size() - at);
  }
  EXPECT_EQ(read, sent);
}

TEST(PortableFile, ManySmallPartsTakeNoMoreThanTheyAreLong) {
  const auto budget = std::make_shared<ByteBudget>(8ul << 20);
  PortableWriter writer(budget);
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(writer.append(Bytes(1, std::byte{1})));
  EXPECT_LE(budget->bytes_used(), 1ul << 20);
}

TEST(PortableFile, ALimitHoldsForOneAndForAllTogether) {
  const auto budget = std::make_shared<ByteBudget>(3ul << 20);
  const Bytes part(2ul << 20, std::byte{1});
  PortableWriter first(budget);
  ASSERT_TRUE(first.append(part));
  EXPECT_EQ(first.append(part).error().code, ErrorCode::limit_prompt);
  {
    PortableWriter second(budget);
    EXPECT_EQ(second.append(part).error().code, ErrorCode::limit_wait);
  }
  {
    const PortableFile file = std::move(first).finish();
    EXPECT_EQ(budget->bytes_used(), 2ul << 20);
  }
  EXPECT_EQ(budget->bytes_used(), 0u) << "what was finished goes with the file";
}

}  // namespace
}  // namespace uma
