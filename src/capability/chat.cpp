#include "capability/chat.h"

#include <algorithm>
#include <format>
#include <optional>
#include <utility>

namespace uma::capability {
namespace {

// Messages are formatted with marks in the place of their contents, so that in the result template and user text can be told
// apart. The marks are control characters that no template contains; the blanks around them show whether the template trims.
std::string mark_of(std::size_t index) {
  return std::format("\x02{}\x03", index);
}

Expected<std::string> format_marked(const llm::Model& model, std::span<const ChatMessage> messages,
                                    bool add_generation_prompt) {
  std::vector<ChatMessage> marked;
  marked.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) marked.push_back({messages[i].role, " " + mark_of(i) + " "});
  return model.apply_chat_template(marked, add_generation_prompt);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// A mark with the blanks that the template left around it.
struct MarkPlace {
  std::size_t begin;
  std::size_t end;
  bool is_trimmed;
};

std::optional<MarkPlace> find_mark(std::string_view text, std::size_t index) {
  const std::string mark = mark_of(index);
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::size_t end = at + mark.size();
  const bool has_blanks = at > 0 && text[at - 1] == ' ' && end < text.size() && text[end] == ' ';
  return has_blanks ? MarkPlace{at - 1, end + 1, false} : MarkPlace{at, end, true};
}

// Appends the tokens of a formatted text in which marks stand for the contents of `messages`. Returns how many tokens there are
// at the end of each content.
Expected<std::vector<std::size_t>> tokenize_marked(const llm::Vocab& vocab, std::string_view text,
                                                   std::span<const ChatMessage> messages, std::vector<Token>& tokens) {
  const auto append = [&](std::string_view part, bool is_template) -> Expected<Unit> {
    auto more = vocab.tokenize(part, is_template);
    if (!more) return std::unexpected(more.error());
    tokens.insert(tokens.end(), more->begin(), more->end());
    return Unit{};
  };
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    // Without a place it is before this text, or dropped by the template.
    if (const auto place = find_mark(text, i)) {
      if (auto done = append(text.substr(0, place->begin), true); !done) return std::unexpected(done.error());
      const std::string_view content = messages[i].content;
      if (auto done = append(place->is_trimmed ? trimmed(content) : content, false); !done)
        return std::unexpected(done.error());
      text.remove_prefix(place->end);
    }
    ends.push_back(tokens.size());
  }
  if (auto done = append(text, true); !done) return std::unexpected(done.error());
  return ends;
}

Expected<ChatTokens> tokenize_from_start(const llm::Vocab& vocab, std::string_view text,
                                         std::span<const ChatMessage> messages) {
  ChatTokens result;
  std::vector<Token>& tokens = result.tokens;
  if (vocab.bos()) tokens.push_back(*vocab.bos());
  const std::size_t before = tokens.size();
  const auto ends = tokenize_marked(vocab, text, messages, tokens);
  if (!ends) return std::unexpected(ends.error());
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  const std::size_t leading = static_cast<std::size_t>(std::ranges::find_if_not(messages, is_system) - messages.begin());
  std::size_t kept = leading == 0 ? before : (*ends)[leading - 1];
  // Some templates spell BOS out; it must not stand there twice.
  if (vocab.bos() && tokens.size() > before && tokens[before] == *vocab.bos()) {
    tokens.erase(tokens.begin());
    kept = std::max(kept - 1, before);
  }
  result.system_tokens = static_cast<std::int32_t>(kept);
  return result;
}

}  // namespace

Expected<std::vector<Token>> tokenize_text(const llm::Vocab& vocab, std::string_view text, bool at_start) {
  if (!at_start) return vocab.tokenize(text, false);
  const std::string with_space = vocab.adds_space_prefix() && !text.empty() ? " " + std::string(text) : std::string(text);
  auto tokens = vocab.tokenize(with_space, false);
  if (tokens && vocab.bos()) tokens->insert(tokens->begin(), *vocab.bos());
  return tokens;
}

Expected<ChatTokens> tokenize_chat(const llm::Model& model, std::span<const ChatMessage> history,
                                   std::span<const ChatMessage> added) {
  std::vector<ChatMessage> all(history.begin(), history.end());
  all.insert(all.end(), added.begin(), added.end());
  const auto full = format_marked(model, all, true);
  if (!full) return std::unexpected(full.error());

  ChatTokens result;
  if (!history.empty()) {
    const auto before = format_marked(model, history, false);
    if (!before) return std::unexpected(before.error());
    const auto reply = find_mark(*before, history.size() - 1);
    if (full->starts_with(*before) && reply) {
      const auto done = tokenize_marked(model.vocab(), std::string_view(*full).substr(reply->end), all, result.tokens);
      if (!done) return std::unexpected(done.error());
      return result;
    }
  }
  auto whole = tokenize_from_start(model.vocab(), *full, all);
  if (whole) whole->replaces_chain = !history.empty();
  return whole;
}

std::vector<std::string> chat_stop_strings(const llm::Model& model) {
  if (!model.facts().chat_template.empty()) return {};
  constexpr std::string_view kEndOfTurn = "<|im_end|>";
  const auto tokens = model.vocab().tokenize(kEndOfTurn, true);
  const bool is_end_token = tokens && tokens->size() == 1 && model.vocab().is_end_of_generation(tokens->front());
  return is_end_token ? std::vector<std::string>() : std::vector<std::string>{std::string(kEndOfTurn)};
}

}  // namespace uma::capability
