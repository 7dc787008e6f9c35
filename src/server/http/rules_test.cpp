#include "server/http/rules.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

TEST(HttpRules, KnowNamesThatNoPageOfAnotherSiteHas) {
  for (const char* ours : {"localhost", "LocalHost:8642", "127.0.0.1", "127.0.0.1:8642", "127.1.2.3", "[::1]", "[::1]:8642",
                           "localhost:", "10.0.0.1:80", "[fe80::1]", "umad.localhost", "Host.Docker.Internal:8642"}) {
    EXPECT_TRUE(is_local_authority(ours)) << ours;
  }
  for (const char* other :
       {"", "example.com", "localhost.example.com", "127.0.0.1.example.com", "::1", "[::1", "[::1]x", "[::]", "localhost:80x",
        "evil@localhost", "127.1", "0.0.0.0", "localhost:80:80", "internal", "evil-internal", "printer.local"}) {
    EXPECT_FALSE(is_local_authority(other)) << other;
  }
}

TEST(HttpRules, KnowAHostAmongNames) {
  const std::vector<std::string> names = {"host.docker.internal", "Box"};
  for (const char* ours : {"host.docker.internal", "HOST.docker.internal:8642", "box", "box:"}) {
    EXPECT_TRUE(is_host_among(ours, names)) << ours;
  }
  for (const char* other :
       {"", ":80", "docker.internal", "evil.host.docker.internal", "box:80x", "box:80:80", "[box]", "[box", "box ", "box/"}) {
    EXPECT_FALSE(is_host_among(other, names)) << other;
  }
  EXPECT_FALSE(is_host_among("box", {}));
}

TEST(HttpRules, TakeAPageOfThisServerOnly) {
  EXPECT_TRUE(is_same_origin("http://localhost:8642", "http", "localhost:8642"));
  EXPECT_TRUE(is_same_origin("https://localhost:8642", "https", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://localhost:3000", "http", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("https://localhost:8642", "http", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://localhost:8642", "https", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://evil.example", "http", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("null", "http", "localhost:8642"));
  EXPECT_FALSE(is_same_origin("http://", "http", ""));
}

TEST(HttpRules, KnowAnOriginFromAnAddress) {
  for (const char* origin : {"https://chat.example", "http://localhost:3000", "http://[::1]:80", "vscode-webview://abc"}) {
    EXPECT_TRUE(is_origin(origin)) << origin;
  }
  for (const char* other : {"", "*", "null", "https://", "https://chat.example/", "chat.example", "http://a b", "http://a,b"}) {
    EXPECT_FALSE(is_origin(other)) << other;
  }
}

TEST(HttpRules, TakeAKeyFromAuthorization) {
  EXPECT_EQ(bearer_token("Bearer uma-1"), "uma-1");
  EXPECT_EQ(bearer_token("bearer  uma-1"), "uma-1");
  for (const char* other : {"", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "uma-1", "BearerX uma-1"}) {
    EXPECT_EQ(bearer_token(other), std::nullopt) << other;
  }
}

TEST(HttpRules, PassOnOnlyPlainIdsAndHeaderNames) {
  EXPECT_TRUE(is_request_id("req_1.2-A"));
  EXPECT_FALSE(is_request_id(""));
  EXPECT_FALSE(is_request_id(std::string(129, 'a')));
  EXPECT_TRUE(is_header_list("authorization, x-stainless-os,content-type"));
  EXPECT_FALSE(is_header_list("a\r\nSet-Cookie: x"));
  for (const char* wrong : {"a b", "a\nb", "a\"b", "\xc3\xa9"}) EXPECT_FALSE(is_request_id(wrong)) << wrong;
}

TEST(HttpRules, FindValuesInListsOfAHeader) {
  constexpr std::string_view kAccepted = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
  EXPECT_TRUE(lists_value(kAccepted, "text/html"));
  EXPECT_TRUE(lists_value("deflate, GZIP;q=0.5", "gzip"));
  EXPECT_TRUE(lists_value("gzip;q=0.001", "gzip"));
  for (const char* other : {"", "*/*", "text/htmlx", "gzip;q=0", "gzip; q=0.00", "x-gzip", ",;,"}) {
    EXPECT_FALSE(lists_value(other, "gzip")) << other;
    EXPECT_FALSE(lists_value(other, "text/html")) << other;
  }
}

TEST(HttpRules, TellABrowsersUserFromAnotherSitesPage) {
  EXPECT_FALSE(is_fetched_by_other_site("", "", "")) << "programs send none";
  EXPECT_FALSE(is_fetched_by_other_site("none", "navigate", "document")) << "an address that the user opens";
  EXPECT_FALSE(is_fetched_by_other_site("same-origin", "cors", "empty"));
  EXPECT_FALSE(is_fetched_by_other_site("cross-site", "navigate", "document")) << "a link on another page";
  EXPECT_TRUE(is_fetched_by_other_site("cross-site", "no-cors", "image"));
  EXPECT_TRUE(is_fetched_by_other_site("same-site", "no-cors", "script")) << "another port of this machine";
  EXPECT_TRUE(is_fetched_by_other_site("cross-site", "navigate", "iframe"));
}

TEST(HttpRules, LetNothingOfARequestMakeALineOfTheLog) {
  EXPECT_EQ(loggable("/v1/models\n200 fine\x1b[2J\xc3\xa9"), "/v1/models?200?fine?[2J??");
  EXPECT_EQ(loggable(std::string(1000, 'a')).size(), 256U);
}

TEST(HttpRules, ReadPaths) {
  EXPECT_EQ(target_path("/v1/models?x=1"), "/v1/models");
  EXPECT_EQ(target_path("/v1/models/a%20b%2Fc"), "/v1/models/a b/c");
  for (const char* wrong : {"", "*", "http://localhost/v1/models", "/%", "/%2", "/%zz"}) {
    EXPECT_EQ(target_path(wrong), "") << wrong;
  }
}

TEST(HttpRules, GiveEveryErrorItsStatus) {
  EXPECT_EQ(http_status(ErrorCode::proto_field), 400);
  EXPECT_EQ(http_status(ErrorCode::limit_quota), 429);
  EXPECT_EQ(http_status(ErrorCode::limit_wait), 503);
  EXPECT_EQ(http_status(ErrorCode::model_unknown), 404);
  EXPECT_EQ(http_status(ErrorCode::model_capability), 400);
  EXPECT_EQ(http_status(ErrorCode::session_busy), 409);
  EXPECT_EQ(http_status(ErrorCode::session_name_taken), 409);
  EXPECT_EQ(http_status(ErrorCode::auth), 401);
  EXPECT_EQ(http_status(ErrorCode::runtime_decode), 500);
}

}  // namespace
}  // namespace uma::server
