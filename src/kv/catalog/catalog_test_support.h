// A catalog of either kind, which a test opens again and again.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kv/catalog/postgres_catalog.h"
#include "kv/catalog/postgres_test_support.h"
#include "kv/catalog/sqlite_catalog_test_support.h"

namespace uma::kv {

// Handles what waits and ends the catalog, as its thread does.
inline void end_catalog(std::unique_ptr<Catalog>& catalog) {
  if (catalog == nullptr) return;
  catalog->close();
  do {
    while (catalog->step()) {
    }
  } while (catalog->wait());
  catalog.reset();
}

// Takes a session where the catalog is shared, and reads it.
inline Expected<RecordPtr> read_from(Catalog& catalog, const std::string& id) {
  std::optional<Expected<RecordPtr>> read;
  const auto on_read = [&](Expected<RecordPtr> record) { read = std::move(record); };
  if (catalog.is_shared()) {
    catalog.take(SessionId{id}, on_read);
  } else {
    catalog.read(SessionId{id}, on_read);
  }
  EXPECT_TRUE(catalog.step());
  return read.value();
}

inline Expected<Unit> commit_to(Catalog& catalog, RecordPtr record, RecordPtr before = nullptr) {
  std::optional<Expected<Unit>> kept;
  catalog.commit(std::move(record), std::move(before), [&](Expected<Unit> done) { kept = std::move(done); });
  EXPECT_TRUE(catalog.step());
  return kept.value();
}

inline Expected<Unit> remove_from(Catalog& catalog, const std::string& id) {
  std::optional<Expected<Unit>> kept;
  catalog.remove(SessionId{id}, [&](Expected<Unit> done) { kept = std::move(done); });
  EXPECT_TRUE(catalog.step());
  return kept.value();
}

enum class CatalogKind : std::uint8_t { sqlite, postgres };

class AnyCatalogTest : public ::testing::TestWithParam<CatalogKind> {
 protected:
  void SetUp() override {
    init_log(LogLevel::error);
    if (GetParam() == CatalogKind::postgres && PostgresServer::instance() == nullptr)
      GTEST_SKIP() << "PostgreSQL is not installed";
    begin_anew();
  }
  void TearDown() override {
    end_catalog(catalog_);
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // Makes an empty file or database.
  void begin_anew() {
    end_catalog(catalog_);
    if (GetParam() == CatalogKind::postgres) {
      place_ = PostgresServer::instance()->make_database();
      return;
    }
    if (!folder_.empty()) fs::remove_all(folder_);
    std::string pattern = fs::temp_directory_path() / "uma_catalog_test_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    place_ = folder_ + "/catalog.db";
  }

  // Opens the catalog, again where it is open, and reads it.
  std::map<std::string, SessionRecord> open() {
    end_catalog(catalog_);
    if (GetParam() == CatalogKind::postgres) {
      catalog_ = PostgresCatalog::open({.address = place_, .node = "test", .handover = {}}).value();
    } else {
      catalog_ = SqliteCatalog::open(place_).value();
    }
    std::map<std::string, SessionRecord> loaded;
    for (const SessionSummary& summary : catalog_->load()) {
      const RecordPtr record = read_from(*catalog_, summary.id.value).value();
      EXPECT_EQ(summary, summary_of(*record));
      loaded[summary.id.value] = *record;
    }
    return loaded;
  }
  Expected<RecordPtr> read(const std::string& id) { return read_from(*catalog_, id); }
  Expected<Unit> commit(RecordPtr record, RecordPtr before = nullptr) {
    return commit_to(*catalog_, std::move(record), std::move(before));
  }
  Expected<Unit> remove(const std::string& id) { return remove_from(*catalog_, id); }
  // Runs SQL while no catalog is open.
  void edit(const std::string& sql) {
    end_catalog(catalog_);
    SqlExpected<Unit> done;
    if (GetParam() == CatalogKind::postgres) {
      PostgresConnection connection(place_);
      ASSERT_TRUE(connection.connect("test", {}));
      done = connection.run(sql);
    } else {
      auto database = Database::open(place_);
      ASSERT_TRUE(database);
      done = database->run(sql);
    }
    ASSERT_TRUE(done) << done.error().message;
  }
  // Null: another kind.
  [[nodiscard]] SqliteCatalog* sqlite() const { return dynamic_cast<SqliteCatalog*>(catalog_.get()); }

  std::string folder_;
  std::string place_;  // Path or address.
  std::unique_ptr<Catalog> catalog_;
};

}  // namespace uma::kv
