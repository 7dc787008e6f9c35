#include "kv/catalog/postgres_images.h"

#include <chrono>
#include <format>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/catalog/catalog_test_support.h"

namespace uma::kv {
namespace {

const TenantId kImagesTenant{"owner"};

// A daemon with the files of images that it has got.
struct ImagesNode {
  std::map<std::string, std::string> files;
  std::shared_ptr<PostgresImages> images;
  std::unique_ptr<Catalog> catalog;

  Expected<Bytes> read(const std::string& id) const {
    const auto found = files.find(id);
    if (found == files.end()) return fail(ErrorCode::io_failed, std::format("no file {}", id));
    const auto bytes = std::as_bytes(std::span(found->second));
    return Bytes(bytes.begin(), bytes.end());
  }
};

// The images of sessions in these tests: `{"images": A B}` refers to A and B.
std::string extra_of(const std::vector<std::string>& ids) {
  std::string extra = R"({"images":)";
  for (const std::string& id : ids) extra += " " + id;
  return extra + "}";
}

std::vector<std::string> ids_in(const std::string& extra) {
  std::vector<std::string> ids;
  std::string rest = extra.substr(0, extra.size() - 1);
  for (std::size_t at = rest.find(' '); at != std::string::npos; at = rest.find(' ')) {
    rest.erase(0, at + 1);
    ids.push_back(rest.substr(0, rest.find(' ')));
  }
  return ids;
}

SessionRecord session_with(const std::string& id, const std::vector<std::string>& images,
                           const TenantId& tenant = kImagesTenant) {
  SessionRecord record = chat_session(id, 1);
  record.tenant = tenant;
  if (!images.empty()) record.messages[0].extra = extra_of(images);
  return record;
}

std::string noise(std::size_t bytes) {
  Random random(bytes);
  std::string file(bytes, '\0');
  for (char& byte : file) byte = static_cast<char>(random.next_below(256));
  return file;
}

class PostgresImagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    init_log(LogLevel::error);
    if (PostgresServer::instance() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed";
    address_ = PostgresServer::instance()->make_database();
  }
  void TearDown() override {
    for (const auto& node : nodes_) end(*node);
  }

  ImagesNode& open(const std::string& name, std::uint64_t bytes_max = 1ul << 30) {
    ImagesNode& node = *nodes_.emplace_back(std::make_unique<ImagesNode>());
    node.images =
        std::make_shared<PostgresImages>(PostgresImagesOptions{.address = address_, .node = name, .bytes_max = bytes_max});
    node.catalog = PostgresCatalog::open({.address = address_,
                                          .node = name,
                                          .handover = {},
                                          .images = {.database = node.images,
                                                     .ids_of = ids_in,
                                                     .read = [&node](const std::string& id) { return node.read(id); }}})
                       .value();
    return node;
  }
  static void end(ImagesNode& node) { end_catalog(node.catalog); }

  static Expected<Unit> commit(ImagesNode& node, RecordPtr record, RecordPtr before = nullptr) {
    std::optional<Expected<Unit>> kept;
    std::promise<void> has_kept;
    node.catalog->commit(std::move(record), std::move(before), [&](Expected<Unit> done) {
      kept = std::move(done);
      has_kept.set_value();
    });
    const auto done = has_kept.get_future();
    while (done.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) node.catalog->step();
    return kept.value();
  }
  static Expected<Unit> store(ImagesNode& node, const std::string& id, const TenantId& tenant = kImagesTenant) {
    std::promise<Expected<Unit>> stored;
    node.images->store(
        tenant, {id}, [&node](const std::string& wanted) { return node.read(wanted); },
        [&](Expected<Unit> done) { stored.set_value(std::move(done)); });
    return stored.get_future().get();
  }
  static Expected<Bytes> fetch(PostgresImages& images, const std::string& id) {
    std::promise<Expected<Bytes>> fetched;
    images.fetch(id, [&](Expected<Bytes> file) { fetched.set_value(std::move(file)); });
    return fetched.get_future().get();
  }
  // The fetched file, or the error's message.
  static std::string text_of(ImagesNode& node, const std::string& id) {
    const auto file = fetch(*node.images, id);
    return file ? std::string(reinterpret_cast<const char*>(file->data()), file->size()) : file.error().message;
  }
  static Expected<RecordPtr> give(ImagesNode& from, ImagesNode& to, const std::string& id) {
    from.catalog->give_up(SessionId{id});
    EXPECT_TRUE(from.catalog->step());
    return read_from(*to.catalog, id);
  }
  void run_sql(const std::string& sql) { run_sql_on(address_, sql); }
  std::int64_t count(const std::string& table) {
    PostgresConnection connection(address_);
    EXPECT_TRUE(connection.connect("test", {}));
    return read_integer(connection, std::format("SELECT count(*) FROM {}", table)).value_or(-1);
  }
  // Waits until a daemon that removes unused images at once has looked at all of them.
  void sweep() {
    ImagesNode& node = *nodes_.emplace_back(std::make_unique<ImagesNode>());
    node.images = std::make_shared<PostgresImages>(PostgresImagesOptions{.address = address_,
                                                                         .node = "sweeper",
                                                                         .bytes_max = 1ul << 30,
                                                                         .unused_kept = {},
                                                                         .sweep_every = std::chrono::milliseconds(5)});
    // It is younger than all others, which a sweep removes before.
    node.files["mark"] = "a mark";
    ASSERT_TRUE(store(node, "mark"));
    while (count("images WHERE sha256 = 'mark'") > 0) std::this_thread::yield();
    node.images->stop();
  }

  std::string address_;
  std::vector<std::unique_ptr<ImagesNode>> nodes_;
};

TEST_F(PostgresImagesTest, AnImageIsThereForAnotherDaemon) {
  ImagesNode& a = open("a");
  ImagesNode& b = open("b");
  a.files = {
      {"large", noise(PostgresImages::kPieceBytes * 5 / 2)}, {"piece", noise(PostgresImages::kPieceBytes)}, {"small", "x"}};
  const RecordPtr record = share(session_with("s", {"large", "piece", "small"}));
  ASSERT_TRUE(commit(a, record));
  for (const auto& [id, file] : a.files) EXPECT_TRUE(text_of(b, id) == file) << id;
  EXPECT_EQ(text_of(b, "other"), "the image other of the session cannot be read: the file is missing, also in the database");
  EXPECT_EQ(count("image_pieces"), 5);
  EXPECT_EQ(*give(a, b, "s").value(), *record);
}

TEST_F(PostgresImagesTest, ASessionWhoseImageCannotBeStoredIsNotStored) {
  ImagesNode& a = open("a");
  const RecordPtr plain = share(session_with("s", {}));
  ASSERT_TRUE(commit(a, plain));
  const auto refused = commit(a, share(session_with("s", {"lost"})), plain);
  EXPECT_EQ(refused.error().message, "no file lost");
  EXPECT_NE(refused.error().code, ErrorCode::outcome_unknown);
  EXPECT_EQ(*read_from(*a.catalog, "s").value(), *plain);
  a.files["lost"] = "found";
  EXPECT_TRUE(commit(a, share(session_with("s", {"lost"})), plain));
}

TEST_F(PostgresImagesTest, AnImageIsStoredOnceForEachTenant) {
  ImagesNode& a = open("a");
  ImagesNode& b = open("b");
  a.files["picture"] = b.files["picture"] = "a picture";
  ASSERT_TRUE(commit(a, share(session_with("1", {"picture"}))));
  ASSERT_TRUE(commit(a, share(session_with("2", {"picture"}))));
  ASSERT_TRUE(commit(b, share(session_with("3", {"picture"}))));
  EXPECT_EQ(count("images"), 1);
  ASSERT_TRUE(commit(b, share(session_with("4", {"picture"}, TenantId{"other"}))));
  EXPECT_EQ(count("images"), 2);
  EXPECT_EQ(count("session_images"), 4);
}

TEST_F(PostgresImagesTest, DaemonsThatStoreTheSameImageAtOnceBothSucceed) {
  ImagesNode& a = open("a");
  ImagesNode& b = open("b");
  for (int round = 0; round < 20; ++round) {
    const std::string id = std::format("picture{}", round);
    a.files[id] = b.files[id] = noise(100'000);
    auto other =
        std::async(std::launch::async, [&] { return commit(b, share(session_with(std::format("b{}", round), {id}))); });
    EXPECT_TRUE(commit(a, share(session_with(std::format("a{}", round), {id}))));
    EXPECT_TRUE(other.get());
  }
  EXPECT_EQ(count("images"), 20);
  EXPECT_EQ(count("session_images"), 40);
}

TEST_F(PostgresImagesTest, AnImageGoesWithItsLastSession) {
  ImagesNode& a = open("a");
  a.files = {{"shared", "1"}, {"own", "2"}};
  ASSERT_TRUE(commit(a, share(session_with("s", {"shared", "own"}))));
  ASSERT_TRUE(commit(a, share(session_with("t", {"shared"}))));
  ASSERT_TRUE(remove_from(*a.catalog, "s"));
  sweep();
  EXPECT_EQ(text_of(a, "shared"), "1");
  EXPECT_EQ(count("images"), 1);
  ASSERT_TRUE(remove_from(*a.catalog, "t"));
  sweep();
  EXPECT_EQ(count("images"), 0);
  EXPECT_EQ(count("image_pieces"), 0);
}

TEST_F(PostgresImagesTest, AForkElsewhereNeedsNoFileAndKeepsTheImage) {
  ImagesNode& a = open("a");
  ImagesNode& b = open("b");
  a.files["picture"] = "a picture";
  ASSERT_TRUE(commit(a, share(session_with("s", {"picture"}))));
  ASSERT_TRUE(commit(b, share(session_with("fork", {"picture"}))));
  ASSERT_TRUE(remove_from(*a.catalog, "s"));
  sweep();
  EXPECT_EQ(text_of(b, "picture"), "a picture");
}

TEST_F(PostgresImagesTest, AnImageThatIsTakenBackIsNotKept) {
  ImagesNode& a = open("a");
  a.files = {{"first", "1"}, {"second", "2"}};
  const RecordPtr both = share(session_with("s", {"first", "second"}));
  const RecordPtr one = share(session_with("s", {"first"}));
  ASSERT_TRUE(commit(a, both));
  ASSERT_TRUE(commit(a, one, both));
  sweep();
  EXPECT_EQ(count("images"), 1);
  ASSERT_TRUE(commit(a, both, one)) << "it is stored again";
  sweep();
  EXPECT_EQ(text_of(a, "second"), "2");
}

TEST_F(PostgresImagesTest, AnImageThatVanishesBeforeItsCommitRefusesTheChangeAlone) {
  ImagesNode& a = open("a");
  a.files["picture"] = "a picture";
  SessionRecord record = session_with("s", {"picture"});
  record.name = "named";
  std::optional<Expected<Unit>> kept;
  a.catalog->commit(share(std::move(record)), nullptr, [&](Expected<Unit> done) { kept = std::move(done); });
  while (count("images") == 0) std::this_thread::yield();
  run_sql("DELETE FROM images");
  std::optional<Expected<Unit>> other;
  a.catalog->commit(share(session_with("t", {})), nullptr, [&](Expected<Unit> done) { other = std::move(done); });
  while (!kept || !other) a.catalog->step();
  EXPECT_EQ(kept->error().code, ErrorCode::io_failed);
  EXPECT_TRUE(kept->error().message.contains("send it again")) << kept->error().message;
  EXPECT_TRUE(*other);
  EXPECT_EQ(count("sessions"), 1);
}

TEST_F(PostgresImagesTest, ATenantMayHaveAsMuchAsItLeavesFree) {
  ImagesNode& a = open("a", 1000);
  a.files = {{"half", noise(500)}, {"more", noise(1)}, {"others", noise(200)}};
  ASSERT_TRUE(commit(a, share(session_with("s", {"half"}))));
  const auto refused = commit(a, share(session_with("t", {"more"})));
  EXPECT_EQ(refused.error().code, ErrorCode::limit_wait);
  EXPECT_TRUE(refused.error().message.contains("vision.kept_bytes_max")) << refused.error().message;
  EXPECT_TRUE(commit(a, share(session_with("u", {"half"})))) << "it is there";
  EXPECT_TRUE(commit(a, share(session_with("v", {"others"}, TenantId{"other"}))));
  EXPECT_EQ(count("images"), 2);
}

TEST_F(PostgresImagesTest, AFullDatabaseRefusesAndKeepsNothing) {
  ImagesNode& a = open("a");
  a.files["picture"] = noise(3 * PostgresImages::kPieceBytes);
  run_sql(R"sql(
    CREATE FUNCTION be_full() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER be_full BEFORE INSERT ON image_pieces FOR EACH ROW WHEN (NEW.number = 1) EXECUTE FUNCTION be_full())sql");
  const auto refused = commit(a, share(session_with("s", {"picture"})));
  EXPECT_EQ(refused.error().code, ErrorCode::io_failed);
  EXPECT_TRUE(refused.error().message.contains("full")) << refused.error().message;
  EXPECT_EQ(count("images"), 0);
  EXPECT_EQ(count("sessions"), 0);
  run_sql("DROP TRIGGER be_full ON image_pieces");
  EXPECT_TRUE(commit(a, share(session_with("s", {"picture"}))));
  EXPECT_TRUE(text_of(a, "picture") == a.files["picture"]);
}

TEST_F(PostgresImagesTest, ALostConnectionIsMadeAgain) {
  ImagesNode& a = open("a");
  a.files = {{"one", "1"}, {"two", "2"}};
  ASSERT_TRUE(store(a, "one"));
  run_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'umad a images'");
  EXPECT_TRUE(store(a, "two"));
  EXPECT_EQ(count("images"), 2);
}

TEST_F(PostgresImagesTest, WithoutADatabaseTheAnswerIsAnErrorAndNotAWait) {
  PostgresImages images({.address = "host=/nowhere dbname=uma", .node = "a", .bytes_max = 1000});
  const auto refused = fetch(images, "picture");
  EXPECT_EQ(refused.error().code, ErrorCode::io_failed);
  EXPECT_TRUE(refused.error().message.contains("cannot be reached")) << refused.error().message;
  EXPECT_FALSE(refused.error().message.contains("nowhere")) << "for the log only";
  images.stop();
  EXPECT_EQ(fetch(images, "picture").error().code, ErrorCode::limit_wait);
}

TEST_F(PostgresImagesTest, AnImageThatLacksAPieceIsAnError) {
  ImagesNode& a = open("a");
  a.files["picture"] = noise(2 * PostgresImages::kPieceBytes);
  ASSERT_TRUE(store(a, "picture"));
  run_sql("DELETE FROM image_pieces WHERE number = 1");
  EXPECT_TRUE(text_of(a, "picture").contains("a piece of it is missing"));
  run_sql("UPDATE images SET bytes_count = 1000000000000");
  EXPECT_TRUE(text_of(a, "picture").contains("impossible"));
}

TEST_F(PostgresImagesTest, AnOlderDatabaseGetsTheTables) {
  end(open("a"));
  run_sql(
      "DROP TABLE session_images, image_pieces, images; ALTER TABLE daemons DROP COLUMN shared_states;"
      "UPDATE uma_schema SET version = 4 WHERE part = 'shared'");
  ImagesNode& b = open("b");
  b.files["picture"] = "a picture";
  EXPECT_TRUE(commit(b, share(session_with("s", {"picture"}))));
  EXPECT_EQ(text_of(b, "picture"), "a picture");
}

}  // namespace
}  // namespace uma::kv
