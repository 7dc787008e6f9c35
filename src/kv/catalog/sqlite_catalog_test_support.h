// A catalog in a folder of its own, and sessions to keep in it.
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/random.h"
#include "kv/catalog/catalog_schema.h"
#include "kv/catalog/sqlite_catalog.h"

namespace uma::kv {

namespace fs = std::filesystem;

inline std::vector<Token> random_tokens(Random& random, std::size_t count) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.next_below(150'000));
  return tokens;
}

inline SessionRecord text_session(const std::string& id, std::size_t turns = 0, std::size_t tokens_per_turn = 50) {
  SessionRecord record;
  record.id.value = id;
  record.tenant.value = "1000";
  record.model = "a model";
  record.mode = SessionMode::text;
  record.created_s = 1'700'000'000;
  record.last_used_s = 1'700'000'100;
  Random random(7);  // A longer session begins like a shorter one.
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const auto begin = static_cast<std::int32_t>(record.chain.size());
    record.turns.push_back({.tokens_begin = begin, .reply_begin = begin + 5, .messages_begin = 0});
    const std::vector<Token> tokens = random_tokens(random, tokens_per_turn);
    record.chain.insert(record.chain.end(), tokens.begin(), tokens.end());
  }
  return record;
}

inline SessionRecord chat_session(const std::string& id, std::size_t turns = 0, std::size_t tokens_per_turn = 50) {
  SessionRecord record = text_session(id, turns, tokens_per_turn);
  record.mode = SessionMode::chat;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    record.turns[turn].messages_begin = static_cast<std::int32_t>(2 * turn);
    record.messages.push_back({"user", std::format("question {}", turn)});
    record.messages.push_back({"assistant", std::format("answer {}", turn)});
  }
  return record;
}

inline ResponsePtr response_of(std::int32_t turn, const std::string& id = "0123456789abcdef") {
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

inline RecordPtr share(SessionRecord record) {
  return std::make_shared<const SessionRecord>(std::move(record));
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
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

}  // namespace uma::kv
