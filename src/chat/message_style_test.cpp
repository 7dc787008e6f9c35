#include "chat/message_style.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace uma::chat {
namespace {

MessageStyle style_of(std::string_view source, const Family* family = &general_family()) {
  const auto parsed = jinja::ChatTemplate::parse(source);
  EXPECT_TRUE(parsed);
  return message_style_of(*parsed, family, "<s>", "</s>");
}

// A template that writes contents, and calls with `call` for each message and `argument` for the arguments.
std::string template_of(std::string_view argument, std::string_view before = "", std::string_view content = "{{ m.content }}") {
  return "{% for m in messages %}<{{ m.role }}>" + std::string(before) + std::string(content) +
         "{% for c in m.tool_calls or [] %}{{ c.function.name ~ '(' ~ " + std::string(argument) +
         " ~ ')' }}{% endfor %}{% endfor %}";
}

constexpr std::string_view kObject = "c.function.arguments | tojson";
constexpr std::string_view kText = "c.function.arguments";

TEST(MessageStyle, IsThatOfOpenAIIfTheTemplateShowsNothing) {
  EXPECT_EQ(style_of("{{ messages | length }}"), MessageStyle());
  EXPECT_EQ(style_of("{{ raise_exception('no') }}"), MessageStyle());
}

TEST(MessageStyle, ArgumentsAreWhatTheTemplateShowsUnescaped) {
  EXPECT_TRUE(style_of(template_of(kObject)).are_arguments_objects);
  EXPECT_FALSE(style_of(template_of(kText)).are_arguments_objects) << "a dict would be printed as Python does";
  EXPECT_FALSE(style_of(template_of(std::string(kText) + " + ''")).are_arguments_objects) << "a dict cannot be added";
  EXPECT_TRUE(style_of(template_of("c.function.arguments.items() | list | first | first ~ c.function.arguments.uma_key"))
                  .are_arguments_objects);
  EXPECT_TRUE(style_of(template_of("(" + std::string(kText) + " if " + std::string(kText) + " is string else " +
                                   std::string(kObject) + ")"))
                  .are_arguments_objects)
      << "both work";
}

TEST(MessageStyle, BrokenArgumentsAreWrappedForATemplateThatRefusesThem) {
  EXPECT_TRUE(style_of(template_of(kObject)).takes_broken_arguments);
  EXPECT_FALSE(style_of(template_of("c.function.arguments.items() | list | tojson")).takes_broken_arguments);
}

TEST(MessageStyle, EmptyContentIsNoneIfTheTemplateAsksForIt) {
  EXPECT_FALSE(style_of(template_of(kObject)).is_empty_content_none);
  const std::string asks =
      "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.arguments | tojson }}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_TRUE(style_of(asks).is_empty_content_none);
}

TEST(MessageStyle, ThoughtsAreInTheFieldThatTheTemplateShows) {
  for (const std::string_view field : {"reasoning_content", "thinking", "reasoning"}) {
    EXPECT_EQ(style_of(template_of(kObject, "{{ m." + std::string(field) + " }}")).thoughts_field, field);
    EXPECT_EQ(style_of("{% for m in messages %}{{ m." + std::string(field) + " }}{% endfor %}", nullptr).thoughts_field, field)
        << "without tools";
  }
  constexpr std::string_view kParts =
      "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.thinking or p.text }}{% endfor %}{% "
      "endif %}";
  EXPECT_EQ(style_of(template_of(kObject, "", kParts)).thoughts_field, "");
  EXPECT_EQ(style_of(template_of(kObject)).thoughts_field, "reasoning_content") << "a printed list is no part";
}

TEST(MessageStyle, ThoughtsMayNeedASwitch) {
  EXPECT_EQ(style_of(template_of(kObject, "{{ m.thinking if enable_thinking }}")).thoughts_field, "thinking");
  EXPECT_EQ(style_of(template_of(kObject, "{{ m.reasoning if thinking }}")).thoughts_field, "reasoning");
}

TEST(MessageStyle, ContentIsLeftOutIfTheTemplateRefusesItBesideThoughts) {
  EXPECT_TRUE(style_of(template_of(kObject, "{{ m.thinking }}")).has_content_beside_thoughts);
  constexpr std::string_view kRefuses =
      "{{ m.thinking }}{% if m.thinking and m.content and m.tool_calls %}{{ raise_exception('both') }}{% endif %}";
  EXPECT_FALSE(style_of(template_of(kObject, kRefuses)).has_content_beside_thoughts);
}

TEST(MessageStyle, CallsAreParallelUnlessTheTemplateRefusesOrDropsThem) {
  EXPECT_TRUE(style_of(template_of(kObject)).has_parallel_calls);
  EXPECT_FALSE(
      style_of(template_of(kObject, "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('') }}{% endif %}"))
          .has_parallel_calls);
  EXPECT_FALSE(style_of("{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson if m.tool_calls }}{% endfor %}")
                   .has_parallel_calls);
}

TEST(MessageStyle, CallsStandInTheContentIfTheTemplateLeavesThemOut) {
  constexpr std::string_view kContents = "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(style_of(kContents, family_named("lfm2")).calls_in_content, family_named("lfm2"));
  EXPECT_EQ(style_of(kContents, family_named("granite-3")).calls_in_content, family_named("granite-3"));
  EXPECT_EQ(style_of(kContents, family_named("qwen3-coder")).calls_in_content, nullptr) << "elements";
  EXPECT_EQ(style_of(template_of(kObject), family_named("lfm2")).calls_in_content, nullptr);
}

TEST(MessageStyle, SystemMessagesAreOneIfTheTemplateTakesOnlyTheFirst) {
  EXPECT_TRUE(style_of(template_of(kObject)).has_system_messages);
  EXPECT_FALSE(
      style_of("{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}")
          .has_system_messages);
  EXPECT_FALSE(
      style_of("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('') }}{% endif %}"
               "{{ m.content }}{% endfor %}",
               nullptr)
          .has_system_messages);
  EXPECT_FALSE(style_of("{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
                        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}")
                   .has_system_messages)
      << "a later one would change the beginning of the prompt";
}

// A template that refuses a message where `refused` is true; `last` is the role before it.
std::string refusing(std::string_view refused) {
  return "{% set ns = namespace(last='') %}{% for m in messages %}{% if " + std::string(refused) +
         " %}{{ raise_exception('order') }}{% endif %}<{{ m.role }}>{{ m.content }}"
         "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
         "{% set ns.last = m.role %}{% endfor %}";
}

TEST(MessageStyle, MessagesOfOneRoleAreOneIfTheTemplateRefusesTwo) {
  const MessageStyle any = style_of(refusing("false"));
  EXPECT_TRUE(any.has_users_in_row && any.has_replies_in_row && !any.begins_with_user);
  const MessageStyle users = style_of(refusing("m.role == 'user' and ns.last == 'user'"));
  EXPECT_TRUE(!users.has_users_in_row && users.has_replies_in_row);
  const MessageStyle replies = style_of(refusing("m.role == 'assistant' and ns.last == 'assistant'"));
  EXPECT_TRUE(replies.has_users_in_row && !replies.has_replies_in_row);
  const MessageStyle shown = style_of(
      "{% for m in messages %}{% if not loop.first and messages[loop.index0 - 1].role == m.role %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_TRUE(!shown.has_users_in_row && !shown.has_replies_in_row) << "the template drops the second";
}

TEST(MessageStyle, AnEmptyMessageOfTheUserBeginsWhereTheTemplateWantsOne) {
  EXPECT_TRUE(style_of(refusing("m.role == 'assistant' and ns.last == ''")).begins_with_user);
  EXPECT_TRUE(style_of("{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
                       "{{ raise_exception('no user') }}{% endif %}" +
                       template_of(kObject))
                  .begins_with_user);
}

TEST(MessageStyle, AUsersTextBehindAResultIsSeparatedOrJoined) {
  using enum MessageStyle::BehindResults;
  EXPECT_EQ(style_of(refusing("false")).behind_results, stays);
  EXPECT_EQ(style_of(refusing("m.role == 'user' and ns.last == 'tool'")).behind_results, reply);
  EXPECT_EQ(style_of(refusing("(m.role == 'user' and ns.last == 'tool') or (m.role == 'assistant' and m.content == '' and not "
                              "m.tool_calls)"))
                .behind_results,
            joined);
}

TEST(MessageStyle, BlanksBeforeRepliesAreTheTemplates) {
  const auto of = [](std::string_view before) {
    return style_of("{% for m in messages %}<{{ m.role }}>" + std::string(before) + "{{ m.content }}{% endfor %}" +
                        "{{ '<assistant>' if add_generation_prompt }}",
                    nullptr)
        .has_blanks_before_replies;
  };
  EXPECT_TRUE(of("{{ ' ' if m.role == 'assistant' }}"));
  EXPECT_FALSE(of(""));
  EXPECT_FALSE(of("{{ '\n' if m.role == 'assistant' }}")) << "a line feed is often the model's own";
}

TEST(MessageStyle, TheFamilyHasWhatNoRenderingShows) {
  EXPECT_EQ(style_of("{{ messages }}", family_named("kimi")).ids, CallIds::named);
  EXPECT_EQ(style_of("{{ messages }}", family_named("command")).ids, CallIds::counted);
  EXPECT_EQ(style_of("{{ messages }}", family_named("mistral-id")).ids, CallIds::nine);
}

TEST(MessageStyle, AnEndlessTemplateIsGivenUp) {
  const std::string endless =
      "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}" + template_of(kText);
  EXPECT_EQ(style_of(endless), MessageStyle());
}

}  // namespace
}  // namespace uma::chat
