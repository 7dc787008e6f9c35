#include "kv/disk/cold_files.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <fstream>
#include <functional>
#include <iterator>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/check.h"
#include "kv/disk/state_file.h"

namespace uma::kv {
namespace {

namespace fs = std::filesystem;

const StateOwner kOwner{.tenant = {"uid:1000"}, .session = {"0123456789abcdef0123456789abcdef"}, .is_public = false};

Snapshot snapshot_of(Token first, std::vector<std::size_t> pieces) {
  Snapshot snapshot;
  snapshot.identity = "model|layout";
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Bytes bytes(pieces[i]);
    for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(at * 7 + i + (at >> 12));
    snapshot.tokens.push_back(first + static_cast<Token>(i));
    snapshot.pieces.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i) + 1, std::move(bytes)});
  }
  return snapshot;
}

void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_TRUE(check_fits(a, b.identity));
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (std::size_t i = 0; i < a.pieces.size(); ++i) EXPECT_TRUE(a.pieces[i].bytes == b.pieces[i].bytes) << i;
  EXPECT_EQ(checksum_of(a), checksum_of(b));
}

class ColdFilesTest : public ::testing::Test {
 protected:
  BytePool pool_{0};
  void SetUp() override {
    ASSERT_NE(::mkdtemp(parent_.data()), nullptr);
    folder_ = parent_ + "/states";
    reopen();
  }
  void TearDown() override { fs::remove_all(parent_); }

  void reopen() {
    store_.reset();
    auto opened = ColdFiles::open(folder_);
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
  }

  [[nodiscard]] std::string path_of(const std::string& name) const { return std::format("{}/{}.kv", folder_, name); }

  [[nodiscard]] std::string part_path(const std::string& name) const { return std::format("{}/{}.part", folder_, name); }
  // A state that begins as snapshot_of(1, pieces), and ends otherwise.
  [[nodiscard]] static Snapshot sibling_of(std::vector<std::size_t> pieces) {
    Snapshot sibling = snapshot_of(1, std::move(pieces));
    sibling.tokens.back() = 99;
    return sibling;
  }

  [[nodiscard]] static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void put(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  static void drop_from_cache(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY));
    ASSERT_EQ(::fdatasync(file.get()), 0);
    ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  [[nodiscard]] std::size_t count(std::string_view end) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        fs::directory_iterator(folder_), [&](const auto& entry) { return entry.path().string().ends_with(end); }));
  }

  std::string parent_ = (fs::temp_directory_path() / "uma-cold-XXXXXX").string();
  std::string folder_;
  std::unique_ptr<ColdFiles> store_;
};

// Runs `body` in a process of its own, which may lose rights; whether it returned true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  UMA_CHECK(child > 0 && ::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(ColdFilesTest, ReadsBackWhatWasWritten) {
  const std::vector<std::vector<std::size_t>> shapes = {
      {1}, {0}, {4'096}, {4'097, 1, 2, 4'095}, {7, 0}, {9ul << 20}, {5'000'000, 3'000'001}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Snapshot snapshot = snapshot_of(static_cast<Token>(100 * i), shapes[i]);
    const auto head = store_->write(kOwner, snapshot);
    ASSERT_TRUE(head) << head.error().message;
    EXPECT_EQ(head->bytes, fs::file_size(path_of(head->name)));
    for (const ColdPart& part : head->parts) EXPECT_EQ(part.bytes, fs::file_size(part_path(part.name)));
    for (const bool is_cached : {true, false}) {
      if (!is_cached) drop_from_cache(path_of(head->name));
      const auto read = store_->read(head->name, kOwner, pool_);
      ASSERT_TRUE(read) << read.error().message;
      expect_same(*read, snapshot);
    }
  }
}

TEST_F(ColdFilesTest, ListsWhatIsThereAfterARestart) {
  const Snapshot snapshot = snapshot_of(1, {100, 200});
  const StateOwner everybodys{.tenant = {"key:a"}, .session = {}, .is_public = true};
  const ColdHead first = store_->write(kOwner, snapshot).value();
  const ColdHead second = store_->write(everybodys, snapshot).value();
  EXPECT_NE(first.name, second.name);
  reopen();
  auto heads = store_->list().value();
  ASSERT_EQ(heads.size(), 2u);
  if (heads[0].name != first.name) std::swap(heads[0], heads[1]);
  EXPECT_EQ(heads[0].owner, kOwner);
  EXPECT_EQ(heads[1].owner, everybodys);
  for (const ColdHead& head : heads) {
    EXPECT_EQ(head.identity, snapshot.identity);
    EXPECT_EQ(head.tokens, snapshot.tokens);
    EXPECT_EQ(head.bytes, first.bytes);
    EXPECT_GT(head.last_used_s, 0);
  }
}

TEST_F(ColdFilesTest, NobodyElseMayReadTheFiles) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {100})).value();
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(path_of(head.name)).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(ColdFilesTest, TheSameStateIsKeptOnce) {
  const ColdHead first = store_->write(kOwner, snapshot_of(1, {100})).value();
  Snapshot again = snapshot_of(1, {100});
  again.pieces[0].bytes[0] ^= std::byte{1};
  EXPECT_EQ(store_->write(kOwner, again).value().name, first.name);
  EXPECT_EQ(store_->list().value().size(), 1u);
  expect_same(store_->read(first.name, kOwner, pool_).value(), again);
}

TEST_F(ColdFilesTest, RemovedStatesAreGoneAndRemovingTwiceIsNoError) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {100})).value();
  EXPECT_TRUE(store_->remove(head.name));
  EXPECT_TRUE(store_->remove(head.name));
  const auto read = store_->read(head.name, kOwner, pool_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::io_failed);
  EXPECT_NE(read.error().message.find("No such file"), std::string::npos);
  EXPECT_TRUE(store_->list().value().empty());
}

TEST_F(ColdFilesTest, TouchMakesAStateTheLastUsed) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {100})).value();
  fs::last_write_time(path_of(head.name), fs::file_time_type::clock::now() - std::chrono::hours(1));
  const std::int64_t old_s = store_->list().value().at(0).last_used_s;
  EXPECT_LE(old_s, head.last_used_s - 3'000);
  store_->touch(head.name);
  EXPECT_GE(store_->list().value().at(0).last_used_s, head.last_used_s);
  EXPECT_TRUE(store_->remove(head.name));
  store_->touch(head.name);
}

TEST_F(ColdFilesTest, AnotherOwnersStateIsRefusedAndStays) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {100})).value();
  StateOwner other = kOwner;
  other.tenant.value = "uid:1001";
  const auto read = store_->read(head.name, other, pool_);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("another owner"), std::string::npos);
  EXPECT_TRUE(store_->read(head.name, kOwner, pool_));
}

TEST_F(ColdFilesTest, AForeignIdentityIsTheCallersQuestion) {
  Snapshot snapshot = snapshot_of(1, {100});
  snapshot.identity = "another model";
  const ColdHead head = store_->write(kOwner, snapshot).value();
  EXPECT_EQ(store_->list().value().at(0).identity, "another model");
  const Snapshot read = store_->read(head.name, kOwner, pool_).value();
  EXPECT_FALSE(check_fits(read, "model|layout"));
}

TEST_F(ColdFilesTest, StatesThatBeginAlikeShareTheirParts) {
  const Snapshot first = snapshot_of(1, {100, 200, 300});
  const ColdHead head = store_->write(kOwner, first).value();
  EXPECT_EQ(head.parts.size(), 2u) << "the last piece is none";
  EXPECT_EQ(count(".part"), 2u);
  const Snapshot sibling = sibling_of({100, 200, 50});
  Snapshot without = sibling_of({100, 200, 50});
  for (const std::size_t i : {0, 1}) without.pieces[i].bytes.clear();
  const StateOwner others_session{.tenant = kOwner.tenant, .session = {"another"}, .is_public = true};
  const ColdHead shares = store_->write(others_session, without).value();
  EXPECT_EQ(count(".part"), 2u);
  expect_same(store_->read(shares.name, others_session, pool_).value(), sibling);
  EXPECT_TRUE(store_->remove(head.name));
  reopen();
  EXPECT_EQ(store_->list().value().size(), 1u);
  expect_same(store_->read(shares.name, others_session, pool_).value(), sibling);
  EXPECT_TRUE(store_->remove(shares.name));
  EXPECT_TRUE(store_->list().value().empty());
  EXPECT_EQ(count(".part"), 0u) << "nobody needs them";
}

TEST_F(ColdFilesTest, NobodyElseSharesThem) {
  ASSERT_TRUE(store_->write(kOwner, snapshot_of(1, {100, 200})));
  StateOwner other = kOwner;
  other.tenant.value = "uid:1001";
  StateOwner alone = kOwner;
  alone.is_private = true;
  Snapshot without = sibling_of({100, 200});
  without.pieces[0].bytes.clear();
  Snapshot elsewhere = sibling_of({100, 200});
  elsewhere.pieces[0].bytes.clear();
  elsewhere.identity = "another model";
  for (const StateOwner& owner : {other, alone}) EXPECT_FALSE(store_->write(owner, without));
  EXPECT_FALSE(store_->write(kOwner, elsewhere));
  EXPECT_EQ(store_->list().value().size(), 1u);
  EXPECT_TRUE(store_->write(kOwner, without));
}

TEST_F(ColdFilesTest, AStateWithoutItsPartIsNotListedNorRead) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {100, 200})).value();
  ASSERT_TRUE(fs::remove(part_path(head.parts[0].name)));
  const auto read = store_->read(head.name, kOwner, pool_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::io_failed);
  EXPECT_TRUE(store_->list().value().empty());
  EXPECT_FALSE(fs::exists(path_of(head.name)));
}

TEST_F(ColdFilesTest, NoFlippedByteIsEverRead) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {50, 500})).value();
  for (const std::string& path : {path_of(head.name), part_path(head.parts[0].name)}) {
    const std::string right = content(path);
    ASSERT_EQ(right.size(), 2u * 4'096u);
    for (std::size_t at = 0; at < right.size(); at += at < 4'096 ? 16 : 1) {  // state_file_test has all of the head.
      std::string wrong = right;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << (at % 8)));
      put(path, wrong);
      const auto read = store_->read(head.name, kOwner, pool_);
      ASSERT_FALSE(read) << at;
      ASSERT_EQ(read.error().code, ErrorCode::runtime_decode) << at;
      ASSERT_NE(read.error().message.find(path), std::string::npos);
    }
    put(path, right);
    EXPECT_TRUE(store_->read(head.name, kOwner, pool_));
  }
}

// However long the state before it is.
TEST_F(ColdFilesTest, APartHasItsOwnTokensOnly) {
  const std::vector<std::size_t> shape(3000, 10);
  const ColdHead head = store_->write(kOwner, snapshot_of(1, shape)).value();
  ASSERT_EQ(head.parts.size(), 2999u);
  for (const ColdPart& part : head.parts) ASSERT_EQ(part.bytes, 2u * 4'096u);
  EXPECT_GT(store_->written_bytes(), 2999u * 2u * 4'096u);
  expect_same(store_->read(head.name, kOwner, pool_).value(), snapshot_of(1, shape));
}

TEST_F(ColdFilesTest, APartThatWasTruncatedIsLostAndWrittenAgain) {
  for (const std::size_t left : {0, 100, 4'096}) {
    const ColdHead head = store_->write(kOwner, snapshot_of(1, {50, 60, 70})).value();
    EXPECT_TRUE(store_->lost(head.parts).empty());
    fs::resize_file(part_path(head.parts[1].name), left);
    EXPECT_EQ(store_->lost(head.parts), std::vector{head.parts[1].name});
    const Snapshot sibling = sibling_of({50, 60, 70});
    const ColdHead again = store_->write(kOwner, sibling).value();
    EXPECT_TRUE(store_->lost(head.parts).empty());
    expect_same(store_->read(again.name, kOwner, pool_).value(), sibling);
    for (const ColdPart& part : head.parts) EXPECT_TRUE(store_->remove(part.name));
    EXPECT_EQ(store_->lost(head.parts).size(), 2u);
  }
}

TEST_F(ColdFilesTest, EmptyPartsAreRemovedAtTheStart) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {50, 60})).value();
  fs::resize_file(part_path(head.parts[0].name), 0);
  reopen();
  EXPECT_TRUE(store_->list().value().empty());
  EXPECT_EQ(count(""), 0u);
}

// umad before parts wrote whole states of version 2.
TEST_F(ColdFilesTest, AStateWithAllItsPiecesIsRead) {
  const Snapshot snapshot = snapshot_of(1, {50, 60, 70});
  const Bytes head = encode_state_head(kOwner, snapshot, checksum_of(snapshot));
  std::string file(reinterpret_cast<const char*>(head.data()), head.size());
  EXPECT_EQ(file[8], 2);
  for (const SnapshotPiece& piece : snapshot.pieces) {
    std::string bytes(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
    bytes.resize(kStateBlockBytes);
    file += bytes;
  }
  const std::string name = state_name(kOwner, snapshot.identity, snapshot.tokens);
  put(path_of(name), file);
  const auto heads = store_->list().value();
  ASSERT_EQ(heads.size(), 1u);
  EXPECT_TRUE(heads[0].parts.empty());
  expect_same(store_->read(name, kOwner, pool_).value(), snapshot);
  ASSERT_TRUE(store_->write(kOwner, snapshot));
  EXPECT_EQ(content(path_of(name))[8], 3) << "an older umad must not take it for a whole one";
}

TEST_F(ColdFilesTest, PartsOfAStateThatCannotBeReadNowStay) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {50, 60})).value();
  constexpr uid_t kNobody = 65'534;
  ASSERT_EQ(::chmod(path_of(head.name).c_str(), 0), 0);
  if (::geteuid() == 0) {
    for (const auto& entry : fs::directory_iterator(folder_)) ASSERT_EQ(::chown(entry.path().c_str(), kNobody, kNobody), 0);
    for (const std::string& path : {parent_, folder_}) ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  }
  EXPECT_TRUE(in_child([&] {
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    return store_->list().value().empty();
  }));
  ASSERT_EQ(::chmod(path_of(head.name).c_str(), 0600), 0);
  EXPECT_EQ(store_->list().value().size(), 1u);
  expect_same(store_->read(head.name, kOwner, pool_).value(), snapshot_of(1, {50, 60}));
}

TEST_F(ColdFilesTest, APartUnderAnothersNameIsRefused) {
  const ColdHead a = store_->write(kOwner, snapshot_of(1, {50, 60, 70})).value();
  const ColdHead b = store_->write(kOwner, snapshot_of(5, {50, 60, 70})).value();
  for (const std::size_t from : {0, 1}) {
    ASSERT_TRUE(store_->write(kOwner, snapshot_of(1, {50, 60, 70})));
    fs::copy_file(part_path((from == 0 ? a : b).parts[from].name), part_path(a.parts[1].name),
                  fs::copy_options::overwrite_existing);
    EXPECT_FALSE(store_->read(a.name, kOwner, pool_)) << from;
  }
}

TEST_F(ColdFilesTest, NoFlippedByteOfALargePieceIsEverRead) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {9'000'000})).value();
  const std::string path = path_of(head.name);
  const std::string right = content(path);
  for (const std::size_t at :
       {4'096ul, 4'095ul + (1ul << 20), 5ul << 20, 4'096ul + 8'999'999, 4'096ul + 9'000'000, right.size() - 1}) {
    std::string wrong = right;
    wrong[at] = static_cast<char>(wrong[at] ^ 1);
    for (const bool is_cached : {true, false}) {
      put(path, wrong);
      if (!is_cached) drop_from_cache(path);
      const auto read = store_->read(head.name, kOwner, pool_);
      ASSERT_FALSE(read) << at;
      ASSERT_EQ(read.error().code, ErrorCode::runtime_decode) << at;
    }
  }
}

TEST_F(ColdFilesTest, NoTruncatedOrLongerFileIsEverUsed) {
  const ColdHead head = store_->write(kOwner, snapshot_of(1, {50, 500})).value();
  const std::string path = path_of(head.name);
  const std::string right = content(path);
  for (std::size_t size = 0; size <= right.size() + 1; size += size % 512 < 40 ? 1 : 7) {
    if (size == right.size()) continue;
    std::string wrong = right;
    wrong.resize(size);
    put(path, wrong);
    const auto read = store_->read(head.name, kOwner, pool_);
    ASSERT_FALSE(read) << size;
    ASSERT_EQ(read.error().code, ErrorCode::runtime_decode) << size;
    put(path, wrong);
    ASSERT_TRUE(store_->list().value().empty()) << size;
    ASSERT_FALSE(fs::exists(path)) << size;
  }
}

TEST_F(ColdFilesTest, AFileUnderAnothersNameIsRefused) {
  const ColdHead a = store_->write(kOwner, snapshot_of(1, {50})).value();
  const ColdHead b = store_->write(kOwner, snapshot_of(2, {50})).value();
  fs::copy_file(path_of(a.name), path_of(b.name), fs::copy_options::overwrite_existing);
  const auto read = store_->read(b.name, kOwner, pool_);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("its name does not match its content"), std::string::npos);
}

TEST_F(ColdFilesTest, SixteenDamagedFilesAreKeptForPeople) {
  const std::string right = content(path_of(store_->write(kOwner, snapshot_of(1, {50})).value().name));
  for (int i = 0; i < 40; ++i) put(path_of(std::format("{:032x}", i)), right);
  EXPECT_EQ(store_->list().value().size(), 1u);
  EXPECT_EQ(count(".kv.damaged"), 16u);
  put(path_of(std::format("{:032x}", 100)), "torn");
  EXPECT_FALSE(store_->read(std::format("{:032x}", 100), kOwner, pool_));
  EXPECT_EQ(count(".kv.damaged"), 16u);
  EXPECT_TRUE(fs::exists(path_of(std::format("{:032x}", 100)) + ".damaged"));
}

// Their cells may be those of another text (docs/decisions/0037). Nobody has to look at them.
TEST_F(ColdFilesTest, StatesOfAnOlderVersionAreRemoved) {
  const std::string kept = store_->write(kOwner, snapshot_of(1, {50})).value().name;
  const std::string older = store_->write(kOwner, snapshot_of(2, {50})).value().name;
  std::string bytes = content(path_of(older));
  bytes[8] = 1;
  put(path_of(older), bytes);
  EXPECT_FALSE(store_->read(older, kOwner, pool_));
  put(path_of(older), bytes);
  const auto heads = store_->list().value();
  ASSERT_EQ(heads.size(), 1u);
  EXPECT_EQ(heads.front().name, kept);
  EXPECT_FALSE(fs::exists(path_of(older)));
}

TEST_F(ColdFilesTest, AWriteThatWasKilledLeavesTheFormerFile) {
  const Snapshot snapshot = snapshot_of(1, {50'000});
  const ColdHead head = store_->write(kOwner, snapshot).value();
  put(path_of(head.name) + ".tmp", content(path_of(head.name)).substr(0, 30'000));
  put(path_of(std::string(32, 'a')) + ".tmp", "");
  reopen();
  EXPECT_EQ(count(".tmp"), 0u);
  expect_same(store_->read(head.name, kOwner, pool_).value(), snapshot);
  put(path_of(head.name) + ".tmp", "torn");
  EXPECT_TRUE(store_->write(kOwner, snapshot));
  EXPECT_EQ(store_->list().value().size(), 1u);
  EXPECT_EQ(count(".tmp"), 0u);
}

TEST_F(ColdFilesTest, LeavesAloneWhatIsNotItsOwn) {
  const std::vector<std::string> strangers = {
      "notes.txt", "x.kv", "x.kv.tmp", "x.kv.damaged", ".tmp", std::string(32, 'G') + ".kv", std::string(33, 'a') + ".kv"};
  for (const std::string& name : strangers) put(folder_ + "/" + name, "mine");
  reopen();
  EXPECT_TRUE(store_->list().value().empty());
  for (const std::string& name : strangers) EXPECT_EQ(content(folder_ + "/" + name), "mine") << name;
}

TEST_F(ColdFilesTest, FoldersPipesAndLinksInAFilesPlaceAreNotFollowed) {
  const Snapshot snapshot = snapshot_of(1, {50});
  const ColdHead head = store_->write(kOwner, snapshot).value();
  const std::string path = path_of(head.name);
  const std::string elsewhere = parent_ + "/elsewhere";
  fs::rename(path, elsewhere);

  fs::create_symlink(elsewhere, path);
  auto read = store_->read(head.name, kOwner, pool_);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("is a symbolic link"), std::string::npos) << read.error().message;
  EXPECT_TRUE(store_->list().value().empty());
  EXPECT_TRUE(fs::is_symlink(path));
  const auto before = fs::last_write_time(elsewhere);
  store_->touch(head.name);
  EXPECT_EQ(fs::last_write_time(elsewhere), before);
  EXPECT_TRUE(store_->write(kOwner, snapshot));  // Replaces the link, not what it points to.
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_TRUE(store_->remove(head.name));

  fs::create_directory(path);
  read = store_->read(head.name, kOwner, pool_);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message.find("is not a regular file"), std::string::npos) << read.error().message;
  EXPECT_TRUE(store_->list().value().empty());
  const auto written = store_->write(kOwner, snapshot);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::io_failed);
  EXPECT_FALSE(store_->remove(head.name));
  EXPECT_EQ(count(".tmp"), 0u);
  fs::remove(path);

  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(store_->read(head.name, kOwner, pool_));
  EXPECT_TRUE(store_->list().value().empty());
}

TEST_F(ColdFilesTest, AFullDiskLeavesTheFormerFileAndNothingElse) {
  const Snapshot snapshot = snapshot_of(1, {3'000'000});
  const ColdHead head = store_->write(kOwner, snapshot).value();
  EXPECT_TRUE(in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1'000'000, .rlim_max = 1'000'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    const auto written = store_->write(kOwner, snapshot);
    return !written && written.error().code == ErrorCode::io_failed &&
           written.error().message.find("File too large") != std::string::npos;
  }));
  EXPECT_EQ(count(""), 1u);
  expect_same(store_->read(head.name, kOwner, pool_).value(), snapshot);
}

TEST_F(ColdFilesTest, AReadOnlyFolderStillGivesItsStates) {
  const Snapshot snapshot = snapshot_of(1, {50});
  const ColdHead head = store_->write(kOwner, snapshot).value();
  constexpr uid_t kNobody = 65'534;
  if (::geteuid() == 0) {
    for (const std::string& path : {parent_, folder_, path_of(head.name)})
      ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0500), 0);
  EXPECT_TRUE(in_child([&] {
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    const auto written = store_->write(kOwner, snapshot);
    return !written && written.error().code == ErrorCode::io_failed &&
           written.error().message.find("Permission denied") != std::string::npos && !store_->remove(head.name) &&
           store_->list().value().size() == 1 && store_->read(head.name, kOwner, pool_);
  }));
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

TEST_F(ColdFilesTest, FoldersThatAreNoPlaceForStatesAreRefused) {
  const auto refusal = [](const std::string& folder) {
    const auto opened = ColdFiles::open(folder);
    EXPECT_FALSE(opened);
    if (opened) return std::string();
    EXPECT_EQ(opened.error().code, ErrorCode::io_failed);
    return opened.error().message;
  };
  EXPECT_NE(refusal(folder_).find("another process"), std::string::npos);
  EXPECT_NE(refusal(parent_ + "/no/such").find("No such file"), std::string::npos);
  put(parent_ + "/file", "");
  EXPECT_NE(refusal(parent_ + "/file").find("Not a directory"), std::string::npos);
  fs::create_directory(parent_ + "/open");
  fs::permissions(parent_ + "/open", fs::perms::all);
  EXPECT_NE(refusal(parent_ + "/open").find("chmod 700"), std::string::npos);
}

TEST_F(ColdFilesTest, ListsTenThousandStates) {
  constexpr Token kCount = 10'000;
  for (Token i = 0; i < kCount; ++i) {
    const Snapshot snapshot = snapshot_of(i, {1});
    const Bytes head = encode_state_head(kOwner, snapshot, checksum_of(snapshot));
    std::string file(reinterpret_cast<const char*>(head.data()), head.size());
    file.push_back(static_cast<char>(snapshot.pieces[0].bytes[0]));
    file.resize(head.size() + kStateBlockBytes);
    put(path_of(state_name(kOwner, snapshot.identity, snapshot.tokens)), file);
  }
  auto heads = store_->list().value();
  ASSERT_EQ(heads.size(), static_cast<std::size_t>(kCount));
  std::ranges::sort(heads, {}, &ColdHead::tokens);
  for (Token i = 0; i < kCount; ++i) ASSERT_EQ(heads[static_cast<std::size_t>(i)].tokens, std::vector{i});
}

}  // namespace
}  // namespace uma::kv
