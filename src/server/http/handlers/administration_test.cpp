#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model_library.h"
#include "server/http/http_server_test_support.h"
#include "server/live_feed.h"

namespace uma::server {
namespace {

// Has one model, "a", whose card it keeps.
class CardLibrary final : public ModelLibrary {
 public:
  void pull(std::string, std::shared_ptr<PullSink> sink) override { sink->end(fail(ErrorCode::io_failed, "no network")); }
  [[nodiscard]] std::vector<PullInProgress> pulls() const override { return {}; }
  void remove(std::string, Promise<Unit> reply) override { reply(Unit{}); }
  void add_alias(std::string, std::string, Promise<Unit> reply) override { reply(Unit{}); }
  void read_card(std::string model, Promise<std::string> reply) override {
    if (model != "a") return reply(fail(ErrorCode::model_unknown, "no such model"));
    reply(card_);
  }
  void store_card(std::string, std::string card, std::optional<std::string> was, Promise<std::string> reply) override {
    if (was && was != card_) return reply(fail(ErrorCode::session_busy, "the card has changed"));
    if (card == "bad") return reply(fail(ErrorCode::proto_field, "line 1: expected a map"));
    card_ = std::move(card);
    reply(card_);
  }

 private:
  std::string card_ = "path: a\n";
};

class AdministrationTest : public HttpServerTest {
 protected:
  AdministrationTest() : folder_(std::filesystem::path(::testing::TempDir()) / ("uma-admin-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    admin_ = key_named("boss");
    admin_.is_admin = true;
  }
  ~AdministrationTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  // With the administrator's key "secret".
  void start_with_keys(LiveFeed* live = nullptr) {
    Sha256 sum;
    sum.add("secret");
    std::ofstream(folder_ / "keys") << "boss sha256:" << sum.hex() << " admin=true\n";
    start({.keys = {admin_},
           .keys_file = folder_ / "keys",
           .settings = {{"slots", "8", "default"}},
           .library = &library_,
           .live = live});
  }
  Answer ask(const std::string& method, const std::string& path, const std::string& body = "",
             const std::string& key = "secret") {
    HttpClient one = client();
    one.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key +
             "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return one.answer();
  }

  const std::filesystem::path folder_;
  CardLibrary library_;
  ApiKey admin_;
};

TEST_F(AdministrationTest, ADeletedKeyCanNeitherFinishARequestNorWatch) {
  LiveFeed live(service_);
  live.start();
  start_with_keys(&live);
  const std::string made = ask("POST", "/v1/keys", R"({"name":"second","admin":true})").body;
  const std::string second =
      "Authorization: Bearer " + made.substr(made.find("uma-"), made.find("\",\"line") - made.find("uma-"));
  HttpClient watching = client();
  watching.get("/v1/events?interval_ms=100", second + "\r\n");
  ASSERT_TRUE(watching.take_until("\r\n\r\n").has_value());
  ASSERT_TRUE(watching.next_chunk().has_value());
  const std::string body = R"({"name":"third","admin":true})";
  HttpClient late = client();
  late.send("POST /v1/keys HTTP/1.1\r\nHost: localhost\r\n" + second +
            "\r\nExpect: 100-continue\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(late.take_until("100 Continue\r\n\r\n").has_value()) << "the key is known";
  ASSERT_EQ(ask("DELETE", "/v1/keys/second").status, 200);
  late.send(body);
  EXPECT_EQ(late.answer().status, 401);
  EXPECT_THAT(ask("GET", "/v1/keys").body, Not(HasSubstr("third")));
  constexpr int kChunksMax = 1000;
  int chunks = 0;
  while (chunks < kChunksMax && watching.next_chunk()) ++chunks;
  EXPECT_LT(chunks, kChunksMax) << "the stream has an end";
  server_.reset();  // Before the feed.
}

TEST_F(AdministrationTest, ACardIsShownAndStored) {
  start_with_keys();
  EXPECT_EQ(ask("GET", "/v1/models/a/card").body, R"({"text":"path: a\n"})");
  EXPECT_EQ(ask("PUT", "/v1/models/a/card", R"({"text":"path: b\n"})").body, R"({"text":"path: b\n"})");
  EXPECT_EQ(ask("GET", "/v1/models/a/card").body, R"({"text":"path: b\n"})");
  const Answer late = ask("PUT", "/v1/models/a/card", R"({"text":"path: c\n","was":"path: a\n"})");
  EXPECT_EQ(late.status, 409);
  EXPECT_THAT(late.body, HasSubstr("the card has changed"));
  EXPECT_EQ(ask("PUT", "/v1/models/a/card", R"({"text":"path: c\n","was":"path: b\n"})").status, 200);
  EXPECT_EQ(ask("PUT", "/v1/models/a/card", R"({"text":"path: c\n","was":1})").status, 400);
  const Answer bad = ask("PUT", "/v1/models/a/card", R"({"text":"bad"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_THAT(bad.body, HasSubstr("line 1: expected a map"));
  EXPECT_EQ(ask("PUT", "/v1/models/a/card", "{}").status, 400);
  EXPECT_EQ(ask("GET", "/v1/models/x/card").status, 404);
  EXPECT_EQ(ask("POST", "/v1/models/a/card", "{}").status, 405);
}

TEST_F(AdministrationTest, AKeyIsMadeUsedAndDeleted) {
  start_with_keys();
  const Answer made = ask("POST", "/v1/keys", R"({"name":"ci","tenant":"robots"})");
  EXPECT_EQ(made.status, 200) << made.body;
  EXPECT_THAT(made.head, HasSubstr("Cache-Control: no-store"));
  ASSERT_THAT(made.body, StartsWith(R"({"key":"uma-)"));
  const std::string key = made.body.substr(8, 68);
  EXPECT_EQ(ask("GET", "/v1/keys").body,
            R"({"object":"list","data":[{"name":"boss","tenant":"key:boss","requests_per_minute":0,"tokens_per_minute":0,)"
            R"("deadline_ms":null,"admin":true},{"name":"ci","tenant":"robots","requests_per_minute":0,"tokens_per_minute":0,)"
            R"("deadline_ms":null,"admin":false}]})");

  HttpClient kept = client();
  const std::string header = "Authorization: Bearer " + key + "\r\n";
  kept.get("/v1/models", header);
  EXPECT_EQ(kept.answer().status, 200) << "it counts at once";
  EXPECT_EQ(ask("GET", "/v1/keys", "", key).status, 403);
  EXPECT_EQ(ask("DELETE", "/v1/keys/ci").body, R"({"deleted":true})");
  kept.get("/v1/models", header);
  EXPECT_EQ(kept.answer().status, 401) << "nor does an open connection keep it";
}

TEST_F(AdministrationTest, KeysThatMustStayStay) {
  start_with_keys();
  const Answer own = ask("DELETE", "/v1/keys/boss");
  EXPECT_EQ(own.status, 409);
  EXPECT_THAT(own.body, HasSubstr("the key of this request"));
  EXPECT_EQ(ask("DELETE", "/v1/keys/nobody").status, 404);
  EXPECT_EQ(ask("POST", "/v1/keys", R"({"name":"boss"})").status, 409);
  for (const char* name : {"a b", "a\\n", "a#", "ä", ""}) {
    EXPECT_EQ(ask("POST", "/v1/keys", std::string(R"({"name":")") + name + R"("})").status, 400) << name;
  }
  const Answer tenant = ask("POST", "/v1/keys", R"({"name":"ci","tenant":"x admin=true"})");
  EXPECT_EQ(tenant.status, 400);
  EXPECT_THAT(tenant.body, HasSubstr(R"("param":"tenant")"));
  EXPECT_EQ(ask("GET", "/v1/keys", "", "other").status, 401);
}

TEST_F(AdministrationTest, TheConfigurationIsTold) {
  start_with_keys();
  EXPECT_EQ(ask("GET", "/v1/config").body, R"({"object":"list","data":[{"key":"slots","value":"8","source":"default"}]})");
}

TEST_F(AdministrationTest, APageOfAnotherOriginIsNotTheAdministrator) {
  start({.cors_origins = {"https://chat.example"}, .library = &library_});
  for (const char* path : {"/v1/models/a/card", "/v1/keys", "/v1/config"}) {
    for (const auto& [header, status] : {std::pair{"", 200}, std::pair{"Origin: https://chat.example\r\n", 403}}) {
      HttpClient one = client();
      one.get(path, header);
      EXPECT_EQ(one.answer().status, status) << path << " " << header;
    }
  }
}

TEST_F(AdministrationTest, WithoutAFileOrALibraryNothingIsChanged) {
  start();
  EXPECT_EQ(ask("GET", "/v1/keys").body, R"({"object":"list","data":[]})");
  const Answer key = ask("POST", "/v1/keys", R"({"name":"ci"})");
  EXPECT_EQ(key.status, 400);
  EXPECT_THAT(key.body, HasSubstr("http.keys_file"));
  EXPECT_EQ(ask("GET", "/v1/models/a/card").status, 501);
  EXPECT_EQ(ask("PUT", "/v1/models/a/card", R"({"text":""})").status, 501);
}

}  // namespace
}  // namespace uma::server
