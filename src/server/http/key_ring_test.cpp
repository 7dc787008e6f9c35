#include "server/http/key_ring.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// A file with an administrator's key and one of a program.
class KeyRingTest : public ::testing::Test {
 protected:
  KeyRingTest() : path_(std::filesystem::path(::testing::TempDir()) / ("uma-keys-" + std::to_string(::getpid())) / "keys") {
    std::filesystem::create_directories(path_.parent_path());
    write("# ours\nboss " + digest_of("b") + " admin=true\nci " + digest_of("c") + " requests_per_minute=60  # robots\n");
    ::chmod(path_.c_str(), 0600);
  }
  ~KeyRingTest() override { std::filesystem::remove_all(path_.parent_path()); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }
  [[nodiscard]] std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  [[nodiscard]] std::unique_ptr<KeyRing> ring() const { return std::make_unique<KeyRing>(read_api_keys(path_).value(), path_); }
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
};

TEST_F(KeyRingTest, ANewKeyIsInTheFileAndInEffect) {
  const auto keys = ring();
  const std::string before = text();
  const auto made = add(*keys, {.name = "new", .tenant = {"robots"}, .is_admin = true});
  ASSERT_TRUE(made && *made);
  EXPECT_EQ(text(), before + (*made)->line + "\n");
  EXPECT_THAT((*made)->line, EndsWith(" tenant=robots admin=true"));
  EXPECT_THAT(names(*keys), ElementsAre("boss", "ci", "new"));
  EXPECT_EQ(keys->entries()->back().key.digest, sha256((*made)->key));
  EXPECT_EQ(keys->entries()->back().account->tenant(), TenantId{"robots"});
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(KeyRingTest, AFileWithoutALastLineFeedKeepsItsLastKey) {
  write("boss " + digest_of("b") + " admin=true");
  const auto keys = ring();
  ASSERT_TRUE(add(*keys, {.name = "new"}).value());
  EXPECT_THAT(text(), HasSubstr("admin=true\nnew sha256:"));
}

TEST_F(KeyRingTest, OtherKeysKeepWhatIsLeftOfTheirLimits) {
  const auto keys = ring();
  const std::shared_ptr<Account> account = keys->entries()->at(1).account;
  ASSERT_TRUE(add(*keys, {.name = "new"}).value());
  EXPECT_EQ(keys->entries()->at(1).account, account);
  EXPECT_EQ(remove(*keys, "new"), 200);
  EXPECT_EQ(keys->entries()->at(1).account, account);
}

TEST_F(KeyRingTest, WhatPeopleWroteMeanwhileStaysAndCounts) {
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

TEST_F(KeyRingTest, ADeletedKeyIsGoneAndItsCommentToo) {
  const auto keys = ring();
  EXPECT_EQ(remove(*keys, "ci", account_of(*keys, "boss")), 200);
  EXPECT_EQ(text(), "# ours\nboss " + digest_of("b") + " admin=true\n");
  EXPECT_THAT(names(*keys), ElementsAre("boss"));
}

TEST_F(KeyRingTest, AKeyThatLeftTheFileByHandCanBeDeletedToo) {
  const auto keys = ring();
  write("boss " + digest_of("b") + " admin=true\n");
  EXPECT_EQ(remove(*keys, "ci"), 200);
  EXPECT_THAT(names(*keys), ElementsAre("boss"));
  EXPECT_EQ(remove(*keys, "ci"), 404);
}

TEST_F(KeyRingTest, SomeKeysMustStay) {
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

TEST_F(KeyRingTest, AKeyThatIsDeletedMeanwhileChangesNothing) {
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

TEST_F(KeyRingTest, AFileThatCannotBeChangedChangesNothing) {
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

TEST_F(KeyRingTest, WithoutAFileThereAreNoChanges) {
  KeyRing keys({}, "");
  EXPECT_FALSE(keys.are_needed());
  EXPECT_EQ(add(keys, {.name = "new"}).value().error().status, 400);
  EXPECT_EQ(remove(keys, "new"), 400);
}

TEST_F(KeyRingTest, ChangesFollowOneAnother) {
  const auto keys = ring();
  std::vector<std::future<Expected<KeyOutcome<NewKey>>>> answers(10);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    keys->add({.name = "k" + std::to_string(i / 2)}, nullptr, waiting<NewKey>(answers[i]));
  }
  int made = 0;
  for (auto& answer : answers) made += answer.get().value() ? 1 : 0;
  EXPECT_EQ(made, 5) << "each name once";
  EXPECT_EQ(names(*keys).size(), 7U);
  EXPECT_EQ(read_api_keys(path_)->size(), 7U);
}

TEST_F(KeyRingTest, TheEndAnswersWhoWaits) {
  auto keys = ring();
  std::vector<std::future<Expected<KeyOutcome<NewKey>>>> answers(16);
  for (std::size_t i = 0; i < answers.size(); ++i)
    keys->add({.name = "k" + std::to_string(i)}, nullptr, waiting<NewKey>(answers[i]));
  keys.reset();
  for (auto& answer : answers) EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

}  // namespace
}  // namespace uma::server
