#include "kv/catalog/record_rows.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kv/catalog/catalog_schema.h"
#include "kv/catalog/sqlite_catalog_test_support.h"

namespace uma::kv {
namespace {

// A database that counts the bytes that statements send to it.
class CountingConnection final : public SqlConnection {
 public:
  explicit CountingConnection(Database& database) : database_(database) {}
  [[nodiscard]] std::unique_ptr<SqlCursor> prepare(std::string sql) override {
    return std::make_unique<Cursor>(database_.prepare(std::move(sql)), bytes_);
  }
  SqlExpected<Unit> run(const std::string& sql) override { return database_.run(sql); }
  SqlExpected<Unit> begin() override { return database_.begin(); }
  SqlExpected<Unit> commit() override { return database_.commit(); }
  void roll_back() override { database_.roll_back(); }
  // Bytes since the last call.
  std::size_t take_bytes() { return std::exchange(bytes_, 0); }

 private:
  class Cursor final : public SqlCursor {
   public:
    Cursor(std::unique_ptr<SqlCursor> inner, std::size_t& bytes) : inner_(std::move(inner)), bytes_(bytes) {}
    void begin() override { inner_->begin(); }
    void bind(int index, std::int64_t value) override { inner_->bind(index, value); }
    void bind(int index, double value) override { inner_->bind(index, value); }
    void bind(int index, std::string_view value) override {
      bytes_ += value.size();
      inner_->bind(index, value);
    }
    void bind(int index, std::span<const std::byte> value) override {
      bytes_ += value.size();
      inner_->bind(index, value);
    }
    SqlExpected<bool> next() override { return inner_->next(); }
    SqlExpected<Unit> run() override { return inner_->run(); }
    void end() override { inner_->end(); }
    [[nodiscard]] std::int64_t integer(int column) const override { return inner_->integer(column); }
    [[nodiscard]] double real(int column) const override { return inner_->real(column); }
    [[nodiscard]] std::string_view text(int column) const override { return inner_->text(column); }
    [[nodiscard]] std::span<const std::byte> blob(int column) const override { return inner_->blob(column); }

   private:
    const std::unique_ptr<SqlCursor> inner_;
    std::size_t& bytes_;
  };

  Database& database_;
  std::size_t bytes_ = 0;
};

class RecordRowsTest : public ::testing::Test {
 protected:
  RecordRowsTest() {
    std::string pattern = fs::temp_directory_path() / "uma_record_rows_test_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    database_.emplace(Database::open(folder_ + "/catalog.db").value());
    EXPECT_TRUE(migrate(*database_, schema_steps()));
    connection_.emplace(*database_);
    rows_.emplace(*connection_);
  }
  ~RecordRowsTest() override {
    rows_.reset();
    connection_.reset();
    database_.reset();
    fs::remove_all(folder_);
  }
  // Writes the record in place of the last one, and returns the bytes that were sent.
  std::size_t write(const SessionRecord& record) {
    EXPECT_TRUE(rows_->write(record, last_ ? &*last_ : nullptr));
    last_ = record;
    const std::size_t bytes = connection_->take_bytes();
    const auto stored = rows_->read(record.id).value().record;
    EXPECT_EQ(*stored, record);
    EXPECT_EQ(stored->tools, record.tools);
    EXPECT_EQ(stored->template_arguments, record.template_arguments);
    connection_->take_bytes();
    return bytes;
  }

  std::string folder_;
  std::optional<Database> database_;
  std::optional<CountingConnection> connection_;
  std::optional<RecordRows> rows_;
  std::optional<SessionRecord> last_;
};

TEST_F(RecordRowsTest, AChangeSendsOnlyTheTextsThatChange) {
  constexpr std::size_t kLarge = 1'000'000;
  SessionRecord record = chat_session("a", 2);
  record.tools = "[\"" + std::string(kLarge, 't') + "\"]";
  record.template_arguments = R"({"a":")" + std::string(kLarge, 'a') + "\"}";
  record.messages[0].content = std::string(kLarge, 'm');
  EXPECT_GT(write(record), 3 * kLarge);
  ++record.last_used_s;
  record.name = "a name";
  EXPECT_LT(write(record), 1000u);
  record.pending_messages = {{"user", "more"}};
  EXPECT_LT(write(record), 1000u);
  record.tools.clear();
  EXPECT_GT(write(record), kLarge) << "the arguments share a row with the tools";
  record.template_arguments = "{}";
  EXPECT_LT(write(record), 1000u);
  record.metadata = R"({"title":"a tale"})";
  EXPECT_LT(write(record), 1000u);
  record.messages[1].content = "another answer";
  EXPECT_LT(write(record), 1000u) << "the message before it stays";
}

TEST_F(RecordRowsTest, KnowWhoseASessionIs) {
  EXPECT_EQ(rows_->tenant_of(SessionId{"a"}).value(), TenantId());
  write(text_session("a"));
  EXPECT_EQ(rows_->tenant_of(SessionId{"a"}).value(), TenantId{"1000"});
}

}  // namespace
}  // namespace uma::kv
