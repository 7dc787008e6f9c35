// Commands by the name of a session that another daemon may have made or renamed, of which this one has not heard.
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "testing/shared_catalog.h"

namespace uma::engine {
namespace {

class SharedNamesTest : public ::testing::Test, protected EngineBench {
 protected:
  SharedNamesTest() : EngineBench({.cells = 1024, .sequences = 4}, {"fake", "other"}) {
    router_ = std::make_unique<Router>(RouterOptions{}, source_, shared_catalog_, *store_, work_, clock_);
    load();
    serve_lanes("other");
  }
  ~SharedNamesTest() override { router_.reset(); }  // It uses the catalog.

  // Another daemon stores a session, which nobody owns.
  void store_elsewhere(const std::string& id, const std::string& name, const std::string& model = "fake") {
    kv::SessionRecord record;
    record.id = SessionId{id};
    record.tenant = kTenant;
    record.name = name;
    record.model = model;
    record.mode = SessionMode::text;
    record.pending = {testing::kFakeBos, 'x'};
    shared_.entries[SessionId{id}].record = std::make_shared<const kv::SessionRecord>(std::move(record));
  }
  [[nodiscard]] PendingReply<SessionInfo> begin_to_create(const std::string& name) {
    CreateSessionRequest request;
    request.name = name;
    request.mode = SessionMode::text;
    return begin(sessions().create(kTenant, std::move(request)));
  }
  // Does what waits for the database, which did not answer.
  void release_commits() {
    settle();
    shared_catalog_.release_commits();
    settle();
  }
  template <class T>
  static std::string code_of(const Expected<T>& result) {
    return result ? "" : std::string(code_name(result.error().code));
  }

  testing::SharedSessions shared_;
  testing::SharedCatalog shared_catalog_{shared_, 1};
};

TEST_F(SharedNamesTest, AReadThatWaitedForASessionThatWasNotStoredFindsTheOneOfThatName) {
  store_elsewhere("s", "diary");
  shared_catalog_.holds_commits = true;
  const auto created = begin_to_create("diary");
  const auto read = begin(sessions().get(kTenant, "diary"));
  release_commits();
  EXPECT_EQ(code_of(created->value()), "E_IO_001");
  ASSERT_EQ(code_of(read->value()), "");
  EXPECT_EQ(read->value()->info.id.value, "s");
}

TEST_F(SharedNamesTest, AReadDoesNotCallASessionUnknownWithoutTheDatabase) {
  store_elsewhere("s", "diary");
  shared_catalog_.holds_commits = true;
  const auto created = begin_to_create("diary");
  const auto read = begin(sessions().get(kTenant, "diary"));
  const auto ended = begin(sessions().end(kTenant, "diary"));
  GenerateRequest request;
  request.session = "diary";
  const SinkPtr sink = begin(std::move(request));
  shared_catalog_.is_cut_off = true;
  release_commits();
  EXPECT_EQ(code_of(created->value()), "E_IO_002");
  EXPECT_EQ(code_of(read->value()), "E_IO_001");
  EXPECT_EQ(code_of(ended->value()), "E_IO_001");
  EXPECT_EQ(sink->error().code, ErrorCode::io_failed);
  EXPECT_EQ(code_of(wait_for(sessions().list(kTenant, {.after = "diary"}))), "E_IO_001");
}

TEST_F(SharedNamesTest, AnEndIsOfTheSessionThatHasTheName) {
  store_elsewhere("s", "diary");
  shared_catalog_.holds_commits = true;
  const auto created = begin_to_create("diary");
  const auto ended = begin(sessions().end(kTenant, "diary"));
  release_commits();
  EXPECT_FALSE(created->value());
  EXPECT_EQ(code_of(ended->value()), "");
  EXPECT_FALSE(shared_.entries.contains(SessionId{"s"}));
}

TEST_F(SharedNamesTest, AnEndOfASessionThatIsOnlyBeingMadeEndsNoOther) {
  shared_catalog_.holds_commits = true;
  const auto created = begin_to_create("diary");
  const auto ended = begin(sessions().end(kTenant, "diary"));
  release_commits();
  EXPECT_EQ(code_of(created->value()), "");
  EXPECT_EQ(code_of(ended->value()), "");
  EXPECT_TRUE(shared_.entries.empty());
}

TEST_F(SharedNamesTest, ASessionThatDoesNotGetANameIsNotEndedByIt) {
  const auto created = begin_to_create("notes");
  settle();
  store_elsewhere("s", "diary");
  shared_catalog_.holds_commits = true;
  const auto renamed = begin(sessions().update(kTenant, {.session = "notes", .name = "diary"}));
  const auto ended = begin(sessions().end(kTenant, "diary"));
  release_commits();
  EXPECT_EQ(code_of(renamed->value()), "E_IO_001") << "another one has it";
  EXPECT_EQ(code_of(ended->value()), "");
  EXPECT_TRUE(shared_.entries.contains(created->value()->id));
  EXPECT_FALSE(shared_.entries.contains(SessionId{"s"}));
}

// The input was to be tokenized by the model of the session that was not stored.
TEST_F(SharedNamesTest, AnInputThatWaitedIsNotGivenToASessionOfAnotherModel) {
  store_elsewhere("s", "diary", "other");
  shared_catalog_.holds_commits = true;
  const auto created = begin_to_create("diary");
  const auto appended = begin(sessions().append(kTenant, {.session = "diary", .input = {.text = "more", .messages = {}}}));
  release_commits();
  EXPECT_FALSE(created->value());
  EXPECT_EQ(code_of(appended->value()), "E_SESSION_002");
  EXPECT_EQ(code_of(wait_for(sessions().append(kTenant, {.session = "diary", .input = {.text = "more", .messages = {}}}))), "");
}

TEST_F(SharedNamesTest, AListBeginsBehindASessionThatIsNotListedYet) {
  settle();
  store_elsewhere("s", "diary");
  EXPECT_EQ(code_of(wait_for(sessions().list(kTenant, {.after = "diary"}))), "");
  EXPECT_EQ(code_of(wait_for(sessions().list(kTenant, {.after = "nothing"}))), "E_SESSION_001");
}

}  // namespace
}  // namespace uma::engine
