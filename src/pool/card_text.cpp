#include "pool/card_text.h"

#include <algorithm>
#include <cstddef>
#include <format>
#include <span>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "base/text.h"

namespace uma::pool {
namespace {

constexpr const char* kByHand = "its layout is not one name per line with indented values below: edit it by hand";

std::unexpected<Error> unreadable(std::string_view what) {
  return fail(ErrorCode::io_failed, std::string(what));
}

// Where a card stands in the file.
struct Block {
  std::size_t number = 0;               // Number of the card, from 0.
  std::size_t begin = 0;                // The line with the name.
  std::size_t end = 0;                  // The line behind its last one.
  std::optional<std::size_t> column{};  // Set: the value begins there, in bytes, in the line with the name.
  YAML::Node value{};
};

Expected<YAML::Node> parse(const std::string& file) {
  try {
    YAML::Node root = YAML::Load(file);
    if (root.IsNull() || root.IsMap()) return root;
    return unreadable("it must map the names of models to their settings, as in `name: {path: model.gguf}`");
  } catch (const YAML::Exception& problem) {
    return unreadable(std::format("line {}: {}", problem.mark.line + 1, problem.msg));
  }
}

bool is_blank(std::string_view line) {
  return trim(line).empty();
}

// Comments at the left edge and blank lines before the next block belong to that block.
bool belongs_to_next(std::string_view line) {
  return is_blank(line) || line.starts_with('#') || line.starts_with("---") || line.starts_with("...");
}

std::optional<Block> find_block(const YAML::Node& root, const std::string& name, std::span<const std::string_view> lines) {
  std::optional<Block> found;
  std::size_t number = 0;
  for (const auto& entry : root) {
    const int line = entry.first.Mark().line;
    if (found) {
      found->end = std::min(found->end, static_cast<std::size_t>(line));
      break;
    }
    if (entry.first.IsScalar() && entry.first.Scalar() == name) {
      found = {.number = number, .begin = static_cast<std::size_t>(line), .end = lines.size()};
      found->value.reset(entry.second);
      const YAML::Mark value = entry.second.Mark();
      if (!entry.second.IsNull() && value.line == line) found->column = static_cast<std::size_t>(value.column);
    }
    ++number;
  }
  if (!found) return found;
  while (found->end > found->begin + 1 && belongs_to_next(lines[found->end - 1])) --found->end;
  return found;
}

// Whether the block has lines of its own.
bool is_whole(const YAML::Node& root, const Block& block, std::size_t lines) {
  return root.Style() != YAML::EmitterStyle::Flow && block.begin < block.end && block.end <= lines;
}

std::string without_indentation(std::span<const std::string_view> lines) {
  std::size_t common = std::string_view::npos;
  for (const std::string_view line : lines) {
    const std::size_t indent = line.find_first_not_of(' ');
    if (!is_blank(line) && line[indent] != '#') common = std::min(common, indent);
  }
  std::string text;
  for (const std::string_view line : lines) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    text += line.substr(std::min(common, indent));
  }
  return text;
}

// The names of the file's models, each with its card in one form.
using Contents = std::vector<std::pair<std::string, std::string>>;
Contents contents_of(const YAML::Node& root) {
  Contents contents;
  for (const auto& entry : root) {
    contents.emplace_back(entry.first.IsScalar() ? entry.first.Scalar() : YAML::Dump(entry.first), YAML::Dump(entry.second));
  }
  return contents;
}

// The content of a card in one form; nullopt: it is no YAML.
std::optional<std::string> content_of(const std::string& card) {
  try {
    const YAML::Node node = YAML::Load(card);
    return node.IsNull() ? "~" : YAML::Dump(node);  // A text without a value is no null to Dump().
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

// A problem of the card: a line that would end a block or a document, or is no text. A line's number counts from 1.
std::optional<std::string> problem_of(std::string_view card) {
  const std::vector<std::string_view> lines = lines_of(card);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    if (line.starts_with("---") || line.starts_with("...")) return std::format("line {}: a card is one document", i + 1);
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto is_control = [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; };
    if (std::ranges::any_of(line, is_control)) return std::format("line {}: it has a control character", i + 1);
  }
  return std::nullopt;
}

std::string indented(std::string_view card) {
  std::string text;
  for (const std::string_view line : lines_of(card)) text += std::format("{}{}", is_blank(line) ? "" : "  ", line);
  return text.ends_with('\n') || text.empty() ? text : text + '\n';
}

}  // namespace

Expected<std::optional<std::string>> card_in(const std::string& file, const std::string& name) {
  const auto root = parse(file);
  if (!root) return std::unexpected(root.error());
  const std::vector<std::string_view> lines = lines_of(file);
  const auto block = find_block(*root, name, lines);
  if (!block) return std::nullopt;
  if (!is_whole(*root, *block, lines.size())) return unreadable(kByHand);
  const auto own = std::span(lines).subspan(block->begin, block->end - block->begin);
  std::string text;
  if (block->column) {
    text = own.front().substr(std::min(*block->column, own.front().size()));
    for (const std::string_view line : own.subspan(1)) text += line;
  } else {
    text = without_indentation(own.subspan(1));
  }
  if (content_of(text) != YAML::Dump(block->value)) return unreadable(kByHand);
  return text;
}

Expected<std::string> with_card(const std::string& file, const std::string& name, std::string_view card) {
  if (auto problem = problem_of(card)) return fail(ErrorCode::proto_field, *std::move(problem));
  const auto root = parse(file);
  if (!root) return std::unexpected(root.error());
  const std::vector<std::string_view> lines = lines_of(file);
  const auto block = find_block(*root, name, lines);
  const std::string value = content_of(std::string(card)).value_or("");
  const std::string line_of_name = YAML::Dump(YAML::Node(name)) + ":\n";
  Contents expected = contents_of(*root);
  std::string text;
  if (!block) {
    expected.emplace_back(name, value);
    text = std::format("{}{}{}{}", file, file.empty() || file.ends_with('\n') ? "" : "\n", line_of_name, indented(card));
  } else {
    if (!is_whole(*root, *block, lines.size())) return unreadable(kByHand);
    expected[block->number].second = value;
    for (const std::string_view line : std::span(lines).first(block->begin)) text += line;
    text += block->column ? line_of_name : std::string(lines[block->begin]);
    text += indented(card);
    for (const std::string_view line : std::span(lines).subspan(block->end)) text += line;
  }
  const auto changed = parse(text);
  if (!changed || contents_of(*changed) != expected) return unreadable(kByHand);
  return text;
}

}  // namespace uma::pool
