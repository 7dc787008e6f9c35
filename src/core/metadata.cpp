#include "core/metadata.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/utf8.h"

namespace uma {
namespace {

// Length of the escape at the beginning of `text`; 0: json::append_string() writes no such escape.
std::size_t escape_length(std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  if (text.size() >= 2 && std::string_view("\"\\nrt").contains(text[1])) return 2;
  const bool is_control =
      text.size() >= 6 && text.starts_with("\\u00") && (text[4] == '0' || text[4] == '1') && kHexDigits.contains(text[5]);
  return is_control ? 6 : 0;
}

// Removes and returns the JSON string at the beginning of `text`, with its quotes; empty: there is none.
std::string_view take_string(std::string_view& text) {
  if (!text.starts_with('"')) return {};
  for (std::size_t at = 1; at < text.size();) {
    if (text[at] == '"') {
      const std::string_view taken = text.substr(0, at + 1);
      text.remove_prefix(taken.size());
      return taken;
    }
    const std::size_t length = text[at] == '\\' ? escape_length(text.substr(at)) : 1;
    if (length == 0 || static_cast<unsigned char>(text[at]) < ' ') return {};
    at += length;
  }
  return {};
}

bool take(std::string_view& text, char wanted) {
  if (!text.starts_with(wanted)) return false;
  text.remove_prefix(1);
  return true;
}

std::size_t bytes_of(const MetadataPair& pair) {
  return pair.name.size() + 1 + pair.value.size() + 1;  // With the colon, and a comma or brace.
}

std::string object_of(std::span<const MetadataPair> pairs) {
  if (pairs.empty()) return {};
  std::string out;
  for (const MetadataPair& pair : pairs) {
    out += out.empty() ? '{' : ',';
    out.append(pair.name).append(":").append(pair.value);
  }
  out += '}';
  return out;
}

}  // namespace

std::optional<std::vector<MetadataPair>> metadata_pairs(std::string_view metadata) {
  std::vector<MetadataPair> pairs;
  if (metadata.empty() || metadata == "{}") return pairs;
  std::string_view left = metadata;
  if (!is_utf8(metadata)) return std::nullopt;
  for (char begin = '{'; take(left, begin); begin = ',') {
    if (pairs.size() == kMetadataPairsMax) return std::nullopt;
    const std::string_view name = take_string(left);
    if (name.empty() || !take(left, ':')) return std::nullopt;
    const std::string_view value = take_string(left);
    if (value.empty()) return std::nullopt;
    pairs.push_back({name, value});
  }
  if (pairs.empty() || left != "}") return std::nullopt;
  return pairs;
}

std::string listed_metadata(std::string_view metadata) {
  auto pairs = metadata_pairs(metadata);
  if (!pairs) return {};
  if (metadata.size() <= kListedMetadataBytesMax) return object_of(*pairs);
  std::ranges::stable_partition(*pairs,
                                [](const MetadataPair& pair) { return pair.name == R"("title")" || pair.name == R"("tags")"; });
  std::size_t bytes = 1;
  std::erase_if(*pairs, [&](const MetadataPair& pair) {
    const bool fits = bytes + bytes_of(pair) <= kListedMetadataBytesMax;
    if (fits) bytes += bytes_of(pair);
    return !fits;
  });
  return object_of(*pairs);
}

std::string changed_metadata(std::string_view metadata, std::span<const MetadataChange> changes) {
  std::vector<MetadataPair> pairs = metadata_pairs(metadata).value_or(std::vector<MetadataPair>());
  for (const MetadataChange& change : changes) {
    const auto old = std::ranges::find(pairs, std::string_view(change.name), &MetadataPair::name);
    if (change.value.empty()) {
      if (old != pairs.end()) pairs.erase(old);
    } else if (old != pairs.end()) {
      old->value = change.value;
    } else {
      pairs.push_back({change.name, change.value});
    }
  }
  return object_of(pairs);
}

void append_metadata_text(std::string& out, std::string_view json_string) {
  const std::string_view inside = json_string.substr(1, json_string.size() - 2);
  for (std::size_t at = 0; at < inside.size();) {
    const std::size_t escape = inside.find('\\', at);
    out.append(inside.substr(at, escape - at));
    if (escape == std::string_view::npos) return;
    const std::size_t length = escape_length(inside.substr(escape));
    if (length == 6) {
      int code = 0;
      std::from_chars(inside.data() + escape + 4, inside.data() + escape + 6, code, 16);
      out += static_cast<char>(code);
    } else {
      constexpr std::string_view kEscapes = "nrt";
      constexpr std::array kMeanings = {'\n', '\r', '\t'};
      const std::size_t place = kEscapes.find(inside[escape + 1]);
      out += place == std::string_view::npos ? inside[escape + 1] : kMeanings[place];
    }
    at = escape + length;
  }
}

}  // namespace uma
