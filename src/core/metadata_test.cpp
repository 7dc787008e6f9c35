#include "core/metadata.h"

#include <format>
#include <string>

#include <gtest/gtest.h>

namespace uma {
namespace {

std::string text_of(std::string_view json_string) {
  std::string text;
  append_metadata_text(text, json_string);
  return text;
}

TEST(Metadata, IsReadAsPairsInOrder) {
  const std::string metadata = R"({"title":"a \"b\" \\ \n\r\t\u0001\u001f","tags":"","café":"x"})";
  const auto pairs = metadata_pairs(metadata);
  ASSERT_TRUE(pairs);
  ASSERT_EQ(pairs->size(), 3u);
  EXPECT_EQ((*pairs)[0].name, R"("title")");
  EXPECT_EQ(text_of((*pairs)[0].value), "a \"b\" \\ \n\r\t\x01\x1f");
  EXPECT_EQ((*pairs)[1].value, R"("")");
  EXPECT_EQ(text_of((*pairs)[2].name), "café");
  EXPECT_TRUE(metadata_pairs("")->empty());
  EXPECT_TRUE(metadata_pairs("{}")->empty());
}

TEST(Metadata, NothingElseIsMetadata) {
  for (const std::string_view other :
       {"{", "}", "[]", "a note", R"({"a"})", R"({"a":})", R"({"a":1})", "{\"a\":\"b\"} ", R"({"a":"b",})", R"({,"a":"b"})",
        R"({ "a":"b"})", R"({"a":"b)", R"({"a":"\x"})", R"({"a":"\u0041"})", R"({"a":"\)", "{\"a\":\"\n\"}", "{\"a\":\"\xff\"}",
        R"({"a":"b"}{"a":"b"})", R"({"a":{"b":"c"}})"}) {
    EXPECT_FALSE(metadata_pairs(other)) << other;
    EXPECT_EQ(listed_metadata(other), "") << other;
  }
}

TEST(Metadata, HasSixteenPairsAtMost) {
  std::vector<MetadataChange> changes;
  for (std::size_t i = 0; i < kMetadataPairsMax; ++i) changes.push_back({std::format("\"{}\"", i), R"("")"});
  const std::string full = changed_metadata("", changes);
  EXPECT_EQ(metadata_pairs(full)->size(), kMetadataPairsMax);
  const std::vector<MetadataChange> one_more = {{R"("more")", R"("")"}};
  EXPECT_FALSE(metadata_pairs(changed_metadata(full, one_more)));
}

TEST(Metadata, ChangesSetAndRemovePairs) {
  const std::string before = R"({"title":"a","tags":"b"})";
  EXPECT_EQ(changed_metadata(before, {}), before);
  const std::vector<MetadataChange> changes = {
      {R"("tags")", ""}, {R"("title")", R"("c")"}, {R"("new")", R"("d")"}, {R"("none")", ""}, {R"("new")", R"("e")"}};
  EXPECT_EQ(changed_metadata(before, changes), R"({"title":"c","new":"e"})");
  EXPECT_EQ(changed_metadata("", changes), R"({"title":"c","new":"e"})");
  const std::vector<MetadataChange> removal = {{R"("title")", ""}, {R"("tags")", ""}};
  EXPECT_EQ(changed_metadata(before, removal), "");
}

TEST(Metadata, ListsHaveTheTitleAndWhatElseFits) {
  const std::string small = R"({"b":"x","title":"y"})";
  EXPECT_EQ(listed_metadata(small), small);
  std::string large = "{";
  for (int i = 0; i < 15; ++i) large += std::format(R"("k{}":"{}",)", i, std::string(400, 'x'));
  large += R"("title":"the title"})";
  const std::string listed = listed_metadata(large);
  EXPECT_LE(listed.size(), kListedMetadataBytesMax);
  EXPECT_TRUE(listed.starts_with(R"({"title":"the title","k0":"x)")) << listed;
  EXPECT_EQ(metadata_pairs(listed)->size(), 3u);
  const std::string one = std::format(R"({{"k":"{}"}})", std::string(kListedMetadataBytesMax, 'x'));
  EXPECT_EQ(listed_metadata(one), "");
}

}  // namespace
}  // namespace uma
