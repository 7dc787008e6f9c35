#include "server/http/routes.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

using Ids = std::vector<std::string>;
using enum boost::beast::http::verb;

TEST(HttpRoutes, FindTheHandlerAndTheIds) {
  const auto is = [](std::string_view path, auto method, HttpHandler handler, const Ids& ids = {}) {
    const RouteMatch match = find_route(path, method);
    return match.route != nullptr && match.route->handler == handler && match.ids == ids;
  };
  EXPECT_TRUE(is("/v1/chat/completions", post, handlers::create_chat_completion));
  EXPECT_TRUE(is("/v1/responses", post, handlers::create_response));
  EXPECT_TRUE(is("/v1/responses/resp_1", get, handlers::get_response, {"resp_1"}));
  EXPECT_TRUE(is("/v1/responses/resp_1", delete_, handlers::delete_response, {"resp_1"}));
  EXPECT_TRUE(is("/v1/responses/resp_1/cancel", post, handlers::cancel_response, {"resp_1"}));
  EXPECT_TRUE(is("/v1/responses/resp_1/input_items", get, handlers::list_input_items, {"resp_1"}));
  EXPECT_TRUE(is("/v1/conversations/c/items", post, handlers::create_conversation_items, {"c"}));
  EXPECT_TRUE(is("/v1/conversations/c/items/i", delete_, handlers::delete_conversation_item, {"c", "i"}));
  EXPECT_TRUE(is("/v1/sessions/import", post, handlers::import_session));
  EXPECT_TRUE(is("/v1/sessions/import", get, handlers::get_session, {"import"}));
  EXPECT_TRUE(is("/v1/sessions/a b/fork", post, handlers::fork_session, {"a b"}));
  EXPECT_TRUE(is("/v1/sessions/a b", patch, handlers::update_session, {"a b"}));
  EXPECT_TRUE(is("/v1/messages", post, handlers::create_message));
  EXPECT_TRUE(is("/v1/messages/count_tokens", post, handlers::count_message_tokens));
  EXPECT_TRUE(is("/", get, handlers::get_root));
  EXPECT_TRUE(is("/", head, handlers::get_root));
  EXPECT_TRUE(is("/v1/models/tiny", get, handlers::get_model, {"tiny"}));
}

TEST(HttpRoutes, PeopleAreToldEveryPathOnce) {
  const std::string paths = served_paths();
  for (const std::string_view path : {"/v1/chat/completions", "/v1/embeddings", "/v1/rerank", "/v1/images/embeddings",
                                      "/v1/sessions", "/health", "/metrics"}) {
    EXPECT_NE(paths.find(path), std::string::npos) << paths;
  }
  EXPECT_EQ(paths.find("{id}"), std::string::npos) << paths;
  EXPECT_EQ(paths.find("/v1/sessions"), paths.rfind("/v1/sessions")) << paths;
}

TEST(HttpRoutes, OnlyAFileMayBeLarge) {
  EXPECT_TRUE(find_route("/v1/sessions/import", post).route->takes_file);
  EXPECT_FALSE(find_route("/v1/sessions", post).route->takes_file);
  EXPECT_FALSE(find_route("/v1/responses", post).route->takes_file);
}

TEST(HttpRoutes, OtherMethodsAreToldWhichOnesThereAre) {
  for (const auto& [path, allowed] : {std::pair{"/v1/responses", "POST"},
                                      {"/v1/responses/x", "GET, DELETE"},
                                      {"/v1/conversations/x", "GET, POST, DELETE"},
                                      {"/v1/sessions", "GET, POST"},
                                      {"/v1/sessions/x", "GET, PATCH, DELETE"},
                                      {"/v1/sessions/x/touch", "POST"},
                                      {"/health", "GET"}}) {
    const RouteMatch match = find_route(path, put);
    EXPECT_EQ(match.route, nullptr) << path;
    EXPECT_EQ(match.allowed, allowed) << path;
  }
}

TEST(HttpRoutes, OtherPathsAreNone) {
  for (const char* path : {"", "v1/responses", "/v1", "/v1/responses/", "/v1/responses//input_items", "/v1/responses/a/b",
                           "/v1/responses/a/input_items/", "/v1/sessions//fork", "/v1/sessions/a/fork/b", "/v1/models/",
                           "//health", "/health/", "/v1/{id}", "/v1/chat"}) {
    for (const auto method : {get, post, delete_}) {
      const RouteMatch match = find_route(path, method);
      EXPECT_EQ(match.route, nullptr) << path;
      EXPECT_EQ(match.allowed, "") << path;
    }
  }
}

}  // namespace
}  // namespace uma::server
