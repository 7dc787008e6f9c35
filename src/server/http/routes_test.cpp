#include "server/http/routes.h"

#include <array>
#include <format>
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
  EXPECT_TRUE(is("/v1/models", head, handlers::list_models));
  EXPECT_TRUE(is("/v1/models/tiny", get, handlers::get_model, {"tiny"}));
}

TEST(HttpRoutes, NamesOfModelsMayHaveSlashes) {
  const auto ids = [](std::string_view path, boost::beast::http::verb method = get) { return find_route(path, method).ids; };
  EXPECT_EQ(ids("/v1/models/owner/repo:Q4_K_M"), Ids{"owner/repo:Q4_K_M"});
  EXPECT_EQ(ids("/v1/models/hf.co/owner/repo"), Ids{"hf.co/owner/repo"});
  EXPECT_EQ(ids("/v1/models/owner/repo/card", put), Ids{"owner/repo"});
  EXPECT_EQ(find_route("/v1/models/owner/repo/card", get).route->handler, handlers::get_card);
  EXPECT_TRUE(find_route("/v1/models/a/card", get).route->is_administrative);
  EXPECT_EQ(find_route("/v1/models/card", get).route->handler, handlers::get_model);
}

TEST(HttpRoutes, PathsWithAnotherBaseMeanTheServedOnes) {
  for (const auto& [path, meant] : {std::pair{"/chat/completions", "/v1/chat/completions"},
                                    {"/completions", "/v1/completions"},
                                    {"/responses", "/v1/responses"},
                                    {"/messages", "/v1/messages"},
                                    {"/embeddings", "/v1/embeddings"},
                                    {"/images/generations", "/v1/images/generations"},
                                    {"//v1/chat/completions", "/v1/chat/completions"},
                                    {"/v1//chat/completions/", "/v1/chat/completions"},
                                    {"/v1/v1/chat/completions", "/v1/chat/completions"},
                                    {"/api/v1/chat/completions", "/v1/chat/completions"},
                                    {"/api/chat/completions", "/v1/chat/completions"},
                                    {"/openai/v1/chat/completions", "/v1/chat/completions"},
                                    {"/v1/api/chat", "/api/chat"},
                                    {"/api/chat/", "/api/chat"},
                                    {"/v1/completion", "/completion"},
                                    {"/v1/models/load", "/models/load"},
                                    {"/v1/chat", "/v1/chat"},
                                    {"/v1/v1/v1/v1/v1/rerank", "/v1/v1/v1/v1/v1/rerank"},
                                    {"/", "/"},
                                    {"", ""},
                                    {"*", "*"},
                                    {"/v1", "/v1"}}) {
    EXPECT_EQ(meant_path(path, post), meant) << path;
  }
  for (const auto& [path, meant] : {std::pair{"/models/", "/models"},
                                    {"/models/a/b", "/v1/models/a/b"},
                                    {"/v1/models/", "/v1/models"},
                                    {"/v1/health", "/health"},
                                    {"/chat/completions", "/v1/chat/completions"}}) {
    EXPECT_EQ(meant_path(path, get), meant) << path;
  }
}

TEST(HttpRoutes, AWrongPathNamesTheRightOneInOneLine) {
  for (const auto& [path, similar] : {std::pair{"/v1/chat/completion", "/v1/chat/completions"},
                                      {"/v1/chat", "/v1/chat/completions"},
                                      {"/v1/embedding", "/v1/embeddings"},
                                      {"/api/generates", "/api/generate"},
                                      {"/chat/completion", "/v1/chat/completions"}}) {
    EXPECT_EQ(no_such_path(path), std::format("no such path {}: did you mean {}?", path, similar));
  }
  const std::string other = no_such_path("/v1/audio/transcriptions" + std::string(1000, '\n'));
  EXPECT_LT(other.size(), 250U) << other;
  EXPECT_EQ(other.find('\n'), std::string::npos);
}

TEST(HttpRoutes, OnlyAFileMayBeLarge) {
  EXPECT_TRUE(find_route("/v1/sessions/import", post).route->takes_file);
  EXPECT_FALSE(find_route("/v1/sessions", post).route->takes_file);
  EXPECT_FALSE(find_route("/v1/responses", post).route->takes_file);
}

TEST(HttpRoutes, OtherMethodsAreToldWhichOnesThereAre) {
  for (const auto& [path, allowed] : {std::pair{"/v1/responses", "POST, GET"},
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
