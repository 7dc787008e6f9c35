#include "uma-cli/models/models_file.h"

#include <algorithm>
#include <cstdlib>
#include <format>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "base/text.h"
#include "base/utf8.h"
#include "core/file/edit_file.h"

namespace uma::cli {
namespace {

constexpr std::size_t kModelNameBytesMax = 128;

bool is_name(std::string_view name) {
  const auto is_bad = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; };
  return !name.empty() && name.size() <= kModelNameBytesMax && std::ranges::none_of(name, is_bad) && is_utf8(name);
}

// Text as a YAML scalar, in quotes unless it is a plain word.
std::string written(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/';
  };
  static constexpr std::string_view kWords[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  const bool is_word = !text.empty() && (is_letter(text.front()) || text.front() == '/') &&
                       std::ranges::all_of(text, is_plain) && !std::ranges::contains(kWords, lower_ascii(text));
  if (is_word) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      quoted += std::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// The names and aliases in a file.
struct Names {
  std::vector<std::string> models;
  std::set<std::string> all;
};

Result<Names> names_in(const std::string& text) {
  Names names;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return names;
    if (!root.IsMap())
      return fail(ExitCode::usage, "it must map the names of models to their settings, as in `name: {path: model.gguf}`");
    for (const auto& entry : root) {
      names.models.push_back(entry.first.Scalar());
      names.all.insert(entry.first.Scalar());
      if (!entry.second.IsMap()) continue;
      for (const YAML::Node& alias : entry.second["aliases"]) names.all.insert(alias.Scalar());
    }
  } catch (const YAML::Exception& problem) {
    return fail(ExitCode::usage, std::format("line {}: {}", problem.mark.line + 1, problem.msg));
  }
  return names;
}

// Whether a block begins here: the line starts at the left edge and is no comment.
bool begins_block(std::string_view line) {
  constexpr std::string_view kOther = " \t\r\n#";
  return !line.empty() && !kOther.contains(line.front()) && !line.starts_with("---") && !line.starts_with("...");
}

// The name at the beginning of the line; empty if it cannot be read with certainty.
std::optional<std::string> name_of_block(std::string_view line) {
  try {
    // The line, with or without a value below it, is a map of one key.
    const YAML::Node node = YAML::Load(std::string(line));
    return node.IsMap() && node.size() == 1 ? std::optional(node.begin()->first.Scalar()) : std::nullopt;
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

constexpr const char* kByHand = "its layout is not one name per line with indented values below: edit it by hand";

// Checks that the edit added or removed exactly one name.
Result<std::string> checked(std::string text, const std::vector<std::string>& expected) {
  auto names = names_in(text);
  if (!names || names->models != expected) return fail(ExitCode::usage, kByHand);
  return text;
}

}  // namespace

Result<std::string> default_models_file() {
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  const std::string folder = xdg_folder(variable("XDG_CONFIG_HOME"), variable("HOME"), ".config");
  if (folder.empty()) return fail(ExitCode::usage, "neither XDG_CONFIG_HOME nor HOME is set: give --file FILE");
  return folder + "/uma/models.yaml";
}

Result<std::string> with_model(const std::string& text, const NewModel& model) {
  auto names = names_in(text);
  if (!names) return std::unexpected(names.error());
  std::vector<std::string> added = model.aliases;
  added.push_back(model.name);
  for (const std::string& name : added) {
    if (!is_name(name))
      return fail(ExitCode::usage,
                  std::format("\"{}\" is not a valid model name: use 1 to {} bytes without blanks", name, kModelNameBytesMax));
    if (!names->all.insert(name).second)
      return fail(ExitCode::usage, std::format("the name {} is already taken: choose another one", name));
  }
  const bool is_url = model.source.starts_with("http://") || model.source.starts_with("https://");
  std::string block = std::format("{}:\n  {}: {}\n", written(model.name), is_url ? "url" : "path", written(model.source));
  std::string aliases;
  for (const std::string& alias : model.aliases) aliases += std::format("{}{}", aliases.empty() ? "" : ", ", written(alias));
  if (!aliases.empty()) block += std::format("  aliases: [{}]\n", aliases);
  const bool ends_line = text.empty() || text.ends_with('\n');
  names->models.push_back(model.name);
  return checked(text + (ends_line ? "" : "\n") + block, names->models);
}

Result<std::string> without_model(const std::string& text, const std::string& name) {
  auto names = names_in(text);
  if (!names) return std::unexpected(names.error());
  if (std::erase(names->models, name) == 0) return fail(ExitCode::usage, std::format("the file has no model {}", name));
  const std::vector<std::string_view> lines = lines_of(text);
  const auto begin =
      std::ranges::find_if(lines, [&](std::string_view line) { return begins_block(line) && name_of_block(line) == name; });
  if (begin == lines.end()) return fail(ExitCode::usage, kByHand);
  auto end = std::find_if(begin + 1, lines.end(), begins_block);
  // Comments at the left edge and blank lines before the next block belong to that block.
  while (end - begin > 1 && (*(end - 1))[0] != ' ' && (*(end - 1))[0] != '\t') --end;
  std::string left;
  for (auto line = lines.begin(); line != lines.end(); ++line) {
    if (line < begin || line >= end) left += *line;
  }
  return checked(std::move(left), names->models);
}

Result<void> edit_file(const std::string& path, const Edit& edit) {
  std::optional<Failure> refused;
  const auto edited = uma::edit_file(path, {}, [&](const std::string& text) -> Expected<std::string> {
    auto next = edit(text);
    if (next) return *std::move(next);
    refused = std::move(next.error());
    return uma::fail(ErrorCode::proto_field, "");
  });
  if (refused) refused->message = std::format("{}: {}", path, refused->message);
  if (!edited) return std::unexpected(refused.value_or(Failure{ExitCode::server, edited.error().message, ""}));
  return {};
}

}  // namespace uma::cli
