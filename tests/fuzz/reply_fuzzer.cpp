// Property: the parser's result does not depend on how a reply is divided; every call has a name, and arguments that are JSON
// or a prefix of it; the streamed parts add up to the final result; and the reply's message can be written in any style. The
// first line of the input names the family, or its first byte chooses one; the next byte is the seed for the division.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/utf8.h"
#include "chat/calls/json_scanner.h"
#include "chat/calls/tool_format.h"
#include "chat/family.h"
#include "chat/message_values.h"
#include "chat/reply/reply_parser.h"

using uma::Random;
using uma::ReplyPart;
using uma::chat::families;
using uma::chat::Family;
using uma::chat::family_named;
using uma::chat::JsonScanner;
using uma::chat::MessageStyle;
using uma::chat::ReplyFormat;
using uma::chat::ReplyParser;
using uma::chat::ReplyPieces;
using uma::chat::Tools;
using uma::chat::tools_of;

namespace {

constexpr std::string_view kTools = R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
  "a": {"type": "integer"}, "s": {"type": "string"}, "n": {"type": ["string", "null"]}, "o": {"type": "object"}}}}}])";

struct Told {
  std::string content;
  std::string reasoning;
  std::vector<ReplyPart> calls;
  bool operator==(const Told&) const = default;
};

void hear(const std::vector<ReplyPart>& parts, Told& told) {
  for (const ReplyPart& part : parts) {
    UMA_CHECK(!part.text.empty());
    if (part.kind == ReplyPart::Kind::reasoning) {
      told.reasoning += part.text;
    } else if (!part.id.empty()) {
      UMA_CHECK(!part.name.empty() && static_cast<std::size_t>(part.call) == told.calls.size());
      told.calls.push_back(part);
    } else {
      UMA_CHECK(!told.calls.empty() && static_cast<std::size_t>(part.call) + 1 == told.calls.size());
      told.calls.back().text += part.text;
    }
  }
}

// Writes the reply, and a result, in a style by chance.
void write_back(const ReplyFormat& format, const std::string& content, const std::string& extra, Random& random) {
  constexpr std::string_view kFields[] = {"reasoning_content", "thinking", ""};
  MessageStyle style;
  style.thoughts_field = kFields[random.next_below(3)];
  style.ids = static_cast<uma::chat::CallIds>(random.next_below(4));
  for (bool* choice : {&style.are_arguments_objects, &style.takes_broken_arguments, &style.is_empty_content_none,
                       &style.has_content_beside_thoughts, &style.has_parallel_calls, &style.has_system_messages})
    *choice = random.next_below(2) == 0;
  const bool has_elements = format.family->calls.front().style == uma::chat::ArgumentStyle::elements;
  if (!has_elements && random.next_below(4) == 0) style.calls_in_content = format.family;
  const std::vector<uma::ChatMessage> messages{
      {"user", "?"}, {"assistant", content, extra}, {"tool", content}, {"system", content}};
  UMA_CHECK(uma::chat::message_values(messages, style).size() >= messages.size());
}

Told parse(const ReplyFormat& format, std::string_view text, Random& random, std::size_t piece_max) {
  ReplyParser parser(format, 1);
  Told told;
  ReplyPieces pieces;
  const auto take = [&] {
    hear(pieces.before, told);
    told.content += pieces.content;
    hear(pieces.after, told);
    pieces.clear();
  };
  while (!text.empty()) {
    std::size_t size = std::min(text.size(), static_cast<std::size_t>(1 + random.next_below(piece_max)));
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) ++size;  // Only whole characters.
    parser.push(text.substr(0, size), pieces);
    take();
    text.remove_prefix(size);
  }
  parser.finish(pieces);
  take();
  UMA_CHECK(parser.calls() == told.calls && parser.reasoning() == told.reasoning);
  write_back(format, told.content, parser.message_extra(), random);
  return told;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.size() < 2) return 0;
  static const auto tools = std::make_shared<const Tools>(tools_of(kTools));
  const std::string_view line = input.substr(0, input.find('\n'));
  const Family* named = family_named(line);
  const Family& family = named == nullptr ? families()[data[0] % families().size()] : *named;
  input.remove_prefix(named == nullptr ? 1 : std::min(line.size() + 1, input.size() - 1));
  const auto seed = static_cast<std::uint8_t>(input.front());
  ReplyFormat format{.family = &family, .tools = tools};
  if ((seed & 1) != 0) {
    format.thoughts = uma::chat::thoughts_of("</think>", format.family);
    format.begins_with_reasoning = (seed & 2) != 0;
    format.keeps_thoughts = (seed & 4) != 0;
  }
  Random random(seed);
  const std::string text = uma::replace_invalid_utf8(input.substr(1));
  const Told whole = parse(format, text, random, text.size() + 1);
  UMA_CHECK(parse(format, text, random, 1) == whole);
  UMA_CHECK(parse(format, text, random, 20) == whole);
  for (const ReplyPart& call : whole.calls) {
    JsonScanner scanner;
    for (std::size_t i = 0; i < call.text.size(); ++i) {
      UMA_CHECK(static_cast<unsigned char>(call.text[i]) >= 0x20 || scanner.place() != JsonScanner::Place::string);
      const auto result = scanner.feed(call.text[i]);
      UMA_CHECK(result != JsonScanner::Result::malformed);
      UMA_CHECK((result == JsonScanner::Result::complete) <= (i + 1 == call.text.size()));
    }
  }
  return 0;
}
