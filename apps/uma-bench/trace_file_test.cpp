#include "uma-bench/trace_file.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

auto read(const std::string& text, std::size_t limit = 100) {
  std::istringstream in(text);
  return read_trace(in, limit);
}

TEST(ReadTrace, ReadsTimesOfTheCsvForm) {
  const auto trace = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 23:59:59.5000000,374,44\n"
      "2023-11-17 00:00:01.2500000,396,109\n"
      "2023-11-17 00:00:02,9,8\n");
  ASSERT_TRUE(trace) << trace.error();
  ASSERT_EQ(trace->size(), 3u);
  EXPECT_EQ((*trace)[0].at_ms, 0);
  EXPECT_NEAR((*trace)[1].at_ms, 1750, 0.01) << "over midnight";
  EXPECT_NEAR((*trace)[2].at_ms, 2500, 0.01);
  EXPECT_EQ((*trace)[1].prompt_tokens, 396);
  EXPECT_EQ((*trace)[1].generated_tokens, 109);
}

TEST(ReadTrace, ReadsBlocksOfTheJsonForm) {
  const auto trace = read(R"({"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]})"
                          "\n"
                          R"({"timestamp": 3000, "input_length": 10, "output_length": 6, "hash_ids": []})"
                          "\n");
  ASSERT_TRUE(trace) << trace.error();
  EXPECT_EQ((*trace)[1].at_ms, 2000);
  EXPECT_EQ((*trace)[0].prompt_tokens, 600);
  EXPECT_THAT((*trace)[0].blocks, ElementsAre(0, 7));
}

TEST(ReadTrace, StopsAtItsLimit) {
  EXPECT_EQ(read("T,C,G\n2023-11-16 00:00:00.1,1,1\n2023-11-16 00:00:00.2,1,1\n", 1)->size(), 1u);
}

TEST(ReadTrace, NamesTheLineItCannotRead) {
  EXPECT_THAT(read("T,C,G\n2023-11-16 00:00:00.1,1,1\n2023-11-16,1,1\n").error(), HasSubstr("line 3"));
  EXPECT_THAT(read("T,C,G\n2023-11-16 00:00:00.1,99999999999,1\n").error(), HasSubstr("line 2"));
  EXPECT_THAT(read(R"({"timestamp": 1, "input_length": "x", "output_length": 5})").error(), HasSubstr("line 1"));
  EXPECT_THAT(read(R"({"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [-1]})").error(),
              HasSubstr("line 1"));
  EXPECT_THAT(read("").error(), HasSubstr("empty"));
}

}  // namespace
}  // namespace uma::bench
