// What a damaged file costs: the turns from the damage on, and nothing else.
#include <algorithm>
#include <filesystem>
#include <format>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/catalog/sqlite_catalog_test_support.h"
#include "kv/token_chain.h"

namespace uma::kv {
namespace {

TEST_F(SqliteCatalogTest, ADamagedBlockCostsTheTurnsFromItOn) {
  open();
  SessionRecord record = text_session("a", 6, 50);  // 300 tokens; block 2 has tokens 128 to 191, of turns 2 and 3.
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
        "UPDATE sessions SET id = ''", "UPDATE sessions SET fork_turn = -1"}) {
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
      auto aside = Database::open(set_aside_files().front());
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

TEST_F(SqliteCatalogTest, DamagedMetadataCostsTheMetadataAlone) {
  open();
  SessionRecord record = chat_session("a", 3);
  record.metadata = R"({"title":"A tale"})";
  record.pending = {1};
  record.pending_messages = {{"user", "waiting"}};
  ASSERT_TRUE(commit(share(record)));
  edit(R"(UPDATE sessions SET metadata = '{"title":A tale"}')");
  record.metadata.clear();
  EXPECT_EQ(open().at("a"), record);
  EXPECT_EQ(set_aside_files().size(), 1u);
}

TEST_F(SqliteCatalogTest, WhatCannotBeReadBackIsNotWritten) {
  open();
  SessionRecord record = chat_session("a", 2);
  record.turns[1].messages_begin = 3;
  const auto refused = commit(share(record));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "catalog.db: session a cannot be stored: its turns do not fit its tokens or messages");
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
    if (found == kept.end()) continue;  // Its id was damaged.
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
      "ALTER TABLE sessions DROP COLUMN bytes_stored; ALTER TABLE messages DROP COLUMN extra; ALTER TABLE sessions DROP COLUMN "
      "tools; ALTER TABLE sessions DROP COLUMN "
      "has_foreign_kv; ALTER TABLE sessions DROP COLUMN parent_id; ALTER TABLE sessions DROP COLUMN fork_turn; "
      "ALTER TABLE sessions DROP COLUMN template_arguments; "
      "DROP TABLE receipts; DROP TABLE responses; ALTER TABLE sessions DROP COLUMN metadata; ALTER TABLE sessions DROP COLUMN "
      "is_of_responses; "
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

}  // namespace
}  // namespace uma::kv
