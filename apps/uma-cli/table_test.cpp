#include "uma-cli/table.h"

#include <clocale>

#include <gtest/gtest.h>

#include "uma-cli/format.h"

namespace uma::cli {
namespace {

TEST(Table, AlignsColumnsAndEndsLinesWithoutSpaces) {
  Table table({{"NAME", Align::left}, {"TOKENS", Align::right}, {"TIER", Align::left}});
  table.add({"notes", "12", "hot"});
  table.add({"a longer name", "1234567", ""});
  EXPECT_EQ(table.text(),
            "NAME            TOKENS  TIER\n"
            "notes               12  hot\n"
            "a longer name  1234567\n");
}

TEST(Table, WithoutHeadersBeginsWithTheFirstRow) {
  Table table({{"", Align::left}, {"", Align::right}});
  table.add({"p50_ms", "1.5"});
  table.add({"x", "20"});
  EXPECT_EQ(table.text(), "p50_ms  1.5\nx        20\n");
}

TEST(Table, ShowsControlCharactersInCells) {
  Table table({{"NAME", Align::left}});
  table.add({"\x1b[31mred\n"});
  EXPECT_EQ(table.text(), "NAME\n^[[31mred^J\n");
}

TEST(Table, MeasuresWideCharacters) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  Table table({{"N", Align::left}, {"V", Align::left}});
  table.add({"\u4f60\u597d", "x"});
  table.add({"ab", "y"});
  EXPECT_EQ(table.text(), "N     V\n\u4f60\u597d  x\nab    y\n");
}

TEST(Format, WritesNumbersForPeople) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(3.5 * 1024 * 1024 * 1024), "3.5 GiB");
  EXPECT_EQ(short_bytes(0), "0");
  EXPECT_EQ(short_bytes(999), "999");
  EXPECT_EQ(short_bytes(1000), "1.0K");
  EXPECT_EQ(short_bytes(10'200), "10K");
  EXPECT_EQ(short_bytes(1'023'900), "1.0M");
  EXPECT_EQ(short_bytes(1.44 * 1024 * 1024), "1.4M");
  EXPECT_EQ(short_bytes(2.5e12), "2.3T");
  EXPECT_EQ(human_age(-5), "0 s");
  EXPECT_EQ(human_age(59), "59 s");
  EXPECT_EQ(human_age(3599), "59 min");
  EXPECT_EQ(human_age(86399), "23 h");
  EXPECT_EQ(human_age(200000), "2 d");
  EXPECT_EQ(human_number(3), "3");
  EXPECT_EQ(human_number(0.12), "0.12");
  EXPECT_EQ(human_number(1.0 / 3), "0.333");
  EXPECT_EQ(count_of(1, "turn"), "1 turn");
  EXPECT_EQ(count_of(0, "turn"), "0 turns");
}

}  // namespace
}  // namespace uma::cli
