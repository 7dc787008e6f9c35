#include "base/read_number.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <system_error>

#include <gtest/gtest.h>

namespace uma {
namespace {

constexpr double kUntouched = -77;

struct Read {
  double value = kUntouched;
  std::ptrdiff_t length = 0;
  std::errc problem{};
};

using Reader = std::from_chars_result (*)(const char*, const char*, double&);

Read read_with(Reader reader, std::string_view text) {
  Read read;
  const auto [end, problem] = reader(text.data(), text.data() + text.size(), read.value);
  read.length = end - text.data();
  read.problem = problem;
  return read;
}

TEST(ReadNumber, TheCLibraryReadsTheSame) {
  for (const std::string_view text :
       {"0",      "7",   "-3.25", "1e3",  "2.5e-3x", ".5",     "5.",     "1.2.3", "0.1", "123456789012345678901234567890",
        "4e-320", "inf", "-inf",  "0x1F", "-0x1p3",  "1e",     "1e+",    "3s",    "",    "-",
        "+1",     " 1",  "x",     "\n2",  "1e400",   "-1e400", "1e-400", "--1",   "e5",  "1,5"}) {
    const Read expected = read_with(&read_number, text);
    const Read got = read_with(&read_number_by_c, text);
    EXPECT_EQ(got.value, expected.value) << text;
    EXPECT_EQ(got.length, expected.length) << text;
    EXPECT_EQ(got.problem, expected.problem) << text;
  }
}

TEST(ReadNumber, ReadsNaN) {
  EXPECT_TRUE(std::isnan(read_with(&read_number, "nan").value));
  EXPECT_TRUE(std::isnan(read_with(&read_number_by_c, "nan").value));
}

TEST(ReadNumber, RoundsToTheNarrowType) {
  const std::string_view text = "0.1";
  for (const auto reader : {static_cast<std::from_chars_result (*)(const char*, const char*, float&)>(&read_number),
                            static_cast<std::from_chars_result (*)(const char*, const char*, float&)>(&read_number_by_c)}) {
    float value = 0;
    EXPECT_EQ(reader(text.data(), text.data() + text.size(), value).ec, std::errc());
    EXPECT_EQ(value, 0.1F);
  }
}

}  // namespace
}  // namespace uma
