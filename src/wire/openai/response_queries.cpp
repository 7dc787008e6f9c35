// How responses and lists of items are read: the queries of their paths.
#include <cstddef>
#include <cstdint>
#include <format>
#include <string>
#include <string_view>

#include "wire/openai/responses_decoder.h"
#include "wire/query.h"

namespace uma::wire {
namespace {

constexpr std::size_t kItemsPerPageMax = 100;

}  // namespace

std::expected<ResponseQuery, RejectedBody> decode_response_query(std::string_view query) {
  const auto bad = [](std::string_view name, std::string_view what) {
    return std::unexpected(
        RejectedBody{{ErrorCode::proto_field, std::format("field \"{}\" {}", name, what)}, std::string(name)});
  };
  ResponseQuery result;
  const std::string stream = query_value(query, "stream");
  if (!stream.empty() && stream != "true" && stream != "false") return bad("stream", "must be true or false");
  result.is_stream = stream == "true";
  const std::string after = query_value(query, "starting_after");
  if (after.empty()) return result;
  const auto number = query_integer(after);
  if (!number || *number < 0) return bad("starting_after", "must be the sequence_number of an event");
  if (!result.is_stream) return bad("starting_after", "needs stream=true");
  result.after = static_cast<std::uint64_t>(*number);
  return result;
}

std::expected<ListPage, RejectedBody> decode_page(std::string_view query) {
  const auto bad = [](std::string_view name, std::string_view what) {
    return std::unexpected(
        RejectedBody{{ErrorCode::proto_field, std::format("field \"{}\" {}", name, what)}, std::string(name)});
  };
  ListPage page;
  if (const std::string limit = query_value(query, "limit"); !limit.empty()) {
    const std::int64_t number = query_integer(limit).value_or(0);
    if (number < 1 || number > static_cast<std::int64_t>(kItemsPerPageMax)) return bad("limit", "must be 1 to 100");
    page.limit = static_cast<std::size_t>(number);
  }
  if (const std::string order = query_value(query, "order"); !order.empty()) {
    if (order != "asc" && order != "desc") return bad("order", R"(must be "asc" or "desc")");
    page.is_ascending = order == "asc";
  }
  page.after = query_value(query, "after");
  return page;
}

}  // namespace uma::wire
