#include "core/model_file_name.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <format>
#include <system_error>

#include "base/text.h"

namespace uma {
namespace {

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_number_format(std::string_view word) {
  static constexpr std::string_view kWords[] = {"f16", "f32", "bf16", "fp16", "fp32", "k",  "m",    "s",    "l",
                                                "xl",  "xs",  "xxs",  "0",    "1",    "ud", "gguf", "model"};
  const std::string_view digits = word.starts_with("iq") ? word.substr(2) : word.starts_with('q') ? word.substr(1) : "";
  const bool is_quantized = !digits.empty() && std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  return is_quantized || std::ranges::contains(kWords, word);
}

}  // namespace

std::string SplitName::file(std::int64_t of_index) const {
  return std::format("{}-{:05}-of-{:05}.gguf", stem, of_index + 1, count);
}

std::optional<SplitName> parse_split_name(std::string_view path) {
  constexpr std::size_t kDigits = 5;
  constexpr std::string_view kOf = "-of-";
  constexpr std::string_view kExtension = ".gguf";
  constexpr std::size_t kTail = 1 + kDigits + kOf.size() + kDigits + kExtension.size();
  if (path.size() <= kTail || !path.ends_with(kExtension)) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  const auto index = number_in(tail.substr(1, kDigits));
  const auto count = number_in(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || !index || !count) return std::nullopt;
  if (*index < 1 || *count < 1 || *index > *count) return std::nullopt;
  return SplitName{.stem = std::string(path.substr(0, path.size() - kTail)), .index = *index - 1, .count = *count};
}

std::vector<std::string> model_files(const std::string& path) {
  const auto split = parse_split_name(path);
  if (!split) return {path};
  std::vector<std::string> files;
  for (std::int64_t i = 0; i < split->count; ++i) files.push_back(split->file(i));
  return files;
}

std::string pairing_name(std::string_view stem) {
  std::vector<std::string> words(1);
  for (const char c : lower_ascii(stem)) {
    if (c == '-' || c == '_' || c == '.' || c == ' ') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  std::erase_if(words, [](const std::string& word) { return word.empty() || word == "mmproj"; });
  while (!words.empty() && is_number_format(words.back())) words.pop_back();
  std::string name;
  for (const std::string& word : words) name += (name.empty() ? "" : "-") + word;
  return name;
}

}  // namespace uma
