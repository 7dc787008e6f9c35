#include "kv/catalog/run_identity.h"

#include <format>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "kv/catalog/catalog_test_support.h"

namespace uma::kv {
namespace {

// Daemons with data folders, which are killed and start again.
class RestartedDaemonTest : public ::testing::Test {
 protected:
  using Node = std::unique_ptr<PostgresCatalog>;

  void SetUp() override {
    init_log(LogLevel::error);
    if (PostgresServer::instance() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed";
    address_ = PostgresServer::instance()->make_database();
    std::string pattern = fs::temp_directory_path() / "uma_run_test_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  Node open_in(const std::string& name, const std::string& data) {
    fs::create_directories(folder_ + "/" + data);
    return PostgresCatalog::open(
               {.address = address_, .node = name, .lock = folder_ + "/" + data + "/catalog.db", .handover = {}})
        .value();
  }
  static std::string refusal(const Expected<RecordPtr>& taken) {
    return taken ? "" : std::string(code_name(taken.error().code));
  }
  // As after kill -9: nothing is given up.
  static void kill(Node& node) { node.reset(); }
  [[nodiscard]] std::string lock_of(const std::string& data) const { return folder_ + "/" + data + "/catalog.db.lock"; }

  std::string address_;
  std::string folder_;
};

TEST_F(RestartedDaemonTest, GivesUpTheSessionsOfItsFormerRun) {
  const Node b = open_in("b", "b");
  Node a = open_in("a", "a");
  for (int round = 1; round < 4; ++round) {
    const std::string id = std::format("s{}", round);
    const RecordPtr record = share(text_session(id, 1));
    ASSERT_TRUE(commit_to(*a, record));
    EXPECT_EQ(refusal(read_from(*b, id)), "E_SESSION_002");
    kill(a);
    EXPECT_EQ(refusal(read_from(*b, id)), "E_SESSION_002") << "nobody knows that a is dead";
    a = open_in("a", "a");
    EXPECT_EQ(*read_from(*b, id).value(), *record) << "in round " << round;
  }
}

TEST_F(RestartedDaemonTest, TakesTheSessionsOfItsFormerRunAtOnce) {
  Node a = open_in("a", "a");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  kill(a);
  a = open_in("a", "a");
  EXPECT_EQ(*read_from(*a, "s").value(), *record);
  EXPECT_TRUE(commit_to(*a, share(text_session("s", 2)), record));
}

TEST_F(RestartedDaemonTest, FreesNoSessionOfALivingDaemonWithACopyOfItsDataFolder) {
  const Node a = open_in("a", "a");
  const RecordPtr record = share(text_session("s", 1));
  ASSERT_TRUE(commit_to(*a, record));
  fs::copy(folder_ + "/a", folder_ + "/copy");
  const Node same_name = open_in("a", "copy");
  EXPECT_EQ(refusal(read_from(*same_name, "s")), "E_SESSION_002");
  EXPECT_TRUE(commit_to(*a, share(text_session("s", 2)), record));
}

TEST_F(RestartedDaemonTest, FreesNoSessionOfALivingDaemonWithItsName) {
  const Node a = open_in("a", "a");
  ASSERT_TRUE(commit_to(*a, share(text_session("s", 1))));
  Node same_name = open_in("a", "other");
  EXPECT_EQ(refusal(read_from(*same_name, "s")), "E_SESSION_002");
  kill(same_name);
  same_name = open_in("a", "other");
  EXPECT_EQ(refusal(read_from(*same_name, "s")), "E_SESSION_002");
}

// The file may have come with the whole disk from a machine that lives.
TEST_F(RestartedDaemonTest, FreesNothingWithAFileOfAnotherBoot) {
  Node a = open_in("a", "a");
  const Node b = open_in("b", "b");
  ASSERT_TRUE(commit_to(*a, share(text_session("s", 1))));
  kill(a);
  std::string text = read_file(lock_of("a"));
  const std::size_t boot = text.find(" boot ") + 6;
  text[boot] = text[boot] == '0' ? '1' : '0';
  write_file(lock_of("a"), text);
  a = open_in("a", "a");
  EXPECT_EQ(refusal(read_from(*b, "s")), "E_SESSION_002");
}

TEST_F(RestartedDaemonTest, IgnoresAFileThatIsNotItsOwn) {
  for (const std::string& text :
       {std::string(), std::string("x"), std::string(32, '0'), std::string(5000, 'f'), std::string(300, '\0')}) {
    fs::create_directories(folder_ + "/a");
    write_file(lock_of("a"), text);
    Node a = open_in("a", "a");
    const RecordPtr record = share(text_session("s", 1));
    ASSERT_TRUE(commit_to(*a, record));
    kill(a);
    a = open_in("a", "a");
    ASSERT_EQ(refusal(read_from(*a, "s")), "") << text.size() << " bytes";
    ASSERT_TRUE(remove_from(*a, "s"));
  }
}

}  // namespace
}  // namespace uma::kv
