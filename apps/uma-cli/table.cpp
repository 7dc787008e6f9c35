#include "uma-cli/table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

std::string line_of(const std::vector<std::string>& cells, const std::vector<Column>& columns,
                    const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - display_width(cells[i]), ' ');
    if (i > 0) line += "  ";
    line += columns[i].align == Align::right ? padding + cells[i] : cells[i] + padding;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  UMA_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = printable_line(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::string> headers;
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) {
    headers.push_back(column.header);
    widths.push_back(display_width(column.header));
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  const bool has_headers = std::ranges::any_of(headers, [](const std::string& header) { return !header.empty(); });
  std::string out = has_headers ? line_of(headers, columns_, widths) : "";
  for (const auto& row : rows_) out += line_of(row, columns_, widths);
  return out;
}

}  // namespace uma::cli
