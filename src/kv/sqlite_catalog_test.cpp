#include "kv/sqlite_catalog.h"

#include <atomic>
#include <filesystem>
#include <format>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/sqlite_catalog_test_support.h"
#include "kv/token_chain.h"

namespace uma::kv {
namespace {

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
  EXPECT_EQ(gone.error().code, ErrorCode::io_failed);
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
  EXPECT_EQ(read_again.error().code, ErrorCode::io_failed);
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

TEST_F(SqliteCatalogTest, ANameAndMetadataAreChangedInTheSessionsOwnRow) {
  open();
  const SessionRecord made = chat_session("a", 20);
  ASSERT_TRUE(commit(share(made)));
  const std::int64_t rows = catalog_->rows_written();
  SessionRecord named = made;
  named.name = "diary";
  named.metadata = R"({"title":"My diary"})";
  ASSERT_TRUE(commit(share(named), share(made)));
  EXPECT_EQ(catalog_->rows_written() - rows, 1);
  EXPECT_EQ(open().at("a"), named);
  SessionRecord unnamed = named;
  unnamed.name.clear();
  ASSERT_TRUE(commit(share(unnamed), share(named)));
  SessionRecord other = text_session("b");
  other.name = "diary";
  ASSERT_TRUE(commit(share(other))) << "the name is free again";
  EXPECT_EQ(open().at("a"), unnamed);
}

TEST_F(SqliteCatalogTest, WritesOnlyWhatChanged) {
  open();
  RecordPtr record = share(text_session("a", 40));  // 2,000 tokens in 32 blocks.
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
          record.metadata = std::format(R"({{"title":"{}"}})", action);
          record.parent.value = std::to_string(action);
          record.fork_turn = static_cast<std::int32_t>(random.next_below(3));
          record.has_instructions = !record.messages.empty() && random.next_below(2) == 0;
          record.is_of_responses = random.next_below(2) == 0;
          put(std::move(record));
          break;
        }
        case 7: {  // Rewind, or regenerate: the input of the dropped turn is pending again.
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

}  // namespace
}  // namespace uma::kv
