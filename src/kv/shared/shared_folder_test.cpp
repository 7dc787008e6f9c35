#include "kv/shared/shared_folder.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "kv/disk/state_file.h"
#include "kv/shared/shared_prefix_test_support.h"
#include "kv/shared/shared_store_test_support.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDayS = 86'400;

class SharedFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    now_s_ = ::time(nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] SharedFolder daemon(SharedBounds bounds = {}) {
    return {folder_, bounds, [this] { return now_s_; }};
  }
  [[nodiscard]] std::vector<std::string> files(std::string_view end = ".kv") const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file() && entry.path().string().ends_with(end)) found.push_back(entry.path());
    }
    return found;
  }
  static void change(const std::string& path, const std::function<void(std::string&)>& edit) {
    std::ifstream in(path, std::ios::binary);
    std::string content(std::istreambuf_iterator<char>(in), {});
    edit(content);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }

  std::string folder_ = fs::temp_directory_path() / "uma_shared_XXXXXX";
  std::int64_t now_s_ = 0;
};

TEST_F(SharedFolderTest, AnotherDaemonReadsWhatOneHasWritten) {
  SharedFolder a = daemon();
  SharedFolder b = daemon();
  const Snapshot state = shared_snapshot(1, {100, 9000, 0});
  const ColdHead written = SharedStoreUser(a).write("s", state);
  const auto heads = SharedStoreUser(b).find("s");
  ASSERT_EQ(heads.size(), 1U);
  EXPECT_EQ(heads[0].name, written.name);
  EXPECT_EQ(heads[0].tokens, state.tokens);
  EXPECT_EQ(heads[0].bytes, written.bytes);
  const auto read = SharedStoreUser(b).read_only("s");
  ASSERT_TRUE(read);
  expect_same(state, *read);
}

TEST_F(SharedFolderTest, AnUnknownSessionHasNoStates) {
  SharedFolder a = daemon();
  EXPECT_TRUE(SharedStoreUser(a).find("nobody").empty());
  EXPECT_TRUE(a.remove(TenantId{"uid:1000"}, SessionId{"nobody"}));
}

TEST_F(SharedFolderTest, OfASessionTheLastStateOfEachIdentityStays) {
  SharedFolder a = daemon();
  SharedStoreUser user(a);
  const ColdHead first = user.write("s", shared_snapshot(1, {100}));
  (void)user.write("s", shared_snapshot(5, {100, 100}));
  (void)user.write("s", shared_snapshot(1, {100}, "model|b"));
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(user.find("s")[0].tokens.size(), 2U);
  EXPECT_EQ(user.find("s", {"model|a", "model|b", "other"}).size(), 2U);
  EXPECT_TRUE(user.find("s", {"other"}).empty());
  const auto gone = user.read(first);
  ASSERT_TRUE(gone) << gone.error().message;
  EXPECT_FALSE(*gone) << "it vanished";
}

TEST_F(SharedFolderTest, IdentitiesOfASessionAreLimited) {
  SharedFolder a = daemon();
  for (int i = 0; i < 10; ++i) (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}, std::format("model|{}", i)));
  EXPECT_EQ(files().size(), kSharedIdentitiesMax);
  EXPECT_EQ(SharedStoreUser(a).find("s", {"model|9"}).size(), 1U);
}

TEST_F(SharedFolderTest, ARemovedSessionLeavesNothing) {
  SharedFolder a = daemon();
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  (void)SharedStoreUser(a).write("other", shared_snapshot(1, {100}));
  ASSERT_TRUE(a.remove(TenantId{"uid:1000"}, SessionId{"s"}));
  EXPECT_EQ(files().size(), 1U);
  EXPECT_TRUE(SharedStoreUser(a).find("s").empty());
}

TEST_F(SharedFolderTest, EveryFlippedBitIsFoundAndTheFileIsRemoved) {
  const Snapshot state = shared_snapshot(1, {100, 5000});
  SharedFolder a = daemon();
  SharedStoreUser user(a);
  const std::uint64_t bytes = user.write("s", state).bytes;
  for (std::uint64_t at = 0; at < bytes; at += 97) {
    const ColdHead head = user.write("s", state);
    change(files()[0], [&](std::string& content) { content[at] = static_cast<char>(content[at] ^ 4); });
    const auto found = user.find("s");
    if (!found.empty()) {
      const auto read = user.read(head);
      ASSERT_FALSE(read) << at;
      EXPECT_EQ(read.error().code, ErrorCode::runtime_decode);
    }
    EXPECT_TRUE(files().empty()) << at;
  }
}

TEST_F(SharedFolderTest, ATruncatedFileIsFoundAtEveryLength) {
  const Snapshot state = shared_snapshot(1, {100, 5000});
  SharedFolder a = daemon();
  SharedStoreUser user(a);
  const std::uint64_t bytes = user.write("s", state).bytes;
  for (std::uint64_t length = 0; length < bytes; length += 513) {
    const ColdHead head = user.write("s", state);
    fs::resize_file(files()[0], length);
    EXPECT_TRUE(user.find("s").empty()) << length;
    const auto read = user.read(head);
    ASSERT_TRUE(read) << "it was removed";
    EXPECT_FALSE(*read);
  }
}

// Whoever copies files about must not make one tenant's tokens those of another one.
TEST_F(SharedFolderTest, AStateOfAnotherOwnerOrIdentityIsRefusedUnderAnyName) {
  SharedFolder a = daemon();
  SharedStoreUser user(a);
  (void)user.write("s", shared_snapshot(1, {100}));
  const std::string mine = files()[0];
  ASSERT_TRUE(a.write(shared_owner("s", "uid:2000"), shared_snapshot(1, {100})));
  ASSERT_TRUE(a.write(shared_owner("s"), shared_snapshot(1, {100}, "model|b")));
  for (const std::string& theirs : files()) {
    if (theirs == mine) continue;
    (void)user.write("s", shared_snapshot(1, {100}));
    fs::copy_file(theirs, mine, fs::copy_options::overwrite_existing);
    EXPECT_TRUE(user.find("s").empty()) << theirs;
    // Under a name that fits the content, in the folder and with the identity of another one.
    const std::string forged = mine.substr(0, mine.rfind('-')) + theirs.substr(theirs.rfind('-'));
    fs::copy_file(theirs, forged, fs::copy_options::overwrite_existing);
    EXPECT_TRUE(user.find("s").empty()) << theirs;
    EXPECT_FALSE(fs::exists(forged));
  }
}

TEST_F(SharedFolderTest, AStateThatChangedItsSizeIsRefused) {
  SharedFolder a = daemon();
  SharedStoreUser user(a);
  ColdHead head = user.write("s", shared_snapshot(1, {100}));
  head.bytes += 1;
  EXPECT_FALSE(user.read(head));
}

TEST_F(SharedFolderTest, PrefixesAreFoundByTheirTenantOnly) {
  SharedFolder a = daemon();
  SharedFolder b = daemon();
  expect_prefixes_of_tenants_apart(a, b);
}

TEST_F(SharedFolderTest, DaemonsWriteAndReadOneSessionAtOnce) {
  EXPECT_EQ(failures_of_daemons_at_once([&] { return daemon(); }), 0);
  SharedFolder after = daemon();
  EXPECT_LE(SharedStoreUser(after).find("s").size(), 2U) << "two daemons may have written at once";
  EXPECT_TRUE(files(".tmp").empty());
}

TEST_F(SharedFolderTest, OldStatesAreRemovedAndUsedOnesStay) {
  SharedFolder a = daemon({.ttl_s = kDayS});
  SharedStoreUser user(a);
  (void)user.write("old", shared_snapshot(1, {100}));
  (void)user.write("used", shared_snapshot(1, {100}));
  now_s_ += kDayS - 10;
  ASSERT_TRUE(user.read_only("used"));
  now_s_ += 100;
  EXPECT_EQ(a.clean(), 1U);
  EXPECT_TRUE(user.find("old").empty());
  EXPECT_EQ(user.find("used").size(), 1U);
}

TEST_F(SharedFolderTest, TheLongestUnusedStatesGoBeyondTheBound) {
  SharedFolder a = daemon({.bytes_max = 30'000});
  SharedStoreUser user(a);
  for (const std::string session : {"1", "2", "3", "4"}) {
    (void)user.write(session, shared_snapshot(1, {8000}));
    for (const std::string& file : files()) {
      const auto age = std::chrono::seconds(10);
      fs::last_write_time(file, fs::last_write_time(file) - age);
    }
  }
  EXPECT_EQ(a.clean(), 2U);
  EXPECT_TRUE(user.find("1").empty());
  EXPECT_TRUE(user.find("2").empty());
  EXPECT_EQ(user.find("4").size(), 1U);
  EXPECT_EQ(a.clean(), 0U);
}

TEST_F(SharedFolderTest, CleaningLeavesWhatIsNotOurs) {
  SharedFolder a = daemon({.ttl_s = 1});
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  std::ofstream(folder_ + "/notes.kv") << "mine";
  std::ofstream(fs::path(files()[0]).parent_path() / "notes.txt") << "mine";
  now_s_ += 100;
  (void)a.clean();
  EXPECT_EQ(files(".txt").size(), 1U);
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(SharedFolderTest, WhatAKilledDaemonWasWritingIsRemovedLater) {
  SharedFolder a = daemon();
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  std::ofstream(fs::path(files()[0]).parent_path() / "0123456789abcdef0123456789abcdef.tmp") << "half";
  ASSERT_TRUE(a.clean());
  EXPECT_EQ(files(".tmp").size(), 1U) << "it may be written now";
  now_s_ += 7200;
  ASSERT_TRUE(a.clean());
  EXPECT_TRUE(files(".tmp").empty());
}

TEST_F(SharedFolderTest, AStateThatIsTooLargeIsNotWritten) {
  SharedFolder a = daemon({.state_bytes_max = 10'000});
  const auto refused = a.write(shared_owner("s"), shared_snapshot(1, {20'000}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_quota);
  EXPECT_TRUE(files("").empty());
}

TEST_F(SharedFolderTest, CallsThatTakeTooLongAreGivenUp) {
  SharedFolder a = daemon();
  SharedStoreUser user(a);
  const Snapshot state = shared_snapshot(1, {100, 200, 300});
  const ColdHead head = user.write("s", state);
  const std::vector<std::string> identities = {"model|a"};
  const std::vector<std::function<std::string()>> calls = {
      [&] { return std::string(code_name(a.write(shared_owner("t"), state).error().code)); },
      [&] { return std::string(code_name(a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities).error().code)); },
      [&] { return std::string(code_name(user.read(head).error().code)); },
      [&] { return std::string(code_name(a.clean().error().code)); },
      [&] { return std::string(code_name(a.remove(TenantId{"uid:1000"}, SessionId{"s"}).error().code)); },
  };
  for (const auto& call : calls) {
    a.give_up_when([] { return true; });
    EXPECT_EQ(call(), "E_IO_001");
  }
  // In the middle.
  int parts_count = 0;
  a.give_up_when([&] { return ++parts_count > 3; });
  EXPECT_EQ(calls[0](), "E_IO_001");
  EXPECT_TRUE(files(".tmp").empty());
  a.give_up_when(nullptr);
  EXPECT_EQ(files().size(), 1U);
  EXPECT_TRUE(user.read_only("s")) << "nothing was removed";
}

TEST_F(SharedFolderTest, AFolderThatIsNotThereFailsAndIsNotMade) {
  fs::remove(folder_);
  SharedFolder a = daemon();
  EXPECT_FALSE(a.write(shared_owner("s"), shared_snapshot(1, {100})));
  const std::vector<std::string> identities = {"model|a"};
  EXPECT_FALSE(a.find(TenantId{"t"}, SessionId{"s"}, identities));
  EXPECT_FALSE(a.clean());
  EXPECT_FALSE(fs::exists(folder_));
  fs::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  EXPECT_TRUE(a.write(shared_owner("s"), shared_snapshot(1, {100}))) << "it is mounted now";
}

TEST_F(SharedFolderTest, AFolderThatOthersMayWriteToIsNotUsed) {
  SharedFolder a = daemon();
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  ASSERT_EQ(::chmod(folder_.c_str(), 0770), 0);
  const std::vector<std::string> identities = {"model|a"};
  const auto found = a.find(TenantId{"uid:1000"}, SessionId{"s"}, identities);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("chmod 700"), std::string::npos);
}

TEST_F(SharedFolderTest, AReadOnlyFolderIsStillRead) {
  SharedFolder a = daemon();
  (void)SharedStoreUser(a).write("s", shared_snapshot(1, {100}));
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    ASSERT_EQ(::chmod(entry.path().c_str(), entry.is_directory() ? 0555 : 0444), 0);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0555), 0);
  // Root may write anywhere: as another user for files it may not.
  const bool is_root = ::getuid() == 0;
  if (is_root) ::setfsuid(65'534);
  EXPECT_FALSE(a.write(shared_owner("s"), shared_snapshot(9, {100})));
  EXPECT_FALSE(a.write(shared_owner("another"), shared_snapshot(9, {100})));
  EXPECT_TRUE(SharedStoreUser(a).read_only("s"));
  if (is_root) ::setfsuid(0);
  for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
    if (entry.is_directory()) ::chmod(entry.path().c_str(), 0700);
  }
  ::chmod(folder_.c_str(), 0700);
}

TEST_F(SharedFolderTest, AFullFileSystemLeavesNothingHalf) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 8192, .rlim_max = 8192};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    SharedFolder a = daemon();
    const auto written = a.write(shared_owner("s"), shared_snapshot(1, {100'000}));
    ::_exit(!written && written.error().code == ErrorCode::io_failed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files("").empty());
}

}  // namespace
}  // namespace uma::kv
