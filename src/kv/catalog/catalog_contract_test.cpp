// What every catalog does, in a file and in a database.
#include <algorithm>
#include <atomic>
#include <format>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/catalog/catalog_test_support.h"

namespace uma::kv {
namespace {

TEST_P(AnyCatalogTest, GivesBackWhatWasCommitted) {
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

// A model may reply with any character, and PostgreSQL's texts hold no U+0000.
TEST_P(AnyCatalogTest, EveryByteOfATextComesBack) {
  using namespace std::string_literals;
  open();
  SessionRecord chat = chat_session("chat", 2);
  chat.messages = {
      {"user", "a\0b"s}, {"assistant", "\0"s}, {"user", "\x01"}, {"assistant", "\x01\x30\x30 \x01\x01\x30\x31\0\0\x01"s}};
  chat.pending = {1, 2};
  chat.pending_messages = {{"user", "\0\xc3\xa4\0"s}};
  const RecordPtr first = share(chat);
  ASSERT_TRUE(commit(first));
  EXPECT_EQ(open().at("chat"), chat);
  // The texts of a response are not checked for UTF-8.
  SessionRecord next = chat;
  next.responses = {response_of(1, "odd")};
  auto odd = *next.responses[0];
  odd.id = "\xff\0\xc3(\x01"s;
  odd.request = "\xf0\x9f\x8c"s;
  next.responses[0] = std::make_shared<const ResponseRecord>(odd);
  ASSERT_TRUE(read("chat"));
  ASSERT_TRUE(commit(share(next), first));
  EXPECT_EQ(open().at("chat"), next);
}

TEST_P(AnyCatalogTest, ReadsASessionAsItWasLastChanged) {
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
  EXPECT_EQ(gone.error().code, catalog_->is_shared() ? ErrorCode::session_unknown : ErrorCode::io_failed);
  EXPECT_EQ(*read("b").value(), text_session("b", 1)) << "what follows a failure";
}

TEST_P(AnyCatalogTest, ForgetsWhatWasRemoved) {
  open();
  SessionRecord named = text_session("a", 2);
  named.name = "diary";
  ASSERT_TRUE(commit(share(named)));
  ASSERT_TRUE(commit(share(text_session("b", 2))));
  ASSERT_TRUE(remove("a"));
  EXPECT_EQ(remove("never there").has_value(), !catalog_->is_shared()) << "nobody owns it";
  named.id.value = "c";
  ASSERT_TRUE(commit(share(named))) << "the name is free again";
  const auto loaded = open();
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_TRUE(loaded.contains("b"));
  EXPECT_EQ(loaded.at("c"), named);
  edit(
      "CREATE TEMP TABLE rest AS SELECT session FROM token_blocks UNION SELECT session FROM turns; "
      "CREATE TEMP TABLE no_orphan (x INTEGER CHECK (x = 0)); INSERT INTO no_orphan SELECT count(*) FROM rest WHERE session "
      "NOT IN "
      "(SELECT key FROM sessions)");
}

TEST_P(AnyCatalogTest, ANameIsUniqueInsideATenant) {
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

TEST_P(AnyCatalogTest, WhatWaitsIsOneTransaction) {
  open();
  int kept = 0;
  for (int i = 0; i < 20; ++i) {
    catalog_->commit(share(text_session(std::format("s{}", i), 1)), nullptr,
                     [&](Expected<Unit> done) { kept += done ? 1 : 0; });
  }
  EXPECT_EQ(kept, 0) << "nothing is said before it is kept";
  EXPECT_TRUE(catalog_->step());
  EXPECT_EQ(kept, 20);
  if (sqlite() != nullptr) {
    EXPECT_EQ(sqlite()->transactions_count(), 1);
  }
  EXPECT_FALSE(catalog_->step());
  EXPECT_EQ(open().size(), 20u);
}

TEST_P(AnyCatalogTest, AChangeWaitsForNoReads) {
  open();
  ASSERT_TRUE(commit(share(text_session("a", 1))));
  std::vector<std::string> order;
  catalog_->read(SessionId{"a"}, [&](const Expected<RecordPtr>& read) { order.emplace_back(read ? "read" : "failed"); });
  catalog_->commit(share(text_session("b")), nullptr, [&](const Expected<Unit>&) { order.emplace_back("kept"); });
  EXPECT_TRUE(catalog_->step());
  EXPECT_EQ(order, (std::vector<std::string>{"kept", "read"}));
  EXPECT_FALSE(catalog_->step());
}

TEST_P(AnyCatalogTest, AStepServesABoundedNumberOfReadsInTurnsByTenant) {
  open();
  SessionRecord other = text_session("other", 1);
  other.tenant.value = "another";
  ASSERT_TRUE(commit(share(text_session("a", 1))));
  ASSERT_TRUE(commit(share(other)));
  std::vector<std::string> served;
  const auto read = [&](const std::string& id) {
    catalog_->read(SessionId{id}, [&, id](const Expected<RecordPtr>& record) { served.push_back(record ? id : "failed"); });
  };
  for (int i = 0; i < 100; ++i) read("a");
  read("other");
  EXPECT_TRUE(catalog_->step());
  EXPECT_LT(served.size(), 50u);
  EXPECT_TRUE(std::ranges::contains(served, "other")) << "the other tenant's one comes in its turn";
  bool is_kept = false;
  catalog_->commit(share(text_session("b")), nullptr, [&](const Expected<Unit>& done) { is_kept = done.has_value(); });
  EXPECT_TRUE(catalog_->wait()) << "there is more to read";
  EXPECT_TRUE(catalog_->step());
  EXPECT_TRUE(is_kept);
  EXPECT_LT(served.size(), 101u);
  while (catalog_->step()) {
  }
  EXPECT_EQ(std::ranges::count(served, "a"), 100);
  EXPECT_EQ(std::ranges::count(served, "other"), 1);
}

TEST_P(AnyCatalogTest, ManyReadsOfLargeSessionsAreNotOneStep) {
  open();
  ASSERT_TRUE(commit(share(text_session("large", 1, 500'000))));
  int served = 0;
  for (int i = 0; i < 10; ++i)
    catalog_->read(SessionId{"large"}, [&](const Expected<RecordPtr>& read) { served += read ? 1 : 0; });
  EXPECT_TRUE(catalog_->step());
  EXPECT_LT(served, 5) << "each has 2 MB";
  while (catalog_->step()) {
  }
  EXPECT_EQ(served, 10);
}

// Megabytes of changes of one tenant, which one step does not store.
class ManyChangesTest : public AnyCatalogTest {
 protected:
  void commit_large(int count) {
    for (int i = 0; i < count; ++i) {
      catalog_->commit(share(text_session(std::format("large{}", i), 1, 250'000)), nullptr,
                       [this](const Expected<Unit>& done) { kept_ += done ? 1 : 0; });
    }
  }
  int kept_ = 0;
};

TEST_P(ManyChangesTest, LeaveATurnToOtherTenants) {
  open();
  commit_large(8);
  SessionRecord other = text_session("other", 1);
  other.tenant.value = "another";
  bool is_kept = false;
  catalog_->commit(share(other), nullptr, [&](const Expected<Unit>& done) { is_kept = done.has_value(); });
  EXPECT_TRUE(catalog_->step());
  EXPECT_TRUE(is_kept);
  EXPECT_LT(kept_, 8);
  EXPECT_TRUE(catalog_->wait()) << "there is more to store";
  while (catalog_->step()) {
  }
  EXPECT_EQ(kept_, 8);
  EXPECT_EQ(open().size(), 9u);
}

TEST_P(ManyChangesTest, ComeBeforeTheRemovalsBehindThem) {
  open();
  const RecordPtr stored = share(text_session("stored", 1));
  ASSERT_TRUE(commit(stored));
  std::vector<std::string> order;
  const auto note = [&](const std::string& what) {
    return [&order, what](const Expected<Unit>& done) { order.push_back(done ? what : done.error().message); };
  };
  commit_large(8);
  catalog_->commit(share(text_session("stored", 2)), stored, note("changed"));
  catalog_->remove(SessionId{"stored"}, note("removed"));
  catalog_->commit(share(text_session("new", 1)), nullptr, note("made"));
  catalog_->remove(SessionId{"new"}, note("ended"));
  while (catalog_->step()) {
  }
  EXPECT_EQ(order, (std::vector<std::string>{"changed", "removed", "made", "ended"}));
  EXPECT_EQ(kept_, 8);
  EXPECT_EQ(open().size(), 8u);
}

TEST_P(AnyCatalogTest, ADoneMayCommitAgain) {
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

TEST_P(AnyCatalogTest, WorksInAThreadOfItsOwnUntilItIsClosed) {
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
TEST_P(AnyCatalogTest, GivesBackWhatAnyHistoryOfChangesLeft) {
  const std::uint64_t seeds = GetParam() == CatalogKind::sqlite ? 30 : 8;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    begin_anew();
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

// What a full context has cost: turns from the middle of the chain, and the messages that went with them.
TEST_P(AnyCatalogTest, TurnsThatWereDroppedAreGone) {
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
}

TEST_P(AnyCatalogTest, ResponsesStandWithTheirTurns) {
  open();
  SessionRecord before = text_session("a", 5);
  before.responses = {response_of(0, "first"), response_of(2, "third"), response_of(4, "fifth")};
  ASSERT_TRUE(commit(share(before)));
  EXPECT_EQ(open().at("a"), before);
  SessionRecord after = before;
  after.responses = {response_of(1, "second"), before.responses[1], response_of(4, "another")};
  const std::int64_t rows = sqlite() == nullptr ? 0 : sqlite()->rows_written();
  ASSERT_TRUE(commit(share(after), share(before)));
  if (sqlite() != nullptr) {
    EXPECT_EQ(sqlite()->rows_written() - rows, 4) << "the session's, one removed, one new, one changed";
  }
  EXPECT_EQ(open().at("a"), after);
  edit("UPDATE responses SET reason = 77 WHERE turn = 1; UPDATE responses SET turn = 9 WHERE turn = 4");
  after.responses = {before.responses[1]};
  EXPECT_EQ(open().at("a"), after) << "what makes no sense is none, and costs nothing else";
}

TEST_P(AnyCatalogTest, ReceiptsStandWithTheirTurns) {
  const auto receipt = [](std::int32_t tokens) {
    return std::make_shared<const Receipt>(Receipt{.reason = FinishReason::cancelled,
                                                   .usage = {.prompt_tokens = 30,
                                                             .reused_tokens = 20,
                                                             .recomputed_tokens = 10,
                                                             .completion_tokens = tokens,
                                                             .reasoning_tokens = 2,
                                                             .dropped_turns = 1,
                                                             .dropped_tokens = 9,
                                                             .tier = Tier::cold,
                                                             .reuse_reason = "rewritten",
                                                             .restore_ms = 0.5,
                                                             .queue_ms = 1.25,
                                                             .ttft_ms = 80.125,
                                                             .tokens_per_s = 41.5,
                                                             .seed = ~std::uint64_t{0}}});
  };
  open();
  SessionRecord before = text_session("a", 4);
  before.turns[1].receipt = receipt(1);
  before.turns[3].receipt = receipt(3);
  ASSERT_TRUE(commit(share(before)));
  EXPECT_EQ(open().at("a"), before);
  SessionRecord after = before;
  after.turns[1].receipt = nullptr;
  after.turns[2].receipt = receipt(2);
  after.turns.pop_back();
  after.chain.resize(150);
  ASSERT_TRUE(commit(share(after), share(before)));
  EXPECT_EQ(open().at("a"), after);
  ASSERT_TRUE(commit(share(before), share(after)));
  edit("UPDATE receipts SET reuse_reason = 'magic' WHERE number = 1; UPDATE receipts SET tier = 9 WHERE number = 3");
  SessionRecord left = before;
  Receipt changed = *before.turns[1].receipt;
  changed.usage.reuse_reason = "";
  left.turns[1].receipt = std::make_shared<const Receipt>(changed);
  left.turns[3].receipt = nullptr;
  EXPECT_EQ(open().at("a"), left) << "what makes no sense is none, and costs nothing else";
}

const auto kKindName = [](const ::testing::TestParamInfo<CatalogKind>& kind) {
  return kind.param == CatalogKind::sqlite ? "SQLite" : "PostgreSQL";
};
INSTANTIATE_TEST_SUITE_P(Catalogs, AnyCatalogTest, ::testing::Values(CatalogKind::sqlite, CatalogKind::postgres), kKindName);
INSTANTIATE_TEST_SUITE_P(Catalogs, ManyChangesTest, ::testing::Values(CatalogKind::sqlite, CatalogKind::postgres), kKindName);

}  // namespace
}  // namespace uma::kv
