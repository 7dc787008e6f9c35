#include "chat/message_values.h"

#include <cstddef>
#include <format>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace uma::chat {
namespace {

ChatMessage caller(const std::string& calls, const std::string& content = "") {
  return {"assistant", content, R"({"reasoning_content":"hm","tool_calls":[)" + calls + "]}"};
}

std::string call_of_f(const std::string& id, const std::string& arguments = "{}") {
  return R"({"id":")" + id + R"(","type":"function","function":{"name":"f","arguments":")" + arguments + R"("}})";
}

ChatMessage answer_to(const std::string& id, const std::string& content) {
  return {"tool", content, R"({"tool_call_id":")" + id + R"("})"};
}

// The messages as JSON, one a line, without the fields of every call.
std::string lines(const std::vector<ChatMessage>& messages, const MessageStyle& wanted) {
  std::string text;
  for (const jinja::Value& value : message_values(messages, wanted)) {
    jinja::Budget budget(1'000'000, 1'000'000);
    jinja::JsonStyle style;
    style.between_items = ",";
    style.after_key = ":";
    text += jinja::to_json(value, style, budget).bytes() + "\n";
  }
  return text;
}

TEST(MessageValues, ThoughtsStandWhereTheTemplateWantsThem) {
  const std::vector<ChatMessage> messages{{"assistant", "yes", R"({"reasoning_content":"hm"})"}};
  EXPECT_EQ(lines(messages, {}), "{\"role\":\"assistant\",\"content\":\"yes\",\"reasoning_content\":\"hm\"}\n");
  EXPECT_EQ(lines(messages, {.thoughts_field = "thinking"}),
            "{\"role\":\"assistant\",\"content\":\"yes\",\"thinking\":\"hm\"}\n");
  EXPECT_EQ(lines(messages, {.thoughts_field = ""}),
            "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\"},{\"type\":\"text\",\"text\":"
            "\"yes\"}]}\n");
}

TEST(MessageValues, ArgumentsAreObjectsOrTheirJson) {
  const std::vector<ChatMessage> messages{caller(call_of_f("1", R"({\"a\":1,\"b\":[2]})"))};
  EXPECT_TRUE(lines(messages, {}).contains(R"("arguments":{"a":1,"b":[2]})"));
  EXPECT_TRUE(lines(messages, {.are_arguments_objects = false}).contains(R"("arguments":"{\"a\": 1, \"b\": [2]}")"))
      << "with the spaces of Python, whatever the client's JSON has";
}

TEST(MessageValues, BrokenArgumentsAreTextOrWithinAnObject) {
  const std::vector<ChatMessage> messages{caller(call_of_f("1", R"({\"a\": )"))};
  EXPECT_TRUE(lines(messages, {}).contains(R"("arguments":"{\"a\": ")"));
  EXPECT_TRUE(lines(messages, {.takes_broken_arguments = false}).contains(R"("arguments":{"arguments":"{\"a\": "})"));
  EXPECT_TRUE(lines({caller(call_of_f("1", ""))}, {}).contains(R"("arguments":{})")) << "no arguments";
}

TEST(MessageValues, AContentBesideCallsMayBeNoneOrLeftOut) {
  EXPECT_TRUE(lines({caller(call_of_f("1"))}, {}).contains(R"("content":"")"));
  EXPECT_TRUE(lines({caller(call_of_f("1"))}, {.is_empty_content_none = true}).contains(R"("content":null)"));
  EXPECT_TRUE(lines({caller(call_of_f("1"), "so")}, {.is_empty_content_none = true}).contains(R"("content":"so")"));
  EXPECT_TRUE(lines({caller(call_of_f("1"), "so")}, {.has_content_beside_thoughts = false}).contains(R"("content":"")"));
}

TEST(MessageValues, CallsMayStandInTheContent) {
  const std::vector<ChatMessage> messages{caller(
      call_of_f("1", R"({\"a\":[1.5,true],\"b\":null,\"c\":{\"d\":\"it's \\\"so\\\"\"}})") + "," + call_of_f("2"), "so")};
  const auto content_in = [&](std::string_view family) {
    const auto values = message_values(messages, {.calls_in_content = family_named(family)});
    EXPECT_EQ(values[0].as_dict()->find("tool_calls"), nullptr);
    return values[0].as_dict()->find("content")->as_text()->bytes();
  };
  EXPECT_EQ(content_in("granite-3"),
            "so\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": [1.5, true], \"b\": null, \"c\": {\"d\": \"it's "
            "\\\"so\\\"\"}}}, {\"name\": \"f\", \"arguments\": {}}]");
  EXPECT_EQ(content_in("smollm3").substr(0, 34), "so\n<tool_call>{\"name\": \"f\", \"argum");
  const auto values = message_values(messages, {.calls_in_content = family_named("lfm2")});
  const jinja::Text& python = *values[0].as_dict()->find("content")->as_text();
  EXPECT_EQ(python.bytes(),
            "so\n<|tool_call_start|>[f(a=[1.5, True], b=None, c={\"d\": \"it's \\\"so\\\"\"}), f()]<|tool_call_end|>");
  EXPECT_EQ(python.inputs().front().end, 2u) << "the mark is the family's";
}

// Long inputs, for which a walk of the rest for each item would take minutes.
TEST(MessageValues, LongArgumentsAreWrittenItemByItem) {
  constexpr int kItems = 300'000;
  std::string list = "[1", dict = R"({\"k0\":1)", nested = "1";
  for (int i = 1; i < kItems; ++i) {
    list += ",1";
    dict += std::format(R"(,\"k{}\":1)", i);
  }
  for (int i = 0; i < 20; ++i) nested = "[" + nested + "]";
  const std::string arguments = std::format(R"({{\"a\":{}],\"b\":{}}},\"c\":{}}})", list, dict, nested);
  const auto values =
      message_values(std::vector{caller(call_of_f("1", arguments))}, {.calls_in_content = family_named("lfm2")});
  const std::string& python = values[0].as_dict()->find("content")->as_text()->bytes();
  EXPECT_TRUE(python.starts_with("<|tool_call_start|>[f(a=[1, 1, ")) << python.substr(0, 60);
  EXPECT_TRUE(python.contains(R"(], b={"k0": 1, "k1": 1, )"));
  EXPECT_TRUE(python.ends_with("}, c=[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]])]<|tool_call_end|>"));
}

TEST(MessageValues, ManyResultsFindTheirCalls) {
  constexpr int kCalls = 50'000;
  std::string calls;
  std::vector<ChatMessage> messages(1);
  for (int i = 0; i < kCalls; ++i) {
    const std::string id = std::format("{:05}", i);
    calls += (i == 0 ? "" : ",") + call_of_f(id);
    messages.push_back(answer_to(std::format("{:05}", kCalls - 1 - i), "r"));
  }
  messages[0] = caller(calls);
  messages.push_back({"tool", "stray", ""});
  const std::vector<jinja::Value> values = message_values(messages, {});
  ASSERT_EQ(values.size(), kCalls + 2u);
  for (int i = 0; i < kCalls; ++i) {
    const jinja::Dict& result = *values[static_cast<std::size_t>(i) + 1].as_dict();
    ASSERT_EQ(result.find("tool_call_id")->as_text()->bytes(), std::format("{:05}", i));
  }
  EXPECT_EQ(values.back().as_dict()->find("tool_call_id"), nullptr);
}

TEST(MessageValues, AResultWithoutAnIdBelongsToTheFirstCallThatHasNone) {
  const auto values =
      message_values(std::vector{caller(call_of_f("a") + "," + call_of_f("b") + "," + call_of_f("b")), answer_to("b", "two"),
                                 ChatMessage{"tool", "one"}, ChatMessage{"tool", "three"}, answer_to("b", "stray")},
                     {});
  ASSERT_EQ(values.size(), 5u);
  std::string contents;
  for (std::size_t i = 1; i < 5; ++i) contents += values[i].as_dict()->find("content")->as_text()->bytes() + " ";
  EXPECT_EQ(contents, "one two stray three ");  // Ids count first.
}

TEST(MessageValues, ResultsHaveTheNameOfTheirToolAndTheOrderOfTheCalls) {
  EXPECT_EQ(lines({caller(call_of_f("a") + "," + call_of_f("b")), answer_to("b", "two"), answer_to("a", "one")}, {}),
            "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"hm\",\"tool_calls\":["
            "{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}},"
            "{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}\n"
            "{\"role\":\"tool\",\"content\":\"one\",\"name\":\"f\",\"tool_call_id\":\"a\"}\n"
            "{\"role\":\"tool\",\"content\":\"two\",\"name\":\"f\",\"tool_call_id\":\"b\"}\n");
}

TEST(MessageValues, AResultKeepsItsOwnNameAndMayComeLate) {
  EXPECT_EQ(lines({caller(call_of_f("a")),
                   {"user", "wait"},
                   answer_to("a", "late"),
                   {"tool", "stray"},
                   {"tool", "own", R"({"tool_call_id":"a","name":"mine"})"}},
                  {.thoughts_field = "thinking", .ids = CallIds::counted}),
            "{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"hm\",\"tool_calls\":["
            "{\"id\":\"0\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}\n"
            "{\"role\":\"user\",\"content\":\"wait\"}\n"
            "{\"role\":\"tool\",\"content\":\"late\",\"name\":\"f\",\"tool_call_id\":\"0\"}\n"
            "{\"role\":\"tool\",\"content\":\"stray\"}\n"
            "{\"role\":\"tool\",\"content\":\"own\",\"name\":\"mine\",\"tool_call_id\":\"0\"}\n");
}

TEST(MessageValues, OneCallAMessageIsFollowedByItsResult) {
  EXPECT_EQ(
      lines({caller(call_of_f("a") + "," + call_of_f("b"), "so"), answer_to("a", "one"), answer_to("b", "two"), {"user", "?"}},
            {.has_parallel_calls = false}),
      "{\"role\":\"assistant\",\"content\":\"so\",\"reasoning_content\":\"hm\",\"tool_calls\":["
      "{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}\n"
      "{\"role\":\"tool\",\"content\":\"one\",\"name\":\"f\",\"tool_call_id\":\"a\"}\n"
      "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
      "{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}\n"
      "{\"role\":\"tool\",\"content\":\"two\",\"name\":\"f\",\"tool_call_id\":\"b\"}\n"
      "{\"role\":\"user\",\"content\":\"?\"}\n");
}

TEST(MessageValues, IdsGetTheFamilysForm) {
  const auto ids = [](CallIds form, const std::vector<std::string>& given) {
    std::vector<ChatMessage> messages;
    for (const std::string& id : given) {
      messages.push_back(caller(call_of_f(id)));
      messages.push_back(answer_to(id, "r"));
    }
    std::vector<std::string> made;
    const std::vector<jinja::Value> values = message_values(messages, {.ids = form});
    for (std::size_t i = 1; i < values.size(); i += 2) {
      made.push_back(values[i].as_dict()->find("tool_call_id")->as_text()->bytes());
      EXPECT_EQ(values[i - 1].as_dict()->find("tool_calls")->as_list()->items[0].as_dict()->find("id")->as_text()->bytes(),
                made.back());
    }
    return made;
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(ids(CallIds::any, {"call_1"}), (Ids{"call_1"}));
  EXPECT_EQ(ids(CallIds::named, {"call_x", "functions.f:7", "call_y"}),
            (Ids{"functions.f:0", "functions.f:7", "functions.f:2"}));
  EXPECT_EQ(ids(CallIds::counted, {"call_x", "1", "call_y"}), (Ids{"0", "1", "2"}));
  const Ids nine = ids(CallIds::nine, {"abcDEF123", "call_0001", "call_0002", "call_0001"});
  EXPECT_EQ(nine[0], "abcDEF123");
  EXPECT_EQ(nine[1].size(), 9u);
  EXPECT_FALSE(nine[1].contains('_'));
  EXPECT_NE(nine[1], nine[2]);
  EXPECT_EQ(nine[1], nine[3]) << "the same wherever the call stands";
}

TEST(MessageValues, AResultWithoutItsCallHasTheIdThatItsCallWouldHave) {
  const std::vector<ChatMessage> cut{answer_to("call_abc123def", "r")};
  const std::vector<ChatMessage> whole{caller(call_of_f("call_abc123def")), cut.front()};
  const MessageStyle nine{.ids = CallIds::nine};
  const std::string result = lines(cut, nine);
  const auto id = [](std::string_view text) { return std::string(text.substr(text.rfind("tool_call_id"))); };
  EXPECT_EQ(id(result), id(lines(whole, nine)));
  EXPECT_FALSE(id(result).contains("call_abc123def"));
}

// Which template refuses which history: tests/templates/refused_histories_test.cpp.
TEST(MessageValues, ARefusedHistoryIsMended) {
  const auto mended = [](const std::vector<ChatMessage>& messages, const char* family) {
    const ReplyFormat format{.family = family_named(family), .thoughts = thoughts_of("<think></think>", family_named(family))};
    std::string text;
    for (const jinja::Value& value : message_values(messages, {}, &format)) {
      for (const char* field : {"role", "content", "reasoning_content"}) {
        const jinja::Value* found = value.as_dict()->find(field);
        text += found == nullptr ? "" : found->as_text()->bytes() + "|";
      }
    }
    return text;
  };
  EXPECT_EQ(mended({{"user", "a"}, {"assistant", "\n"}, {"user", "b"}}, "hermes"), "user|a|user|b|");
  EXPECT_EQ(mended({{"assistant", ""}}, "hermes"), "assistant||") << "the only message";
  EXPECT_EQ(
      mended({caller(call_of_f("1") + "," + call_of_f("2")), answer_to("9", "z"), answer_to("2", "b"), answer_to("8", "y")},
             "hermes"),
      "assistant||hm|tool|z|tool|b|user|<tool_response>\ny\n</tool_response>|")
      << "the first one is that of call 1";
  EXPECT_EQ(mended({{"assistant", "<think>a</think>b"}}, "hermes"), "assistant|<think>a</think>b|") << "no marks of messages";
  EXPECT_EQ(mended({{"assistant", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes"}},
                   "gpt-oss"),
            "assistant|yes|hm|");
  EXPECT_EQ(mended({{"assistant", "the mark <|channel|> is", R"({"reasoning_content":"<|channel|>so"})"}}, "gpt-oss"),
            "assistant|the mark  is|so|");
}

TEST(MessageValues, ATemplateMayTakeOneSystemMessage) {
  const std::vector<ChatMessage> messages{{"system", "be"},   {"system", "brief"}, {"user", "hi"},  {"assistant", "yes"},
                                          {"system", "slow"}, {"user", "and?"},    {"user", "now"}, {"system", "fast"}};
  EXPECT_EQ(lines(messages, {.has_system_messages = false}),
            "{\"role\":\"system\",\"content\":\"be\\nbrief\"}\n"
            "{\"role\":\"user\",\"content\":\"hi\"}\n"
            "{\"role\":\"assistant\",\"content\":\"yes\"}\n"
            "{\"role\":\"user\",\"content\":\"<system-reminder>\\nslow\\n</system-reminder>\\nand?\\nnow\\n"
            "<system-reminder>\\nfast\\n</system-reminder>\"}\n");
  EXPECT_EQ(message_values(messages, {}).size(), messages.size());
}

// Expects all texts in the value but the template's own words to be input of message 1. Returns their number.
int inputs_of_message_one(const jinja::Value& value) {
  int count = 0;
  if (const jinja::List* list = value.as_list()) {
    for (const jinja::Value& item : list->items) count += inputs_of_message_one(item);
  } else if (const jinja::Dict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->entries) count += inputs_of_message_one(item);
  } else if (const jinja::Text* text = value.as_text(); text != nullptr && !text->inputs().empty()) {
    EXPECT_EQ(text->inputs()[0].source.message, 1);
    EXPECT_EQ(text->inputs()[0].end, text->size());
    ++count;
  }
  return count;
}

TEST(MessageValues, WhatAClientWroteIsInputOfItsMessage) {
  const std::vector<ChatMessage> messages{{"user", "q"}, caller(call_of_f("x", R"({\"a\": \"b\"})"), "c")};
  for (const std::string_view field : {"thinking", ""}) {
    const auto values = message_values(messages, {.thoughts_field = field, .are_arguments_objects = false});
    EXPECT_EQ(inputs_of_message_one(values[1]), 5) << "content, thoughts, id, name, arguments";
  }
}

// The roles and contents, one message after the other.
std::string turns(const std::vector<ChatMessage>& messages, const MessageStyle& style) {
  std::string text;
  for (const jinja::Value& value : message_values(messages, style)) {
    const jinja::Dict& message = *value.as_dict();
    text += std::format("<{}>{}", message.find("role")->as_text()->bytes(), message.find("content")->as_text()->bytes());
  }
  return text;
}

TEST(MessageValues, MessagesOfOneRoleAreJoined) {
  const std::vector<ChatMessage> messages{{"user", "a"}, {"user", "b"}, {"assistant", "c"}, {"assistant", "d"}, {"user", "e"}};
  EXPECT_EQ(turns(messages, {}), "<user>a<user>b<assistant>c<assistant>d<user>e");
  EXPECT_EQ(turns(messages, {.has_users_in_row = false, .has_replies_in_row = false}), "<user>a\nb<assistant>c\nd<user>e");
  const std::vector<ChatMessage> calling{{"user", "a"}, caller(call_of_f("1"), "b"), {"assistant", "c"}};
  EXPECT_EQ(turns(calling, {.has_replies_in_row = false}), "<user>a<assistant>b<assistant>c") << "a result is missing";
}

TEST(MessageValues, AConversationGetsTheFirstMessageThatItsTemplateWants) {
  const MessageStyle style{.begins_with_user = true};
  EXPECT_EQ(turns({{"system", "s"}, {"assistant", "a"}, {"user", "b"}}, style), "<system>s<user><assistant>a<user>b");
  EXPECT_EQ(turns({{"system", "s"}}, style), "<system>s<user>");
  EXPECT_EQ(turns({{"user", "a"}}, style), "<user>a");
}

TEST(MessageValues, AUsersTextBehindAResultStandsWhereTheTemplateTakesIt) {
  using enum MessageStyle::BehindResults;
  const std::vector<ChatMessage> messages{{"user", "a"}, caller(call_of_f("1"), "b"), answer_to("1", "7"), {"user", "c"}};
  EXPECT_EQ(turns(messages, {}), "<user>a<assistant>b<tool>7<user>c");
  EXPECT_EQ(turns(messages, {.behind_results = reply}), "<user>a<assistant>b<tool>7<assistant><user>c");
  EXPECT_EQ(turns(messages, {.behind_results = joined}), "<user>a<assistant>b<tool>7\nc");
  const std::vector<ChatMessage> given_up{{"user", "a"}, caller(call_of_f("1"), "b"), {"user", "c"}};
  EXPECT_EQ(turns(given_up, {}), "<user>a<assistant>b<user>c");
  EXPECT_EQ(turns(given_up, {.behind_results = reply}), "<user>a<assistant>b<tool><assistant><user>c");
  EXPECT_EQ(turns(given_up, {.behind_results = joined}), "<user>a<assistant>b<tool>c");
}

TEST(MessageValues, ResultsFindTheirCallsByOrderIfIdsWereLost) {
  const std::vector<ChatMessage> messages{caller(call_of_f("1") + "," + call_of_f("2")), answer_to("x", "7"), {"tool", "8"}};
  const std::string text = lines(messages, {});
  EXPECT_TRUE(text.contains(R"({"role":"tool","content":"7","name":"f","tool_call_id":"1"})")) << text;
  EXPECT_TRUE(text.contains(R"({"role":"tool","content":"8","name":"f","tool_call_id":"2"})")) << text;
}

}  // namespace
}  // namespace uma::chat
