#include "kv/catalog/sql.h"

namespace uma::kv {

SqlExpected<std::int64_t> read_integer(SqlConnection& connection, const std::string& sql) {
  Statement statement(connection, sql);
  statement.bind();
  const auto row = statement.next();
  if (!row) return std::unexpected(row.error());
  const std::int64_t value = *row ? statement.integer(0) : 0;
  statement.end();
  return value;
}

}  // namespace uma::kv
