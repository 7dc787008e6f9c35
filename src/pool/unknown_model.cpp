#include "pool/unknown_model.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"

namespace uma::pool {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The words of a name in lower case. A word ends before a digit that follows a letter, and a point is part of a number only:
// "Llama3.2-3B" has "llama", "3.2" and "3b".
std::vector<std::string> words_of(std::string_view name) {
  const std::string lower = lower_ascii(name);
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < lower.size(); ++i) {
    const char c = lower[i];
    std::string& word = words.back();
    const bool is_letter = c >= 'a' && c <= 'z';
    const bool is_point = c == '.' && !word.empty() && is_digit(word.back()) && i + 1 < lower.size() && is_digit(lower[i + 1]);
    if (!is_letter && !is_digit(c) && !is_point && static_cast<unsigned char>(c) < 0x80) {
      if (!word.empty()) words.emplace_back();
      continue;
    }
    if (is_digit(c) && !word.empty() && !is_digit(word.back()) && word.back() != '.') words.emplace_back();
    words.back() += c;
  }
  std::erase_if(words, [](const std::string& word) { return word.empty() || word == "gguf" || word == "latest"; });
  return words;
}

// The name without the address of a registry and the names of owners.
std::string_view without_owner(std::string_view name) {
  return name.substr(name.rfind('/') + 1);  // npos + 1 is 0.
}

bool is_number(std::string_view word) {
  return std::ranges::all_of(word, [](char c) { return is_digit(c) || c == '.'; });
}

// Whether all words of `part` are in `all`, in their order.
bool are_among(std::span<const std::string> part, std::span<const std::string> all) {
  for (const std::string& word : all) {
    if (!part.empty() && part.front() == word) part = part.subspan(1);
  }
  return part.empty();
}

}  // namespace

Likeness likeness(std::string_view asked, std::string_view known) {
  asked = without_owner(asked);
  const std::size_t colon = asked.find(':');
  std::vector<std::string> words = words_of(asked.substr(0, colon));
  const std::vector<std::string> tag =
      colon == std::string_view::npos ? std::vector<std::string>() : words_of(asked.substr(colon));
  const std::vector<std::string> all = words_of(without_owner(known));
  if (words.empty() || all.size() < words.size() || !std::ranges::equal(words, std::span(all).first(words.size())))
    return Likeness::none;
  const auto rest = std::span(all).subspan(words.size());
  if (std::ranges::equal(tag, rest)) return Likeness::whole;
  // A number that follows is that of another version: "qwen" is not Qwen 2.5.
  const bool is_other_version = !rest.empty() && is_number(rest.front()) && (tag.empty() || tag.front() != rest.front());
  return !is_other_version && are_among(tag, rest) ? Likeness::beginning : Likeness::none;
}

bool is_name_of_other_vendor(std::string_view name) {
  constexpr std::array<std::string_view, 16> kPrefixes = {
      "claude-", "gpt-",    "chatgpt-", "codex-", "gemini-", "text-embedding-", "grok-",         "dall-e-",
      "davinci", "babbage", "voyage-",  "sonar",  "embed-",  "rerank-",         "text-davinci-", "computer-use-"};
  name.remove_prefix(name.rfind('/') + 1);              // "openai/gpt-5"; npos + 1 is 0.
  if (name.starts_with("ft:")) name.remove_prefix(3);   // OpenAI's fine-tuned models.
  if (name.starts_with("gpt-oss")) return false;        // Its weights are open.
  if (name.contains("anthropic.claude-")) return true;  // A name of AWS: "us.anthropic.claude-sonnet-4-20250514-v1:0".
  const bool is_numbered = name.size() >= 2 && name[0] == 'o' && name[1] >= '1' && name[1] <= '9' &&
                           (name.size() == 2 || name[2] == '-');  // "o3", "o4-mini"
  return is_numbered || std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace uma::pool
