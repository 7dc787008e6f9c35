// Histories that clients send and some templates refuse: replies that were aborted, and results whose calls were left out.
// Every family's own template writes each of them, with and without tools.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "chat/chat.h"
#include "testing/fake_model.h"

namespace uma::chat {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(UMA_TEMPLATES_FOLDER) / "families";

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".jinja") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

struct History {
  std::string_view name;
  std::vector<ChatMessage> messages;
};

constexpr std::string_view kCall = R"({"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]})";

const ChatMessage kQuestion{"user", "question"};
const ChatMessage kCalling{"assistant", "", std::string(kCall)};
const ChatMessage kResult{"tool", "result", R"({"tool_call_id":"c"})"};
const ChatMessage kLoneResult{"tool", "lone", R"({"tool_call_id":"call_abc123def"})"};

const std::vector<History> kHistories{
    {"an empty reply", {kQuestion, {"assistant", ""}, {"user", "again"}}},
    {"a blank reply", {kQuestion, {"assistant", " \n"}, {"user", "again"}}},
    {"an empty reply at the end", {kQuestion, {"assistant", ""}}},
    {"thoughts with their marks", {kQuestion, {"assistant", "<|channel|>analysis<|message|>hm<|end|>"}, {"user", "again"}}},
    {"an answer with its marks", {kQuestion, {"assistant", "<|channel|>final<|message|>four<|return|>"}, {"user", "again"}}},
    {"a mark alone", {kQuestion, {"assistant", "<|channel|>"}, {"user", "again"}}},
    {"a result without its call", {kQuestion, kLoneResult}},
    {"a result without its call, and a question", {kQuestion, kLoneResult, {"user", "again"}}},
    {"a result at the begin", {kLoneResult, {"user", "again"}}},
    {"a result at the begin, and a reply", {kLoneResult, {"assistant", "reply"}, {"user", "again"}}},
    {"a result behind a reply", {kQuestion, {"assistant", "reply"}, kLoneResult, {"user", "again"}}},
    {"a second result", {kQuestion, kCalling, kResult, kLoneResult}},
    {"an empty reply behind a result", {kQuestion, kCalling, kResult, {"assistant", ""}, {"user", "again"}}},
};

// Without a description, as many clients send them.
constexpr std::string_view kTools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",)"
                                    R"("properties":{"a":{"type":"integer"}}}}}])";

class RefusedHistories : public ::testing::TestWithParam<std::string> {};

TEST_P(RefusedHistories, AreWrittenByTheTemplateWithAndWithoutTools) {
  std::ifstream file(kFolder / (GetParam() + ".jinja"));
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const auto format_with = [&](bool has_library_template) {
    return std::make_unique<const ChatFormat>(std::make_shared<const testing::FakeModel>(testing::FakeOptions{
        .has_chat_template = true, .chat_template = source, .has_library_template = has_library_template}));
  };
  auto made = format_with(false);
  // Tools that a template does not know are described in a system message. Where it refuses that too, libllama's version
  // writes.
  const bool knows_tools = family_of(source) != nullptr && source.contains("tools");
  if (!knows_tools && !made->write(std::vector{ChatMessage{"system", "rule"}, kQuestion}, true, {})) made = format_with(true);
  const ChatFormat& format = *made;
  for (const History& history : kHistories) {
    for (const std::string_view tools : {std::string_view(), kTools}) {
      const auto text = format.write(history.messages, true, {.tools = tools});
      const std::string what = std::string(history.name) + (tools.empty() ? "" : ", with tools");
      ASSERT_TRUE(text) << what << ": " << text.error().message;
      const std::string& bytes = text->bytes();
      if (GetParam() == "functiongemma") continue;  // It writes results behind their calls alone.
      for (const std::string_view word : {"question", "again", "reply", "lone", "result"}) {
        const bool is_given =
            std::ranges::any_of(history.messages, [&](const ChatMessage& message) { return message.content == word; });
        EXPECT_TRUE(!is_given || bytes.contains(word)) << what << ": " << word << " is not in " << bytes;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, RefusedHistories, ::testing::ValuesIn(families()), [](const auto& family) { return family.param; });

}  // namespace
}  // namespace uma::chat
