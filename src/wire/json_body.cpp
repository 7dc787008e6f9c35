#include "wire/json_body.h"

#include <charconv>
#include <format>
#include <optional>

#include <boost/json/error.hpp>
#include <boost/json/value.hpp>

namespace uma::wire {
namespace {

constexpr std::size_t kEscapeBytes = 6;  // \uXXXX

// The number of \uXXXX at the beginning of `text`.
std::optional<unsigned> escaped_unit(std::string_view text) {
  if (text.size() < kEscapeBytes || !text.starts_with("\\u")) return std::nullopt;
  unsigned unit = 0;
  const auto read = std::from_chars(text.data() + 2, text.data() + kEscapeBytes, unit, 16);
  return read.ptr == text.data() + kEscapeBytes ? std::optional(unit) : std::nullopt;
}

bool is_first_half(unsigned unit) {
  return unit >= 0xD800 && unit <= 0xDBFF;
}

bool is_second_half(unsigned unit) {
  return unit >= 0xDC00 && unit <= 0xDFFF;
}

// The body without escapes that stand for no character; nullopt: it has none.
std::optional<std::string> without_broken_escapes(std::string_view body) {
  std::optional<std::string> mended;
  for (std::size_t at = body.find('\\'); at != std::string_view::npos; at = body.find('\\', at)) {
    const auto unit = escaped_unit(body.substr(at));
    if (!unit) {
      at += 2;
      continue;
    }
    const auto next = is_first_half(*unit) ? escaped_unit(body.substr(at + kEscapeBytes)) : std::nullopt;
    if (next && is_second_half(*next)) {
      at += 2 * kEscapeBytes;
      continue;
    }
    if (*unit == 0 || is_first_half(*unit) || is_second_half(*unit)) {
      if (!mended) mended.emplace(body);
      mended->replace(at, kEscapeBytes, "\\ufffd");
    }
    at += kEscapeBytes;
  }
  return mended;
}

}  // namespace

std::expected<boost::json::object, RejectedBody> parse_body(std::string_view body, boost::json::storage_ptr memory) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (body.starts_with(kByteOrderMark)) body.remove_prefix(kByteOrderMark.size());
  const auto mended = without_broken_escapes(body);
  boost::system::error_code problem;
  boost::json::value root = json::parse(mended ? *mended : body, std::move(memory), problem);
  if (problem == boost::json::error::array_too_large) {
    return std::unexpected(
        RejectedBody{{ErrorCode::proto_json, std::format("the body has more than {} values", json::kValuesMax)}, ""});
  }
  if (problem) {
    return std::unexpected(RejectedBody{{ErrorCode::proto_json, "the body is not JSON: " + problem.message()}, ""});
  }
  if (!root.is_object()) {
    return std::unexpected(RejectedBody{{ErrorCode::proto_json, "the body must be one JSON object"}, ""});
  }
  return std::move(root.get_object());
}

}  // namespace uma::wire
