// For tests: replies in the notation of a family, parsed in pieces of every size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "chat/calls/tool_format.h"
#include "chat/family.h"
#include "chat/reply/reply_parser.h"

namespace uma::chat {

struct FamilyReply {
  std::string thoughts;
  std::string content;
  std::vector<std::string> calls;  // Name, id if the model gives one, arguments.
  bool operator==(const FamilyReply&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const FamilyReply& reply) {
  out << "thoughts \"" << reply.thoughts << "\", content \"" << reply.content << "\"";
  for (const std::string& call : reply.calls) out << ", call " << call;
  return out;
}

inline constexpr std::string_view kFamilyTools = R"([
  {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": "boolean"}, "n": {"type": ["string", "null"]},
    "o": {"type": "object"}, "l": {"type": "array", "items": {"type": "number"}}}}}},
  {"type": "function", "function": {"name": "g"}},
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}}}])";

inline ReplyFormat family_format(std::string_view family, bool begins_with_thoughts) {
  const Family* row = family_named(family);
  EXPECT_NE(row, nullptr) << family;
  return {.family = row,
          .tools = std::make_shared<const Tools>(tools_of(kFamilyTools)),
          .thoughts = thoughts_of("<think></think>", row),
          .begins_with_reasoning = begins_with_thoughts};
}

// In pieces of `step` characters, the first one of `first`.
inline FamilyReply parse_reply(const ReplyFormat& format, std::string_view text, std::size_t step, std::size_t first) {
  ReplyParser parser(format, 1);
  std::string content;
  ReplyPieces pieces;
  for (std::size_t count = first; !text.empty(); count = step) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < count && size < text.size(); ++i) {
      do ++size;
      while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80);
    }
    pieces.clear();
    parser.push(text.substr(0, size), pieces);
    content += pieces.content;
    text.remove_prefix(size);
  }
  pieces.clear();
  parser.finish(pieces);
  content += pieces.content;
  FamilyReply reply{.thoughts = parser.reasoning(), .content = content, .calls = {}};
  for (const ReplyPart& call : parser.calls()) {
    const bool has_own_id = call.id.contains(':') || call.id.size() != 9 || call.id == "123456789";
    reply.calls.push_back(call.name + (has_own_id ? "#" + call.id : "") + call.text);
  }
  return reply;
}

inline FamilyReply parse_reply(const ReplyFormat& format, std::string_view text, std::size_t step) {
  return parse_reply(format, text, step, step);
}

// Cut at every character, and in pieces of several sizes.
inline void expect_parts(const ReplyFormat& format, std::string_view text, const FamilyReply& wanted) {
  for (std::size_t first = 0; first <= std::min(text.size(), std::size_t{1000}); ++first)
    EXPECT_EQ(parse_reply(format, text, text.size() + 1, first), wanted)
        << format.family->name << ", " << first << ": " << text;
  for (const std::size_t step :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5}, std::size_t{17}, text.size() + 1})
    EXPECT_EQ(parse_reply(format, text, step), wanted) << format.family->name << ", in pieces of " << step << ": " << text;
}

inline void expect_parts(std::string_view family, std::string_view text, const FamilyReply& wanted,
                         bool begins_with_thoughts = false) {
  expect_parts(family_format(family, begins_with_thoughts), text, wanted);
}

}  // namespace uma::chat
