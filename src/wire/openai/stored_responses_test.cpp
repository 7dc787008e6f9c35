#include "wire/openai/stored_responses.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/openai/response_writer.h"
#include "wire/openai/responses_decoder_test_support.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;

SessionDetail some_session() {
  SessionDetail session;
  session.info.id.value = kSession;
  session.info.model = "tiny";
  session.info.dropped_turns = 2;
  session.info.created_s = 1600;
  session.messages = {{"system", "Sing"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}};
  session.turns_begin = {1, 3};
  session.has_instructions = true;
  session.info.metadata = R"({"k":"v"})";
  return session;
}

TEST(StoredResponses, AKeptResponseIsWrittenFromItsSession) {
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
  EXPECT_EQ(items.at("data").at(0).at("uma").at("turn"), 2);
  EXPECT_EQ(items.at("data").at(2).at("uma").at("turn"), 3);
  EXPECT_EQ(items.at("data").at(1).at("content").at(0).at("type"), "output_text");
  EXPECT_EQ(items.at("data").at(2).at("content").at(0).at("text"), "c");
  EXPECT_EQ(items.at("has_more"), false);
}

TEST(StoredResponses, EventsBeforeTheLastRepeatNoLongFields) {
  ResponseCall call = decoded(
      R"({"input":"c","instructions":"Sing","tools":[{"type":"function","name":"dance","parameters":{}}],"temperature":0.5})");
  ResponseRecord kept{.turn = 3, .id = kOwn, .request = call.request, .created_s = 1700, .reason = FinishReason::stop};
  const std::string events = response_events({some_session(), std::make_shared<const ResponseRecord>(kept)}, std::nullopt);
  const std::size_t last = events.rfind("event: ");
  EXPECT_EQ(events.find("dance"), events.find("dance", last)) << events;
  EXPECT_EQ(events.find("Sing"), events.find("Sing", last));
  EXPECT_NE(events.find("dance"), std::string::npos);
  const std::size_t data = events.find("data: ") + 6;
  const boost::json::value first = boost::json::parse(events.substr(data, events.find("\n\n") - data));
  boost::json::value brief = boost::json::parse(call.brief_request + "}");
  for (const auto& [name, value] : brief.as_object()) EXPECT_EQ(first.at("response").at(name), value) << std::string(name);
}

TEST(StoredResponses, ItemsCanBeGivenBack) {
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

TEST(StoredResponses, ImagesStandInResultsOfTools) {
  const ResponseCall call =
      decoded(R"({"store":false,"input":[{"role":"user","content":"look"},{"type":"function_call","call_id":"c","name":"f"},)"
              R"({"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"a"},)"
              R"({"type":"input_image","image_url":"data:image/png;base64,AA=="}]}]})");
  const Input& input = call.generate.input;
  ASSERT_EQ(input.messages.size(), 3u);
  EXPECT_EQ(input.messages[2], (ChatMessage{"tool", "a", R"({"tool_call_id":"c"})"}));
  ASSERT_EQ(input.images.size(), 1u);
  EXPECT_EQ(input.images[0].message, 2u);
  EXPECT_EQ(input.images[0].at, 1u);
  EXPECT_EQ(input.images[0].field, "input[2].output[1]");
  std::vector<Item> items;
  const std::string hash(64, 'a');
  add_items(items, {"tool", "a", R"({"tool_call_id":"c","images":[{"at":1,"sha256":")" + hash + R"("}]})"}, kSession, {}, {});
  ASSERT_EQ(items.size(), 1u);
  ASSERT_EQ(items[0].images.size(), 1u);
  EXPECT_EQ(items[0].images[0].id, hash);
  items[0].images[0].url = "data:image/png;base64,AA==";
  std::string out;
  append_item(out, items[0], ItemStatus::completed);
  EXPECT_EQ(boost::json::parse(out).at("output"), boost::json::parse(R"([{"type":"input_text","text":"a"},
              {"type":"input_image","detail":"auto","file_id":null,"image_url":"data:image/png;base64,AA=="}])"));
}

// Nothing of a part is lost but where texts end.
TEST(StoredResponses, ImagesStandAmongTheTextOfAUser) {
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

TEST(StoredResponses, ImagesAreListedWhereTheyStood) {
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

TEST(StoredResponses, OnlyTheLastItemCanBeTakenOut) {
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

TEST(StoredResponses, ItemsComeInPages) {
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
  const boost::json::value conversation = boost::json::parse(conversation_json(session.info));
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
