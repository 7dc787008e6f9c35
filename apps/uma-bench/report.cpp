#include "uma-bench/report.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <map>

#include "json/json_writer.h"

namespace uma::bench {

namespace {

std::map<std::string, int> count_messages(const Outcome& outcome) {
  std::map<std::string, int> counts;
  for (const Failure& failure : outcome.failures) {
    ++counts[failure.message];
  }
  return counts;
}

}  // namespace

std::string format_table(std::string_view scenario, std::string_view path, const Outcome& outcome) {
  std::string table = std::format("{} over {}\n", scenario, path);
  for (const Figure& figure : outcome.figures) {
    const bool whole = figure.value == std::floor(figure.value);
    table += std::isnan(figure.value) ? std::format("  {:<28} {:>12}\n", figure.name, "-")
                                      : std::format("  {:<28} {:>12.{}f}\n", figure.name, figure.value, whole ? 0 : 2);
  }
  for (const auto& [message, count] : count_messages(outcome)) {
    table += std::format("  failed {} times: {}\n", count, message);
  }
  return table;
}

std::string format_json(std::string_view scenario, std::string_view path, const Outcome& outcome) {
  std::string json;
  json::ObjectWriter object(json);
  object.field("scenario", scenario);
  object.field("path", path);
  object.begin("figures");
  json::ObjectWriter figures(json);
  for (const Figure& figure : outcome.figures) {
    figures.field(figure.name, figure.value);
  }
  figures.close();
  object.begin("failures");
  json::append_array(json, count_messages(outcome), [&](const auto& entry) {
    json::ObjectWriter failure(json);
    failure.field("message", entry.first);
    failure.field("count", entry.second);
    failure.close();
  });
  object.close();
  return json;
}

int exit_code(Failure::Kind kind) {
  return kind == Failure::Kind::protocol ? 3 : 2;
}

int exit_code(const Outcome& outcome) {
  int code = 0;
  for (const Failure& failure : outcome.failures) {
    code = std::max(code, exit_code(failure.kind));
  }
  return code;
}

}  // namespace uma::bench
