// WebSocket mode of /v1/responses: what a client's event asks for, and what the server's events become.
#include "wire/openai/response_events.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/openai/responses_decoder_test_support.h"

namespace uma::wire {
namespace {

class Held final : public HeldResponses {
 public:
  std::map<std::string, HeldResponse, std::less<>> responses{};
  [[nodiscard]] const HeldResponse* find(std::string_view id) const override {
    const auto found = responses.find(id);
    return found == responses.end() ? nullptr : &found->second;
  }
};

CreateEvent created(const std::string& fields, const Held& held = {}) {
  auto event = decode_create_event(R"({"type":"response.create",)" + fields + "}", held);
  EXPECT_TRUE(event) << fields << (event ? "" : event.error().error.message);
  return event ? *std::move(event) : CreateEvent();
}

boost::json::value body_of(const CreateEvent& event) {
  return boost::json::parse(event.body);
}

TEST(CreateEvent, IsTheBodyOfARequestForAStream) {
  const CreateEvent event =
      created(R"("event_id":"e","stream_id":"s","stream":false,"background":false,"model":"m","input":"hi","store":false)");
  EXPECT_EQ(body_of(event),
            boost::json::parse(R"({"model":"m","store":false,"stream":true,"input":[{"role":"user","content":"hi"}]})"));
  EXPECT_EQ(event.stream, "s");
  EXPECT_FALSE(event.is_stored);
  EXPECT_TRUE(event.generates);
  EXPECT_EQ(decoded(event.body).generate.input.messages, (std::vector<ChatMessage>{{"user", "hi"}}));
  EXPECT_EQ(body_of(created(R"("response":{"input":"hi"})")), body_of(created(R"("input":"hi")")));
}

TEST(CreateEvent, ContinuesAStoredResponseByItsName) {
  const CreateEvent event =
      created(R"("input":[{"role":"user","content":"more"}],"previous_response_id":")" + kResponse + "\"");
  EXPECT_FALSE(event.is_held);
  EXPECT_EQ(body_of(event).at("previous_response_id"), boost::json::value(kResponse));
}

TEST(CreateEvent, ContinuesAHeldResponseByItsItems) {
  Held held;
  held.responses = {{"resp_1", {.id = "resp_1", .previous = "", .items = R"({"a":1},{"b":2})"}},
                    {"resp_2", {.id = "resp_2", .previous = kResponse, .items = R"({"c":3})"}}};
  const CreateEvent first = created(R"("input":[{"d":4}],"previous_response_id":"resp_1")", held);
  EXPECT_TRUE(first.is_held);
  EXPECT_EQ(body_of(first), boost::json::parse(R"({"stream":true,"input":[{"a":1},{"b":2},{"d":4}]})"));
  EXPECT_EQ(first.items, R"({"a":1},{"b":2},{"d":4})");
  const CreateEvent second = created(R"("input":[],"previous_response_id":"resp_2")", held);
  EXPECT_EQ(body_of(second).at("previous_response_id"), boost::json::value(kResponse)) << "behind the stored one";
  EXPECT_EQ(body_of(second).at("input"), boost::json::parse(R"([{"c":3}])"));
}

TEST(CreateEvent, APromptThatIsComputedAheadIsNotStored) {
  const CreateEvent event = created(R"("input":"hi","generate":false,"store":true)");
  EXPECT_FALSE(event.generates || event.is_stored);
  EXPECT_EQ(body_of(event).at("store"), false);
  EXPECT_TRUE(created(R"("conversation":"c","input":"hi","store":false)").is_stored) << "the conversation has it";
}

TEST(CreateEvent, OthersAreRefused) {
  const Held none;
  for (const auto& [text, field, code] : std::vector<std::tuple<std::string, std::string, ErrorCode>>{
           {"{", "", ErrorCode::proto_json},
           {"7", "", ErrorCode::proto_json},
           {"{}", "type", ErrorCode::proto_field},
           {R"({"type":"response.cancel"})", "type", ErrorCode::proto_type},
           {R"({"type":"response.create","background":true})", "background", ErrorCode::proto_field},
           {R"({"type":"response.create","stream_id":7})", "stream_id", ErrorCode::proto_field},
           {R"({"type":"response.create","response":7})", "response", ErrorCode::proto_field},
           {R"({"type":"response.create","store":"yes"})", "store", ErrorCode::proto_field},
           {R"({"type":"response.create","generate":1})", "generate", ErrorCode::proto_field}}) {
    const auto event = decode_create_event(text, none);
    ASSERT_FALSE(event) << text;
    EXPECT_EQ(event.error().field, field) << text;
    EXPECT_EQ(event.error().error.code, code) << text;
  }
}

TEST(ServerEvents, AreTakenOneByOneWithoutComments) {
  std::string_view events =
      ": waiting\n\nevent: a\ndata: {\"type\":\"a\"}\n\n: keep-alive\n\nevent: b\ndata: {\"type\":\"b\"}\n\n";
  auto event = take_event(events);
  ASSERT_TRUE(event);
  EXPECT_EQ(std::pair(event->type, event->json), std::pair(std::string_view("a"), std::string_view(R"({"type":"a"})")));
  event = take_event(events);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->type, "b");
  EXPECT_FALSE(take_event(events));
  std::string out;
  append_stream_event(out, R"({"type":"a"})", "s\"1");
  EXPECT_EQ(out, R"({"stream_id":"s\"1","type":"a"})");
  out.clear();
  append_stream_event(out, R"({"type":"a"})", "");
  EXPECT_EQ(out, R"({"type":"a"})");
}

TEST(ServerEvents, TheLastOneIsHeldWithItsOutput) {
  const auto held =
      held_response({.type = "response.completed",
                     .json = R"({"type":"response.completed","response":{"id":"resp_1","output":[{"a":1},{"b":2}]}})"});
  ASSERT_TRUE(held);
  EXPECT_EQ(held->id, "resp_1");
  EXPECT_EQ(held->items, R"({"a":1},{"b":2})");
  EXPECT_FALSE(held_response({.type = "response.failed", .json = "{}"}));
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  const std::string event = R"({"type":"response.completed","response":{"id":"resp_1","tools":)" + deep + R"(,"output":[]}})";
  EXPECT_FALSE(held_response({.type = "response.completed", .json = event})) << "what a client nests deeply ends nothing";
  EXPECT_FALSE(held_response({.type = "response.created", .json = "{}"}));
}

TEST(ServerEvents, AnErrorHasItsStatus) {
  EXPECT_EQ(socket_error_event({ErrorCode::proto_field, "no"}, 400, "input", "s"),
            R"({"type":"error","stream_id":"s","status":400,"error":{"type":"invalid_request_error","code":"E_PROTO_003",)"
            R"("message":"no","param":"input"}})");
  EXPECT_THAT(
      socket_error_event({ErrorCode::session_unknown, "no"}, 404, "previous_response_id", ""),
      ::testing::HasSubstr(R"("status":400,"error":{"type":"invalid_request_error","code":"previous_response_not_found")"));
}

}  // namespace
}  // namespace uma::wire
