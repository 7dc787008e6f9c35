#include "uma-bench/trace_file.h"

#include <chrono>
#include <ctime>
#include <format>
#include <iomanip>
#include <optional>
#include <sstream>

#include <boost/json.hpp>

namespace uma::bench {

namespace {

// Field widths bound the input. at_ms is an absolute time here.
std::optional<TraceRequest> parse_csv_line(const std::string& line) {
  std::istringstream fields(line);
  std::tm at{};
  double fraction = 0;
  char comma1 = 0, comma2 = 0;
  TraceRequest request;
  fields >> std::get_time(&at, "%Y-%m-%d %H:%M:%S");
  if (fields.peek() == '.') {
    fields >> fraction;
  }
  fields >> comma1 >> request.prompt_tokens >> comma2 >> request.generated_tokens;
  if (!fields || comma1 != ',' || comma2 != ',') {
    return std::nullopt;
  }
  const auto day = std::chrono::year(at.tm_year + 1900) / (at.tm_mon + 1) / at.tm_mday;
  if (!day.ok()) {
    return std::nullopt;
  }
  const auto second = std::chrono::sys_days(day) + std::chrono::hours(at.tm_hour) + std::chrono::minutes(at.tm_min) +
                      std::chrono::seconds(at.tm_sec);
  request.at_ms = static_cast<double>(second.time_since_epoch().count()) * 1000 + fraction * 1000;
  return request;
}

std::optional<TraceRequest> parse_json_line(const std::string& line) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(line, error);
  if (error || !value.is_object()) {
    return std::nullopt;
  }
  const auto number = [&](std::string_view name) -> std::optional<double> {
    const boost::json::value* field = value.get_object().if_contains(name);
    if (field == nullptr || !field->is_number()) {
      return std::nullopt;
    }
    return field->to_number<double>();
  };
  const auto at_ms = number("timestamp");
  const auto prompt_tokens = number("input_length");
  const auto generated_tokens = number("output_length");
  constexpr double kTokensMax = 1e9;
  if (!at_ms || !prompt_tokens || !generated_tokens || *prompt_tokens > kTokensMax || *generated_tokens > kTokensMax) {
    return std::nullopt;
  }
  TraceRequest request{.at_ms = *at_ms,
                       .prompt_tokens = static_cast<int>(*prompt_tokens),
                       .generated_tokens = static_cast<int>(*generated_tokens),
                       .blocks = {}};
  if (const boost::json::value* blocks = value.get_object().if_contains("hash_ids"); blocks != nullptr && blocks->is_array()) {
    for (const boost::json::value& block : blocks->get_array()) {
      if (!block.is_int64() || block.get_int64() < 0) {
        return std::nullopt;
      }
      request.blocks.push_back(static_cast<std::uint64_t>(block.get_int64()));
    }
  }
  return request;
}

}  // namespace

std::expected<std::vector<TraceRequest>, std::string> read_trace(std::istream& in, std::size_t limit) {
  std::vector<TraceRequest> requests;
  std::string line;
  bool is_json = false;
  for (std::size_t number = 1; requests.size() < limit && std::getline(in, line); ++number) {
    if (number == 1) {
      is_json = line.starts_with('{');
      if (!is_json) {
        continue;  // The header line.
      }
    }
    if (line.empty()) {
      continue;
    }
    auto request = is_json ? parse_json_line(line) : parse_csv_line(line);
    if (!request || request->prompt_tokens < 1 || request->generated_tokens < 1) {
      return std::unexpected(std::format("line {} is not a request of a trace: {}", number, line.substr(0, 120)));
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) {
    return std::unexpected("the trace is empty");
  }
  const double first_ms = requests.front().at_ms;
  for (TraceRequest& request : requests) {
    request.at_ms -= first_ms;
  }
  return requests;
}

}  // namespace uma::bench
