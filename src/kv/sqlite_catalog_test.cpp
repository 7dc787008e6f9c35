#include "kv/sqlite_catalog.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"
#include "kv/catalog_schema.h"
#include "kv/token_chain.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

std::vector<Token> random_tokens(Random& random, std::size_t count) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.next_below(150'000));
  return tokens;
}

SessionRecord text_session(const std::string& id, std::size_t turns = 0, std::size_t tokens_per_turn = 50) {
  SessionRecord record;
  record.id.value = id;
  record.tenant.value = "1000";
  record.model = "a model";
  record.mode = SessionMode::text;
  record.created_s = 1'700'000'000;
  record.last_used_s = 1'700'000'100;
  Random random(7);  // a longer session begins like a shorter one
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const auto begin = static_cast<std::int32_t>(record.chain.size());
    record.turns.push_back({.tokens_begin = begin, .reply_begin = begin + 5, .messages_begin = 0});
    const std::vector<Token> tokens = random_tokens(random, tokens_per_turn);
    record.chain.insert(record.chain.end(), tokens.begin(), tokens.end());
  }
  return record;
}

SessionRecord chat_session(const std::string& id, std::size_t turns = 0, std::size_t tokens_per_turn = 50) {
  SessionRecord record = text_session(id, turns, tokens_per_turn);
  record.mode = SessionMode::chat;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    record.turns[turn].messages_begin = static_cast<std::int32_t>(2 * turn);
    record.messages.push_back({"user", std::format("question {}", turn)});
    record.messages.push_back({"assistant", std::format("answer {}", turn)});
  }
  return record;
}

ResponsePtr response_of(std::int32_t turn, const std::string& id = "0123456789abcdef") {
  return std::make_shared<const ResponseRecord>(ResponseRecord{.turn = turn,
                                                               .id = id,
                                                               .request = R"({"metadata":{"a":"\u0001"})",
                                                               .created_s = 1'700'000'050,
                                                               .reason = FinishReason::tool_calls,
                                                               .prompt_tokens = 30,
                                                               .reused_tokens = 20,
                                                               .completion_tokens = 7,
                                                               .reasoning_tokens = 3});
}

RecordPtr share(SessionRecord record) {
  return std::make_shared<const SessionRecord>(std::move(record));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

// Of this process, until it is gone.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

class SqliteCatalogTest : public ::testing::Test {
 protected:
  SqliteCatalogTest() {
    init_log(LogLevel::error);
    std::string pattern = fs::temp_directory_path() / "uma_catalog_test_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/catalog.db";
  }
  void TearDown() override {
    catalog_.reset();
    fs::remove_all(folder_);
  }

  // Opens the catalog, again where it is open, and reads it.
  std::map<std::string, SessionRecord> open() {
    catalog_.reset();
    auto opened = SqliteCatalog::open(path_);
    if (!opened) {
      ADD_FAILURE() << opened.error().message;
      std::abort();
    }
    catalog_ = std::move(*opened);
    std::map<std::string, SessionRecord> loaded;
    for (const SessionSummary& summary : catalog_->load()) {
      const RecordPtr record = read(summary.id.value).value();
      EXPECT_EQ(summary, summary_of(*record));
      loaded[summary.id.value] = *record;
    }
    return loaded;
  }
  Expected<RecordPtr> read(const std::string& id) {
    std::optional<Expected<RecordPtr>> read;
    catalog_->read(SessionId{id}, [&](Expected<RecordPtr> record) { read = std::move(record); });
    EXPECT_TRUE(catalog_->step());
    return read.value();
  }
  std::string open_error() {
    catalog_.reset();
    const auto opened = SqliteCatalog::open(path_);
    EXPECT_FALSE(opened);
    return opened ? "" : std::format("{} {}", code_name(opened.error().code), opened.error().message);
  }

  Expected<Unit> commit(RecordPtr record, RecordPtr before = nullptr) {
    std::optional<Expected<Unit>> kept;
    catalog_->commit(std::move(record), std::move(before), [&](Expected<Unit> done) { kept = std::move(done); });
    EXPECT_TRUE(catalog_->step());
    return kept.value();
  }
  Expected<Unit> remove(const std::string& id) {
    std::optional<Expected<Unit>> kept;
    catalog_->remove(SessionId{id}, [&](Expected<Unit> done) { kept = std::move(done); });
    EXPECT_TRUE(catalog_->step());
    return kept.value();
  }
  // Runs SQL on the file while no catalog has it open.
  void edit(const std::string& sql) {
    catalog_.reset();
    auto database = Database::open(path_);
    ASSERT_TRUE(database);
    const auto done = database->run(sql);
    ASSERT_TRUE(done) << done.error().message;
  }
  std::vector<std::string> damaged_files() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name.contains(".damaged-") && !name.ends_with("-wal")) found.push_back(entry.path());
    }
    return found;
  }
  // Files of sessions that were set aside.
  std::vector<std::string> set_aside_files() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename().string().contains(".set-aside-")) found.push_back(entry.path());
    }
    return found;
  }

  std::string folder_;
  std::string path_;
  std::unique_ptr<SqliteCatalog> catalog_;
};

// --- What is kept
// -----------------------------------------------------------------------------------------------------------------

TEST_F(SqliteCatalogTest, GivesBackWhatWasCommitted) {
  EXPECT_TRUE(open().empty());
  SessionRecord text = text_session("text", 3);
  text.pending = {1, 2, 3};
  text.ttl_s = 60;
  text.is_public = true;
  text.on_full = OnFull::shift;
  text.n_keep = 9;
  text.turns_dropped = 4;
  text.turns[0] = {.tokens_begin = 9, .reply_begin = 12, .messages_begin = 0};
  SessionRecord chat = chat_session("chat", 2);
  chat.name = "tale: \xf0\x9f\x90\xb4 'quoted\"";
  chat.messages = {{"system", ""},
                   {"user", "line\nline\ttab \xc3\xa4\xe2\x82\xac\xf4\x8f\xbf\xbf"},
                   {"assistant", "'; DROP TABLE sessions; --"},
                   {"user", ""},
                   {"assistant", ""}};
  chat.turns[1].messages_begin = 3;
  chat.pending_messages = {{"user", std::string(100'000, 'x')}, {"tool", "7", R"({"tool_call_id":"1"})"}};
  chat.messages[2].extra = R"({"tool_calls":[]})";
  chat.tools = R"([{"type":"function"}])";
  chat.template_arguments = "{}";
  const SessionRecord empty = text_session("empty");
  for (const SessionRecord& record : {text, chat, empty}) ASSERT_TRUE(commit(share(record)));

  const auto loaded = open();
  ASSERT_EQ(loaded.size(), 3u);
  EXPECT_EQ(loaded.at("text"), text);
  EXPECT_EQ(loaded.at("chat"), chat);
  EXPECT_EQ(loaded.at("empty"), empty);
}

TEST_F(SqliteCatalogTest, ReadsASessionAsItWasLastChanged) {
  open();
  const RecordPtr first = share(chat_session("a", 2));
  SessionRecord next = *first;
  next.name = "diary";
  next.pending = {1, 2, 3};
  next.pending_messages = {{"user", "hello"}};
  ASSERT_TRUE(commit(first));
  EXPECT_EQ(*read("a").value(), *first);
  ASSERT_TRUE(commit(share(next), first));
  ASSERT_TRUE(commit(share(text_session("b", 1))));
  EXPECT_EQ(*read("a").value(), next);
  ASSERT_TRUE(remove("a"));
  const auto gone = read("a");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::io_short_write);
  EXPECT_EQ(*read("b").value(), text_session("b", 1)) << "what follows a failure";
}

TEST_F(SqliteCatalogTest, AReadingWaitsForNoSync) {
  open();
  ASSERT_TRUE(commit(share(text_session("a", 1))));
  std::vector<std::string> order;
  catalog_->commit(share(text_session("b")), nullptr, [&](const Expected<Unit>&) { order.emplace_back("kept"); });
  catalog_->read(SessionId{"a"}, [&](const Expected<RecordPtr>&) { order.emplace_back("read"); });
  EXPECT_TRUE(catalog_->step());
  EXPECT_EQ(order, (std::vector<std::string>{"read", "kept"}));
  EXPECT_FALSE(catalog_->step());
}

TEST_F(SqliteCatalogTest, WhatRotsWhileItIsOpenIsRefused) {
  open();
  const SessionRecord rotten = text_session("rotten", 10);
  ASSERT_TRUE(commit(share(rotten)));
  ASSERT_TRUE(commit(share(text_session("large", 1, 1'500'000)))) << "more than SQLite keeps in memory";
  ASSERT_EQ(open().at("rotten"), rotten);
  std::string bytes = read_file(path_);
  const auto block = std::as_bytes(block_of(rotten.chain, 3));
  const std::string_view needle(reinterpret_cast<const char*>(block.data()), block.size());
  std::size_t found = 0;
  for (std::size_t at = bytes.find(needle); at != std::string::npos; at = bytes.find(needle, at)) {
    bytes[at] ^= 1;
    ++found;
  }
  ASSERT_EQ(found, 2u) << "the large session begins like this one";
  write_file(path_, bytes);
  const auto read_again = read("rotten");
  ASSERT_FALSE(read_again);
  EXPECT_EQ(read_again.error().code, ErrorCode::io_short_write);
  EXPECT_EQ(read_again.error().message,
            "catalog.db: session rotten cannot be read: restart umad, which saves what can be read");
}

TEST_F(SqliteCatalogTest, ForgetsWhatWasRemoved) {
  open();
  SessionRecord named = text_session("a", 2);
  named.name = "diary";
  ASSERT_TRUE(commit(share(named)));
  ASSERT_TRUE(commit(share(text_session("b", 2))));
  ASSERT_TRUE(remove("a"));
  ASSERT_TRUE(remove("never there"));
  named.id.value = "c";
  ASSERT_TRUE(commit(share(named))) << "the name is free again";
  const auto loaded = open();
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_TRUE(loaded.contains("b"));
  EXPECT_EQ(loaded.at("c"), named);
  edit(
      "CREATE TEMP TABLE left AS SELECT session FROM token_blocks UNION SELECT session FROM turns; "
      "CREATE TEMP TABLE no_orphan (x CHECK (x = 0)); INSERT INTO no_orphan SELECT count(*) FROM left WHERE session NOT IN "
      "(SELECT key FROM sessions)");
}

TEST_F(SqliteCatalogTest, ANameIsUniqueInsideATenant) {
  open();
  SessionRecord record = text_session("a");
  record.name = "diary";
  ASSERT_TRUE(commit(share(record)));
  SessionRecord same_name = text_session("b");
  same_name.name = "diary";
  EXPECT_FALSE(commit(share(same_name)));
  same_name.tenant.value = "another";
  ASSERT_TRUE(commit(share(same_name)));
  const auto loaded = open();
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_EQ(loaded.at("a"), record);
  EXPECT_EQ(loaded.at("b"), same_name);
}

TEST_F(SqliteCatalogTest, WritesOnlyWhatChanged) {
  open();
  RecordPtr record = share(text_session("a", 40));  // 2,000 tokens in 32 blocks
  ASSERT_TRUE(commit(record));
  const auto rows_of = [&](auto&& change) {
    SessionRecord next = *record;
    change(next);
    const std::int64_t before = catalog_->rows_written();
    const RecordPtr shared = share(std::move(next));
    EXPECT_TRUE(commit(shared, record));
    record = shared;
    return catalog_->rows_written() - before;
  };
  EXPECT_EQ(rows_of([](SessionRecord& next) { ++next.last_used_s; }), 1);
  EXPECT_EQ(rows_of([](SessionRecord& next) { next.pending.assign(10, 1); }), 2) << "the session, its partial block";
  EXPECT_EQ(rows_of([](SessionRecord& next) { next.pending.insert(next.pending.end(), 100, 2); }), 3);
  const auto finish_turn = [](SessionRecord& next) {
    next.turns.push_back({.tokens_begin = 2000, .reply_begin = 2110, .messages_begin = 0});
    next.chain.insert(next.chain.end(), next.pending.begin(), next.pending.end());
    next.chain.insert(next.chain.end(), 5, 3);
    next.pending.clear();
  };
  EXPECT_EQ(rows_of(finish_turn), 4) << "the session, the turn, the last two blocks: what was pending is there";
  EXPECT_EQ(rows_of([](SessionRecord& next) { next.chain[1984] = 9; }), 4) << "the session, the blocks from the changed one on";
  const auto rewind = [](SessionRecord& next) {
    next.turns.resize(39);
    next.chain.resize(1950);
  };
  EXPECT_EQ(rows_of(rewind), 7) << "the session, the block that is partial now, three blocks and two turns less";
  EXPECT_EQ(open().at("a"), *record);
}

TEST_F(SqliteCatalogTest, AChatTurnWritesItsMessagesOnly) {
  open();
  const RecordPtr record = share(chat_session("a", 25));
  ASSERT_TRUE(commit(record));
  SessionRecord next = *record;
  next.pending_messages = {{"user", "more"}};
  const RecordPtr with_input = share(next);
  std::int64_t before = catalog_->rows_written();
  ASSERT_TRUE(commit(with_input, record));
  EXPECT_EQ(catalog_->rows_written() - before, 2) << "the session and the message";
  next.turns.push_back({.tokens_begin = 1250, .reply_begin = 1251, .messages_begin = 50});
  next.chain.resize(1280, 1);
  next.messages.push_back(next.pending_messages[0]);
  next.messages.push_back({"assistant", "a reply"});
  next.pending_messages.clear();
  before = catalog_->rows_written();
  const RecordPtr finished = share(next);
  ASSERT_TRUE(commit(finished, with_input));
  EXPECT_EQ(catalog_->rows_written() - before, 4) << "the session, the turn, its tokens and the reply";
  EXPECT_EQ(open().at("a"), next);
}

TEST_F(SqliteCatalogTest, WhatWaitsIsOneTransaction) {
  open();
  int kept = 0;
  for (int i = 0; i < 20; ++i) {
    catalog_->commit(share(text_session(std::format("s{}", i), 1)), nullptr,
                     [&](Expected<Unit> done) { kept += done ? 1 : 0; });
  }
  EXPECT_EQ(kept, 0) << "nothing is said before it is kept";
  EXPECT_TRUE(catalog_->step());
  EXPECT_EQ(kept, 20);
  EXPECT_EQ(catalog_->transactions_count(), 1);
  EXPECT_FALSE(catalog_->step());
  EXPECT_EQ(open().size(), 20u);
}

TEST_F(SqliteCatalogTest, ADoneMayCommitAgain) {
  open();
  const RecordPtr record = share(text_session("a"));
  bool is_done = false;
  catalog_->commit(record, nullptr, [&](const Expected<Unit>&) {
    catalog_->commit(share(text_session("a", 1)), record, [&](Expected<Unit> done) { is_done = done.has_value(); });
  });
  while (catalog_->step()) {
  }
  EXPECT_TRUE(is_done);
  EXPECT_EQ(open().at("a").turns.size(), 1u);
}

TEST_F(SqliteCatalogTest, WorksInAThreadOfItsOwnUntilItIsClosed) {
  open();
  std::thread thread([&] {
    do {
      while (catalog_->step()) {
      }
    } while (catalog_->wait());
  });
  std::atomic<int> kept = 0;
  for (int i = 0; i < 50; ++i) {
    catalog_->commit(share(text_session(std::format("s{}", i))), nullptr, [&](Expected<Unit> done) { kept += done ? 1 : 0; });
  }
  catalog_->close();
  thread.join();
  EXPECT_EQ(kept, 50);
  EXPECT_EQ(open().size(), 50u);
}

// As the router changes sessions: the catalog in memory is what the file has to give back.
TEST_F(SqliteCatalogTest, GivesBackWhatAnyHistoryOfChangesLeft) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    catalog_.reset();
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    open();
    MemoryCatalog model;
    std::map<std::string, RecordPtr> sessions;
    int made = 0;
    const auto put = [&](SessionRecord next) {
      const std::string id = next.id.value;
      const RecordPtr record = share(std::move(next));
      const RecordPtr before = sessions[id];
      model.commit(record, before, [](const Expected<Unit>&) {});
      catalog_->commit(record, before, [](const Expected<Unit>& done) { EXPECT_TRUE(done); });
      sessions[id] = record;
    };
    const auto some_text = [&] {
      std::string text;
      for (std::uint64_t i = random.next_below(6); i > 0; --i)
        text += random.next_below(2) == 0 ? "\xf0\x9f\x8c\x99" : "a\n\x01\x7f";
      return text;
    };
    for (int action = 0; action < 120; ++action) {
      auto picked = sessions.begin();
      if (!sessions.empty()) std::advance(picked, static_cast<std::ptrdiff_t>(random.next_below(sessions.size())));
      switch (sessions.empty() ? 0 : random.next_below(9)) {
        case 0: {  // create
          SessionRecord record = text_session(std::format("s{}", ++made));
          if (random.next_below(2) == 0) record.name = std::format("name {}", made);
          if (random.next_below(2) == 0) record.mode = SessionMode::chat;
          record.ttl_s = static_cast<std::int64_t>(random.next_below(3));
          record.is_ephemeral = random.next_below(2) == 0;
          put(std::move(record));
          break;
        }
        case 1: {  // fork
          SessionRecord record = *picked->second;
          record.id.value = std::format("s{}", ++made);
          record.name.clear();
          put(std::move(record));
          break;
        }
        case 2: {  // end
          const SessionId id{picked->first};
          model.remove(id, [](const Expected<Unit>&) {});
          catalog_->remove(id, [](const Expected<Unit>& done) { EXPECT_TRUE(done); });
          sessions.erase(picked);
          break;
        }
        case 3:
        case 4: {  // append
          SessionRecord record = *picked->second;
          const std::vector<Token> tokens = random_tokens(random, 1 + random.next_below(150));
          record.pending.insert(record.pending.end(), tokens.begin(), tokens.end());
          if (record.mode == SessionMode::chat) record.pending_messages.push_back({"user", some_text()});
          put(std::move(record));
          break;
        }
        case 5:
        case 6: {  // a turn
          SessionRecord record = *picked->second;
          if (record.pending.empty()) break;
          const auto begin = static_cast<std::int32_t>(record.chain.size());
          record.turns.push_back({.tokens_begin = begin,
                                  .reply_begin = begin + static_cast<std::int32_t>(record.pending.size()),
                                  .messages_begin = static_cast<std::int32_t>(record.messages.size())});
          const std::vector<Token> reply = random_tokens(random, random.next_below(100));
          record.chain.insert(record.chain.end(), record.pending.begin(), record.pending.end());
          record.chain.insert(record.chain.end(), reply.begin(), reply.end());
          record.messages.insert(record.messages.end(), record.pending_messages.begin(), record.pending_messages.end());
          if (record.mode == SessionMode::chat) record.messages.push_back({"assistant", some_text()});
          record.pending.clear();
          record.pending_messages.clear();
          if (random.next_below(2) == 0) {
            record.responses.push_back(response_of(static_cast<std::int32_t>(record.turns.size()) - 1, std::to_string(action)));
          }
          record.metadata = some_text();
          record.has_instructions = !record.messages.empty() && random.next_below(2) == 0;
          record.is_of_responses = random.next_below(2) == 0;
          put(std::move(record));
          break;
        }
        case 7: {  // rewind, or regenerate: the input of the dropped turn is pending again
          SessionRecord record = *picked->second;
          if (record.turns.empty()) break;
          const std::size_t kept = random.next_below(record.turns.size());
          const Turn dropped = record.turns[kept];
          record.pending.clear();
          record.pending_messages.clear();
          if (random.next_below(2) == 0) {
            record.pending.assign(record.chain.begin() + dropped.tokens_begin, record.chain.begin() + dropped.reply_begin);
            if (record.mode == SessionMode::chat) {
              record.pending_messages.push_back(record.messages[static_cast<std::size_t>(dropped.messages_begin)]);
            }
          }
          record.chain.resize(static_cast<std::size_t>(dropped.tokens_begin));
          record.messages.resize(static_cast<std::size_t>(dropped.messages_begin));
          record.turns.resize(kept);
          record.has_instructions = false;
          std::erase_if(record.responses,
                        [&](const ResponsePtr& response) { return response->turn >= std::ssize(record.turns); });
          put(std::move(record));
          break;
        }
        default:
          catalog_->step();
          if (random.next_below(8) == 0) open();
      }
    }
    while (catalog_->step()) {
    }
    const auto loaded = open();
    EXPECT_EQ(loaded.size(), model.size());
    for (const auto& [id, record] : loaded) EXPECT_EQ(*model.find(SessionId{id}), record);
  }
}

// --- Files and their users
// --------------------------------------------------------------------------------------------------------

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

// --- Versions
// ---------------------------------------------------------------------------------------------------------------------

TEST_F(SqliteCatalogTest, ALaterVersionIsRefusedAndLeftAlone) {
  open();
  ASSERT_TRUE(commit(share(text_session("a"))));
  edit("PRAGMA user_version = 7");
  const std::string bytes = read_file(path_);
  EXPECT_EQ(open_error(),
            "E_IO_001 " + path_ +
                ": the catalog has version 7, this umad knows versions up to 6: start the umad that made it, or give "
                "this one a --data-dir of its own");
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
  next.pending_messages = {{"assistant", "", "{}"}};
  ASSERT_TRUE(commit(share(next), share(old)));
  EXPECT_EQ(open().at("old"), next);
  EXPECT_TRUE(damaged_files().empty());
}

// What a full context has cost: turns from the middle of the chain, and the messages that went with them.
TEST_F(SqliteCatalogTest, TurnsThatWereDroppedAreGone) {
  open();
  SessionRecord before = chat_session("a", 5);
  before.on_full = OnFull::shift;
  before.n_keep = 10;
  ASSERT_TRUE(commit(share(before)));
  SessionRecord after = before;
  after.chain.erase(after.chain.begin() + 10, after.chain.begin() + 150);
  after.messages.erase(after.messages.begin(), after.messages.begin() + 6);
  after.turns = {{.tokens_begin = 10, .reply_begin = 15, .messages_begin = 0},
                 {.tokens_begin = 60, .reply_begin = 65, .messages_begin = 2}};
  after.turns_dropped = 3;
  ASSERT_TRUE(commit(share(after), share(before)));
  EXPECT_EQ(open().at("a"), after);
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(SqliteCatalogTest, ResponsesStandWithTheirTurns) {
  open();
  SessionRecord before = text_session("a", 5);
  before.responses = {response_of(0, "first"), response_of(2, "third"), response_of(4, "fifth")};
  ASSERT_TRUE(commit(share(before)));
  EXPECT_EQ(open().at("a"), before);
  SessionRecord after = before;
  after.responses = {response_of(1, "second"), before.responses[1], response_of(4, "another")};
  const std::int64_t rows = catalog_->rows_written();
  ASSERT_TRUE(commit(share(after), share(before)));
  EXPECT_EQ(catalog_->rows_written() - rows, 4) << "the session's, one removed, one new, one changed";
  EXPECT_EQ(open().at("a"), after);
  catalog_.reset();
  edit("UPDATE responses SET reason = 77 WHERE turn = 1; UPDATE responses SET turn = 9 WHERE turn = 4");
  after.responses = {before.responses[1]};
  EXPECT_EQ(open().at("a"), after) << "what makes no sense is none, and costs nothing else";
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

// --- Damage
// -----------------------------------------------------------------------------------------------------------------------

TEST_F(SqliteCatalogTest, ADamagedBlockCostsTheTurnsFromItOn) {
  open();
  SessionRecord record = text_session("a", 6, 50);  // 300 tokens; block 2 has tokens 128 to 191, of turns 2 and 3
  record.pending = {1, 2, 3};
  const SessionRecord whole = text_session("b", 6, 50);
  ASSERT_TRUE(commit(share(record)));
  ASSERT_TRUE(commit(share(whole)));
  for (const char* damage : {"UPDATE token_blocks SET tokens = zeroblob(256)", "UPDATE token_blocks SET hash = zeroblob(16)",
                             "UPDATE token_blocks SET tokens = x'00'", "DELETE FROM token_blocks"}) {
    SCOPED_TRACE(damage);
    edit(std::format("{} WHERE number = 2 AND session = (SELECT key FROM sessions WHERE id = 'a')", damage));
    auto loaded = open();
    SessionRecord expected = record;
    expected.turns.resize(2);
    expected.chain.resize(100);
    expected.pending.clear();
    EXPECT_EQ(loaded.at("a"), expected);
    EXPECT_EQ(loaded.at("b"), whole);
    EXPECT_EQ(open(), loaded) << "what is left is whole";
    ASSERT_TRUE(commit(share(record), share(expected))) << "and it goes on";
    EXPECT_EQ(open().at("a"), record);
  }
  EXPECT_TRUE(damaged_files().empty()) << "the file is sound";
  EXPECT_EQ(set_aside_files().size(), 4u) << "one for each time";
}

TEST_F(SqliteCatalogTest, WhatMakesNoSenseIsSetAsideAlone) {
  open();
  const SessionRecord sound = chat_session("sound", 3);
  SessionRecord cut = chat_session("cut", 3);
  cut.on_full = OnFull::shift;
  cut.turns_dropped = 1;
  cut.turns[0].tokens_begin = cut.n_keep = 2;
  for (const char* damage :
       {"UPDATE sessions SET turns_dropped = 2147483647", "UPDATE sessions SET n_keep = 3", "UPDATE sessions SET ttl_s = -1",
        "UPDATE sessions SET mode = 7", "UPDATE sessions SET on_full = 0", "UPDATE sessions SET name = CAST(x'ff' AS TEXT)",
        "UPDATE sessions SET id = ''"}) {
    SCOPED_TRACE(damage);
    ASSERT_TRUE(commit(share(sound)));
    ASSERT_TRUE(commit(share(cut)));
    edit(std::format("{} WHERE id = 'cut'", damage));
    const auto loaded = open();
    EXPECT_EQ(loaded.size(), 1u);
    EXPECT_EQ(loaded.at("sound"), sound);
    EXPECT_TRUE(damaged_files().empty());
    ASSERT_EQ(set_aside_files().size(), 1u);
    {
      const auto aside = Database::open(set_aside_files().front());
      ASSERT_TRUE(aside);
      EXPECT_EQ(read_integer(*aside, "SELECT count(*) FROM sessions").value(), 1);
      EXPECT_EQ(read_integer(*aside, "SELECT count(*) FROM turns").value(), 3);
      EXPECT_EQ(read_integer(*aside, "SELECT count(*) FROM messages").value(), 6);
    }
    fs::remove(set_aside_files().front());
    EXPECT_EQ(open().size(), 1u) << "and it stays away";
    EXPECT_TRUE(set_aside_files().empty());
    ASSERT_TRUE(remove("sound"));
  }
}

TEST_F(SqliteCatalogTest, WhatCannotBeReadBackIsNotWritten) {
  open();
  SessionRecord record = chat_session("a", 2);
  record.turns[1].messages_begin = 3;
  const auto refused = commit(share(record));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "catalog.db: session a cannot be kept: its turns do not fit its tokens or messages");
  EXPECT_TRUE(open().empty());
}

TEST_F(SqliteCatalogTest, DamagedMessagesAndTurnsCostTheTurnsFromThemOn) {
  open();
  const SessionRecord record = chat_session("a", 3, 10);
  struct Case {
    const char* damage;
    std::size_t turns_kept;
  };
  for (const auto& [damage, kept] :
       {Case{"UPDATE messages SET content = 'other' WHERE number = 3", 1}, Case{"DELETE FROM messages WHERE number = 5", 2},
        Case{"UPDATE messages SET extra = '{}' WHERE number = 3", 1},
        Case{"UPDATE messages SET role = 'assistant' WHERE number = 0", 0}, Case{"DELETE FROM turns WHERE number = 2", 1},
        Case{"UPDATE turns SET reply_begin = 2000 WHERE number = 1", 1},
        Case{"UPDATE turns SET tokens_begin = -4 WHERE number = 0", 0}, Case{"UPDATE sessions SET tokens_count = 27", 2},
        Case{"UPDATE sessions SET tokens_count = 31", 2}}) {
    SCOPED_TRACE(damage);
    ASSERT_TRUE(remove("a"));
    ASSERT_TRUE(commit(share(record)));
    edit(damage);
    SessionRecord expected = record;
    expected.turns.resize(kept);
    expected.chain.resize(kept * 10);
    expected.messages.resize(kept * 2);
    EXPECT_EQ(open().at("a"), expected);
  }
}

TEST_F(SqliteCatalogTest, ATornLogKeepsWhatWasCompleteInIt) {
  open();
  std::vector<RecordPtr> history{nullptr};
  for (std::size_t turn = 1; turn <= 8; ++turn) {
    history.push_back(share(text_session("a", turn)));
    ASSERT_TRUE(commit(history.back(), history[turn - 1]));
  }
  const std::string file = read_file(path_);
  const std::string log = read_file(path_ + "-wal");
  ASSERT_GT(log.size(), 20'000u);
  catalog_.reset();
  std::size_t turns_before = 0;
  for (std::size_t size = 0; size <= log.size(); size += 1500) {
    SCOPED_TRACE(size);
    write_file(path_, file);
    write_file(path_ + "-wal", log.substr(0, size));
    const auto loaded = open();
    const std::size_t turns = loaded.empty() ? 0 : loaded.at("a").turns.size();
    if (turns > 0) {
      EXPECT_EQ(loaded.at("a"), *history[turns]);
    }
    EXPECT_GE(turns, turns_before) << "a longer log has no less";
    turns_before = turns;
    catalog_.reset();
  }
  EXPECT_GE(turns_before, 7u);
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(SqliteCatalogTest, WhatIsNoDatabaseIsMovedAside) {
  for (const std::string& garbage : {std::string("precious notes"), std::string(100'000, 'x')}) {
    write_file(path_, garbage);
    EXPECT_TRUE(open().empty());
    ASSERT_TRUE(commit(share(text_session("a", 1))));
    EXPECT_EQ(open().size(), 1u);
    ASSERT_EQ(damaged_files().size(), 1u);
    EXPECT_EQ(read_file(damaged_files()[0]), garbage);
    fs::remove(damaged_files()[0]);
  }
}

TEST_F(SqliteCatalogTest, AnotherProgramsDatabaseIsMovedAside) {
  edit("CREATE TABLE sessions (url TEXT)");
  EXPECT_TRUE(open().empty());
  EXPECT_EQ(damaged_files().size(), 1u);
}

TEST_F(SqliteCatalogTest, WithoutRoomToSetASessionAsideItStaysAsItIs) {
  open();
  ASSERT_TRUE(commit(share(text_session("a", 3))));
  edit("UPDATE token_blocks SET hash = zeroblob(16) WHERE number = 1");
  const std::string damaged = read_file(path_);
  {
    const FileSizeLimit limit(5'000);
    const std::string error = open_error();
    EXPECT_TRUE(error.contains("disk I/O error")) << error;
  }
  EXPECT_EQ(read_file(path_), damaged);
  EXPECT_EQ(open().at("a").turns.size(), 1u);
}

TEST_F(SqliteCatalogTest, WithoutRoomToSaveADamagedFileItStaysAsItIs) {
  open();
  ASSERT_TRUE(commit(share(text_session("a", 3))));
  edit(
      "CREATE INDEX other ON turns (reply_begin); PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE name = 'other'");
  const std::string damaged = read_file(path_);
  {
    const FileSizeLimit limit(10'000);
    const std::string error = open_error();
    EXPECT_TRUE(error.contains("catalog.db.new: disk I/O error")) << error;
  }
  EXPECT_EQ(read_file(path_), damaged);
  EXPECT_EQ(open().at("a").turns.size(), 3u);
}

// A salvage may end with its process at any point.
TEST_F(SqliteCatalogTest, ASalvageThatWasCutOffIsFinished) {
  open();
  const SessionRecord saved = text_session("saved", 3);
  ASSERT_TRUE(commit(share(saved)));
  catalog_.reset();
  const std::string new_catalog = read_file(path_);
  fs::remove(path_);
  open();
  ASSERT_TRUE(commit(share(text_session("old", 1))));
  const std::string old_log = read_file(path_ + "-wal");
  ASSERT_GT(old_log.size(), 4'000u);
  for (const bool has_old_file : {true, false}) {
    for (const bool has_old_log : {true, false}) {
      catalog_.reset();
      fs::remove(path_);
      fs::remove(path_ + "-wal");
      write_file(path_ + ".saved", new_catalog);
      if (has_old_file) write_file(path_, "damaged");
      if (has_old_log) write_file(path_ + "-wal", old_log);
      const auto loaded = open();
      EXPECT_EQ(loaded.size(), 1u);
      EXPECT_EQ(loaded.at("saved"), saved);
      EXPECT_FALSE(fs::exists(path_ + ".saved"));
    }
  }
  EXPECT_TRUE(damaged_files().empty());
}

TEST_F(SqliteCatalogTest, AnEmptyFileIsANewCatalog) {
  write_file(path_, "");
  EXPECT_TRUE(open().empty());
  EXPECT_TRUE(damaged_files().empty());
}

// Every token that is given back is one that was kept, in its place.
void expect_beginnings(const std::map<std::string, SessionRecord>& loaded, const std::map<std::string, SessionRecord>& kept) {
  for (const auto& [id, record] : loaded) {
    const auto found = kept.find(id);
    if (found == kept.end()) continue;  // its id was damaged
    ASSERT_LE(record.chain.size(), found->second.chain.size());
    EXPECT_TRUE(std::ranges::equal(record.chain, std::span(found->second.chain).first(record.chain.size()))) << id;
  }
}

TEST_F(SqliteCatalogTest, WhatCanBeReadOfADamagedFileIsSaved) {
  open();
  std::map<std::string, SessionRecord> kept;
  for (std::size_t i = 0; i < 200; ++i) {
    SessionRecord record = text_session(std::format("s{}", i), 1 + i % 20);
    record.name = std::format("name {}", i);
    kept[record.id.value] = record;
    catalog_->commit(share(record), nullptr, [](const Expected<Unit>& done) { ASSERT_TRUE(done); });
  }
  catalog_->step();
  ASSERT_EQ(open(), kept);
  catalog_.reset();
  const std::string whole = read_file(path_);
  ASSERT_GT(whole.size(), 500'000u);

  // A page of zeros somewhere in the middle, a file that ends too early, bits that are wrong.
  constexpr std::size_t kPage = 4096;
  std::size_t saved = 0;
  std::size_t rounds = 0;
  const auto reopen = [&](const std::string& damaged) {
    write_file(path_, damaged);
    const auto loaded = open();
    expect_beginnings(loaded, kept);
    EXPECT_EQ(open(), loaded) << "what is left is whole";
    ASSERT_TRUE(commit(share(text_session("new", 1))));
    catalog_.reset();
    saved += loaded.size();
    ++rounds;
    for (const std::string& file : damaged_files()) {
      EXPECT_EQ(read_file(file), damaged);
      fs::remove(file);
      fs::remove(file + "-wal");
    }
    for (const std::string& file : set_aside_files()) fs::remove(file);
  };
  for (std::size_t page = 1; page < whole.size() / kPage; page += 8) {
    SCOPED_TRACE(page);
    std::string damaged = whole;
    damaged.replace(page * kPage, kPage, kPage, '\0');
    reopen(damaged);
  }
  EXPECT_GT(saved, rounds * 150) << "one page costs few sessions";
  for (std::size_t pages = 3; pages < whole.size() / kPage; pages += 17) {
    SCOPED_TRACE(pages);
    reopen(whole.substr(0, pages * kPage - pages % 2 * 100));
  }
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    std::string damaged = whole;
    // Every other time in the first page, which has the tables' definitions; its first bytes have the version.
    const std::size_t end = round % 2 == 0 ? whole.size() : kPage;
    for (std::uint64_t flips = 1 + random.next_below(20); flips > 0; --flips) {
      damaged[100 + random.next_below(end - 100)] ^= static_cast<char>(1 << random.next_below(8));
    }
    reopen(damaged);
  }
}

TEST_F(SqliteCatalogTest, SoIsWhatADamagedFileOfAnEarlierVersionHas) {
  open();
  std::map<std::string, SessionRecord> kept;
  for (std::size_t i = 0; i < 100; ++i) {
    SessionRecord record = text_session(std::format("s{}", i), 1 + i % 20);
    kept[record.id.value] = record;
    catalog_->commit(share(record), nullptr, [](const Expected<Unit>& done) { ASSERT_TRUE(done); });
  }
  catalog_->step();
  edit(
      "ALTER TABLE messages DROP COLUMN extra; ALTER TABLE sessions DROP COLUMN tools; ALTER TABLE sessions DROP COLUMN "
      "has_foreign_kv; "
      "ALTER TABLE sessions DROP COLUMN template_arguments; "
      "DROP TABLE responses; ALTER TABLE sessions DROP COLUMN metadata; ALTER TABLE sessions DROP COLUMN is_of_responses; "
      "ALTER TABLE sessions DROP COLUMN has_instructions; PRAGMA user_version = 2; VACUUM; PRAGMA journal_mode = DELETE");
  constexpr std::size_t kPage = 4096;
  std::string damaged = read_file(path_);
  damaged.replace(damaged.size() / kPage / 2 * kPage, kPage, kPage, '\0');
  write_file(path_, damaged);
  const auto loaded = open();
  expect_beginnings(loaded, kept);
  EXPECT_GT(loaded.size(), 80u);
  ASSERT_EQ(damaged_files().size(), 1u);
  EXPECT_EQ(read_file(damaged_files().front()), damaged);
}

// --- A full disk
// ------------------------------------------------------------------------------------------------------------------

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
    EXPECT_EQ(results[1].error().code, ErrorCode::io_short_write);
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
  const SqlError full{13, "database or disk is full"};
  EXPECT_TRUE(full.is_full());
  auto database = Database::open(path_);
  ASSERT_TRUE(database && database->run("CREATE TABLE t (x); PRAGMA max_page_count = 5"));
  const auto done = database->run("INSERT INTO t VALUES (zeroblob(100000))");
  ASSERT_FALSE(done);
  EXPECT_TRUE(done.error().is_full()) << done.error().message;
}

}  // namespace
}  // namespace uma::kv
