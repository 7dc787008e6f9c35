// /v1/responses and /v1/conversations, which are turns of sessions and sessions (docs/decisions/0025).
#include <format>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http/http_connection.h"
#include "server/http/live_responses.h"
#include "server/http/reply_log.h"
#include "server/http/response_sinks.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "server/within.h"
#include "wire/image_fields.h"
#include "wire/ollama_models.h"
#include "wire/response_encoder.h"
#include "wire/response_ids.h"
#include "wire/responses_decoder.h"
#include "wire/stored_responses.h"

namespace uma::server {
namespace {

using handlers::Answer;

constexpr std::int64_t kResponseTtlSeconds = 30 * 86'400;  // The same lifetime as OpenAI's.

std::string conversation_of(const SessionDetail& session) {
  return wire::conversation_json(session.info);
}

Answer respond_unknown(HttpConnection& connection, const HttpRequest& request, std::string_view what) {
  const Error error{ErrorCode::session_unknown, std::format("no such {}: it never existed or was deleted", what)};
  co_return co_await connection.respond_error(404, error, request.keep_alive);
}

auto ask_for_response(HttpConnection& connection, wire::ResponseId id) {
  return connection.ask<ResponseDetail>([&connection, id = std::move(id)](Reply<ResponseDetail> reply) mutable {
    connection.service().get_response(connection.tenant(), std::move(id.session), std::move(id.response), std::move(reply));
  });
}

// Cancels the response if it is in progress. Its end has been told everywhere when the answer comes.
auto ask_to_cancel(HttpConnection& connection, wire::ResponseId id) {
  return connection.ask<ResponseDetail>([&connection, id = std::move(id)](Reply<ResponseDetail> reply) mutable {
    connection.service().cancel_response(connection.tenant(), std::move(id.session), std::move(id.response), std::move(reply));
  });
}

auto ask_for_session(HttpConnection& connection, std::string session) {
  return connection.ask<SessionDetail>([&connection, session = std::move(session)](Reply<SessionDetail> reply) mutable {
    connection.service().get_session(connection.tenant(), std::move(session), std::move(reply));
  });
}

// Reads the images of the items, up to the limit of one request.
Awaitable<void> read_images(HttpConnection& connection, std::span<wire::Item> items) {
  constexpr std::size_t kBytesMax = kConversationBytesMax;
  std::vector<std::string> ids;
  for (const wire::Item& item : items) {
    for (const wire::ItemImage& image : item.images) ids.push_back(image.id);
  }
  if (ids.empty()) co_return;
  const auto files = co_await connection.ask<std::vector<Bytes>>(
      [&](Reply<std::vector<Bytes>> reply) { connection.service().read_images(std::move(ids), kBytesMax, std::move(reply)); });
  if (!files || !*files) co_return;
  auto file = (*files)->begin();
  for (wire::Item& item : items) {
    for (wire::ItemImage& image : item.images) {
      if (!file->empty()) image.url = wire::data_uri(*file);
      ++file;
    }
  }
}

// In a conversation a name that no model has means the model of the conversation: `asked` becomes empty.
void keep_model_of_session(HttpConnection& connection, std::string& asked) {
  const Service& service = connection.service();
  const std::string plain(wire::without_latest_tag(asked));
  if (asked.empty() || service.resolve_model(plain) || !service.choose_model(plain, Capability::chat)) return;
  connection.warn(std::format("model {} is unknown here; the model of the conversation answers", asked));
  asked.clear();
}

// The body of a request, and the items that its input refers to. Those that are not found are left out.
struct BodyWithItems {
  std::string kept{};  // A copy of a body with references, since a request's own is gone after the first wait.
  std::string_view body;
  wire::ReferencedItems items{};
  std::optional<Error> problem{};  // Why items could not be looked up.
};

Awaitable<std::unique_ptr<const BodyWithItems>> find_items(HttpConnection& connection, const HttpRequest& request) {
  constexpr std::size_t kSessionsMax = 16;  // Of one request.
  auto found = std::make_unique<BodyWithItems>(BodyWithItems{.body = request.body});
  std::map<std::string, std::vector<std::string>> ids_by_session;
  if (request.body.contains("\"id\"")) {
    for (std::string& id : wire::referenced_items(request.body)) {
      std::string session = wire::session_of_item(id);
      if (!session.empty()) ids_by_session[std::move(session)].push_back(std::move(id));
    }
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
  found->kept = request.body;
  found->body = found->kept;
  for (const auto& [session, ids] : ids_by_session) {
    const auto detail = co_await ask_for_session(connection, session);
    if (!detail) co_return found;  // The client is gone.
    if (!*detail && detail->error().code == ErrorCode::session_unknown) continue;
    if (!*detail) {
      found->problem = detail->error();
      co_return found;
    }
    std::vector<wire::Item> items = wire::items_with_ids(**detail, ids);
    co_await read_images(connection, items);
    for (const wire::Item& item : items) found->items[item.id] = wire::item_json(item);
  }
  co_return found;
}

Answer respond_refused(HttpConnection& connection, const HttpRequest& request, const Error& error,
                       std::string_view session_field) {
  const bool is_session = error.code == ErrorCode::session_unknown || error.code == ErrorCode::session_busy;
  co_return co_await connection.respond_error(http_status(error.code), error, request.keep_alive,
                                              is_session ? session_field : error.field, retry_header(error.code));
}

// Answers with the events that the reader gets, to the last one.
Answer stream_events(HttpConnection& connection, const HttpRequest& request, std::unique_ptr<ReplyLog::Reader> reader) {
  auto next = [reader = std::move(reader), has_begun = false](std::string& out) mutable {
    const ReplyLog::State state = reader->read(out);
    if (state == ReplyLog::State::lost) {
      out += wire::response_error_event({ErrorCode::limit_wait,
                                         "the client read too slowly, and events that it has not got are "
                                         "not kept: read the response when it has ended"});
    }
    if (!std::exchange(has_begun, true) && out.empty()) out += ": waiting\n\n";  // The client learns that it is served.
    return state == ReplyLog::State::open;
  };
  co_return co_await connection.stream("text/event-stream", std::move(next), request);
}

// Starts a response whose reply is made without the connection, and answers with it as soon as it has a place.
Answer begin_in_background(HttpConnection& connection, const HttpRequest& request, GenerateRequest generate,
                           wire::ResponseEncoder encoder, RequestShare share, std::string_view session_field) {
  HttpState& server = connection.server();
  auto begun = co_await connection.ask<BegunResponse>([&](Reply<BegunResponse> reply) {
    connection.generate_detached(
        std::move(generate),
        std::make_shared<BackgroundSink>(server.live, server.live->make_log(connection.tenant()), server.busy, std::move(share),
                                         connection.tenant(), std::move(encoder), std::move(reply)));
  });
  if (!begun) co_return false;
  if (!*begun) co_return co_await respond_refused(connection, request, begun->error(), session_field);
  connection.note_session((*begun)->session);
  co_return co_await connection.respond(200, kJson, std::move((*begun)->json), request.keep_alive);
}

// The same, and answers with its events. The reply goes on if the client leaves.
Answer stream_from_background(HttpConnection& connection, const HttpRequest& request, GenerateRequest generate,
                              wire::ResponseEncoder encoder, RequestShare share, std::string_view session_field) {
  HttpState& server = connection.server();
  const std::shared_ptr<ReplyLog> log = server.live->make_log(connection.tenant());
  auto reader = log->open_reader(std::nullopt, connection.waker());
  auto beginning = connection.ask<BegunResponse>([&](Reply<BegunResponse> reply) {
    connection.generate_detached(std::move(generate),
                                 std::make_shared<BackgroundSink>(server.live, log, server.busy, std::move(share),
                                                                  connection.tenant(), std::move(encoder), std::move(reply)));
  });
  // The stream begins after a while even if the response still waits for its place. Errors after that are events.
  const auto begun = co_await connection.until_gone(within(server.options.keep_alive_interval, std::move(beginning)));
  if (!begun) co_return false;
  if (const auto& answer = *begun; answer && *answer) {
    if (!**answer) co_return co_await respond_refused(connection, request, (*answer)->error(), session_field);
    connection.note_session((**answer)->session);
  }
  co_return co_await stream_events(connection, request, std::move(*reader));
}

// Answers with a part of a list, which page_of(value) selects.
template <class T, class PageT>
Answer respond_with_page(HttpConnection& connection, std::optional<Expected<T>> value, const HttpRequest& request,
                         PageT page_of) {
  if (!value || !*value) {
    co_return co_await connection.respond_with(std::move(value), request, [](const T&) { return std::string(); });
  }
  auto page = page_of(**value);
  if (!page) co_return co_await connection.respond_rejected(page.error(), request);
  co_await read_images(connection, page->items);
  co_return co_await connection.respond(200, "application/json", wire::item_page_json(*page), request.keep_alive);
}

}  // namespace

Answer handlers::create_response(HttpConnection& connection, const HttpRequest& request) {
  std::string id = random_name();
  const auto given = co_await find_items(connection, request);
  if (given->problem) co_return co_await connection.respond_rejected({*given->problem, given->problem->field}, request);
  auto call = wire::decode_response(given->body, id, given->items);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  if (call->generate.response) call->generate.response->ttl_s = kResponseTtlSeconds;
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
                                 .seals_reasoning = call->seals_reasoning});
  const std::string_view session_field = names_response ? "previous_response_id" : "conversation";
  // The encoder, and the JSON for clients that ask.
  RequestShare share = connection.service().open_share(connection.tenant());
  if (const auto held = share->grow(encoder.bytes() * 2); !held) {
    co_return co_await respond_refused(connection, request, held.error(), "");
  }
  if (call->is_background && connection.server().draining) {
    const Error error{ErrorCode::limit_wait, "the daemon is stopping and accepts no new generations"};
    co_return co_await connection.respond_error(503, error, false);
  }
  if (call->is_background) {
    const auto respond = call->generate.options.stream ? stream_from_background : begin_in_background;
    co_return co_await respond(connection, request, std::move(call->generate), std::move(encoder), std::move(share),
                               session_field);
  }
  const bool is_stream = call->generate.options.stream;
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(call->generate))
      .encoders.push_back(
          std::make_unique<ResponseWriter>(std::move(encoder), connection.server().live, connection.tenant(), is_stream));
  co_return co_await connection.generate(std::move(generations), request, session_field);
}

Answer handlers::count_response_tokens(HttpConnection& connection, const HttpRequest& request) {
  auto call = wire::decode_token_count(request.body);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  call->generate.model = connection.choose_model(call->generate.model, Capability::chat);
  co_return co_await connection.count_tokens(std::move(call->generate), request, wire::input_tokens_json);
}

Answer handlers::refuse_compaction(HttpConnection& connection, const HttpRequest& request) {
  const Error error{ErrorCode::model_capability,
                    "/v1/responses/compact is not served: ask for a summary as a message, or set \"truncation\" to \"auto\""};
  co_return co_await connection.respond_error(501, error, request.keep_alive);
}

Answer handlers::get_response(HttpConnection& connection, const HttpRequest& request) {
  auto id = wire::parse_response_id(request.ids.front());
  if (!id) co_return co_await respond_unknown(connection, request, "response");
  connection.note_session(id->session);
  const auto query = wire::decode_response_query(request.query);
  if (!query) co_return co_await connection.respond_rejected(query.error(), request);
  // In this order, because a response is stored before it is no longer live.
  const LiveResponses& live = *connection.server().live;
  if (query->is_stream) {
    if (const auto log = live.find_log(request.ids.front(), connection.tenant())) {
      auto reader = log->open_reader(query->after, connection.waker());
      if (!reader) co_return co_await respond_refused(connection, request, reader.error(), "");
      co_return co_await stream_events(connection, request, std::move(*reader));
    }
  } else if (std::string json = live.find(request.ids.front(), connection.tenant()); !json.empty()) {
    co_return co_await connection.respond(200, kJson, std::move(json), request.keep_alive);
  }
  auto detail = co_await ask_for_response(connection, std::move(*id));
  if (query->is_stream && detail && *detail) {
    co_return co_await connection.respond(200, "text/event-stream", wire::response_events(**detail, query->after),
                                          request.keep_alive, "Cache-Control: no-cache\r\n");
  }
  co_return co_await connection.respond_with(std::move(detail), request, wire::response_json);
}

Answer handlers::delete_response(HttpConnection& connection, const HttpRequest& request) {
  auto id = wire::parse_response_id(request.ids.front());
  if (!id) co_return co_await respond_unknown(connection, request, "response");
  connection.note_session(id->session);
  LiveResponses& live = *connection.server().live;
  if (!live.find(request.ids.front(), connection.tenant()).empty()) {
    // Nobody waits for the reply any more.
    const auto ended = co_await ask_to_cancel(connection, *id);
    if (!ended) co_return false;
    // A reply that failed after its first token is kept there and is a turn of its session, too: `*ended` has a value.
    const bool was_kept = live.forget_ended(request.ids.front(), connection.tenant());
    if (was_kept && !*ended) {
      co_return co_await connection.respond(200, kJson, wire::deleted_json(request.ids.front(), "response"),
                                            request.keep_alive);
    }
  }
  auto done = co_await connection.ask<Unit>([&](Reply<Unit> reply) {
    connection.service().forget_response(connection.tenant(), std::move(id->session), std::move(id->response),
                                         std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(done), request,
                                             [&](Unit) { return wire::deleted_json(request.ids.front(), "response"); });
}

Answer handlers::cancel_response(HttpConnection& connection, const HttpRequest& request) {
  auto id = wire::parse_response_id(request.ids.front());
  if (!id) co_return co_await respond_unknown(connection, request, "response");
  connection.note_session(id->session);
  auto detail = co_await ask_to_cancel(connection, std::move(*id));
  if (!detail) co_return false;
  if (!*detail) {
    // A response that was cancelled before its first token is not stored.
    std::string json = connection.server().live->find(request.ids.front(), connection.tenant());
    if (!json.empty()) co_return co_await connection.respond(200, kJson, std::move(json), request.keep_alive);
  }
  co_return co_await connection.respond_with(std::move(detail), request, wire::response_json);
}

Answer handlers::list_input_items(HttpConnection& connection, const HttpRequest& request) {
  auto id = wire::parse_response_id(request.ids.front());
  if (!id) co_return co_await respond_unknown(connection, request, "response");
  connection.note_session(id->session);
  const auto page = wire::decode_page(request.query);
  if (!page) co_return co_await connection.respond_rejected(page.error(), request);
  auto detail = co_await ask_for_response(connection, std::move(*id));
  co_return co_await respond_with_page(connection, std::move(detail), request,
                                       [&](const ResponseDetail& made) { return wire::input_items(made, *page); });
}

Answer handlers::create_conversation(HttpConnection& connection, const HttpRequest& request) {
  const auto given = co_await find_items(connection, request);
  if (given->problem) co_return co_await connection.respond_rejected({*given->problem, given->problem->field}, request);
  auto call = wire::decode_conversation(given->body, given->items);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto made = co_await connection.ask<SessionInfo>([&](Reply<SessionInfo> reply) {
    connection.service().create_session(connection.tenant(), std::move(*call), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(made), request, [&](const SessionInfo& info) {
    connection.note_session(info.id.value);
    return wire::conversation_json(info);
  });
}

Answer handlers::get_conversation(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto detail = co_await ask_for_session(connection, std::move(*session));
  co_return co_await connection.respond_with(std::move(detail), request, conversation_of);
}

Answer handlers::update_conversation(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto metadata = wire::decode_metadata(request.body);
  if (!metadata) co_return co_await connection.respond_rejected(metadata.error(), request);
  auto changed = co_await connection.ask<SessionInfo>([&](Reply<SessionInfo> reply) {
    connection.service().update_session(
        connection.tenant(), {.session = std::move(*session), .metadata = std::move(*metadata), .replaces_metadata = true},
        std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(changed), request, wire::conversation_json);
}

Answer handlers::delete_conversation(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto done = co_await connection.ask<Unit>(
      [&](Reply<Unit> reply) { connection.service().end_session(connection.tenant(), std::move(*session), std::move(reply)); });
  co_return co_await connection.respond_with(
      std::move(done), request, [&](Unit) { return wire::deleted_json(request.ids.front(), "conversation.deleted"); });
}

Answer handlers::create_conversation_items(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  const auto given = co_await find_items(connection, request);
  if (given->problem) co_return co_await connection.respond_rejected({*given->problem, given->problem->field}, request);
  const auto input = wire::decode_items(given->body, given->items);
  if (!input) co_return co_await connection.respond_rejected(input.error(), request);
  auto appended = co_await connection.ask<SessionInfo>([&](Reply<SessionInfo> reply) {
    connection.service().append_input(connection.tenant(), {.session = std::move(*session), .input = *input}, std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(appended), request,
                                             [&](const SessionInfo& info) { return wire::appended_items_json(info, *input); });
}

Answer handlers::list_conversation_items(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  const auto page = wire::decode_page(request.query);
  if (!page) co_return co_await connection.respond_rejected(page.error(), request);
  auto detail = co_await ask_for_session(connection, std::move(*session));
  co_return co_await respond_with_page(connection, std::move(detail), request,
                                       [&](const SessionDetail& said) { return wire::conversation_items(said, *page); });
}

Answer handlers::get_conversation_item(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto detail = co_await ask_for_session(connection, std::move(*session));
  if (!detail || !*detail) co_return co_await connection.respond_with(std::move(detail), request, conversation_of);
  auto item = wire::conversation_item(**detail, request.ids.back());
  if (!item) co_return co_await connection.respond_rejected(item.error(), request);
  co_await read_images(connection, std::span(&*item, 1));
  co_return co_await connection.respond(200, "application/json", wire::item_json(*item), request.keep_alive);
}

Answer handlers::delete_conversation_item(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto detail = co_await ask_for_session(connection, *session);
  if (!detail || !*detail) {
    co_return co_await connection.respond_with(std::move(detail), request, conversation_of);
  }
  const auto place = wire::removable_message(**detail, request.ids.back());
  if (!place) co_return co_await connection.respond_rejected(place.error(), request);
  auto left = co_await connection.ask<SessionDetail>([&](Reply<SessionDetail> reply) {
    connection.service().remove_last_message(connection.tenant(), std::move(*session), *place, std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(left), request, conversation_of);
}

}  // namespace uma::server
