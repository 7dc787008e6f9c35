// Models' cards, API keys and the configuration (docs/protocol/administration.md). All of them are for the administrator
// (HttpRoute::is_administrative).
#include "wire/own/administration.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/model_library.h"
#include "server/http/http_connection.h"
#include "server/http/key_ring.h"
#include "server/http/routes.h"
#include "server/http/rules.h"

namespace uma::server {
namespace {

using handlers::Answer;

constexpr std::string_view kNotStored = "Cache-Control: no-store\r\n";

Answer respond_without_cards(HttpConnection& connection, const HttpRequest& request) {
  const Error error{ErrorCode::model_capability, "this server does not manage models"};
  co_return co_await connection.respond_error(501, error, request.keep_alive);
}

template <class T, class JsonT>
Answer respond_with_outcome(HttpConnection& connection, const HttpRequest& request, std::optional<Expected<KeyOutcome<T>>> done,
                            JsonT json) {
  if (!done) co_return false;
  if (!*done) {
    co_return co_await connection.respond_failed(done->error(), request, done->error().field);
  }
  const KeyOutcome<T>& outcome = **done;
  if (!outcome) {
    const bool is_stranger = outcome.error().status == 401;
    const Error error{is_stranger ? ErrorCode::auth : ErrorCode::proto_field, outcome.error().message};
    co_return co_await connection.respond_error(outcome.error().status, error, request.keep_alive, is_stranger ? "" : "name");
  }
  co_return co_await connection.respond(200, kJson, json(*outcome), request.keep_alive, kNotStored);
}

}  // namespace

Answer handlers::get_card(HttpConnection& connection, const HttpRequest& request) {
  ModelLibrary* const library = connection.server().options.library;
  if (library == nullptr) co_return co_await respond_without_cards(connection, request);
  auto card = co_await connection.ask<std::string>(
      [&](Promise<std::string> reply) { library->read_card(request.ids.at(0), std::move(reply)); });
  co_return co_await connection.respond_with(std::move(card), request, wire::card_json);
}

Answer handlers::put_card(HttpConnection& connection, const HttpRequest& request) {
  auto change = co_await connection.read_body(request.body, wire::decode_card);
  if (!change) co_return co_await connection.respond_rejected(change.error(), request);
  ModelLibrary* const library = connection.server().options.library;
  if (library == nullptr) co_return co_await respond_without_cards(connection, request);
  auto card = co_await connection.ask<std::string>([&](Promise<std::string> reply) {
    library->store_card(request.ids.at(0), std::move(change->text), std::move(change->was), std::move(reply));
  });
  co_return co_await connection.respond_with(std::move(card), request, wire::card_json);
}

Answer handlers::list_keys(HttpConnection& connection, const HttpRequest& request) {
  const auto entries = connection.server().keys.entries();
  std::vector<wire::KeyInfo> keys;
  keys.reserve(entries->size());
  for (const auto& [key, account] : *entries) {
    keys.push_back({.name = key.name,
                    .tenant = key.tenant.value,
                    .requests_per_minute = key.requests_per_minute,
                    .tokens_per_minute = key.tokens_per_minute,
                    .deadline_ms = key.deadline_ms,
                    .is_admin = key.is_admin});
  }
  return connection.respond(200, kJson, wire::keys_json(keys), request.keep_alive);
}

Answer handlers::create_key(HttpConnection& connection, const HttpRequest& request) {
  const auto wanted = co_await connection.read_body(request.body, wire::decode_new_key);
  if (!wanted) co_return co_await connection.respond_rejected(wanted.error(), request);
  ApiKey key{.name = wanted->name,
             .tenant = {wanted->tenant},
             .requests_per_minute = wanted->requests_per_minute,
             .tokens_per_minute = wanted->tokens_per_minute,
             .deadline_ms = wanted->deadline_ms,
             .is_admin = wanted->is_admin};
  auto made = co_await connection.ask<KeyOutcome<NewKey>>([&](Promise<KeyOutcome<NewKey>> reply) {
    connection.server().keys.add(std::move(key), connection.caller(), std::move(reply));
  });
  co_return co_await respond_with_outcome<NewKey>(
      connection, request, std::move(made), [](const NewKey& result) { return wire::new_key_json(result.key, result.line); });
}

Answer handlers::delete_key(HttpConnection& connection, const HttpRequest& request) {
  auto done = co_await connection.ask<KeyOutcome<Unit>>([&](Promise<KeyOutcome<Unit>> reply) {
    connection.server().keys.remove(request.ids.at(0), connection.caller(), std::move(reply));
  });
  co_return co_await respond_with_outcome<Unit>(connection, request, std::move(done),
                                                [](Unit) { return std::string(R"({"deleted":true})"); });
}

Answer handlers::get_config(HttpConnection& connection, const HttpRequest& request) {
  return connection.respond(200, kJson, wire::settings_json(connection.server().options.settings), request.keep_alive);
}

}  // namespace uma::server
