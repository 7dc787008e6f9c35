#include "uma-cli/models/pull_source.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <format>

#include "base/text.h"
#include "base/utf8.h"
#include "core/model_file_name.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

constexpr std::string_view kHubPrefix = "hf.co/";  // Prefix with which Ollama's users write models of the hub.
constexpr std::size_t kNameBytesMax = 200;         // The file system's 255, less the length of .part.json and similar endings.

bool is_alnum(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Letters, digits and -._ as hubs allow in names; never "." or "..".
bool is_hub_word(std::string_view text) {
  return !text.empty() && text.front() != '.' &&
         std::ranges::all_of(text, [](char c) { return is_alnum(c) || std::string_view("-._").contains(c); });
}

bool is_model_name(std::string_view name) {
  const std::string lower = lower_ascii(name);
  return std::ranges::any_of(std::array<std::string_view, 2>{".gguf", ".safetensors"},
                             [&](std::string_view ending) { return lower.size() > ending.size() && lower.ends_with(ending); });
}

}  // namespace

Result<Source> parse_source(const std::string& text) {
  if (text.contains("://")) {
    auto url = parse_url(text);
    if (!url) return std::unexpected(url.error());
    return Source(std::move(*url));
  }
  HubName name;
  std::string_view rest = text;
  if (rest.starts_with(kHubPrefix)) rest.remove_prefix(kHubPrefix.size());
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    name.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  const std::size_t colon = rest.find(':');
  if (colon != std::string_view::npos) {
    name.pick = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  name.repo = rest;
  const std::size_t slash = rest.find('/');
  const bool is_whole = slash != std::string_view::npos && is_hub_word(rest.substr(0, slash)) &&
                        is_hub_word(rest.substr(slash + 1)) && !name.revision.empty() &&
                        (colon == std::string_view::npos || !name.pick.empty());
  if (!is_whole) {
    return fail(ExitCode::usage,
                std::format("{} is neither an http(s) URL nor OWNER/REPO[:FILE-OR-QUANT][@REVISION]", printable_line(text)));
  }
  return Source(std::move(name));
}

Result<std::string> safe_file_name(std::string_view path) {
  std::string name(path.substr(path.rfind('/') + 1));
  const bool is_safe =
      !name.empty() && name.size() <= kNameBytesMax && name.front() != '.' && is_utf8(name) && printable_line(name) == name;
  if (!is_safe) {
    return fail(ExitCode::usage,
                std::format("\"{}\" is not a valid file name here: choose one with --out FILE", printable_line(name)));
  }
  if (!is_model_name(name))
    return fail(ExitCode::usage, std::format("{} does not end in .gguf or .safetensors: choose a name with --out FILE", name));
  return name;
}

Result<std::string> file_name_of_url(const Url& url) {
  const std::string_view last = std::string_view(url.path).substr(url.path.rfind('/') + 1);
  const auto name = percent_decoded(last);
  // Otherwise %2F would turn one component into folders.
  if (!name || name->contains('/')) {
    return fail(ExitCode::usage,
                std::format("\"{}\" is not a valid file name here: choose one with --out FILE", printable_line(last)));
  }
  return safe_file_name(*name);
}

Result<std::vector<Url>> urls_of_model(const Url& url) {
  const std::size_t path = url.text.find('/', url.text.find("://") + 3);
  if (path == std::string::npos) return std::vector{url};
  const std::size_t end = path + url.path.size();
  std::vector<Url> urls;
  for (const std::string& file : model_files(url.text.substr(0, end))) {
    auto piece = parse_url(file + url.text.substr(end));
    if (!piece) return std::unexpected(piece.error());
    urls.push_back(std::move(*piece));
  }
  return urls;
}

std::string projector_name(std::string_view file, std::string_view model) {
  const auto split = parse_split_name(model);
  const std::string pair = pairing_name(split ? split->stem : model);
  if (pair.empty() || pairing_name(file) == pair) return std::string(file);
  return std::format("mmproj-{}.gguf", pair);
}

std::string models_folder(std::string_view data_home, std::string_view home) {
  const std::string data = xdg_folder(data_home, home, ".local/share");
  return data.empty() ? "" : data + "/uma/models";
}

Result<std::string> parse_sha256(std::string_view text) {
  std::string sum;
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0)
      sum += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (text.size() != 64 || sum.size() != 64)
    return fail(ExitCode::usage, std::format("{} is not a SHA-256, which has 64 hexadecimal digits", printable_line(text)));
  return sum;
}

std::string shell_word(std::string_view text) {
  const bool is_plain = !text.empty() && std::ranges::all_of(text, [](char c) {
    return is_alnum(c) || std::string_view("-._/+:,@%=").contains(c);
  });
  if (is_plain) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + '\'';
}

}  // namespace uma::cli
