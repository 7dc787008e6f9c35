// Which paths the HTTP door serves, and who answers them. The table is in http_routes.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/beast/http/verb.hpp>

namespace uma::server {

class HttpConnection;
struct HttpRequest;

// Answers one request; returns whether the connection goes on.
using HttpHandler = boost::asio::awaitable<bool> (*)(HttpConnection& connection, const HttpRequest& request);

struct HttpRoute {
  boost::beast::http::verb method;
  std::string_view path;  // a part in braces stands for any one
  HttpHandler handler;
  bool takes_images = false;  // its body has images in it where a model reads them
  bool takes_file = false;    // its body is a session's file, else JSON
};

struct RouteMatch {
  const HttpRoute* route = nullptr;
  std::vector<std::string> ids;  // what stands in the place of the braces
  std::string allowed;           // where there is no route: the methods that the path takes, "GET, POST"; empty: no such path
};

// Pure.
[[nodiscard]] RouteMatch find_route(std::string_view path, boost::beast::http::verb method);
// The paths that are served, for people: those without a served one above them.
[[nodiscard]] std::string served_paths();

// --- The handlers, each in the file of its API.

namespace handlers {

using Answer = boost::asio::awaitable<bool>;

// http_completions.cpp
Answer create_chat_completion(HttpConnection& connection, const HttpRequest& request);
Answer create_completion(HttpConnection& connection, const HttpRequest& request);

// http_embeddings.cpp
Answer create_embeddings(HttpConnection& connection, const HttpRequest& request);
Answer create_rerank(HttpConnection& connection, const HttpRequest& request);

// http_responses.cpp
Answer create_response(HttpConnection& connection, const HttpRequest& request);
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

// http_images.cpp
Answer embed_images(HttpConnection& connection, const HttpRequest& request);

// http_sessions.cpp
Answer create_session(HttpConnection& connection, const HttpRequest& request);
Answer list_sessions(HttpConnection& connection, const HttpRequest& request);
Answer get_session(HttpConnection& connection, const HttpRequest& request);
Answer end_session(HttpConnection& connection, const HttpRequest& request);
Answer fork_session(HttpConnection& connection, const HttpRequest& request);
Answer rewind_session(HttpConnection& connection, const HttpRequest& request);
Answer touch_session(HttpConnection& connection, const HttpRequest& request);
Answer export_session(HttpConnection& connection, const HttpRequest& request);
Answer import_session(HttpConnection& connection, const HttpRequest& request);

// http_facts.cpp
Answer list_models(HttpConnection& connection, const HttpRequest& request);
Answer get_model(HttpConnection& connection, const HttpRequest& request);
Answer get_health(HttpConnection& connection, const HttpRequest& request);
Answer get_readiness(HttpConnection& connection, const HttpRequest& request);
Answer get_metrics(HttpConnection& connection, const HttpRequest& request);

}  // namespace handlers

}  // namespace uma::server
