#include "server/http/handlers/response_requests.h"

#include <format>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/capability.h"
#include "core/limits.h"
#include "server/http/handlers/stored_replies.h"
#include "server/http/http_generation.h"
#include "wire/image_fields.h"
#include "wire/openai/stored_responses.h"

namespace uma::server {
namespace {

// Requests the end of what a coroutine has started when the coroutine ends.
class EndOfWork {
 public:
  EndOfWork() = default;
  ~EndOfWork() { (void)source_.request_stop(); }
  EndOfWork(const EndOfWork&) = delete;
  EndOfWork& operator=(const EndOfWork&) = delete;
  [[nodiscard]] std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
};

using IdsBySession = std::map<std::string, std::vector<std::string>>;

// The items that the input of a body refers to.
IdsBySession ids_by_session(std::string_view body) {
  IdsBySession ids;
  for (std::string& id : wire::referenced_items(body)) {
    std::string session = wire::session_of_item(id);
    if (!session.empty()) ids[std::move(session)].push_back(std::move(id));
  }
  return ids;
}

wire::ReferencedItems texts_of(std::span<const wire::Item> items) {
  wire::ReferencedItems texts;
  for (const wire::Item& item : items) texts[item.id] = wire::item_json(item);
  return texts;
}

std::vector<wire::Item> with_urls(std::vector<wire::Item> items, const std::vector<Bytes>& files) {
  auto file = files.begin();
  for (wire::Item& item : items) {
    for (wire::ItemImage& image : item.images) {
      if (!file->empty()) image.url = wire::data_uri(*file);
      ++file;
    }
  }
  return items;
}

}  // namespace

std::size_t bytes_of_urls(std::span<const wire::Item> items) {
  std::size_t bytes = 0;
  for (const wire::Item& item : items) {
    for (const wire::ItemImage& image : item.images) bytes += image.url.size();
  }
  return bytes;
}

Awaitable<Expected<RequestShare>> read_images(HttpConnection& connection, std::vector<wire::Item>& items) {
  constexpr std::size_t kBytesMax = kConversationBytesMax;
  std::vector<std::string> ids;
  for (const wire::Item& item : items) {
    for (const wire::ItemImage& image : item.images) ids.push_back(image.id);
  }
  if (ids.empty()) co_return RequestShare();
  const EndOfWork end;
  auto read = co_await connection.ask<ImageFiles>([&](Promise<ImageFiles> reply) {
    connection.service().read_images(connection.tenant(), std::move(ids), kBytesMax, end.token(), std::move(reply));
  });
  if (!read) co_return fail(ErrorCode::limit_wait, "the connection was closed");
  if (!*read) co_return std::unexpected(read->error());
  RequestShare share = (*read)->share;
  std::size_t bytes = 0;
  for (const Bytes& file : (*read)->files) bytes += file.size();
  items = co_await connection.run_apart(bytes, [items = std::move(items), read = std::move(**read)]() mutable {
    return with_urls(std::move(items), read.files);
  });
  co_return share;
}

Awaitable<std::shared_ptr<const BodyWithItems>> find_items(HttpConnection& connection, KeptBodyPtr body) {
  constexpr std::size_t kSessionsMax = 16;  // Limit per request.
  auto found = std::make_shared<BodyWithItems>(BodyWithItems{.body = body});
  IdsBySession all_ids = co_await connection.read_body(body, ids_by_session);
  if (all_ids.empty()) co_return found;
  if (all_ids.size() > kSessionsMax) {
    found->problem = Error{ErrorCode::proto_field,
                           std::format("the items that \"input\" refers to are of {} conversations, but the limit is {}: send "
                                       "older ones in full",
                                       all_ids.size(), kSessionsMax),
                           "input"};
    co_return found;
  }
  for (auto& [session, ids] : all_ids) {
    auto detail = co_await connection.ask<SessionDetail>([&](Promise<SessionDetail> reply) {
      connection.service().get_session(connection.tenant(), session, std::move(reply));
    });
    if (!detail) co_return found;  // The client is gone.
    if (!*detail && detail->error().code == ErrorCode::session_unknown) continue;
    if (!*detail) {
      found->problem = detail->error();
      co_return found;
    }
    std::size_t bytes = (*detail)->bytes();
    auto held = connection.hold(2 * bytes);
    if (!held) {
      found->problem = held.error();
      co_return found;
    }
    found->shares.push_back(*held);
    std::vector<wire::Item> items =
        co_await connection.run_apart(bytes, [detail = std::move(**detail), wanted = std::move(ids), share = *held] {
          return wire::items_with_ids(detail, wanted);
        });
    auto images = co_await read_images(connection, items);
    if (!images) {
      found->problem = images.error();
      co_return found;
    }
    found->shares.push_back(*std::move(images));
    bytes += bytes_of_urls(items);
    auto texts = co_await connection.run_apart(bytes, [items = std::move(items)] { return texts_of(items); });
    found->items.merge(std::move(texts));
  }
  co_return found;
}

Awaitable<std::expected<PreparedResponse, wire::RejectedBody>> prepare_response(HttpConnection& connection, KeptBodyPtr body,
                                                                                std::string_view held_previous) {
  std::string id = random_name();
  const auto given = co_await find_items(connection, std::move(body));
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
