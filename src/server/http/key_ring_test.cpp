#include "server/http/key_ring.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/mutex.h"

namespace uma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string digest_of(const std::string& key) {
  Sha256 sum;
  sum.add(key);
  return "sha256:" + sum.hex();
}

// A store that rings share, in memory.
class MemoryKeys final : public KeyStore {
 public:
  struct Text {
    Mutex mutex;
    std::string text GUARDED_BY(mutex);
    bool is_away GUARDED_BY(mutex) = false;
  };
  explicit MemoryKeys(Text& text) : text_(text) {}

  Expected<std::optional<std::string>> read_changes() override {
    const MutexLock lock(text_.mutex);
    ++readings;
    if (text_.is_away) return fail(ErrorCode::io_failed, "it is away");
    if (seen_ == text_.text) return std::nullopt;
    seen_ = text_.text;
    return seen_;
  }
  Expected<Unit> edit(const TextEdit& edit) override {
    const MutexLock lock(text_.mutex);
    if (text_.is_away) return fail(ErrorCode::io_failed, "it is away");
    auto next = edit(text_.text);
    if (!next) return std::unexpected(next.error());
    text_.text = *std::move(next);
    return Unit{};
  }

  std::atomic<int> readings = 0;

 private:
  Text& text_;
  std::optional<std::string> seen_;
};

enum class Place : std::uint8_t { file, store };

// Keys of an administrator and of a program, in a file or in a shared store.
class KeyRingTest : public ::testing::TestWithParam<Place> {
 protected:
  KeyRingTest() : path_(std::filesystem::path(::testing::TempDir()) / ("uma-keys-" + std::to_string(::getpid())) / "keys") {
    init_log(LogLevel::error);
    std::filesystem::create_directories(path_.parent_path());
    write("# ours\nboss " + digest_of("b") + " admin=true\nci " + digest_of("c") + " requests_per_minute=60  # robots\n");
    if (!is_shared()) ::chmod(path_.c_str(), 0600);
  }
  ~KeyRingTest() override { std::filesystem::remove_all(path_.parent_path()); }

  [[nodiscard]] static bool is_shared() { return GetParam() == Place::store; }
  void write(const std::string& text) {
    if (!is_shared()) {
      std::ofstream(path_) << text;
      return;
    }
    const MutexLock lock(store_.mutex);
    store_.text = text;
  }
  [[nodiscard]] std::string text() {
    if (is_shared()) {
      const MutexLock lock(store_.mutex);
      return store_.text;
    }
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  [[nodiscard]] std::unique_ptr<KeyRing> ring() {
    if (!is_shared()) return std::make_unique<KeyRing>(read_api_keys(path_).value(), path_);
    stores_.push_back(std::make_unique<MemoryKeys>(store_));
    return std::make_unique<KeyRing>(parse_api_keys(text()).value(), "", stores_.back().get(), std::chrono::milliseconds(1));
  }
  // Waits until each ring has read the store and put it into effect: then it reads it again.
  void wait_for_poll() {
    for (const auto& store : stores_) {
      for (const int before = store->readings; store->readings < before + 2;) std::this_thread::yield();
    }
  }
  static std::vector<std::string> names(const KeyRing& ring) {
    std::vector<std::string> names;
    const auto entries = ring.entries();
    for (const KeyRing::Entry& entry : *entries) names.push_back(entry.key.name);
    return names;
  }
  template <class T>
  static auto waiting(std::future<Expected<KeyOutcome<T>>>& answer) {
    auto promise = std::make_shared<std::promise<Expected<KeyOutcome<T>>>>();
    answer = promise->get_future();
    return [promise](Expected<KeyOutcome<T>> value) { promise->set_value(std::move(value)); };
  }
  // The account of a key; null: there is none.
  static KeyRing::AccountPtr account_of(const KeyRing& ring, const std::string& name) {
    const auto entries = ring.entries();
    const auto found = std::ranges::find(*entries, name, [](const KeyRing::Entry& entry) { return entry.key.name; });
    return found == entries->end() ? nullptr : found->account;
  }
  static Expected<KeyOutcome<NewKey>> add(KeyRing& ring, ApiKey wanted, KeyRing::AccountPtr caller = nullptr) {
    std::future<Expected<KeyOutcome<NewKey>>> answer;
    ring.add(std::move(wanted), std::move(caller), waiting<NewKey>(answer));
    return answer.get();
  }
  // The status of a refusal; 200: the key is gone.
  static int remove(KeyRing& ring, const std::string& name, KeyRing::AccountPtr caller = nullptr) {
    std::future<Expected<KeyOutcome<Unit>>> answer;
    ring.remove(name, std::move(caller), waiting<Unit>(answer));
    const auto done = answer.get();
    return !done ? 500 : *done ? 200 : done->error().status;
  }

  const std::filesystem::path path_;
  MemoryKeys::Text store_;
  std::vector<std::unique_ptr<MemoryKeys>> stores_;
};

INSTANTIATE_TEST_SUITE_P(Places, KeyRingTest, ::testing::Values(Place::file, Place::store),
                         [](const auto& place) { return place.param == Place::file ? "File" : "Store"; });

class FileKeyRingTest : public KeyRingTest {};
INSTANTIATE_TEST_SUITE_P(File, FileKeyRingTest, ::testing::Values(Place::file));

class StoreKeyRingTest : public KeyRingTest {};
INSTANTIATE_TEST_SUITE_P(Store, StoreKeyRingTest, ::testing::Values(Place::store));

TEST_P(KeyRingTest, ANewKeyIsInTheFileAndInEffect) {
  const auto keys = ring();
  const std::string before = text();
  const auto made = add(*keys, {.name = "new", .tenant = {"robots"}, .is_admin = true});
  ASSERT_TRUE(made && *made);
  EXPECT_EQ(text(), before + (*made)->line + "\n");
  EXPECT_THAT((*made)->line, EndsWith(" tenant=robots admin=true"));
  EXPECT_THAT(names(*keys), ElementsAre("boss", "ci", "new"));
  EXPECT_EQ(keys->entries()->back().key.digest, sha256((*made)->key));
  EXPECT_EQ(keys->entries()->back().account->tenant(), TenantId{"robots"});
  if (is_shared()) return;
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_P(KeyRingTest, AFileWithoutALastLineFeedKeepsItsLastKey) {
  write("boss " + digest_of("b") + " admin=true");
  const auto keys = ring();
  ASSERT_TRUE(add(*keys, {.name = "new"}).value());
  EXPECT_THAT(text(), HasSubstr("admin=true\nnew sha256:"));
}

TEST_P(KeyRingTest, OtherKeysKeepWhatIsLeftOfTheirLimits) {
  const auto keys = ring();
  const std::shared_ptr<Account> account = keys->entries()->at(1).account;
  ASSERT_TRUE(add(*keys, {.name = "new"}).value());
  EXPECT_EQ(keys->entries()->at(1).account, account);
  EXPECT_EQ(remove(*keys, "new"), 200);
  EXPECT_EQ(keys->entries()->at(1).account, account);
}

TEST_P(KeyRingTest, WhatPeopleWroteMeanwhileStaysAndCounts) {
  const auto keys = ring();
  const std::shared_ptr<Account> account = keys->entries()->at(1).account;
  write("# other\nboss " + digest_of("b") + " admin=true\nci " + digest_of("c") + " requests_per_minute=7\nhand " +
        digest_of("h") + "\n");
  ASSERT_TRUE(add(*keys, {.name = "new"}).value());
  EXPECT_THAT(text(), StartsWith("# other\nboss "));
  EXPECT_THAT(names(*keys), ElementsAre("boss", "ci", "hand", "new"));
  EXPECT_NE(keys->entries()->at(1).account, account) << "its limit has changed";
  EXPECT_EQ(add(*keys, {.name = "hand"}).value().error().status, 409);
}

TEST_P(KeyRingTest, ADeletedKeyIsGoneAndItsCommentToo) {
  const auto keys = ring();
  EXPECT_EQ(remove(*keys, "ci", account_of(*keys, "boss")), 200);
  EXPECT_EQ(text(), "# ours\nboss " + digest_of("b") + " admin=true\n");
  EXPECT_THAT(names(*keys), ElementsAre("boss"));
}

TEST_P(FileKeyRingTest, AKeyThatLeftTheFileByHandCanBeDeletedToo) {
  const auto keys = ring();
  write("boss " + digest_of("b") + " admin=true\n");
  EXPECT_EQ(remove(*keys, "ci"), 200);
  EXPECT_THAT(names(*keys), ElementsAre("boss"));
  EXPECT_EQ(remove(*keys, "ci"), 404);
}

TEST_P(KeyRingTest, SomeKeysMustStay) {
  const auto keys = ring();
  const std::string before = text();
  EXPECT_EQ(remove(*keys, "boss"), 409) << "the only administrator's";
  EXPECT_EQ(remove(*keys, "ci", account_of(*keys, "ci")), 409) << "the request's own";
  EXPECT_EQ(remove(*keys, "nobody"), 404);
  EXPECT_EQ(remove(*keys, "#"), 404);
  EXPECT_EQ(add(*keys, {.name = "ci"}).value().error().status, 409);
  EXPECT_EQ(text(), before);
  write("ci " + digest_of("c") + "\n");
  EXPECT_EQ(remove(*keys, "ci"), 409) << "the last one";
  EXPECT_TRUE(keys->are_needed());
}

TEST_P(KeyRingTest, AKeyThatIsDeletedMeanwhileChangesNothing) {
  const auto keys = ring();
  ASSERT_TRUE(add(*keys, {.name = "second", .is_admin = true}).value());
  const KeyRing::AccountPtr second = account_of(*keys, "second");
  EXPECT_TRUE(keys->is_in_effect(*second));
  ASSERT_EQ(remove(*keys, "second"), 200);
  EXPECT_FALSE(keys->is_in_effect(*second));
  EXPECT_TRUE(keys->is_in_effect(*account_of(*keys, "ci")));
  EXPECT_TRUE(keys->is_in_effect(Account(TenantId{"of no key"})));
  const std::string before = text();
  EXPECT_EQ(add(*keys, {.name = "third"}, second).value().error().status, 401);
  EXPECT_EQ(remove(*keys, "ci", second), 401);
  EXPECT_EQ(add(*keys, {.name = "third"}, account_of(*keys, "ci")).value().error().status, 401) << "no administrator's";
  EXPECT_EQ(text(), before);
  // A new key of the same name is another one.
  ASSERT_TRUE(add(*keys, {.name = "second", .is_admin = true}).value());
  EXPECT_FALSE(keys->is_in_effect(*second));
  EXPECT_EQ(remove(*keys, "ci", second), 401);
  // Limits that people change do not matter.
  const KeyRing::AccountPtr boss = account_of(*keys, "boss");
  write("boss " + digest_of("b") + " admin=true requests_per_minute=9\nci " + digest_of("c") + "\n");
  EXPECT_TRUE(add(*keys, {.name = "third"}, boss).value());
  EXPECT_TRUE(keys->is_in_effect(*boss));
}

TEST_P(FileKeyRingTest, AFileThatCannotBeChangedChangesNothing) {
  const auto keys = ring();
  const std::string before = text();
  write(before + "odd\n");
  EXPECT_THAT(add(*keys, {.name = "new"}).error().message, HasSubstr("line 4: "));
  EXPECT_EQ(text(), before + "odd\n");
  write(before);
  ::chmod(path_.c_str(), 0400);
  EXPECT_EQ(add(*keys, {.name = "new"}).error().code, ErrorCode::io_failed);
  EXPECT_EQ(remove(*keys, "ci"), 500);
  std::filesystem::remove(path_);
  EXPECT_EQ(add(*keys, {.name = "new"}).error().code, ErrorCode::io_failed);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "a new file would have no other keys";
  EXPECT_THAT(names(*keys), ElementsAre("boss", "ci"));
}

TEST_P(KeyRingTest, WithoutAFileThereAreNoChanges) {
  KeyRing keys({}, "");
  EXPECT_FALSE(keys.are_needed());
  EXPECT_EQ(add(keys, {.name = "new"}).value().error().status, 400);
  EXPECT_EQ(remove(keys, "new"), 400);
}

TEST_P(KeyRingTest, ChangesFollowOneAnother) {
  const auto keys = ring();
  std::vector<std::future<Expected<KeyOutcome<NewKey>>>> answers(10);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    keys->add({.name = "k" + std::to_string(i / 2)}, nullptr, waiting<NewKey>(answers[i]));
  }
  int made = 0;
  for (auto& answer : answers) made += answer.get().value() ? 1 : 0;
  EXPECT_EQ(made, 5) << "each name once";
  EXPECT_EQ(names(*keys).size(), 7U);
  EXPECT_EQ(parse_api_keys(text())->size(), 7U);
}

TEST_P(KeyRingTest, TheEndAnswersWhoWaits) {
  auto keys = ring();
  std::vector<std::future<Expected<KeyOutcome<NewKey>>>> answers(16);
  for (std::size_t i = 0; i < answers.size(); ++i)
    keys->add({.name = "k" + std::to_string(i)}, nullptr, waiting<NewKey>(answers[i]));
  keys.reset();
  for (auto& answer : answers) EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST_P(StoreKeyRingTest, WhatAnotherRingChangesIsInEffectAndWakesWhoWatches) {
  const auto one = ring();
  const auto other = ring();
  std::atomic<int> wakes = 0;
  const auto watching = other->on_change([&] { ++wakes; });
  const KeyRing::AccountPtr ci = account_of(*other, "ci");
  const KeyRing::AccountPtr boss = account_of(*other, "boss");
  ASSERT_TRUE(add(*one, {.name = "new"}).value());
  wait_for_poll();
  EXPECT_THAT(names(*other), ElementsAre("boss", "ci", "new"));
  EXPECT_EQ(account_of(*other, "ci"), ci) << "what is left of its limits stays";
  EXPECT_GT(wakes, 0);
  ASSERT_EQ(remove(*other, "ci", boss), 200);
  EXPECT_FALSE(other->is_in_effect(*ci));
  wait_for_poll();
  EXPECT_THAT(names(*one), ElementsAre("boss", "new"));
  EXPECT_EQ(add(*one, {.name = "third"}, ci).value().error().status, 401) << "no administrator's";
}

TEST_P(StoreKeyRingTest, WithoutTheStoreKnownKeysStayAndNothingIsChanged) {
  const auto keys = ring();
  const auto go = [&](bool is_away) {
    const MutexLock lock(store_.mutex);
    store_.is_away = is_away;
  };
  go(true);
  wait_for_poll();
  EXPECT_THAT(names(*keys), ElementsAre("boss", "ci"));
  EXPECT_EQ(add(*keys, {.name = "new"}).error().code, ErrorCode::io_failed);
  EXPECT_EQ(remove(*keys, "ci"), 500);
  write("boss " + digest_of("b") + " admin=true\n");
  go(false);
  wait_for_poll();
  EXPECT_THAT(names(*keys), ElementsAre("boss"));
  write("boss nonsense\n");
  wait_for_poll();
  EXPECT_THAT(names(*keys), ElementsAre("boss")) << "what cannot be read changes nothing";
  write("");
  wait_for_poll();
  EXPECT_THAT(names(*keys), ElementsAre());
  EXPECT_TRUE(keys->are_needed()) << "a daemon that was locked stays so";
}

// A store that does not answer.
class StuckKeys final : public KeyStore {
 public:
  Expected<std::optional<std::string>> read_changes() override {
    is_asked.set_value();
    cancelled_.get_future().wait();
    return fail(ErrorCode::io_failed, "it was cancelled");
  }
  Expected<Unit> edit(const TextEdit&) override { return fail(ErrorCode::io_failed, "it does not answer"); }
  void cancel() override { cancelled_.set_value(); }

  std::promise<void> is_asked;

 private:
  std::promise<void> cancelled_;
};

TEST(KeyRing, ItsEndCancelsTheCallInProgress) {
  init_log(LogLevel::error);
  StuckKeys store;
  const KeyRing ring({}, "", &store, std::chrono::hours(1));
  store.is_asked.get_future().wait();
}

}  // namespace
}  // namespace uma::server
