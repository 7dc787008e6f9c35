#include "engine/router/apply_defaults.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

GenerateRequest chat(std::vector<ChatMessage> messages) {
  GenerateRequest request;
  request.input.messages = std::move(messages);
  return request;
}

TEST(ApplyDefaults, ARequestsOwnValuesWin) {
  ModelDefaults defaults{.deadline_ms = 500};
  defaults.sampling[SamplingField::temperature] = 0.6;
  defaults.sampling[SamplingField::top_p] = 0.8;
  defaults.sampling[SamplingField::top_k] = 20;
  defaults.sampling[SamplingField::mirostat] = 2;
  defaults.dry_sequence_breakers = {"\n"};
  GenerateRequest request = chat({{"user", "Hi"}});
  request.options.sampling.temperature = 1;
  request.options.sampling.top_k = 7;
  set_given(request.options.sampling, SamplingField::top_k);
  apply_defaults(defaults, request);
  EXPECT_EQ(request.options.sampling.temperature, 0.6);
  EXPECT_EQ(request.options.sampling.top_p, 0.8);
  EXPECT_EQ(request.options.sampling.top_k, 7);
  EXPECT_EQ(request.options.sampling.min_p, 0);
  EXPECT_EQ(request.options.sampling.mirostat, 2);
  EXPECT_EQ(request.options.sampling.dry_sequence_breakers, (std::vector<std::string>{"\n"}));
  EXPECT_EQ(request.options.deadline_ms, 500);
  request.options.deadline_ms = 0;
  apply_defaults(defaults, request);
  EXPECT_EQ(request.options.deadline_ms, 0);
}

TEST(ApplyDefaults, TheSystemMessageBeginsConversationsWithoutOne) {
  const ModelDefaults defaults{.system = "Be brief."};
  GenerateRequest request = chat({{"user", "What is this?"}});
  request.input.images.emplace_back();
  apply_defaults(defaults, request);
  ASSERT_EQ(request.input.messages.size(), 2u);
  EXPECT_EQ(request.input.messages[0], (ChatMessage{"system", "Be brief."}));
  EXPECT_EQ(request.input.images[0].message, 1u);

  GenerateRequest own = chat({{"system", "Be long."}, {"user", "Hi"}});
  apply_defaults(defaults, own);
  EXPECT_EQ(own.input.messages.size(), 2u);

  GenerateRequest text;
  text.input.text = "Once";
  GenerateRequest in_session = chat({{"user", "Hi"}});
  in_session.session = "s";
  GenerateRequest instructed = chat({{"user", "Hi"}});
  instructed.response.emplace().instructions = "Be long.";
  GenerateRequest continued = chat({{"user", "Hi"}});
  continued.response.emplace().previous = "resp_1";
  for (GenerateRequest* unchanged : {&text, &in_session, &instructed, &continued}) {
    const std::size_t count = unchanged->input.messages.size();
    apply_defaults(defaults, *unchanged);
    EXPECT_EQ(unchanged->input.messages.size(), count);
  }
  GenerateRequest first = chat({{"user", "Hi"}});
  first.response.emplace();
  apply_defaults(defaults, first);
  EXPECT_EQ(first.input.messages.size(), 2u);
}

TEST(ApplyDefaults, WhoSaysAnythingAboutThinkingDecidesIt) {
  const ModelDefaults defaults{.thinking = false, .reasoning_effort = "low"};
  GenerateRequest request = chat({{"user", "Hi"}});
  apply_defaults(defaults, request);
  EXPECT_EQ(request.options.chat.template_arguments, R"({"enable_thinking":false,"reasoning_effort":"low"})");
  for (const char* own : {R"({"enable_thinking":true})", R"({"reasoning_effort":"high"})"}) {
    request.options.chat.template_arguments = own;
    apply_defaults(defaults, request);
    EXPECT_EQ(request.options.chat.template_arguments, own);
  }
  request.options.chat.template_arguments = R"({"x":1})";
  apply_defaults(ModelDefaults{.thinking = true}, request);
  EXPECT_EQ(request.options.chat.template_arguments, R"({"x":1,"enable_thinking":true})");
}

TEST(ApplyDefaults, ABudgetLimitsThoughtsThatARequestAsksFor) {
  const auto budget = [](const ModelDefaults& defaults, std::optional<std::int32_t> own, std::string arguments) {
    GenerateRequest request = chat({{"user", "Hi"}});
    request.options.chat.thinking_budget = own;
    request.options.chat.template_arguments = std::move(arguments);
    apply_defaults(defaults, request);
    return request.options.chat.thinking_budget;
  };
  const ModelDefaults some{.thinking_budget = 100};
  EXPECT_EQ(budget(some, {}, ""), 100);
  EXPECT_EQ(budget(some, {}, R"({"reasoning_effort":"high"})"), 100);
  EXPECT_EQ(budget(some, 7, ""), 7);
  EXPECT_EQ(budget(some, -1, ""), -1);
  const ModelDefaults none{.thinking_budget = 0};
  EXPECT_EQ(budget(none, {}, ""), 0);
  EXPECT_EQ(budget(none, {}, R"({"enable_thinking":true})"), std::nullopt) << "the request decides";
  GenerateRequest request = chat({{"user", "Hi"}});
  request.options.chat.thinking_budget = 0;
  apply_defaults(ModelDefaults{.thinking = true}, request);
  EXPECT_EQ(request.options.chat.template_arguments, "") << "the request has no thoughts";
}

}  // namespace
}  // namespace uma::engine
