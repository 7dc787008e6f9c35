#include "server/http/handlers/response_requests.h"

#include <format>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/capability.h"
#include "core/limits.h"
#include "server/http/handlers/stored_replies.h"
#include "server/http/http_connection.h"
#include "server/http/http_generation.h"
#include "wire/image_fields.h"
#include "wire/openai/stored_responses.h"

namespace uma::server {

// Reads the images of the items, up to the limit of one request.
Awaitable<void> read_images(HttpConnection& connection, std::span<wire::Item> items) {
  constexpr std::size_t kBytesMax = kConversationBytesMax;
  std::vector<std::string> ids;
  for (const wire::Item& item : items) {
    for (const wire::ItemImage& image : item.images) ids.push_back(image.id);
  }
  if (ids.empty()) co_return;
  const auto files = co_await connection.ask<std::vector<Bytes>>([&](Promise<std::vector<Bytes>> reply) {
    connection.service().read_images(std::move(ids), kBytesMax, std::move(reply));
  });
  if (!files || !*files) co_return;
  auto file = (*files)->begin();
  for (wire::Item& item : items) {
    for (wire::ItemImage& image : item.images) {
      if (!file->empty()) image.url = wire::data_uri(*file);
      ++file;
    }
  }
}

Awaitable<std::shared_ptr<const BodyWithItems>> find_items(HttpConnection& connection, std::string_view body) {
  constexpr std::size_t kSessionsMax = 16;  // Limit per request.
  auto found = std::make_shared<BodyWithItems>(BodyWithItems{.body = body});
  std::map<std::string, std::vector<std::string>> ids_by_session;
  std::vector<std::string> all_ids = co_await connection.read_body(body, wire::referenced_items);
  for (std::string& id : all_ids) {
    std::string session = wire::session_of_item(id);
    if (!session.empty()) ids_by_session[std::move(session)].push_back(std::move(id));
  }
  if (ids_by_session.empty()) co_return found;
  if (ids_by_session.size() > kSessionsMax) {
    found->problem = Error{ErrorCode::proto_field,
                           std::format("the items that \"input\" refers to are of {} conversations, but the limit is {}: send "
                                       "older ones in full",
                                       ids_by_session.size(), kSessionsMax),
                           "input"};
    co_return found;
  }
  found->kept = body;
  found->body = found->kept;
  for (const auto& [session, ids] : ids_by_session) {
    auto detail = co_await connection.ask<SessionDetail>([&](Promise<SessionDetail> reply) {
      connection.service().get_session(connection.tenant(), session, std::move(reply));
    });
    if (!detail) co_return found;  // The client is gone.
    if (!*detail && detail->error().code == ErrorCode::session_unknown) continue;
    if (!*detail) {
      found->problem = detail->error();
      co_return found;
    }
    const std::size_t bytes = (*detail)->bytes();
    std::vector<wire::Item> items = co_await connection.run_apart(
        bytes, [detail = std::move(**detail), wanted = ids] { return wire::items_with_ids(detail, wanted); });
    co_await read_images(connection, items);
    using ItemTexts = std::vector<std::pair<std::string, std::string>>;
    for (auto& [item_id, text] : co_await connection.run_apart(bytes, [items = std::move(items)] {
           ItemTexts texts;
           for (const wire::Item& item : items) texts.emplace_back(item.id, wire::item_json(item));
           return texts;
         })) {
      found->items[std::move(item_id)] = std::move(text);
    }
  }
  co_return found;
}

Awaitable<std::expected<PreparedResponse, wire::RejectedBody>> prepare_response(HttpConnection& connection,
                                                                                std::string_view body,
                                                                                std::string_view held_previous) {
  std::string id = random_name();
  const auto given = co_await find_items(connection, body);
  if (given->problem) co_return std::unexpected(wire::RejectedBody{*given->problem, given->problem->field});
  auto call =
      co_await connection.read_body(given->body, [given, id, previous = std::string(held_previous)](std::string_view text) {
        return wire::decode_response(text, id, given->items, previous);
      });
  if (!call) co_return std::unexpected(call.error());
  if (call->generate.response) call->generate.response->ttl_s = kReplySessionTtlSeconds;
  if (!call->generate.session.empty()) keep_model_of_session(connection, call->generate.model);
  const std::string model = connection.choose_model(call->generate.model, Capability::chat);
  if (!call->generate.model.empty()) call->generate.model = model;
  connection.warn(call->warnings);
  const bool names_response = call->generate.response && !call->generate.response->previous.empty();
  wire::ResponseEncoder encoder({random_name() + random_name(), std::move(id)},
                                {.request = std::move(call->request),
                                 .brief_request = std::move(call->brief_request),
                                 .model = model,
                                 .created_s = unix_time_s(),
                                 .tools = std::move(call->tools),
                                 .seals_reasoning = call->seals_reasoning,
                                 .is_compared = !call->generate.comparison.with.empty()});
  RequestShare share = connection.service().open_share(connection.tenant());
  if (const auto held = share->grow(encoder.bytes() * 2); !held)
    co_return std::unexpected(wire::RejectedBody{held.error(), held.error().field});
  co_return PreparedResponse{.generate = std::move(call->generate),
                             .encoder = std::move(encoder),
                             .share = std::move(share),
                             .session_field = names_response ? "previous_response_id" : "conversation",
                             .is_background = call->is_background};
}

}  // namespace uma::server
