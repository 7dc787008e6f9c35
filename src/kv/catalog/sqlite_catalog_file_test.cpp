// The catalog's file: its users, its versions, and a disk that is full.
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/catalog/sqlite_catalog_test_support.h"

namespace uma::kv {
namespace {

TEST_F(SqliteCatalogTest, ItsFilesAreTheOwnersAlone) {
  const mode_t umask_before = ::umask(0);
  open();
  ASSERT_TRUE(commit(share(text_session("a"))));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write) << entry.path();
  }
  ::umask(umask_before);
}

TEST_F(SqliteCatalogTest, ASecondUserIsRefused) {
  open();
  ASSERT_TRUE(commit(share(text_session("a"))));
  const auto second = SqliteCatalog::open(path_);
  ASSERT_FALSE(second);
  EXPECT_TRUE(second.error().message.contains("in use by another umad")) << second.error().message;
  EXPECT_TRUE(commit(share(text_session("b")))) << "the first goes on";
  EXPECT_EQ(open().size(), 2u);
}

TEST_F(SqliteCatalogTest, AnotherProgramThatHasTheFileOpenIsNamed) {
  open();
  ASSERT_TRUE(commit(share(text_session("a"))));
  catalog_.reset();
  auto other = Database::open(path_);
  ASSERT_TRUE(other && other->run("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE"));
  EXPECT_TRUE(open_error().contains("another process has it open"));
  other = std::unexpected(SqlError{});
  EXPECT_EQ(open().size(), 1u);
}

// File permissions mean something to root only after it has given up its identity.
class Nobody {
 public:
  Nobody() { ::setfsuid(65534); }
  ~Nobody() { ::setfsuid(::geteuid()); }
};

TEST_F(SqliteCatalogTest, AFolderThatCannotBeWrittenIsAnError) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0500), 0);
  const Nobody nobody;
  const std::string error = open_error();
  EXPECT_TRUE(error.starts_with("E_IO_001 ") && error.contains("Permission denied") && error.contains(folder_)) << error;
}

TEST_F(SqliteCatalogTest, AFileThatCannotBeWrittenIsAnError) {
  open();
  ASSERT_TRUE(commit(share(text_session("a"))));
  catalog_.reset();
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  ASSERT_EQ(::chmod((path_ + ".lock").c_str(), 0666), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0400), 0);
  {
    const Nobody nobody;
    const std::string error = ::geteuid() == 0 ? open_error() : "E_IO_001 " + path_ + ": Permission denied";
    EXPECT_EQ(error, "E_IO_001 " + path_ + ": Permission denied");
  }
  EXPECT_EQ(open().size(), 1u);
}

TEST_F(SqliteCatalogTest, AFolderInThePlaceOfTheFileIsAnError) {
  fs::create_directory(path_);
  EXPECT_TRUE(open_error().contains("Is a directory"));
}

TEST_F(SqliteCatalogTest, ALaterVersionIsRefusedAndLeftAlone) {
  open();
  ASSERT_TRUE(commit(share(text_session("a"))));
  const std::size_t known = schema_steps().size();
  edit(std::format("PRAGMA user_version = {}", known + 1));
  const std::string bytes = read_file(path_);
  EXPECT_EQ(
      open_error(),
      std::format("E_IO_001 {}: the catalog has version {}, but this umad supports versions up to {}: start the umad that "
                  "made it, or give this one another --data-dir",
                  path_, known + 1, known));
  EXPECT_EQ(read_file(path_), bytes);
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(SqliteCatalogTest, AnOlderVersionBecomesThisOne) {
  const std::array<std::string_view, 3> steps{"CREATE TABLE notes (text TEXT)",
                                              "ALTER TABLE notes ADD COLUMN size INTEGER DEFAULT 3",
                                              "UPDATE notes SET size = length(text); CREATE INDEX by_size ON notes (size)"};
  auto database = Database::open(path_);
  ASSERT_TRUE(database);
  ASSERT_TRUE(migrate(*database, std::span(steps).first(1)));
  EXPECT_EQ(schema_version(*database).value(), 1);
  ASSERT_TRUE(database->run("INSERT INTO notes VALUES ('kept')"));
  ASSERT_TRUE(migrate(*database, steps));
  EXPECT_EQ(schema_version(*database).value(), 3);
  EXPECT_EQ(read_integer(*database, "SELECT size FROM notes WHERE text = 'kept'").value(), 4);
  ASSERT_TRUE(migrate(*database, steps)) << "there is nothing left to do";
}

TEST_F(SqliteCatalogTest, AFileOfTheFirstVersionGoesOn) {
  {
    auto database = Database::open(path_);
    ASSERT_TRUE(database);
    ASSERT_TRUE(migrate(*database, schema_steps().first(1)));
    ASSERT_TRUE(
        database->run("INSERT INTO tenants VALUES ('1000'); INSERT INTO sessions (id, tenant, model, mode, turns_count, "
                      "tokens_count, pending_tokens_count, messages_count, pending_messages_count, ttl_s, created_s, "
                      "last_used_s) VALUES ('old', '1000', 'a model', 1, 0, 0, 0, 0, 0, 0, 1700000000, 1700000100)"));
  }
  const SessionRecord old = open().at("old");
  EXPECT_EQ(old, text_session("old"));
  SessionRecord next = old;
  next.mode = SessionMode::chat;
  next.on_full = OnFull::shift;
  next.tools = "[]";
  next.metadata = R"({"title":"old"})";
  next.parent.value = "older";
  next.fork_turn = 3;
  next.pending_messages = {{"assistant", "", "{}"}};
  ASSERT_TRUE(commit(share(next), share(old)));
  EXPECT_EQ(open().at("old"), next);
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(SqliteCatalogTest, AStepThatFailsChangesNothing) {
  const std::array<std::string_view, 2> steps{"CREATE TABLE notes (text TEXT)",
                                              "CREATE TABLE more (text TEXT); CREATE TABLE notes (x)"};
  auto database = Database::open(path_);
  ASSERT_TRUE(database);
  EXPECT_FALSE(migrate(*database, steps));
  EXPECT_EQ(schema_version(*database).value(), 1);
  EXPECT_EQ(read_integer(*database, "SELECT count(*) FROM sqlite_schema").value(), 1);
}

TEST_F(SqliteCatalogTest, WhatDoesNotFitFailsAloneAndTheRestIsKept) {
  open();
  const RecordPtr before = share(text_session("a", 1));
  ASSERT_TRUE(commit(before));
  const RecordPtr small = share(text_session("a", 2));
  const RecordPtr large = share(text_session("large", 1, 500'000));
  const RecordPtr other = share(text_session("b", 1));
  std::vector<Expected<Unit>> results;
  const auto note = [&](Expected<Unit> done) { results.push_back(std::move(done)); };
  {
    const FileSizeLimit limit(fs::file_size(path_ + "-wal") + 400'000);
    catalog_->commit(small, before, note);
    catalog_->commit(large, nullptr, note);
    catalog_->commit(other, nullptr, note);
    catalog_->step();
    ASSERT_EQ(results.size(), 3u);
    EXPECT_TRUE(results[0]);
    EXPECT_TRUE(results[2]);
    ASSERT_FALSE(results[1]);
    EXPECT_EQ(results[1].error().code, ErrorCode::io_failed);
    EXPECT_EQ(results[1].error().message, "catalog.db: disk I/O error (File too large): check the disk");
    EXPECT_EQ(catalog_->transactions_count(), 5) << "together, then each alone";
  }
  EXPECT_TRUE(commit(large)) << "once there is room it is kept";
  const auto loaded = open();
  EXPECT_EQ(loaded.size(), 3u);
  EXPECT_EQ(loaded.at("a"), *small);
  EXPECT_EQ(loaded.at("b"), *other);
  EXPECT_EQ(loaded.at("large"), *large);
}

TEST_F(SqliteCatalogTest, AnyAmountOfRoomLeavesTheLastStateThatWasSaidToBeKept) {
  open();
  RecordPtr kept = share(text_session("a", 1));
  ASSERT_TRUE(commit(kept));
  std::size_t failures = 0;
  for (rlim_t room = 0; room < 60'000; room += 1500) {
    SCOPED_TRACE(room);
    const FileSizeLimit limit(fs::file_size(path_ + "-wal") + room);
    for (int i = 0; i < 3; ++i) {
      const RecordPtr next = share(text_session("a", kept->turns.size() + 1));
      const auto done = commit(next, kept);
      if (done) kept = next;
      failures += done ? 0 : 1;
    }
  }
  EXPECT_GT(failures, 0u);
  EXPECT_EQ(open().at("a"), *kept);
}

TEST_F(SqliteCatalogTest, AFullDiskIsCalledThat) {
  const SqlError full{SqlFault::full, "database or disk is full"};
  EXPECT_TRUE(full.is_full());
  auto database = Database::open(path_);
  ASSERT_TRUE(database && database->run("CREATE TABLE t (x); PRAGMA max_page_count = 5"));
  const auto done = database->run("INSERT INTO t VALUES (zeroblob(100000))");
  ASSERT_FALSE(done);
  EXPECT_TRUE(done.error().is_full()) << done.error().message;
}

}  // namespace
}  // namespace uma::kv
