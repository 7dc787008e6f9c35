#include "wire/request_fields.h"

#include <format>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/anthropic/messages_decoder.h"
#include "wire/llama_server/llama_server_decoder.h"
#include "wire/ollama/ollama_decoder.h"
#include "wire/openai/embedding_codec.h"
#include "wire/openai/openai_codec.h"
#include "wire/openai/picture_codec.h"
#include "wire/openai/responses_decoder.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A request of each route that is accepted.
const std::map<RequestRoute, std::string>& plain_bodies() {
  static const std::map<RequestRoute, std::string> bodies = {
      {RequestRoute::chat, R"({"messages":[{"role":"user","content":"a"}]})"},
      {RequestRoute::completions, R"({"prompt":"a"})"},
      {RequestRoute::responses, R"({"input":"a"})"},
      {RequestRoute::messages, R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5})"},
      {RequestRoute::ollama_chat, R"({"messages":[{"role":"user","content":"a"}]})"},
      {RequestRoute::ollama_generate, R"({"prompt":"a"})"},
      {RequestRoute::ollama_embed, R"({"input":"a"})"},
      {RequestRoute::ollama_embeddings, R"({"prompt":"a"})"},
      {RequestRoute::embeddings, R"({"input":"a"})"},
      {RequestRoute::rerank, R"({"query":"a","documents":["b"]})"},
      {RequestRoute::images, R"({"prompt":"a"})"},
      {RequestRoute::infill, R"({"input_prefix":"a"})"},
      {RequestRoute::completion, R"({"prompt":"a"})"}};
  return bodies;
}

// What a decoder says of a body.
struct Outcome {
  std::string field;  // That of the failure; empty: it was accepted.
  std::string message;
  std::vector<std::string> warnings;
};

template <class T>
Outcome outcome_of(const std::expected<T, RejectedBody>& decoded) {
  if (decoded) return {.field = "", .message = "", .warnings = decoded->warnings};
  return {.field = decoded.error().field, .message = decoded.error().error.message, .warnings = {}};
}

Outcome decoded_as(RequestRoute route, const std::string& body) {
  switch (route) {
    case RequestRoute::chat:
      return outcome_of(decode_completion(CompletionKind::chat, body));
    case RequestRoute::completions:
      return outcome_of(decode_completion(CompletionKind::text, body));
    case RequestRoute::responses:
      return outcome_of(decode_response(body, "1"));
    case RequestRoute::messages: {
      const auto thread = decode_thread(body);
      if (!thread) return {.field = thread.error().field, .message = thread.error().error.message, .warnings = {}};
      return outcome_of(*thread ? decode_thread_message(body, "1", nullptr) : decode_messages(body));
    }
    case RequestRoute::ollama_chat:
      return outcome_of(decode_ollama(OllamaKind::chat, body));
    case RequestRoute::ollama_generate:
      return outcome_of(decode_ollama(OllamaKind::generate, body));
    case RequestRoute::ollama_embed:
      return outcome_of(decode_ollama_embed(body));
    case RequestRoute::ollama_embeddings:
      return outcome_of(decode_ollama_embeddings(body));
    case RequestRoute::embeddings:
      return outcome_of(decode_embeddings(body));
    case RequestRoute::rerank:
      return outcome_of(decode_rerank(body));
    case RequestRoute::images:
      return outcome_of(decode_images_call(body));
    case RequestRoute::infill:
      return outcome_of(decode_infill(body));
    case RequestRoute::completion:
      break;
  }
  return outcome_of(decode_plain_completion(body));
}

// Sets the field at a path of the table; an array gets one element.
void set_at(boost::json::object& object, std::string_view path, const boost::json::value& value) {
  const std::size_t dot = path.find('.');
  std::string_view name = path.substr(0, dot);
  if (dot == std::string_view::npos) {
    object[name] = value;
    return;
  }
  boost::json::object inner;
  const bool is_array = name.ends_with("[]");
  if (is_array) name.remove_suffix(2);
  if (const boost::json::value* given = object.if_contains(name); given != nullptr && given->is_object())
    inner = given->as_object();
  set_at(inner, path.substr(dot + 1), value);
  if (is_array) {
    object[name] = boost::json::array{std::move(inner)};
  } else {
    object[name] = std::move(inner);
  }
}

Outcome decode_with(RequestRoute route, std::string_view path, const boost::json::value& value) {
  boost::json::object body = boost::json::parse(plain_bodies().at(route)).as_object();
  set_at(body, path, value);
  return decoded_as(route, boost::json::serialize(body));
}

// The path as messages name it: with the first element of arrays.
std::string place_of(std::string_view path) {
  std::string name(path);
  for (std::size_t at = name.find("[]"); at != std::string::npos; at = name.find("[]")) name.replace(at, 2, "[0]");
  return name;
}

template <class CheckT>
void for_each_field(FieldClass kind, CheckT&& check) {
  int count = 0;
  for (const RequestField& row : request_fields()) {
    if (row.kind != kind) continue;
    for (const auto& [route, body] : plain_bodies()) {
      if ((row.routes >> std::to_underlying(route) & 1) == 0) continue;
      for (const auto part : row.paths | std::views::split(' ')) {
        ++count;
        check(route, std::string_view(part), row);
      }
    }
  }
  EXPECT_GT(count, 20);
}

TEST(RequestFields, PlainBodiesHaveNoWarning) {
  for (const auto& [route, body] : plain_bodies()) {
    const Outcome plain = decoded_as(route, body);
    EXPECT_EQ(plain.field, "") << plain.message;
    EXPECT_THAT(plain.warnings, IsEmpty()) << body;
  }
}

TEST(RequestFields, WhatIsRefusedIsNamedUnlessItAsksForNothing) {
  for_each_field(FieldClass::refused, [](RequestRoute route, std::string_view path, const RequestField& row) {
    const Outcome refused = decode_with(route, path, "something");
    EXPECT_EQ(refused.field, place_of(path)) << refused.message;
    EXPECT_THAT(refused.message, HasSubstr("is not supported: "));
    EXPECT_FALSE(row.note.empty()) << path;
    for (const boost::json::value& empty : {boost::json::value(), boost::json::value(false), boost::json::value("")}) {
      if (row.harmless == "true" && empty == false) continue;
      EXPECT_NE(decode_with(route, path, empty).field, place_of(path)) << path;
    }
  });
}

TEST(RequestFields, WhatIsLeftOutIsSaid) {
  for_each_field(FieldClass::warned, [](RequestRoute route, std::string_view path, const RequestField& row) {
    EXPECT_FALSE(row.note.empty()) << path;
    if (path.contains("[]")) return;  // Tools have required fields.
    const Outcome left_out = decode_with(route, path, boost::json::object{{"a", 1}});
    EXPECT_EQ(left_out.field, "") << left_out.message;
    EXPECT_THAT(left_out.warnings, ElementsAre(HasSubstr(std::format("field {} is left out", path))));
    EXPECT_THAT(decode_with(route, path, nullptr).warnings, IsEmpty());
  });
}

TEST(RequestFields, WhatIsIgnoredChangesNothing) {
  for_each_field(FieldClass::ignored, [](RequestRoute route, std::string_view path, const RequestField& row) {
    EXPECT_FALSE(row.note.empty()) << path;
    if (path.contains('.')) return;  // Their neighbours may be required.
    const Outcome ignored = decode_with(route, path, "x");
    EXPECT_EQ(ignored.field, "") << ignored.message;
    EXPECT_THAT(ignored.warnings, IsEmpty()) << path;
  });
}

// A decoder that reads a field refuses a value of a wrong type.
TEST(RequestFields, WhatIsServedIsRead) {
  // Free values; fields that only count beside others; those of formats, whose type decides what is read.
  const std::set<std::string_view> free = {"chat_template_kwargs",
                                           "context",
                                           "thinking.budget_tokens",
                                           "thread.previous_message_id",
                                           "documents",
                                           "metadata",
                                           "user",
                                           "prompt_cache_key",
                                           "uma.image.data",  // Its failures name image.data.
                                           "strength",
                                           "uma.strength",
                                           "keep_alive",
                                           "think"};
  for_each_field(FieldClass::served, [&](RequestRoute route, std::string_view path, const RequestField&) {
    if (free.contains(path) || path.contains("format.") || path.contains("[].")) return;
    bool is_read = false;
    for (const boost::json::value& wrong :
         {boost::json::value(boost::json::array{boost::json::array{}}), boost::json::value(boost::json::object{{"no", 1}}),
          boost::json::value(-1e300), boost::json::value(true), boost::json::value("no such value")}) {
      is_read = is_read || decode_with(route, path, wrong).field.starts_with(place_of(path));
    }
    EXPECT_TRUE(is_read) << "route " << std::to_underlying(route) << " does not read " << path;
  });
}

TEST(RequestFields, UnknownFieldsAreNamedInOneWarning) {
  const Outcome few = decoded_as(RequestRoute::chat, R"({"messages":[{"role":"user","content":"a","surprise":1}],"b":1,"c":null,
      "uma":{"d":1},"stream_options":{"e":true},"tools":[{"type":"function","function":{"name":"f","g":{"h":1}}}]})");
  EXPECT_EQ(few.field, "") << few.message;
  EXPECT_THAT(few.warnings, ElementsAre("unknown fields are ignored: b, uma.d, stream_options.e, tools[0].function.g"));
  std::string many = R"({"messages":[{"role":"user","content":"a"}])";
  for (int i = 0; i < 20; ++i) many += std::format(R"(,"{}{}":1)", std::string(100, 'x'), i);
  const Outcome cut = decoded_as(RequestRoute::chat, many + "}");
  ASSERT_EQ(cut.warnings.size(), 1U);
  EXPECT_THAT(cut.warnings.front(), HasSubstr("and 12 more"));
  EXPECT_LT(cut.warnings.front().size(), 700U);
}

TEST(RequestFields, HarmlessValuesAreTaken) {
  for (const auto& [fields, field] :
       std::vector<std::pair<std::string, std::string>>{{R"("modalities":["text"])", ""},
                                                        {R"("modalities":["text","audio"])", "modalities"},
                                                        {R"("function_call":"none")", ""},
                                                        {R"("dynatemp_range":0.0)", ""},
                                                        {R"("dynatemp_range":0.5)", "dynatemp_range"},
                                                        {R"("skip_special_tokens":true)", ""},
                                                        {R"("skip_special_tokens":false)", "skip_special_tokens"},
                                                        {R"("best_of":1)", ""},
                                                        {R"("reasoning":{"exclude":true})", ""},
                                                        {R"("audio":{"voice":null})", ""}}) {
    std::string body = plain_bodies().at(RequestRoute::chat);
    body.insert(1, fields + ",");
    const Outcome outcome = decoded_as(RequestRoute::chat, body);
    EXPECT_EQ(outcome.field, field) << fields << ": " << outcome.message;
  }
}

}  // namespace
}  // namespace uma::wire
