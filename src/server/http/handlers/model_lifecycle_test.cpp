#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mutex.h"
#include "core/model_library.h"
#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

// Keeps the sinks of pulls for the test; the model "used" cannot be deleted. Thread-safe.
class FakeLibrary final : public ModelLibrary {
 public:
  void pull(std::string source, std::shared_ptr<PullSink> sink) override {
    if (source == "bad") return sink->end(fail(ErrorCode::proto_field, "\"bad\" cannot be pulled"));
    const MutexLock lock(mutex_);
    sinks_.push_back(std::move(sink));
    changed_.notify_all();
  }
  [[nodiscard]] std::vector<PullInProgress> pulls() const override {
    return {{"owner/repo", {.file = "m.gguf", .bytes_done = 5, .bytes_total = 9}}, {"owner/other"}};
  }
  void remove(std::string name, Promise<Unit> reply) override {
    if (name == "used") return reply(fail(ErrorCode::session_busy, "it is in use"));
    reply(Unit{});
  }
  void add_alias(std::string model, std::string alias, Promise<Unit> reply) override {
    if (model != "a") return reply(fail(ErrorCode::model_unknown, "no such model"));
    names_ = std::move(alias);
    reply(Unit{});
  }
  void read_card(std::string, Promise<std::string> reply) override { reply(fail(ErrorCode::io_failed, "it has no cards")); }
  void store_card(std::string, std::string, std::optional<std::string>, Promise<std::string> reply) override {
    reply(fail(ErrorCode::io_failed, "it has no cards"));
  }

  [[nodiscard]] std::shared_ptr<PullSink> wait_for_pull(std::size_t number = 1) {
    const MutexLock lock(mutex_);
    const TimePoint end = SteadyClock().now() + kPatience;
    while (sinks_.size() < number && SteadyClock().now() < end) changed_.wait_until(mutex_, end);
    return sinks_.size() < number ? nullptr : sinks_[number - 1];
  }
  [[nodiscard]] const std::string& names() const { return names_; }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<PullSink>> sinks_ GUARDED_BY(mutex_);
  std::string names_;  // The test reads it after the answer.
};

class LifecycleTest : public HttpServerTest {
 protected:
  void start_with(FakeLibrary& library) { start({.library = &library}); }
  Answer remove(const std::string& body) {
    HttpClient one = client();
    one.send("DELETE /api/delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
             body);
    return one.answer();
  }
  Answer post(const std::string& path, const std::string& body) {
    HttpClient one = client();
    one.post(path, body);
    return one.answer();
  }

  FakeLibrary library_;
};

TEST_F(LifecycleTest, AnAdministratorSeesThePullsBesideTheModels) {
  start_with(library_);
  HttpClient one = client();
  one.get("/v1/models");
  EXPECT_THAT(one.answer().body, HasSubstr(R"("uma":{"pulls":[{"source":"owner/repo","file":"m.gguf","completed":5,"total":9},)"
                                           R"({"source":"owner/other","completed":0}]}})"));
}

TEST_F(LifecycleTest, APullIsToldInLines) {
  start_with(library_);
  HttpClient one = client();
  one.post("/api/pull", R"({"model":"owner/repo"})");
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("application/x-ndjson"));
  EXPECT_EQ(one.next_chunk(), "{\"status\":\"pulling manifest\"}\n");
  const auto sink = library_.wait_for_pull();
  ASSERT_NE(sink, nullptr);
  EXPECT_TRUE(sink->update({.file = "m.gguf", .bytes_done = 5, .bytes_total = 9}));
  EXPECT_THAT(*one.next_chunk(), HasSubstr(R"("total":9,"completed":5)"));
  sink->end("m");
  EXPECT_EQ(one.next_chunk(), "{\"status\":\"success\"}\n");
  EXPECT_EQ(one.next_chunk(), std::nullopt);
  one.get("/api/version");
  EXPECT_EQ(one.answer().status, 200) << "the connection stays";
}

TEST_F(LifecycleTest, APullThatFailsHasAnErrorInItsLastLine) {
  start_with(library_);
  HttpClient one = client();
  one.post("/api/pull", R"({"model":"owner/repo"})");
  EXPECT_THAT(*one.take_until("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  library_.wait_for_pull()->end(fail(ErrorCode::io_failed, "the disk is full"));
  EXPECT_EQ(one.next_chunk(), "{\"status\":\"pulling manifest\"}\n");
  EXPECT_EQ(one.next_chunk(), "{\"error\":\"the disk is full\"}\n");
  EXPECT_EQ(post("/api/pull", R"({"model":"bad"})").status, 400);
}

TEST_F(LifecycleTest, APullMayBeAnsweredAtItsEnd) {
  start_with(library_);
  HttpClient one = client();
  one.post("/api/pull", R"({"model":"owner/repo","stream":false})");
  library_.wait_for_pull()->end("m");
  EXPECT_EQ(one.answer().body, R"({"status":"success"})");
  HttpClient two = client();
  two.post("/api/pull", R"({"model":"owner/repo","stream":false})");
  library_.wait_for_pull(2)->end(fail(ErrorCode::io_failed, "the disk is full"));
  EXPECT_EQ(two.answer().status, 500);
}

TEST_F(LifecycleTest, WhoLeavesCancelsThePull) {
  start_with(library_);
  for (const std::size_t number : {1u, 2u}) {
    HttpClient one = client();
    one.post("/api/pull", number == 1 ? R"({"model":"owner/repo"})" : R"({"model":"owner/repo","stream":false})");
    const auto sink = library_.wait_for_pull(number);
    ASSERT_NE(sink, nullptr);
    one.close();
    const TimePoint end = SteadyClock().now() + kPatience;
    while (sink->update({}) && SteadyClock().now() < end) std::this_thread::yield();
    EXPECT_FALSE(sink->update({}));
    sink->end(fail(ErrorCode::limit_wait, "cancelled"));
  }
}

TEST_F(LifecycleTest, ModelsAreNamedAndDeleted) {
  start_with(library_);
  EXPECT_EQ(post("/api/copy", R"({"source":"a","destination":"b:latest"})").status, 200);
  EXPECT_EQ(library_.names(), "b");
  EXPECT_EQ(post("/api/copy", R"({"source":"x","destination":"b"})").status, 404);
  EXPECT_EQ(remove(R"({"model":"a"})").status, 200);
  EXPECT_EQ(remove(R"({"model":"used"})").status, 409);
  EXPECT_EQ(remove("{}").status, 400);
}

TEST_F(LifecycleTest, AnOrdinaryKeyMayChangeNothing) {
  ApiKey ordinary = key_named("ci");
  start({.keys = {ordinary}, .library = &library_});
  const std::string header = "Authorization: Bearer secret\r\n";
  for (const char* path : {"/models/load", "/models/unload", "/api/pull", "/api/copy"}) {
    HttpClient one = client();
    one.post(path, R"({"model":"a"})", header);
    const Answer answer = one.answer();
    EXPECT_EQ(answer.status, 403) << path;
    EXPECT_THAT(answer.body, HasSubstr("admin=true")) << path;
    EXPECT_THAT(answer.body, Not(HasSubstr("uid"))) << "a key's holder may be remote";
  }
}

TEST_F(LifecycleTest, AnAdministratorsKeyMay) {
  ApiKey admin = key_named("boss");
  admin.is_admin = true;
  start({.keys = {admin}, .library = &library_});
  HttpClient one = client();
  one.post("/api/copy", R"({"source":"a","destination":"b"})", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(one.answer().status, 200);
}

TEST_F(LifecycleTest, APageOfAnotherOriginNeedsAKey) {
  start({.cors_origins = {"https://chat.example"}, .library = &library_});
  for (const auto& [header, status] : {std::pair{"", 200}, std::pair{"Origin: https://chat.example\r\n", 403}}) {
    HttpClient one = client();
    one.post("/api/copy", R"({"source":"a","destination":"b"})", header);
    EXPECT_EQ(one.answer().status, status) << header;
  }
}

TEST_F(LifecycleTest, WithoutALibraryNothingIsChanged) {
  start();
  EXPECT_EQ(post("/api/pull", R"({"model":"a/b"})").status, 501);
  EXPECT_EQ(post("/api/copy", R"({"source":"a","destination":"b"})").status, 501);
  EXPECT_EQ(remove(R"({"model":"a"})").status, 501);
}

}  // namespace
}  // namespace uma::server
