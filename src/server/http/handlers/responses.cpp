// /v1/responses and /v1/conversations, which are turns of sessions and sessions (docs/decisions/0025).
#include <array>
#include <cstddef>
#include <expected>
#include <format>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http/handlers/live_responses.h"
#include "server/http/handlers/response_requests.h"
#include "server/http/handlers/response_sinks.h"
#include "server/http/handlers/stored_replies.h"
#include "server/http/http_connection.h"
#include "server/http/reply_log.h"
#include "server/http/routes.h"
#include "server/http/rules.h"
#include "server/within.h"
#include "wire/openai/compaction.h"
#include "wire/openai/response_encoder.h"
#include "wire/openai/response_ids.h"
#include "wire/openai/responses_decoder.h"
#include "wire/openai/stored_responses.h"

namespace uma::server {
namespace {

using handlers::Answer;

std::string conversation_of(const SessionDetail& session) {
  return wire::conversation_json(session.info);
}

Answer respond_unknown(HttpConnection& connection, const HttpRequest& request, std::string_view what) {
  const Error error{ErrorCode::session_unknown, std::format("no such {}: it never existed or was deleted", what)};
  co_return co_await connection.respond_error(404, error, request.keep_alive);
}

// Cancels the response if it is in progress. Its end has been told everywhere when the answer comes.
auto ask_to_cancel(HttpConnection& connection, wire::ResponseId id) {
  return connection.ask<ResponseDetail>([&connection, id = std::move(id)](Promise<ResponseDetail> reply) mutable {
    connection.service().cancel_response(connection.tenant(), std::move(id.session), std::move(id.response), std::move(reply));
  });
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
  auto begun = co_await connection.ask<BegunResponse>([&](Promise<BegunResponse> reply) {
    connection.generate_detached(
        std::move(generate),
        std::make_shared<BackgroundSink>(server.live, server.live->make_log(connection.tenant()), server.busy, std::move(share),
                                         connection.tenant(), std::move(encoder), connection.apart(), std::move(reply)));
  });
  if (!begun) co_return false;
  if (!*begun) co_return co_await respond_refused(connection, request, begun->error(), session_field);
  connection.note_session((*begun)->session);
  co_return co_await connection.respond(200, kJson, std::move((*begun)->json), request.keep_alive);
}

// Starts a response as begin_in_background() does, and answers with its events. The reply goes on if the client leaves.
Answer stream_from_background(HttpConnection& connection, const HttpRequest& request, GenerateRequest generate,
                              wire::ResponseEncoder encoder, RequestShare share, std::string_view session_field) {
  HttpState& server = connection.server();
  const std::shared_ptr<ReplyLog> log = server.live->make_log(connection.tenant());
  auto reader = log->open_reader(std::nullopt, connection.waker());
  auto beginning = connection.ask<BegunResponse>([&](Promise<BegunResponse> reply) {
    connection.generate_detached(std::move(generate), std::make_shared<BackgroundSink>(
                                                          server.live, log, server.busy, std::move(share), connection.tenant(),
                                                          std::move(encoder), connection.apart(), std::move(reply)));
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

auto ask_for_session(HttpConnection& connection, std::string session) {
  return connection.ask<SessionDetail>([&connection, session = std::move(session)](Promise<SessionDetail> reply) mutable {
    connection.service().get_session(connection.tenant(), std::move(session), std::move(reply));
  });
}

// Answers with items, for whose texts of so many bytes and their JSON `share` is charged.
Answer respond_with_items(HttpConnection& connection, const HttpRequest& request, std::size_t bytes, wire::ItemPage page,
                          RequestShare share, std::string (*json)(const wire::ItemPage& page)) {
  auto images = co_await connection.until_gone(read_images(connection, page.items));
  if (!images) co_return false;
  if (!*images) co_return co_await connection.respond_failed(images->error(), request);
  RequestShare images_share = **std::move(images);
  bytes += bytes_of_urls(page.items);
  auto body = co_await connection.run_apart(
      bytes, [page = std::move(page), json, shares = std::pair(share, images_share)] { return json(page); });
  if (images_share != nullptr) images_share->give_back();  // The URLs are gone, and the body is counted from now on.
  co_return co_await connection.respond(200, kJson, std::move(body), request.keep_alive, "", std::move(share));
}

// Answers with a part of a list, which page_of(value) selects; it owns what it refers to.
template <class T, class PageT>
Answer respond_with_page(HttpConnection& connection, std::optional<Expected<T>> value, const HttpRequest& request,
                         PageT page_of) {
  if (!value || !*value) {
    co_return co_await connection.respond_with(std::move(value), request, [](const T&) { return std::string(); });
  }
  const std::size_t bytes = answer_bytes(**value);
  auto held = connection.hold(2 * bytes);
  if (!held) co_return co_await connection.respond_failed(held.error(), request);
  RequestShare share = *std::move(held);
  auto page = co_await connection.run_apart(
      bytes, [value = std::move(**value), page_of = std::move(page_of), share] { return page_of(value); });
  if (!page) co_return co_await connection.respond_rejected(page.error(), request);
  co_return co_await respond_with_items(connection, request, bytes, *std::move(page), std::move(share), wire::item_page_json);
}

// Writes the summary of a conversation.
class CompactionWriter final : public AnswerEncoder {
 public:
  explicit CompactionWriter(wire::Compaction compaction) : compaction_(std::move(compaction)) {}

  void append_first(std::string&) override {}
  void append_text(std::string&, const TokenEvent&) override {}
  void append_last(std::string&, const EosEvent&) override {}
  std::size_t end_bytes(const EosEvent& eos) override {
    return answer_bytes(eos) + compaction_.items.size() + compaction_.user_items.size();
  }
  std::string whole(const EosEvent& eos) override {
    return wire::compaction_json(compaction_, random_name() + random_name() + random_name(), unix_time_s(), eos);
  }

 private:
  const wire::Compaction compaction_;
};

}  // namespace

Answer handlers::create_response(HttpConnection& connection, const HttpRequest& request) {
  auto prepared = co_await connection.until_gone(prepare_response(connection, connection.keep_body()));
  if (!prepared) co_return false;
  auto& made = *prepared;
  if (!made) co_return co_await connection.respond_failed(made.error().error, request, made.error().field);
  if (made->is_background && connection.server().draining) {
    const Error error{ErrorCode::limit_wait, "the daemon is stopping and accepts no new generations"};
    co_return co_await connection.respond_error(503, error, false);
  }
  const bool is_stream = made->generate.options.stream;
  if (made->is_background) {
    const auto respond = is_stream ? stream_from_background : begin_in_background;
    co_return co_await respond(connection, request, std::move(made->generate), std::move(made->encoder), std::move(made->share),
                               made->session_field);
  }
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(made->generate))
      .encoders.push_back(
          std::make_unique<ResponseWriter>(std::move(made->encoder), connection.server().live, connection.tenant(), is_stream));
  co_return co_await connection.generate(std::move(generations), request, made->session_field);
}

Answer handlers::count_response_tokens(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_token_count);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  call->generate.model = connection.choose_model(call->generate.model, Capability::chat);
  co_return co_await connection.count_tokens(std::move(call->generate), request, wire::input_tokens_json);
}

Answer handlers::compact_response(HttpConnection& connection, const HttpRequest& request) {
  KeptBodyPtr body = connection.keep_body();
  auto previous = co_await connection.read_body(body, wire::decode_compacted_response);
  if (!previous) co_return co_await connection.respond_rejected(previous.error(), request);
  std::vector<wire::Item> earlier;
  std::size_t earlier_bytes = 0;
  std::vector<RequestShare> shares;  // Charged for them.
  if (*previous) {
    auto detail = co_await ask_for_response(connection, **std::move(previous));
    if (!detail) co_return false;
    if (!*detail) co_return co_await respond_refused(connection, request, detail->error(), "previous_response_id");
    const std::size_t bytes = answer_bytes(**detail);
    auto held = connection.hold(2 * bytes);
    if (!held) co_return co_await respond_refused(connection, request, held.error(), "");
    earlier = co_await connection.run_apart(
        bytes, [detail = std::move(**detail), share = *held] { return wire::items_through(detail); });
    auto images = co_await connection.until_gone(read_images(connection, earlier));
    if (!images) co_return false;
    if (!*images) co_return co_await respond_refused(connection, request, images->error(), "");
    shares = {*std::move(held), **std::move(images)};
    earlier_bytes = bytes + bytes_of_urls(earlier);
  }
  const std::size_t bytes = body->text.size() + earlier_bytes;
  auto compaction =
      co_await connection.run_apart(bytes, [body = std::move(body), earlier = std::move(earlier), shares = std::move(shares)] {
        return wire::decode_compaction(body->text, earlier);
      });
  if (!compaction) co_return co_await connection.respond_rejected(compaction.error(), request);
  const auto items_held = connection.hold(2 * (compaction->items.size() + compaction->user_items.size()));
  if (!items_held) co_return co_await respond_refused(connection, request, items_held.error(), "");
  auto body_held = connection.hold(compaction->body.size());
  if (!body_held) co_return co_await respond_refused(connection, request, body_held.error(), "");
  auto prepared = co_await connection.until_gone(
      prepare_response(connection, std::make_shared<const KeptBody>(std::move(compaction->body), *std::move(body_held))));
  if (!prepared) co_return false;
  auto& made = *prepared;
  if (!made) co_return co_await connection.respond_rejected(made.error(), request);
  std::vector<HttpGeneration> generations;
  generations.emplace_back(std::move(made->generate))
      .encoders.push_back(std::make_unique<CompactionWriter>(std::move(*compaction)));
  co_return co_await connection.generate(std::move(generations), request);
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
    const std::size_t bytes = answer_bytes(**detail);
    auto held = connection.hold(3 * bytes);  // The conversation, and its texts in deltas and items.
    if (!held) co_return co_await connection.respond_failed(held.error(), request);
    auto events = co_await connection.run_apart(bytes, [detail = std::move(**detail), after = query->after, share = *held] {
      return wire::response_events(detail, after);
    });
    co_return co_await connection.respond(200, "text/event-stream", std::move(events), request.keep_alive,
                                          "Cache-Control: no-cache\r\n", *std::move(held));
  }
  co_return co_await connection.respond_with(std::move(detail), request, wire::response_json, answer_bytes);
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
  auto done = co_await connection.ask<Unit>([&](Promise<Unit> reply) {
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
  co_return co_await connection.respond_with(std::move(detail), request, wire::response_json, answer_bytes);
}

Answer handlers::list_input_items(HttpConnection& connection, const HttpRequest& request) {
  auto id = wire::parse_response_id(request.ids.front());
  if (!id) co_return co_await respond_unknown(connection, request, "response");
  connection.note_session(id->session);
  const auto page = wire::decode_page(request.query);
  if (!page) co_return co_await connection.respond_rejected(page.error(), request);
  auto detail = co_await ask_for_response(connection, std::move(*id));
  co_return co_await respond_with_page(connection, std::move(detail), request,
                                       [page = *page](const ResponseDetail& made) { return wire::input_items(made, page); });
}

Answer handlers::create_conversation(HttpConnection& connection, const HttpRequest& request) {
  auto found = co_await connection.until_gone(find_items(connection, connection.keep_body()));
  if (!found) co_return false;
  auto given = *std::move(found);
  if (given->problem) co_return co_await connection.respond_failed(*given->problem, request, given->problem->field);
  auto call = co_await connection.read_body(
      given->body, [given](std::string_view body) { return wire::decode_conversation(body, given->items); });
  given.reset();
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto made = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
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
  auto metadata = co_await connection.read_body(request.body, wire::decode_metadata);
  if (!metadata) co_return co_await connection.respond_rejected(metadata.error(), request);
  auto changed = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
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
  auto done = co_await connection.ask<Unit>([&](Promise<Unit> reply) {
    connection.service().end_session(connection.tenant(), std::move(*session), std::move(reply));
  });
  co_return co_await connection.respond_with(
      std::move(done), request, [&](Unit) { return wire::deleted_json(request.ids.front(), "conversation.deleted"); });
}

Answer handlers::create_conversation_items(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto found = co_await connection.until_gone(find_items(connection, connection.keep_body()));
  if (!found) co_return false;
  auto given = *std::move(found);
  if (given->problem) co_return co_await connection.respond_failed(*given->problem, request, given->problem->field);
  // One is stored, and the answer repeats the other.
  using Inputs = std::expected<std::array<Input, 2>, wire::RejectedBody>;
  auto inputs = co_await connection.read_body(given->body, [given](std::string_view body) -> Inputs {
    auto input = wire::decode_items(body, given->items);
    if (!input) return std::unexpected(std::move(input.error()));
    Input copy = *input;
    return std::array{*std::move(input), std::move(copy)};
  });
  given.reset();
  if (!inputs) co_return co_await connection.respond_rejected(inputs.error(), request);
  auto& [stored, repeated] = *inputs;
  const std::size_t bytes = memory_of(repeated);
  auto held = connection.hold(2 * bytes);
  if (!held) co_return co_await connection.respond_failed(held.error(), request);
  auto appended = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
    connection.service().append_input(connection.tenant(), {.session = std::move(*session), .input = std::move(stored)},
                                      std::move(reply));
  });
  co_return co_await connection.respond_with(
      std::move(appended), request,
      [items = std::move(repeated)](const SessionInfo& info) { return wire::appended_items_json(info, items); }, nullptr,
      {.bytes = bytes, .share = *std::move(held)});
}

Answer handlers::list_conversation_items(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  const auto page = wire::decode_page(request.query);
  if (!page) co_return co_await connection.respond_rejected(page.error(), request);
  auto detail = co_await ask_for_session(connection, std::move(*session));
  co_return co_await respond_with_page(connection, std::move(detail), request, [page = *page](const SessionDetail& said) {
    return wire::conversation_items(said, page);
  });
}

Answer handlers::get_conversation_item(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto detail = co_await ask_for_session(connection, std::move(*session));
  if (!detail || !*detail) co_return co_await connection.respond_with(std::move(detail), request, conversation_of);
  const std::size_t bytes = answer_bytes(**detail);
  auto held = connection.hold(2 * bytes);
  if (!held) co_return co_await connection.respond_failed(held.error(), request);
  RequestShare share = *std::move(held);
  auto item = co_await connection.run_apart(
      bytes, [detail = std::move(**detail), id = request.ids.back(), share] { return wire::conversation_item(detail, id); });
  if (!item) co_return co_await connection.respond_rejected(item.error(), request);
  wire::ItemPage one;
  one.items.push_back(*std::move(item));
  co_return co_await respond_with_items(connection, request, bytes, std::move(one), std::move(share),
                                        [](const wire::ItemPage& page) { return wire::item_json(page.items.front()); });
}

Answer handlers::delete_conversation_item(HttpConnection& connection, const HttpRequest& request) {
  auto session = wire::parse_conversation_id(request.ids.front());
  if (!session) co_return co_await respond_unknown(connection, request, "conversation");
  connection.note_session(*session);
  auto detail = co_await ask_for_session(connection, *session);
  if (!detail || !*detail) {
    co_return co_await connection.respond_with(std::move(detail), request, conversation_of);
  }
  const std::size_t bytes = answer_bytes(**detail);
  const auto held = connection.hold(bytes);
  if (!held) co_return co_await connection.respond_failed(held.error(), request);
  const auto place = co_await connection.run_apart(bytes, [detail = std::move(**detail), id = request.ids.back(),
                                                           share = *held] { return wire::removable_message(detail, id); });
  if (!place) co_return co_await connection.respond_rejected(place.error(), request);
  auto left = co_await connection.ask<SessionDetail>([&](Promise<SessionDetail> reply) {
    connection.service().remove_last_message(connection.tenant(), std::move(*session), *place, std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(left), request, conversation_of);
}

}  // namespace uma::server
