// Responses, their items and their streams, as clients read them.
#include "wire/response_encoder.h"

#include <format>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/responses_codec_test_support.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;

// The events of a stream: each is "event: TYPE\ndata: OBJECT\n\n", and OBJECT has the same type.
std::vector<boost::json::value> events_of(std::string_view stream) {
  std::vector<boost::json::value> events;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos);
    const std::string_view event = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    const std::size_t line_end = event.find('\n');
    EXPECT_TRUE(event.starts_with("event: ") && event.substr(line_end).starts_with("\ndata: ")) << event;
    events.push_back(boost::json::parse(event.substr(line_end + 7)));
    EXPECT_EQ(events.back().at("type"), boost::json::value(event.substr(7, line_end - 7)));
    EXPECT_EQ(events.back().at("sequence_number"), boost::json::value(events.size() - 1));
  }
  return events;
}

std::vector<std::string> types_of(const std::vector<boost::json::value>& events) {
  std::vector<std::string> types;
  for (const boost::json::value& event : events) types.emplace_back(event.at("type").as_string());
  return types;
}

ResponseEncoder encoder() {
  ResponseEncoder made({std::string(32, 'f'), kOwn}, decoded(R"({"input":"x","metadata":{"k":"v"}})").request, "tiny", 1700);
  made.set_place({.session = SessionId{kSession}, .turn = 3, .number = 1});
  return made;
}

Usage some_usage() {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.reused_tokens = 6;
  usage.recomputed_tokens = 4;
  usage.completion_tokens = 5;
  return usage;
}

TEST(ResponsesCodec, AStreamIsOpenAIsEventsInOrder) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hel");
  one.append_text(out, "lo\n\n");
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "!", std::nullopt});
  const std::vector<boost::json::value> events = events_of(out);
  EXPECT_THAT(types_of(events),
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0].at("response").at("id"), boost::json::value(kResponse));
  EXPECT_EQ(events[0].at("response").at("status"), "in_progress");
  EXPECT_TRUE(events[0].at("response").at("usage").is_null());
  EXPECT_TRUE(events[0].at("response").at("output").as_array().empty());
  const std::string item = "msg_" + kSession + "_3_1";
  EXPECT_EQ(events[2].at("item").at("id"), boost::json::value(item));
  EXPECT_EQ(events[2].at("item").at("status"), "in_progress");
  EXPECT_TRUE(events[2].at("item").at("content").as_array().empty());
  std::string text;
  for (std::size_t i = 4; i < 7; ++i) {
    EXPECT_EQ(events[i].at("item_id"), boost::json::value(item));
    EXPECT_EQ(events[i].at("output_index"), 0);
    EXPECT_EQ(events[i].at("content_index"), 0);
    text += events[i].at("delta").as_string();
  }
  EXPECT_EQ(text, "Hello\n\n!");
  EXPECT_EQ(events[7].at("text"), boost::json::value(text));
  EXPECT_EQ(events[8].at("part").at("text"), boost::json::value(text));
  EXPECT_EQ(events[9].at("item").at("status"), "completed");
  const boost::json::value& done = events[10].at("response");
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("output").at(0).at("content").at(0).at("text"), boost::json::value(text));
  EXPECT_EQ(done.at("usage").at("input_tokens"), 10);
  EXPECT_EQ(done.at("usage").at("input_tokens_details").at("cached_tokens"), 6);
  EXPECT_EQ(done.at("usage").at("total_tokens"), 15);
  EXPECT_EQ(done.at("uma").at("usage").at("recomputed_tokens"), 4);
  EXPECT_EQ(done.at("uma").at("session_id"), boost::json::value(kSession));
  EXPECT_EQ(boost::json::serialize(done.at("metadata")), R"({"k":"v"})");
}

TEST(ResponsesCodec, WhatWasCutIsIncompleteAndWhatFailedFailed) {
  for (const FinishReason reason : {FinishReason::length, FinishReason::timeout, FinishReason::cancelled}) {
    ResponseEncoder one = encoder();
    std::string out;
    one.append_first(out);
    one.append_text(out, "Hel");
    one.append_last(out, EosEvent{reason, some_usage(), "", std::nullopt});
    const boost::json::value last = events_of(out).back();
    EXPECT_EQ(last.at("type"), "response.incomplete");
    EXPECT_EQ(last.at("response").at("status"), reason == FinishReason::cancelled ? "cancelled" : "incomplete");
    EXPECT_EQ(last.at("response").at("output").at(0).at("status"), "incomplete");
    EXPECT_EQ(last.at("response").at("uma").at("reason"), boost::json::value(finish_reason_name(reason)));
  }
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "Hel");
  one.append_last(out, EosEvent{FinishReason::error, some_usage(), "", Error{ErrorCode::runtime_decode, "it broke"}});
  const boost::json::value last = events_of(out).back();
  EXPECT_EQ(last.at("type"), "response.failed");
  EXPECT_EQ(last.at("response").at("status"), "failed");
  EXPECT_EQ(last.at("response").at("error").at("message"), "it broke");
}

const ReplyPart kThought{.kind = ReplyPart::Kind::reasoning, .text = "hm"};

ReplyPart call_part(std::int32_t call, const std::string& text, const std::string& id = "") {
  return {.kind = ReplyPart::Kind::tool_call, .text = text, .call = call, .id = id, .name = id.empty() ? "" : "f"};
}

TEST(ResponsesCodec, ThoughtsAndCallsAreItemsOneAfterTheOther) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_part(out, kThought);
  one.append_part(out, kThought);
  one.append_text(out, "Wait");
  one.append_text(out, ".");
  one.append_part(out, call_part(0, "{\"a\":", "id0"));
  one.append_part(out, call_part(0, "1}"));
  one.append_part(out, call_part(1, "{}", "id1"));
  Usage usage = some_usage();
  usage.reasoning_tokens = 2;
  one.append_last(out, EosEvent{FinishReason::tool_calls, usage, "", std::nullopt});
  const std::vector<boost::json::value> events = events_of(out);
  EXPECT_THAT(types_of(events),
              ElementsAre("response.created", "response.in_progress",  //
                          "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
                          "response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.delta", "response.function_call_arguments.done",
                          "response.output_item.done",  //
                          "response.output_item.added", "response.function_call_arguments.delta",
                          "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  const std::string place = kSession + "_3_1";
  const std::vector<std::string> ids = {"rs_" + place, "msg_" + place, "fc_" + place + "_0", "fc_" + place + "_1"};
  for (const boost::json::value& event : events) {
    const boost::json::object& fields = event.as_object();
    if (!fields.contains("output_index")) continue;
    const std::string& id = ids.at(fields.at("output_index").to_number<std::size_t>());
    EXPECT_EQ(fields.contains("item") ? fields.at("item").at("id") : fields.at("item_id"), boost::json::value(id));
    EXPECT_EQ(fields.contains("content_index"), fields.contains("item_id") && !id.starts_with("fc_")) << event;
  }
  EXPECT_EQ(boost::json::serialize(events[2].at("item")),
            R"({"id":")" + ids[0] + R"(","type":"reasoning","status":"in_progress","summary":[],"content":[]})");
  EXPECT_EQ(boost::json::serialize(events[3].at("part")), R"({"type":"reasoning_text","text":""})");
  EXPECT_EQ(events[6].at("text"), "hmhm");
  EXPECT_EQ(
      boost::json::serialize(events[16].at("item")),
      R"({"id":")" + ids[2] + R"(","type":"function_call","status":"in_progress","call_id":"id0","name":"f","arguments":""})");
  EXPECT_EQ(events[18].at("delta"), "1}");
  EXPECT_EQ(events[19].at("arguments"), "{\"a\":1}");
  EXPECT_EQ(events[19].at("name"), "f");
  const boost::json::value& done = events.back().at("response");
  EXPECT_EQ(done.at("status"), "completed");
  EXPECT_EQ(done.at("uma").at("reason"), "tool_calls");
  EXPECT_EQ(done.at("usage").at("output_tokens_details").at("reasoning_tokens"), 2);
  ASSERT_EQ(done.at("output").as_array().size(), 4u);
  std::size_t next = 0;
  for (const boost::json::value& event : events) {
    if (event.at("type") != "response.output_item.done") continue;
    EXPECT_EQ(event.at("item"), done.at("output").at(next++));
  }
  EXPECT_EQ(next, 4u);

  // The same answer at once, and what is kept of it.
  EosEvent whole{FinishReason::tool_calls, usage, "Wait.", std::nullopt};
  whole.parts = {
      {.kind = ReplyPart::Kind::reasoning, .text = "hmhm"}, call_part(0, "{\"a\":1}", "id0"), call_part(1, "{}", "id1")};
  EXPECT_EQ(boost::json::parse(encoder().json(whole)), done);
  SessionDetail session;
  session.info.id.value = kSession;
  session.info.model = "tiny";
  session.info.dropped_turns = 3;
  session.messages = {{"user", "x"},
                      {"assistant", "Wait.",
                       R"({"reasoning_content":"hmhm","tool_calls":[)"
                       R"({"id":"id0","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},)"
                       R"({"id":"id1","type":"function","function":{"name":"f","arguments":"{}"}}]})"}};
  session.turns_begin = {0};
  const ResponseRecord kept{.turn = 3,
                            .id = kOwn,
                            .request = decoded(R"({"input":"x","metadata":{"k":"v"}})").request,
                            .created_s = 1700,
                            .reason = FinishReason::tool_calls,
                            .prompt_tokens = 10,
                            .reused_tokens = 6,
                            .completion_tokens = 5,
                            .reasoning_tokens = 2};
  boost::json::value read = boost::json::parse(response_json({session, std::make_shared<const ResponseRecord>(kept)}));
  EXPECT_TRUE(read.at("uma").as_object().emplace("usage", done.at("uma").at("usage")).second) << "the receipt is not kept";
  EXPECT_EQ(read, done);
}

TEST(ResponsesCodec, WhatWasCutIsTheLastItem) {
  for (const bool streams : {true, false}) {
    ResponseEncoder one = encoder();
    EosEvent eos{FinishReason::length, some_usage(), "", std::nullopt};
    eos.parts = {kThought, call_part(0, "{\"a", "id0")};
    std::string out;
    if (streams) {
      one.append_first(out);
      one.append_last(out, eos);
    }
    const boost::json::value response = streams ? events_of(out).back().at("response") : boost::json::parse(one.json(eos));
    EXPECT_EQ(response.at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(0).at("status"), "completed");
    EXPECT_EQ(response.at("output").at(1).at("status"), "incomplete");
    EXPECT_EQ(response.at("output").at(1).at("arguments"), "{\"a");
  }
}

TEST(ResponsesCodec, TextBehindACallIsAnItemOfItsOwn) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_text(out, "a");
  one.append_part(out, call_part(0, "{}", "id0"));
  one.append_text(out, "b");
  one.append_last(out, EosEvent{FinishReason::tool_calls, some_usage(), "", std::nullopt});
  const boost::json::value response = events_of(out).back().at("response");
  const boost::json::array& output = response.at("output").as_array();
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "a");
  EXPECT_EQ(output[2].at("content").at(0).at("text"), "b");
  EXPECT_NE(output[0].at("id"), output[2].at("id"));
}

TEST(ResponsesCodec, AReplyThatSaysNothingIsAnEmptyMessage) {
  ResponseEncoder one = encoder();
  std::string out;
  one.append_first(out);
  one.append_last(out, EosEvent{FinishReason::stop, some_usage(), "", std::nullopt});
  const boost::json::value response = events_of(out).back().at("response");
  EXPECT_EQ(response.at("output").at(0).at("content").at(0).at("text"), "");
  EXPECT_EQ(response, boost::json::parse(encoder().json(EosEvent{FinishReason::stop, some_usage(), "", std::nullopt})));
}

TEST(ResponsesCodec, OneThatDoesNotStreamIsTheSameObject) {
  const boost::json::value whole =
      boost::json::parse(encoder().json(EosEvent{FinishReason::length, some_usage(), "Hello", std::nullopt}));
  EXPECT_EQ(whole.at("object"), "response");
  EXPECT_EQ(whole.at("id"), boost::json::value(kResponse));
  EXPECT_EQ(whole.at("created_at"), 1700);
  EXPECT_EQ(whole.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(whole.at("output").at(0).at("id"), boost::json::value("msg_" + kSession + "_3_1"));
  EXPECT_EQ(whole.at("output").at(0).at("content").at(0).at("text"), "Hello");
  for (const char* name : {"error", "instructions", "previous_response_id", "max_output_tokens"}) {
    EXPECT_TRUE(whole.at(name).is_null()) << name;
  }
}

SessionDetail some_session() {
  SessionDetail session;
  session.info.id.value = kSession;
  session.info.model = "tiny";
  session.info.dropped_turns = 2;
  session.info.created_s = 1600;
  session.messages = {{"system", "Sing"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}};
  session.turns_begin = {1, 3};
  session.has_instructions = true;
  session.metadata = R"({"k":"v"})";
  return session;
}

TEST(ResponsesCodec, AKeptResponseIsWrittenFromItsSession) {
  ResponseRecord kept{.turn = 3,
                      .id = kOwn,
                      .request = decoded(R"({"input":"c","instructions":"Sing"})").request,
                      .created_s = 1700,
                      .reason = FinishReason::stop,
                      .prompt_tokens = 10,
                      .reused_tokens = 6,
                      .completion_tokens = 5};
  const ResponseDetail detail{some_session(), std::make_shared<const ResponseRecord>(kept)};
  const boost::json::value response = boost::json::parse(response_json(detail));
  EXPECT_EQ(response.at("id"), boost::json::value(kResponse));
  EXPECT_EQ(response.at("status"), "completed");
  EXPECT_EQ(response.at("instructions"), "Sing");
  EXPECT_EQ(response.at("output").at(0).at("id"), boost::json::value("msg_" + kSession + "_3_1"));
  EXPECT_EQ(response.at("output").at(0).at("content").at(0).at("text"), "d");
  EXPECT_EQ(response.at("usage").at("total_tokens"), 15);

  const boost::json::value items = boost::json::parse(item_page_json(input_items(detail, {.is_ascending = true}).value()));
  ASSERT_EQ(items.at("data").as_array().size(), 3u) << "without instructions and reply";
  EXPECT_EQ(items.at("data").at(0).at("id"), boost::json::value("msg_" + kSession + "_2_0"));
  EXPECT_EQ(items.at("data").at(1).at("content").at(0).at("type"), "output_text");
  EXPECT_EQ(items.at("data").at(2).at("content").at(0).at("text"), "c");
  EXPECT_EQ(items.at("has_more"), false);
}

TEST(ResponsesCodec, ItemsCanBeGivenBack) {
  SessionDetail session;
  session.info.id.value = kSession;
  session.messages = {{"user", "Rain?"},
                      {"assistant", "",
                       R"({"reasoning_content":"hm","tool_calls":[{"id":"id0","type":"function",)"
                       R"("function":{"name":"f","arguments":"{}"}}]})"},
                      {"tool", "wet", R"({"tool_call_id":"id0"})"},
                      {"assistant", "It rains.", R"({"reasoning_content":"so"})"},
                      {"assistant", ""}};
  session.turns_begin = {0, 2};
  const boost::json::value list =
      boost::json::parse(item_page_json(conversation_items(session, {.is_ascending = true}).value()));
  std::vector<std::string> ids;
  for (const boost::json::value& item : list.at("data").as_array()) {
    ids.emplace_back(item.at("id").as_string().subview(0, item.at("id").as_string().find('_')));
    EXPECT_EQ(item.at("status"), "completed");
  }
  EXPECT_THAT(ids, ElementsAre("msg", "rs", "fc", "fco", "rs", "msg", "msg"));
  EXPECT_EQ(list.at("data").at(2).at("id"), boost::json::value("fc_" + kSession + "_0_1_0"));
  EXPECT_EQ(list.at("data").at(3).at("output"), "wet");
  const ResponseCall call = decoded(R"({"store":false,"input":)" + boost::json::serialize(list.at("data")) + "}");
  EXPECT_EQ(call.generate.input.messages, session.messages);
}

// Nothing of a part is lost but where texts end.
TEST(ResponsesCodec, ImagesStandAmongTheTextOfAUser) {
  const ResponseCall call = decoded(
      R"({"store":false,"instructions":"Look.","input":[{"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"}]},)"
      R"({"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"},)"
      R"({"type":"input_image","detail":"low","image_url":"data:image/png;base64,AA=="},)"
      R"({"type":"input_image","image_url":"https://host/c.png","file_id":null},{"type":"input_text","text":"d"}]}]})");
  const Input& input = call.generate.input;
  ASSERT_EQ(input.messages.size(), 3u);
  EXPECT_EQ(input.messages[2], (ChatMessage{"user", "abd"}));
  ASSERT_EQ(input.images.size(), 2u);
  EXPECT_EQ(input.images[0].message, 2u) << "behind the instructions and the thought";
  EXPECT_EQ(input.images[1].message, 2u);
  EXPECT_EQ(input.images[0].at, 2u);
  EXPECT_EQ(input.images[1].at, 2u);
  EXPECT_EQ(input.images[0].field, "input[1].content[2]");
  EXPECT_EQ(input.images[0].source.kind, ImageSource::Kind::data);
  EXPECT_EQ(input.images[1].source.kind, ImageSource::Kind::url);
  EXPECT_TRUE(decoded(R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]})")
                  .generate.input.messages[0]
                  .content.empty());

  std::string many = R"({"input":[{"role":"user","content":[)";
  for (int i = 0; i < 65; ++i) many += std::format(R"({}{{"type":"input_image","image_url":"data:,"}})", i == 0 ? "" : ",");
  EXPECT_EQ(rejected(many + "]}]}"), std::pair(ErrorCode::proto_field, std::string("input")));
  EXPECT_EQ(decode_conversation(R"({"items":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]})")
                .error()
                .field,
            "items");
}

TEST(ResponsesCodec, ImagesAreListedWhereTheyStood) {
  SessionDetail session;
  session.info.id.value = kSession;
  const std::string first(64, 'a');
  const std::string second(64, 'b');
  const std::string extra = R"({"images":[{"at":0,"sha256":")" + first + R"("},{"at":2,"sha256":")" + second +
                            R"("},{"at":3,"sha256":")" + first + "\"}]}";
  session.messages = {
      {"user", "abc", extra}, {"assistant", "d"}, {"user", "", extra}, {"user", "x", R"({"images":[{"at":-1}]})"}};
  session.turns_begin = {0};
  ItemPage page = conversation_items(session, {.is_ascending = true}).value();
  ASSERT_EQ(page.items.size(), 4u);
  ASSERT_EQ(page.items[0].images.size(), 3u);
  EXPECT_EQ(page.items[0].images[1].id, second);
  page.items[0].images[1].url = "data:image/png;base64,AA==";
  const boost::json::value list = boost::json::parse(item_page_json(page));
  const auto parts = [&](std::size_t item) {
    std::string all;
    for (const boost::json::value& part : list.at("data").at(item).at("content").as_array()) {
      const boost::json::value* text = part.as_object().if_contains("text");
      all += text != nullptr ? std::string_view(text->as_string()) : part.at("image_url").is_null() ? "-" : "+";
      EXPECT_EQ(part.at("type"), text != nullptr ? (item == 1 ? "output_text" : "input_text") : "input_image");
    }
    return all;
  };
  EXPECT_EQ(parts(0), "-ab+c-");
  EXPECT_EQ(parts(1), "d");
  EXPECT_EQ(parts(2), "---") << "an image stands at the end at the latest";
  EXPECT_EQ(parts(3), "x") << "what no listener wrote";
  EXPECT_EQ(list.at("data").at(0).at("content").at(2).at("image_url"), "data:image/png;base64,AA==");

  const Input input = decode_items(R"({"items":[{"role":"user","content":[{"type":"input_text","text":"a"},)"
                                   R"({"type":"input_image","image_url":"data:image/png;base64,AA=="}]}]})")
                          .value();
  const boost::json::value added = boost::json::parse(appended_items_json(session.info, input));
  EXPECT_EQ(added.at("data").at(0).at("content").at(1).at("image_url"), "data:image/png;base64,AA==") << "as it came";
}

TEST(ResponsesCodec, OnlyTheLastItemCanBeTakenOut) {
  SessionDetail session = some_session();
  const std::string id = kSession;
  EXPECT_EQ(removable_message(session, "msg_" + id + "_3_1").value(), (MessagePosition{3, 1}));
  for (const std::string& item : {"msg_" + id + "_3_0", "msg_" + id + "_2_1"}) {
    EXPECT_EQ(removable_message(session, item).error().error.code, ErrorCode::proto_field) << item;
  }
  EXPECT_EQ(removable_message(session, "msg_" + id + "_9_0").error().error.code, ErrorCode::session_unknown);
  session.messages.back().extra = R"({"reasoning_content":"hm"})";
  EXPECT_EQ(removable_message(session, "msg_" + id + "_3_1").value(), (MessagePosition{3, 1})) << "with its thought";
  EXPECT_EQ(removable_message(session, "rs_" + id + "_3_1").error().error.code, ErrorCode::proto_field);
  session.messages.back().extra = R"({"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_EQ(removable_message(session, "fc_" + id + "_3_1_0").error().error.code, ErrorCode::proto_field) << "it says more";
  session.messages.back().content.clear();
  EXPECT_EQ(removable_message(session, "fc_" + id + "_3_1_0").value(), (MessagePosition{3, 1}));
  session.pending_messages = {{"user", "e"}, {"user", "f"}};
  EXPECT_EQ(removable_message(session, "msg_" + id + "_4_1").value(), (MessagePosition{4, 1}));
  EXPECT_EQ(removable_message(session, "msg_" + id + "_4_0").error().error.code, ErrorCode::proto_field);
  EXPECT_EQ(boost::json::parse(item_json(conversation_item(session, "msg_" + id + "_4_0").value())).at("role"), "user");
  EXPECT_EQ(conversation_item(session, "msg_" + id + "_4_7").error().error.code, ErrorCode::session_unknown);
  EXPECT_EQ(removable_message(SessionDetail(), "x").error().error.code, ErrorCode::session_unknown);
  SessionDetail without_turns;
  without_turns.info.id.value = kSession;
  without_turns.info.dropped_turns = 3;
  without_turns.messages = {{"system", "Sing"}};
  EXPECT_EQ(removable_message(without_turns, "msg_" + id + "_0_0").error().error.code, ErrorCode::proto_field)
      << "of a turn that was dropped, and kept";
}

TEST(ResponsesCodec, ItemsComeInPages) {
  SessionDetail session = some_session();
  session.pending_messages = {{"user", "e"}};
  const auto texts = [&](const ListPage& page) {
    const boost::json::value list = boost::json::parse(item_page_json(conversation_items(session, page).value()));
    std::string all;
    for (const boost::json::value& item : list.at("data").as_array()) all += item.at("content").at(0).at("text").as_string();
    return all + (list.at("has_more").as_bool() ? "+" : "");
  };
  EXPECT_EQ(texts({}), "edcba");
  EXPECT_EQ(texts({.limit = 2}), "ed+");
  const std::string item = "msg_" + kSession;
  EXPECT_EQ(texts({.limit = 2, .after = item + "_3_1"}), "cb+");
  EXPECT_EQ(texts({.limit = 3, .is_ascending = true, .after = item + "_3_0"}), "de");
  EXPECT_EQ(texts({.after = item + "_2_0"}), "");
  EXPECT_EQ(conversation_items(session, {.after = "msg_x"}).error().field, "after");
  const boost::json::value conversation = boost::json::parse(conversation_json(session));
  EXPECT_EQ(conversation.at("id"), boost::json::value(kConversation));
  EXPECT_EQ(conversation.at("metadata").at("k"), "v");

  SessionInfo info = session.info;
  info.turns = 4;
  info.pending_messages = 1;
  const boost::json::value added =
      boost::json::parse(appended_items_json(info, {.text = "", .messages = session.pending_messages}));
  EXPECT_EQ(added.at("first_id"), boost::json::value(item + "_4_0")) << "as in the list";
  EXPECT_EQ(conversation_items(session, {})->items.front().id, item + "_4_0");
}

}  // namespace
}  // namespace uma::wire
