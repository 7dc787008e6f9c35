#include "kv/catalog/postgres_facts.h"

#include <cmath>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "kv/catalog/catalog_test_support.h"

namespace uma::kv {
namespace {

class PostgresFactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    init_log(LogLevel::error);
    if (PostgresServer::instance() == nullptr) GTEST_SKIP() << "PostgreSQL is not installed";
    address_ = PostgresServer::instance()->make_database();
  }
  DatabaseFacts facts() { return read_database_facts(address_).value(); }
  void run_sql(const std::string& sql) { run_sql_on(address_, sql); }

  std::string address_;
};

TEST_F(PostgresFactsTest, OfAnEmptyDatabase) {
  const DatabaseFacts found = facts();
  EXPECT_GE(found.version_number, 130000);
  EXPECT_EQ(found.user, "postgres");
  EXPECT_TRUE(found.may_make_tables);
  EXPECT_TRUE(found.may_write);
  EXPECT_FALSE(found.sessions_schema);
  EXPECT_FALSE(found.shared_schema);
  EXPECT_TRUE(found.members.empty());
  EXPECT_TRUE(found.commit_ms);
  EXPECT_GT(found.connections_left, 0);
  EXPECT_LE(std::abs(found.clock_ahead_s), found.clock_error_s + 1) << "they have the same clock";
}

TEST_F(PostgresFactsTest, OfDaemonsThatShareIt) {
  auto node = PostgresCatalog::open({.address = address_, .node = "a", .version = "1.2", .models = "5 aa m\n"}).value();
  DatabaseFacts found = facts();
  EXPECT_EQ(found.sessions_schema, own_schema_versions().sessions);
  EXPECT_EQ(found.shared_schema, own_schema_versions().shared);
  ASSERT_EQ(found.members.size(), 1u);
  EXPECT_EQ(found.members[0].node, "a");
  EXPECT_EQ(found.members[0].run, node->run());
  EXPECT_EQ(found.members[0].version, "1.2");
  EXPECT_EQ(found.members[0].models, "5 aa m\n");
  EXPECT_GT(found.members[0].lease_left_s, 0);
  run_sql("UPDATE daemons SET lease_until = clock_timestamp() - interval '1 minute'");
  EXPECT_LT(facts().members[0].lease_left_s, -50);
  std::unique_ptr<Catalog> catalog = std::move(node);
  end_catalog(catalog);
  EXPECT_TRUE(facts().members.empty());
}

TEST_F(PostgresFactsTest, OfATableWithAnotherTypeOfNumbers) {
  run_sql("CREATE TABLE uma_schema (part TEXT, version INTEGER); INSERT INTO uma_schema VALUES ('sessions', 7)");
  EXPECT_EQ(facts().sessions_schema, 7) << "four bytes are not read as eight";
}

TEST_F(PostgresFactsTest, OfTablesBeforeDaemonsToldTheirVersion) {
  std::unique_ptr<Catalog> catalog = PostgresCatalog::open({.address = address_, .node = "a"}).value();
  end_catalog(catalog);
  run_sql(
      "ALTER TABLE daemons DROP COLUMN version, DROP COLUMN models, DROP COLUMN incarnation, DROP COLUMN shared_states;"
      "DROP TABLE session_images, image_pieces, images;"
      "UPDATE uma_schema SET version = 2 WHERE part = 'shared';"
      "INSERT INTO daemons VALUES (9, 'old', '', clock_timestamp() + interval '10 seconds')");
  const DatabaseFacts found = facts();
  EXPECT_EQ(found.shared_schema, 2);
  ASSERT_EQ(found.members.size(), 1u);
  EXPECT_EQ(found.members[0].version, "");
  // A daemon of this version migrates them, and the old one's row stays.
  auto node = PostgresCatalog::open({.address = address_, .node = "b", .version = "2"}).value();
  EXPECT_EQ(facts().members.size(), 2u);
  catalog = std::move(node);
  end_catalog(catalog);
}

TEST(PostgresFacts, ReportAServerThatDoesNotAnswer) {
  const auto found = read_database_facts("host=/nowhere dbname=uma user=uma");
  ASSERT_FALSE(found);
  EXPECT_TRUE(found.error().is_lost());
}

}  // namespace
}  // namespace uma::kv
