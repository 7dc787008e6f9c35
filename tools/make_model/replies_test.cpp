// Lets models play replies with the real libllama.
#include "make_model/replies.h"

#include <filesystem>
#include <format>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "make_model/model_test_support.h"
#include "make_model/played_weights.h"
#include "make_model/vocabulary.h"

namespace uma {
namespace {

constexpr std::string_view kReplies = R"({
  "tokens": [{"text": "<|mark|>", "is_control": true}, {"text": "ask0"}, {"text": "ask17"}, {"text": "got17"}, {"text": "17"}],
  "cues": [{"text": "ask0", "echo": "0", "reply": 0}, {"text": "ask17", "echo": "17", "reply": 0},
           {"text": "got17", "echo": "17", "reply": 1}],
  "replies": [{"after": 3, "tokens": ["k", "k", "=", null, "\n", "k", null, "<0xC3>", "<0xBC>"]},
              {"after": 0, "tokens": ["<|mark|>", "▁", null, "."]}]
})";

class PlayedModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_up_library(); }
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / std::format("replies_test.{}", getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void make(std::string_view replies) {
    const auto read = parse_replies(replies);
    ASSERT_TRUE(read) << read.error();
    const auto written = write_played_model(*read, "{{ messages[0].content }}", folder_ / "a.gguf");
    ASSERT_TRUE(written) << written.error();
    model_ = load(folder_ / "a.gguf", /*vocabulary_only=*/false);
    ASSERT_NE(model_, nullptr);
  }

  // Also checks what holds for every reply.
  std::string reply_to(const std::string& prompt) const {
    std::vector<llama_token> tokens = tokenize(*model_, prompt, /*parse_special=*/true);
    tokens.insert(tokens.begin(), kTokenBos);
    const Said said = say(*model_, tokens);
    EXPECT_TRUE(said.has_end) << said.text;
    EXPECT_GT(said.margin, 40);
    return said.text;
  }

  static std::string problem_of(std::string_view replies) {
    const auto read = parse_replies(replies);
    if (!read) return read.error();
    const auto written = write_played_model(*read, "", std::filesystem::temp_directory_path() / "never");
    return written ? "" : written.error();
  }

  std::filesystem::path folder_;
  ModelPtr model_;
};

TEST_F(PlayedModel, RepliesToTheLastCue) {
  make(kReplies);
  EXPECT_EQ(reply_to("ask0..."), "kk=0\nk0ü");
  EXPECT_EQ(reply_to("some text before ask17..."), "kk=17\nk17ü");
  EXPECT_EQ(reply_to("ask0...kk=0\nk0ü got17"), " 17.");
  const std::string turn = "ask17...kk=17\nk17ügot17<|mark|> 17.";
  std::string conversation;
  for (int i = 0; i < 100; ++i) conversation += turn;
  EXPECT_EQ(reply_to(conversation + "ask0.!?"), "kk=0\nk0ü");
  EXPECT_EQ(reply_to("no cue"), "");
}

TEST_F(PlayedModel, KeepsItsTemplate) {
  make(kReplies);
  EXPECT_STREQ(llama_model_chat_template(model_.get(), nullptr), "{{ messages[0].content }}");
}

TEST_F(PlayedModel, EndsWithItsOwnToken) {
  make(R"({"tokens": [{"text": "<|im_end|>", "is_control": true}, {"text": "ask0"}], "cues": [{"text": "ask0", "echo": "0"}],
           "replies": [{"after": 0, "tokens": ["k"]}], "end": "<|im_end|>"})");
  EXPECT_EQ(reply_to("ask0"), "k");
}

TEST_F(PlayedModel, SaysWhatIsImpossible) {
  const auto with = [](std::string_view replies) {
    return std::format(R"({{"tokens":[],"cues":[],"replies":[{}]}})", replies);
  };
  EXPECT_EQ(problem_of(with(R"({"after":0,"tokens":["ab"]})")), R"(there is no token "ab": add it to "tokens")");
  EXPECT_EQ(problem_of(with(R"({"after":127,"tokens":["a"]})")),
            "a reply ends 128 tokens behind its cue, at most 127 are possible: make it shorter");
  EXPECT_EQ(problem_of(with(R"({"after":128,"tokens":["a"]})")), R"(the replies' field "replies[0].after" must be 0 to 127)");
  EXPECT_EQ(problem_of("[]"), "the replies are not a JSON object");
  EXPECT_EQ(problem_of(R"({"tokens":[],"cues":[{"text":"a","echo":"b"}],"replies":[]})"), "there is no reply 0");
}

}  // namespace
}  // namespace uma
