#include "uma-cli/metrics.h"

#include <format>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>

#include "base/clock.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

std::string cell_of(const boost::json::value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_double()) return human_number(value.get_double());
  if (value.is_null()) return "unknown";
  return boost::json::serialize(value);
}

// Prints a table whose columns are the number of each object, under `heading`, and the fields of the first one.
std::string rows_text(const boost::json::array& rows, const char* heading) {
  std::vector<Column> columns = {{heading, Align::right}};
  if (rows.empty() || !rows[0].is_object()) return "";
  for (const auto& field : rows[0].get_object()) columns.push_back({std::string(field.key()), Align::right});
  Table table(columns);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].is_object()) continue;
    std::vector<std::string> cells = {std::to_string(i)};
    for (std::size_t column = 1; column < columns.size(); ++column) {
      const boost::json::value* value = rows[i].get_object().if_contains(columns[column].header);
      cells.push_back(value == nullptr ? "" : cell_of(*value));
    }
    table.add(std::move(cells));
  }
  return '\n' + table.text();
}

}  // namespace

std::string metrics_text(const boost::json::object& metrics) {
  Table table({{""}, {"", Align::right}});
  for (const auto& field : metrics) {
    if (!field.value().is_structured()) table.add({std::string(field.key()), cell_of(field.value())});
  }
  return table.text() + rows_text(array_field(metrics, "workers"), "WORKER") +
         rows_text(array_field(metrics, "devices"), "DEVICE");
}

Result<void> print_metrics(Client& client, Output& output, bool as_json) {
  auto answer = client.call({{"type", "metrics"}}, "metrics");
  if (!answer) return std::unexpected(answer.error());
  return print(output, as_json ? boost::json::serialize(*answer) + '\n' : metrics_text(object_field(*answer, "metrics")));
}

Result<void> print_trace(Client& client, double seconds, Output& output) {
  auto answer = client.call({{"type", "trace"}, {"seconds", seconds}}, "trace");
  if (!answer) return std::unexpected(answer.error());
  return print(output, boost::json::serialize(object_field(*answer, "trace")) + '\n');
}

Result<void> print_ping(Client& client, Output& output) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  auto answer = client.call({{"type", "ping"}}, "pong");
  if (!answer) return std::unexpected(answer.error());
  return print(output, std::format("pong from {} after {:.2f} ms\n", client.path(), to_ms(clock.now() - start)));
}

}  // namespace uma::cli
