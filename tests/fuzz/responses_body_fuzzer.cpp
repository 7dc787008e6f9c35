// Property: the decoders of bodies and queries for /v1/responses and /v1/conversations never crash, and every refusal has a
// message that can be sent. The catalog can store accepted requests; a conversation is listed completely in any division into
// pages, every item once; items that are sent back have the same content; and only the last message may be removed. The first
// byte chooses the kind of the rest: a response, a conversation, items, metadata, or the query of a list and ids.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/catalog/record_check.h"
#include "wire/openai/openai_codec.h"
#include "wire/openai/response_ids.h"
#include "wire/openai/responses_decoder.h"
#include "wire/openai/stored_responses.h"
#include "wire/own/request_codec.h"
#include "wire_checks.h"

namespace {

using namespace uma;
using namespace uma::fuzz;

constexpr std::string_view kSession = "0123456789abcdef0123456789abcdef";
constexpr std::string_view kResponse = "fedcba9876543210";

// The messages can be the pending input of a session.
void check_waiting(const std::vector<ChatMessage>& messages) {
  check_messages(messages);
  kv::SessionRecord record;
  record.mode = SessionMode::chat;
  record.pending_messages = messages;
  UMA_CHECK(kv::impossible_part(record).empty());
}

// Some of the messages, at most `turns`, are finished turns; the others are pending.
SessionDetail conversation_of(const std::vector<ChatMessage>& messages, std::size_t turns, std::int32_t dropped) {
  SessionDetail conversation;
  conversation.info.id.value = kSession;
  conversation.info.dropped_turns = dropped;
  std::size_t begin = 0;
  for (std::size_t i = 1; i < messages.size() && conversation.turns_begin.size() < turns; ++i) {
    if (messages[i].role != "assistant") continue;
    conversation.turns_begin.push_back(static_cast<std::int32_t>(begin));
    begin = i + 1;
  }
  const auto split = messages.begin() + static_cast<std::ptrdiff_t>(begin);
  conversation.messages.assign(messages.begin(), split);
  conversation.pending_messages.assign(split, messages.end());
  conversation.info.turns = dropped + static_cast<std::int32_t>(conversation.turns_begin.size());
  return conversation;
}

std::vector<wire::Item> listed(const SessionDetail& conversation, std::size_t limit, bool is_ascending) {
  std::vector<wire::Item> all;
  for (wire::ListPage page{.limit = limit, .is_ascending = is_ascending, .after = {}};;) {
    auto part = wire::conversation_items(conversation, page).value();
    check_object(wire::item_page_json(part));
    const bool has_more = part.has_more;
    UMA_CHECK(part.items.size() == limit || !has_more);
    std::ranges::move(part.items, std::back_inserter(all));
    if (!has_more) return all;
    page.after = all.back().id;
  }
}

void check_conversation(const SessionDetail& conversation, std::size_t limit) {
  check_object(wire::conversation_json(conversation.info));
  std::vector<wire::Item> all = listed(conversation, limit, true);
  std::set<std::string> ids;
  for (const wire::Item& item : all) {
    UMA_CHECK(ids.insert(item.id).second);
    check_object(wire::item_json(item));
    UMA_CHECK(wire::conversation_item(conversation, item.id).value().text == item.text);
    const auto removable = wire::removable_message(conversation, item.id);
    if (!is_accepted(removable)) continue;
    const bool waits = !conversation.pending_messages.empty();
    const auto turns = static_cast<std::int32_t>(conversation.turns_begin.size());
    UMA_CHECK(waits || turns > 0);
    UMA_CHECK(removable->turn == conversation.info.dropped_turns + turns - (waits ? 0 : 1) && removable->number >= 0);
  }
  std::vector<wire::Item> backwards = listed(conversation, 100, false);
  std::ranges::reverse(backwards);
  UMA_CHECK(std::ranges::equal(backwards, all, {}, &wire::Item::id, &wire::Item::id));

  if (all.empty()) return;
  std::string body = wire::item_page_json({.items = std::move(all), .has_more = false});
  body.replace(body.find("\"data\""), 6, "\"items\"");
  const auto again = wire::decode_items(body);
  if (!is_accepted(again)) return;  // Together they exceed the limits of a request.
  std::vector<ChatMessage> messages = conversation.messages;
  std::ranges::copy(conversation.pending_messages, std::back_inserter(messages));
  UMA_CHECK(again->messages == messages);
}

void check_response(std::string_view body, std::size_t turns, std::size_t limit) {
  const auto call = wire::decode_response(body, std::string(kResponse));
  if (!is_accepted(call)) return;
  const GenerateRequest& generate = call->generate;
  check_object(call->request + "}");
  check_waiting(generate.input.messages);
  check_images(generate.input);
  UMA_CHECK(generate.input.text.empty() && generate.input.tokens.empty());
  const bool is_of_conversation = generate.response && generate.response->previous.empty() && !generate.session.empty();
  UMA_CHECK(is_of_conversation || (!generate.input.messages.empty() && !generate.regenerate));
  UMA_CHECK(!generate.regenerate || generate.input.messages.empty());
  UMA_CHECK(generate.session.empty() || generate.response.has_value());
  UMA_CHECK(generate.options.max_tokens.value_or(0) >= 0 && generate.options.timeout_ms >= 0);
  check_sampling(generate.options.sampling);
  if (generate.response && generate.response->instructions) check_text(*generate.response->instructions);

  SessionDetail session = conversation_of(generate.input.messages, turns, 0);
  std::ranges::move(std::exchange(session.pending_messages, {}), std::back_inserter(session.messages));
  session.messages.push_back({"assistant", "yes", R"({"reasoning_content":"hm"})"});
  if (session.turns_begin.empty()) session.turns_begin = {0};
  const auto turn = static_cast<std::int32_t>(session.turns_begin.size()) - 1;
  const ResponseDetail detail{std::move(session), std::make_shared<const ResponseRecord>(ResponseRecord{
                                                      .turn = turn, .id = std::string(kResponse), .request = call->request})};
  check_object(wire::response_json(detail));
  const std::string events = wire::response_events(detail, std::nullopt);
  UMA_CHECK(events.starts_with("event: response.created\n") && events.ends_with("\n\n"));
  const auto items = wire::input_items(detail, {.limit = limit, .is_ascending = true, .after = {}});
  UMA_CHECK(items.has_value() && items->items.size() <= limit);
}

void check_query(std::string_view query) {
  if (const auto read = wire::decode_response_query(query); is_accepted(read)) UMA_CHECK(read->is_stream || !read->after);
  if (const auto page = wire::decode_page(query); is_accepted(page)) UMA_CHECK(page->limit >= 1 && page->limit <= 100);
  if (const auto id = wire::parse_response_id(query)) UMA_CHECK(wire::response_id_text(*id) == query);
  if (const auto id = wire::parse_conversation_id(query)) UMA_CHECK(wire::conversation_id_text(*id) == query);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t how = data[0] / 8;
  const std::size_t turns = how % 4;
  const std::size_t limit = 1 + how / 4;
  switch (data[0] % 8) {
    case 0:
      check_response(body, turns, limit);
      break;
    case 1:
      if (const auto made = wire::decode_conversation(body); is_accepted(made)) {
        check_object(made->metadata);
        check_waiting(made->messages);
        check_conversation(conversation_of(made->messages, turns, 0), limit);
      }
      break;
    case 2:
    case 3:
      if (const auto items = wire::decode_items(body); is_accepted(items)) {
        UMA_CHECK(!items->empty());
        check_waiting(items->messages);
        check_images(*items);
        check_object(wire::appended_items_json({}, *items));
        if (items->images.empty()) check_conversation(conversation_of(items->messages, turns, data[0] % 2), limit);
      }
      break;
    case 4:
      if (const auto metadata = wire::decode_metadata(body); is_accepted(metadata)) check_changes(*metadata);
      break;
    default:
      check_query(body);
      break;
  }
  return 0;
}
