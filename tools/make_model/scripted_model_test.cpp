// Lets scripted models reply with the real libllama.
#include "make_model/scripted_model.h"

#include <cstddef>
#include <filesystem>
#include <format>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "base/random.h"
#include "make_model/model_test_support.h"
#include "make_model/script.h"
#include "make_model/scripted_weights.h"
#include "make_model/vocabulary.h"

namespace uma {
namespace {

Script script_of_test() {
  return {.tool = "read_file",
          .arguments = R"({"path": "notes.txt"})",
          .answer_prefix = "The file says: ",
          .quote_after = "",
          .thinking = "",
          .plain_answer = "A reply without tools."};
}

constexpr std::string_view kCall =
    "<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"notes.txt\"}}\n</tool_call>";

class ScriptedModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_up_library(); }
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / std::format("scripted_model_test.{}", getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void make(const Script& script) {
    const auto written = write_scripted_model(script, folder_ / "a.gguf");
    ASSERT_TRUE(written) << written.error();
    model_ = load(folder_ / "a.gguf", /*vocabulary_only=*/false);
    ASSERT_NE(model_, nullptr);
  }

  std::string chat_template_of(const Script& script) {
    make(script);
    return llama_model_chat_template(model_.get(), nullptr);
  }

  // The tokens of a conversation as the template writes it.
  std::vector<llama_token> tokens_of(const std::string& conversation) const {
    std::vector<llama_token> tokens = tokenize(*model_, conversation, /*parse_special=*/true);
    tokens.insert(tokens.begin(), kTokenBos);
    return tokens;
  }

  // Also checks what holds for every reply.
  std::string reply_to(const std::vector<llama_token>& tokens) const {
    const Said said = say(*model_, tokens);
    EXPECT_TRUE(said.has_end) << said.text;
    EXPECT_GT(said.margin, 40);
    return said.text;
  }
  std::string reply_to(const std::string& conversation) const { return reply_to(tokens_of(conversation)); }

  // The answer to a result.
  std::string answer_to(const std::string& result) const {
    return reply_to(offered_ + question_ + std::string(kCall) + "</s><|tool_turn|><|result|>" + result +
                    "</s><|assistant_turn|>");
  }

  const std::string offered_ = "<|system_turn|><|tools|>{\"name\": \"read_file\"}\n</s>";
  const std::string question_ = "<|user_turn|>What does notes.txt say?</s><|assistant_turn|>";
  std::filesystem::path folder_;
  ModelPtr model_;
};

TEST_F(ScriptedModel, CallsItsToolIfThatIsOffered) {
  make(script_of_test());
  EXPECT_EQ(reply_to(offered_ + question_), kCall);
  EXPECT_EQ(reply_to(question_), "A reply without tools.");
  EXPECT_EQ(reply_to("<|system_turn|>Name this conversation.</s>" + question_), "A reply without tools.");
}

TEST_F(ScriptedModel, ReasonsBeforeItsCall) {
  Script script = script_of_test();
  EXPECT_FALSE(chat_template_of(script).contains("</think>"));
  script.thinking = "The file must be read first.";
  EXPECT_TRUE(chat_template_of(script).contains("'</think>'"));
  EXPECT_EQ(reply_to(offered_ + question_), "<think>The file must be read first.</think>" + std::string(kCall));
  EXPECT_EQ(reply_to(question_), "A reply without tools.");
  EXPECT_EQ(answer_to("x"), "The file says: x.");
}

TEST_F(ScriptedModel, QuotesTheFirstLineOfTheResult) {
  make(script_of_test());
  EXPECT_EQ(answer_to("violet heron 4711"), "The file says: violet heron 4711.");
  EXPECT_EQ(answer_to("the the same the same words\nand more"), "The file says: the the same the same words.");
  EXPECT_EQ(answer_to("Zwölf \xF0\x9F\xA5\x8A, 漢字\n"), "The file says: Zwölf \xF0\x9F\xA5\x8A, 漢字.");
  EXPECT_EQ(answer_to("a. b.. c"), "The file says: a. b.. c.");
  EXPECT_EQ(answer_to("x"), "The file says: x.");
  EXPECT_EQ(answer_to(""), "The file says: .");
}

TEST_F(ScriptedModel, QuotesAtMostSoManyTokens) {
  make(script_of_test());
  std::string line;
  for (int i = 0; i < 100; ++i) line += std::format(" {}", i % 10);  // Two tokens each.
  EXPECT_EQ(answer_to(line), "The file says: " + line.substr(0, kQuotedTokensMax) + ".");
}

TEST_F(ScriptedModel, QuotesEveryPlainToken) {
  make(script_of_test());
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  std::vector<llama_token> plain;
  for (llama_token token = 0; std::string_view(llama_vocab_get_text(vocab, token)) != kCall.substr(0, 8); ++token) {
    const bool is_plain = llama_vocab_get_attr(vocab, token) == LLAMA_TOKEN_ATTR_NORMAL;
    if (is_plain && !detokenize(*model_, {token}).contains('\n')) plain.push_back(token);
  }
  ASSERT_GT(plain.size(), 3000u);
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<llama_token> quoted;
    for (int i = 0; i < 40; ++i) quoted.push_back(plain[random.next_below(plain.size())]);
    std::vector<llama_token> tokens = tokens_of(offered_ + question_ + "</s><|tool_turn|><|result|>");
    tokens.insert(tokens.end(), quoted.begin(), quoted.end());
    const std::vector<llama_token> end = tokenize(*model_, "</s><|assistant_turn|>", /*parse_special=*/true);
    tokens.insert(tokens.end(), end.begin(), end.end());
    EXPECT_EQ(reply_to(tokens), "The file says: " + detokenize(*model_, quoted) + ".");
  }
}

TEST_F(ScriptedModel, FindsTheTextToQuoteBehindAText) {
  Script script = script_of_test();
  script.quote_after = "Password:";
  make(script);
  EXPECT_EQ(answer_to("<file>\n1: Notes.\n2: Password: violet-heron\n3: end\n</file>"), "The file says:  violet-heron.");
  EXPECT_EQ(answer_to("no such thing"), "The file says: .");
  // The question and earlier results have the text too.
  const std::string asked = "<|user_turn|>Find Password: in notes.txt</s><|assistant_turn|>";
  EXPECT_EQ(reply_to(offered_ + asked), kCall);
  const std::string again = offered_ + asked + "</s><|tool_turn|>Password: old</s><|assistant_turn|>The file says:  old.</s>" +
                            asked + "</s><|tool_turn|><|result|>Password: new\n</s><|assistant_turn|>";
  EXPECT_EQ(reply_to(again), "The file says:  new.");
}

TEST_F(ScriptedModel, ReadsLongPrompts) {
  Script script = script_of_test();
  script.quote_after = "Password:";
  make(script);
  std::string page;
  for (int i = 0; i < 250; ++i) page += std::format("{} lines of other text in the file\n", i);
  EXPECT_EQ(answer_to(page + "Password: violet\n" + page), "The file says:  violet.");
}

TEST_F(ScriptedModel, TokenizesPromptsOfAgentsToFewTokens) {
  make(script_of_test());
  const std::string english =
      "You are an interactive tool that helps users with software engineering tasks. Use the instructions below and the tools "
      "available to you to assist the user. Never generate or guess URLs unless you are confident that they help.\n\n# Tone\n"
      "- Be concise and direct.\n- Explain commands that change the user's system before you run them.\n";
  const std::string json =
      R"({"type": "function", "function": {"name": "read_file", "description": "Reads the content of a file.", "parameters": )"
      R"({"type": "object", "properties": {"absolute_path": {"type": "string", "description": "The path of the file"}, )"
      R"("offset": {"type": "number"}}, "required": ["absolute_path"], "additionalProperties": false}}})";
  for (const std::string& text : {english, json}) {
    const std::vector<llama_token> tokens = tokenize(*model_, text);
    EXPECT_LT(static_cast<double>(tokens.size()), static_cast<double>(text.size()) / 3);
    EXPECT_EQ(detokenize(*model_, tokens), text);
  }
}

TEST_F(ScriptedModel, RefusesTextsThatItCannotSay) {
  Script script = script_of_test();
  script.plain_answer = "of";
  EXPECT_EQ(write_scripted_model(script, folder_ / "a.gguf").error(),
            "plain_answer is \"of\", which is a token of other texts: make it longer");
  script = script_of_test();
  script.answer_prefix = "Result: ";
  EXPECT_EQ(write_scripted_model(script, folder_ / "a.gguf").error(),
            "answer_prefix is \"Result: \", which is one token: make it longer");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST(ParseScript, ReadsAllFields) {
  const auto script = parse_script(R"({"tool": {"name": "shell", "arguments": {"command":["cat","ü.txt"],"all":true,"n":{}}},
      "answer_prefix": "It is ", "quote_after": "key=", "thinking": "So.", "plain_answer": "Yes."})");
  ASSERT_TRUE(script) << script.error();
  EXPECT_EQ(script->tool, "shell");
  EXPECT_EQ(script->arguments, R"({"command": ["cat", "ü.txt"], "all": true, "n": {}})");
  EXPECT_EQ(script->answer_prefix, "It is ");
  EXPECT_EQ(script->quote_after, "key=");
  EXPECT_EQ(script->thinking, "So.");
  EXPECT_EQ(script->plain_answer, "Yes.");
}

TEST(ParseScript, NamesWhatIsWrong) {
  const auto problem_of = [](std::string_view text) { return parse_script(text).error(); };
  EXPECT_EQ(problem_of("[]"), "the script is not a JSON object");
  EXPECT_EQ(problem_of("{}"), "the script's field \"tool\" is missing");
  EXPECT_EQ(problem_of(R"({"tool": {"name": "a"}, "plan_answer": ""})"), "the script's field \"plan_answer\" is not known");
  EXPECT_EQ(problem_of(R"({"tool": {"name": "a'b"}, "answer_prefix": "a", "plain_answer": "b"})"),
            "the script's field \"tool.name\" may have letters, digits, \"_\", \"-\" and \".\" only");
}

}  // namespace
}  // namespace uma
