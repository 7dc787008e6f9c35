#include "kv/catalog/sqlite_catalog.h"

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
#include "kv/catalog/sqlite_catalog_test_support.h"
#include "kv/token_chain.h"

namespace uma::kv {
namespace {

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

}  // namespace
}  // namespace uma::kv
