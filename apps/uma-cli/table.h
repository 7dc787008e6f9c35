// Formats rows in aligned columns under headers. Cells are made safe for a terminal.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace uma::cli {

enum class Align { left, right };

struct Column {
  std::string header;
  Align align = Align::left;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> cells);  // One cell per column.
  // Columns are separated by two spaces; lines have no trailing spaces. Without headers the first line is the first row.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace uma::cli
