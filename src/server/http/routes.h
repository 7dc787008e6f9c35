// The paths of the HTTP server and their handlers. The table is in routes.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/beast/http/verb.hpp>

#include "server/awaitable.h"

namespace uma::server {

class HttpConnection;
struct HttpRequest;

// Answers one request; returns whether the connection stays open.
using HttpHandler = Awaitable<bool> (*)(HttpConnection& connection, const HttpRequest& request);

struct HttpRoute {
  boost::beast::http::verb method;
  std::string_view path;  // A component in braces matches any component; {NAME+} matches several.
  HttpHandler handler;
  bool takes_images = false;       // The body may hold images if a model reads them.
  bool takes_file = false;         // The body is a session's file; otherwise it is JSON.
  bool is_administrative = false;  // Only for HttpConnection::is_administrator().
};

struct RouteMatch {
  const HttpRoute* route = nullptr;
  std::vector<std::string> ids;  // Values of the braces.
  std::string allowed;           // Where there is no route: the methods that the path takes, "GET, POST"; empty: no such path.
};

// Finds the route. HEAD has those of GET. Pure.
[[nodiscard]] RouteMatch find_route(std::string_view path, boost::beast::http::verb method);
// The served path that a client means by this one: without doubled slashes and a slash at the end, and with the base "/v1"
// where the client has left it out, doubled it or put another base before it. `path` itself if there is no such path. Pure.
[[nodiscard]] std::string meant_path(std::string_view path, boost::beast::http::verb method);
// Says in one line that the path is not served, and which similar one is. Pure.
[[nodiscard]] std::string no_such_path(std::string_view path);

// --- The handlers, grouped by the file of their API.

namespace handlers {

using Answer = Awaitable<bool>;

// completions.cpp
Answer create_chat_completion(HttpConnection& connection, const HttpRequest& request);
Answer create_completion(HttpConnection& connection, const HttpRequest& request);

// messages.cpp
Answer create_message(HttpConnection& connection, const HttpRequest& request);
Answer count_message_tokens(HttpConnection& connection, const HttpRequest& request);

// embeddings.cpp
Answer create_embeddings(HttpConnection& connection, const HttpRequest& request);
Answer create_rerank(HttpConnection& connection, const HttpRequest& request);
Answer embed_images(HttpConnection& connection, const HttpRequest& request);
Answer ollama_embed(HttpConnection& connection, const HttpRequest& request);
Answer ollama_embeddings(HttpConnection& connection, const HttpRequest& request);

// pictures.cpp
Answer create_images(HttpConnection& connection, const HttpRequest& request);
Answer sd_txt2img(HttpConnection& connection, const HttpRequest& request);
Answer sd_img2img(HttpConnection& connection, const HttpRequest& request);
Answer get_sd_options(HttpConnection& connection, const HttpRequest& request);
Answer set_sd_options(HttpConnection& connection, const HttpRequest& request);
Answer list_sd_models(HttpConnection& connection, const HttpRequest& request);
Answer list_sd_samplers(HttpConnection& connection, const HttpRequest& request);
Answer list_sd_schedulers(HttpConnection& connection, const HttpRequest& request);
Answer get_sd_progress(HttpConnection& connection, const HttpRequest& request);
Answer interrupt_sd(HttpConnection& connection, const HttpRequest& request);

// responses.cpp
Answer open_response_socket(HttpConnection& connection, const HttpRequest& request);  // response_socket.cpp
Answer create_response(HttpConnection& connection, const HttpRequest& request);
Answer count_response_tokens(HttpConnection& connection, const HttpRequest& request);
Answer compact_response(HttpConnection& connection, const HttpRequest& request);
Answer get_response(HttpConnection& connection, const HttpRequest& request);
Answer delete_response(HttpConnection& connection, const HttpRequest& request);
Answer cancel_response(HttpConnection& connection, const HttpRequest& request);
Answer list_input_items(HttpConnection& connection, const HttpRequest& request);
Answer create_conversation(HttpConnection& connection, const HttpRequest& request);
Answer get_conversation(HttpConnection& connection, const HttpRequest& request);
Answer update_conversation(HttpConnection& connection, const HttpRequest& request);
Answer delete_conversation(HttpConnection& connection, const HttpRequest& request);
Answer create_conversation_items(HttpConnection& connection, const HttpRequest& request);
Answer list_conversation_items(HttpConnection& connection, const HttpRequest& request);
Answer get_conversation_item(HttpConnection& connection, const HttpRequest& request);
Answer delete_conversation_item(HttpConnection& connection, const HttpRequest& request);

// sessions.cpp
Answer create_session(HttpConnection& connection, const HttpRequest& request);
Answer list_sessions(HttpConnection& connection, const HttpRequest& request);
Answer get_session(HttpConnection& connection, const HttpRequest& request);
Answer get_receipt(HttpConnection& connection, const HttpRequest& request);
Answer list_receipts(HttpConnection& connection, const HttpRequest& request);
Answer end_session(HttpConnection& connection, const HttpRequest& request);
Answer fork_session(HttpConnection& connection, const HttpRequest& request);
Answer update_session(HttpConnection& connection, const HttpRequest& request);
Answer rewind_session(HttpConnection& connection, const HttpRequest& request);
Answer touch_session(HttpConnection& connection, const HttpRequest& request);
Answer export_session(HttpConnection& connection, const HttpRequest& request);
Answer import_session(HttpConnection& connection, const HttpRequest& request);

// ollama.cpp
Answer get_ollama_version(HttpConnection& connection, const HttpRequest& request);
Answer list_ollama_models(HttpConnection& connection, const HttpRequest& request);
Answer list_ollama_loaded(HttpConnection& connection, const HttpRequest& request);
Answer show_ollama_model(HttpConnection& connection, const HttpRequest& request);
Answer ollama_chat(HttpConnection& connection, const HttpRequest& request);
Answer ollama_generate(HttpConnection& connection, const HttpRequest& request);
Answer refuse_ollama_change(HttpConnection& connection, const HttpRequest& request);

// llama_server.cpp
Answer tokenize(HttpConnection& connection, const HttpRequest& request);
Answer detokenize(HttpConnection& connection, const HttpRequest& request);
Answer apply_template(HttpConnection& connection, const HttpRequest& request);
Answer create_infill(HttpConnection& connection, const HttpRequest& request);
Answer complete_text(HttpConnection& connection, const HttpRequest& request);
Answer get_props(HttpConnection& connection, const HttpRequest& request);

// model_lifecycle.cpp
Answer load_model(HttpConnection& connection, const HttpRequest& request);
Answer unload_model(HttpConnection& connection, const HttpRequest& request);
Answer ollama_pull(HttpConnection& connection, const HttpRequest& request);
Answer ollama_delete(HttpConnection& connection, const HttpRequest& request);
Answer ollama_copy(HttpConnection& connection, const HttpRequest& request);

// administration.cpp
Answer get_card(HttpConnection& connection, const HttpRequest& request);
Answer put_card(HttpConnection& connection, const HttpRequest& request);
Answer list_keys(HttpConnection& connection, const HttpRequest& request);
Answer create_key(HttpConnection& connection, const HttpRequest& request);
Answer delete_key(HttpConnection& connection, const HttpRequest& request);
Answer get_config(HttpConnection& connection, const HttpRequest& request);

// page.cpp
Answer get_root(HttpConnection& connection, const HttpRequest& request);
Answer get_page_file(HttpConnection& connection, const HttpRequest& request);

// monitoring.cpp
Answer list_models(HttpConnection& connection, const HttpRequest& request);
Answer get_model(HttpConnection& connection, const HttpRequest& request);
Answer get_health(HttpConnection& connection, const HttpRequest& request);
Answer get_readiness(HttpConnection& connection, const HttpRequest& request);
Answer get_metrics(HttpConnection& connection, const HttpRequest& request);
Answer get_trace(HttpConnection& connection, const HttpRequest& request);

// live.cpp
Answer watch_daemon(HttpConnection& connection, const HttpRequest& request);

}  // namespace handlers

}  // namespace uma::server
