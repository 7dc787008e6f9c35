// /v1/sessions: the session operations of the Unix socket (docs/protocol/http.md), with the same objects as answers.
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "json/json_writer.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "wire/openai/stored_responses.h"
#include "wire/own/event_codec.h"
#include "wire/own/request_codec.h"
#include "wire/query.h"

namespace uma::server {
namespace {

using handlers::Answer;

std::string id_of(const SessionInfo& info) {
  return info.id.value;
}
std::string id_of(const auto& detail) {
  return detail.info.id.value;
}

// Writes the session of an answer, and names it in the header.
auto session_json_for(HttpConnection& connection) {
  return [&connection](const auto& session) {
    connection.note_session(id_of(session));
    return wire::session_json(session);
  };
}

// The request of this type for the session in the path, with the body's fields.
template <class BodyT>
Awaitable<std::expected<BodyT, wire::RejectedBody>> decode(std::string_view type, HttpConnection& connection,
                                                           const HttpRequest& request) {
  const std::string session = request.ids.empty() ? "" : request.ids.front();
  auto body = co_await connection.read_body(
      request.body, [type, session](std::string_view text) { return wire::decode_session_request(type, session, text); });
  if (!body) co_return std::unexpected(std::move(body.error()));
  co_return std::get<BodyT>(std::move(*body));
}

std::string text_of(const PortableFile& file) {
  std::string text;
  text.reserve(file.size());
  for (const auto part : file.parts) text.append(reinterpret_cast<const char*>(part.data()), part.size());
  return text;
}

// Parses ?after=…&limit=…&order=…&q=…
std::expected<SessionListRequest, wire::RejectedBody> decode_list(std::string_view query) {
  const std::string limit = wire::query_value(query, "limit");
  const auto number = wire::query_integer(limit);
  std::string body;
  json::ObjectWriter object(body);
  for (const std::string_view name : {"after", "order", "q"}) {
    if (const std::string value = wire::query_value(query, name); !value.empty()) object.field(name, value);
  }
  if (number) object.field("limit", *number);
  if (!number && !limit.empty()) object.field("limit", limit);
  object.close();
  auto decoded = wire::decode_session_request("list_sessions", "", body);
  if (!decoded) return std::unexpected(std::move(decoded.error()));
  return std::get<SessionListRequest>(std::move(*decoded));
}

}  // namespace

Answer handlers::create_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<CreateSessionRequest>("create_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto made = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
    connection.service().create_session(connection.tenant(), std::move(*call), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(made), request, session_json_for(connection));
}

Answer handlers::list_sessions(HttpConnection& connection, const HttpRequest& request) {
  auto call = decode_list(request.query);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto sessions = co_await connection.ask<SessionList>([&](Promise<SessionList> reply) {
    connection.service().list_sessions(connection.tenant(), std::move(*call), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(sessions), request,
                                             [](const SessionList& list) { return wire::sessions_json(list); }, answer_bytes,
                                             {.has_etag = true});
}

Answer handlers::get_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<wire::GetSessionRequest>("get_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto session = co_await connection.ask<SessionDetail>([&](Promise<SessionDetail> reply) {
    connection.service().get_session(connection.tenant(), std::move(call->session), std::move(reply));
  });
  if (session && *session) connection.note_session(id_of(**session));
  co_return co_await connection.respond_with(
      std::move(session), request, [](const SessionDetail& detail) { return wire::session_json(detail); },
      [](const SessionDetail& detail) { return detail.bytes(); });
}

Answer handlers::get_receipt(HttpConnection& connection, const HttpRequest& request) {
  auto usage = co_await connection.ask<Usage>([&](Promise<Usage> reply) {
    connection.service().find_receipt(connection.tenant(), request.ids.front(), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(usage), request, wire::receipt_json);
}

Answer handlers::list_receipts(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<wire::GetSessionRequest>("get_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto receipts = co_await connection.ask<std::vector<TurnReceipt>>([&](Promise<std::vector<TurnReceipt>> reply) {
    connection.service().list_receipts(connection.tenant(), std::move(call->session), std::move(reply));
  });
  co_return co_await connection.respond_with(
      std::move(receipts), request, [](const std::vector<TurnReceipt>& all) { return wire::receipts_json(all); }, answer_bytes);
}

Answer handlers::end_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<wire::EndSessionRequest>("end_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto ended = co_await connection.ask<Unit>([&](Promise<Unit> reply) {
    connection.service().end_session(connection.tenant(), std::move(call->session), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(ended), request,
                                             [&](Unit) { return wire::deleted_json(request.ids.front(), "session.deleted"); });
}

Answer handlers::fork_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<ForkRequest>("fork_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto made = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
    connection.service().fork_session(connection.tenant(), std::move(*call), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(made), request, session_json_for(connection));
}

Answer handlers::update_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<UpdateSessionRequest>("update_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto session = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
    connection.service().update_session(connection.tenant(), std::move(*call), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(session), request, session_json_for(connection));
}

Answer handlers::rewind_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<wire::RewindSessionRequest>("rewind_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto session = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
    connection.service().rewind_session(connection.tenant(), std::move(call->session), call->turn, std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(session), request, session_json_for(connection));
}

Answer handlers::touch_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<wire::TouchRequest>("touch", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto session = co_await connection.ask<SessionInfo>([&](Promise<SessionInfo> reply) {
    connection.service().touch_session(connection.tenant(), std::move(call->session), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(session), request, session_json_for(connection));
}

// Exports without KV, because the answer is one body and a body that large could not be imported again.
Answer handlers::export_session(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await decode<wire::ExportSessionRequest>("export_session", connection, request);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  auto exported = co_await connection.ask<ExportedSession>([&](Promise<ExportedSession> reply) {
    connection.service().export_session(connection.tenant(), std::move(call->session), /*with_kv=*/false, std::move(reply));
  });
  if (!exported || !*exported) {
    co_return co_await connection.respond_with(std::move(exported), request, [](const auto&) { return std::string(); });
  }
  const std::size_t bytes = (*exported)->file.size();
  auto held = connection.hold(2 * bytes);  // The file and its copy.
  if (!held) co_return co_await connection.respond_failed(held.error(), request);
  auto body =
      co_await connection.run_apart(bytes, [file = std::move((*exported)->file), share = *held] { return text_of(file); });
  co_return co_await connection.respond(200, "application/octet-stream", std::move(body), request.keep_alive, "",
                                        *std::move(held));
}

// The body is the file; the query's ?name=… is the name of the new session, if it is not to have that of the file.
Answer handlers::import_session(HttpConnection& connection, const HttpRequest& request) {
  std::string fields;
  json::ObjectWriter object(fields);
  if (const std::string name = wire::query_value(request.query, "name"); !name.empty()) object.field("name", name);
  object.close();
  auto call = wire::decode_session_request("import_session", "", fields);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  const KeptBodyPtr body = connection.keep_body();
  auto imported = co_await connection.ask<ImportedSession>([&](Promise<ImportedSession> reply) {
    connection.service().import_session(connection.tenant(),
                                        {.name = std::get<wire::ImportSessionRequest>(std::move(*call)).name,
                                         .file = {.parts = {std::as_bytes(std::span(body->text))}, .owner = body},
                                         .takes_kv = connection.server().options.imports_kv,
                                         .share = body->share},
                                        std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(imported), request, session_json_for(connection));
}

}  // namespace uma::server
