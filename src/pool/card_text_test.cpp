#include "pool/card_text.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::pool {
namespace {

using ::testing::HasSubstr;

const std::string kFile =
    "# all of them\n"
    "a:   # the first\n"
    "    path: a.gguf\n"
    "    # deeper\n"
    "# at the edge\n"
    "    system: |\n"
    "      # no comment\n"
    "\n"
    "      text\n"
    "\n"
    "# of b\n"
    "b: {path: b.gguf}  # flow\n"
    "\"c\":\n"
    "  path: c.gguf";

std::string card(const std::string& file, const std::string& name) {
  const auto found = card_in(file, name);
  if (!found) return "failed: " + found.error().message;
  return found->value_or("none");
}

TEST(CardText, IsShownWithoutItsIndentation) {
  EXPECT_EQ(card(kFile, "a"), "path: a.gguf\n# deeper\n# at the edge\nsystem: |\n  # no comment\n\n  text\n");
  EXPECT_EQ(card(kFile, "b"), "{path: b.gguf}  # flow\n");
  EXPECT_EQ(card(kFile, "c"), "path: c.gguf");
  EXPECT_EQ(card(kFile, "d"), "none");
  EXPECT_EQ(card("", "d"), "none");
  EXPECT_EQ(card("d:\n", "d"), "");
  EXPECT_EQ(card("d: {\n  path: x\n}\n", "d"), "{\n  path: x\n}\n");
}

TEST(CardText, ReplacesItsBlockAndNothingElse) {
  EXPECT_EQ(with_card(kFile, "a", "path: x\naliases: [y]\n").value(),
            "# all of them\na:   # the first\n  path: x\n  aliases: [y]\n\n# of b\nb: {path: b.gguf}  # flow\n\"c\":\n  path: "
            "c.gguf");
  EXPECT_THAT(with_card(kFile, "b", "path: x").value(), HasSubstr("# of b\nb:\n  path: x\n\"c\":\n"));
  EXPECT_THAT(with_card(kFile, "c", "{path: x}\n").value(), testing::EndsWith("\"c\":\n  {path: x}\n"));
  EXPECT_EQ(with_card(kFile, "a", card(kFile, "a")).value().size(), kFile.size() - 2 * 5 + 2)
      << "only the indentation differs, of five lines, and the comment at the edge has one";
}

TEST(CardText, StandsAtTheEndIfItIsNew) {
  EXPECT_EQ(with_card("", "d", "path: d\n").value(), "d:\n  path: d\n");
  EXPECT_THAT(with_card(kFile, "d:1", "path: d\n").value(), testing::EndsWith("  path: c.gguf\nd:1:\n  path: d\n"));
  const std::string odd = with_card(kFile, "#d", "path: d\n").value();
  EXPECT_EQ(card(odd, "#d"), "path: d\n");
}

TEST(CardText, CannotLeaveItsBlock) {
  for (const char* escape : {"path: x\n---\nb: 1\n", "...\n", "path: x\rb: {path: y}\n", "path: \"\x01\"\n", "path: x\x7f\n"}) {
    const auto changed = with_card(kFile, "a", escape);
    ASSERT_FALSE(changed.has_value()) << escape;
    EXPECT_EQ(changed.error().code, ErrorCode::proto_field);
    EXPECT_THAT(changed.error().message, HasSubstr("line ")) << escape;
  }
  EXPECT_TRUE(with_card(kFile, "a", "path: x\r\n").has_value());
  const std::string nested = with_card(kFile, "a", "path: |\n  b:\n    path: evil\n").value();
  EXPECT_EQ(card(nested, "b"), "{path: b.gguf}  # flow\n");
}

TEST(CardText, WhatIsWrittenOtherwiseIsLeftAlone) {
  for (const char* file : {"{a: {path: a}, b: {path: b}}\n", "? a\n: {path: a}\n", "a: &x {path: a}\nb: *x\n"}) {
    const auto changed = with_card(file, "a", "path: x\n");
    ASSERT_FALSE(changed.has_value()) << file;
    EXPECT_THAT(changed.error().message, HasSubstr("edit it by hand")) << file;
  }
  EXPECT_THAT(card("a: [\n", "a"), HasSubstr("line "));
  EXPECT_THAT(card("- a\n", "a"), HasSubstr("must map the names of models"));
  EXPECT_THAT(card("{a: {path: a}}\n", "a"), HasSubstr("edit it by hand"));
}

}  // namespace
}  // namespace uma::pool
