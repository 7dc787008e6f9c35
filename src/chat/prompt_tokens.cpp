#include "chat/prompt_tokens.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/random.h"
#include "llm/media/image_tokens.h"

namespace uma::chat {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

// The part of `text` that the tokenizer leaves behind or before a control token that takes the blanks beside it. `shown` is the
// text of its tokens; it is not used where it differs in more than that.
std::string_view without_taken_blanks(std::string_view text, std::string_view shown) {
  if (shown.size() >= text.size()) return text;
  const std::size_t first = shown.empty() ? text.size() : std::min(text.find_first_not_of(kBlanks), text.size());
  for (std::size_t begin = 0; begin <= first && begin + shown.size() <= text.size(); ++begin) {
    const std::string_view rest = text.substr(begin + shown.size());
    if (text.substr(begin, shown.size()) == shown && rest.find_first_not_of(kBlanks) == std::string_view::npos) {
      return text.substr(begin, shown.size());
    }
  }
  return text;
}

std::string new_image_mark() {
  return std::format("image{:016x}{:016x}", secure_u64(), secure_u64());
}

}  // namespace

std::size_t PlacedTokens::count_before(std::size_t at) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(ends, at) - ends.begin());
}

std::size_t PlacedTokens::end_of(std::size_t at) const {
  const auto last = std::ranges::lower_bound(ends, at);
  const std::size_t end = static_cast<std::size_t>(last - ends.begin()) + (last == ends.end() ? 0 : 1);
  return std::max(end, count_before(at));
}

PromptOutline outline_of(const jinja::Text& text, const PlacedTokens& placed, std::size_t begin, std::size_t first,
                         std::span<const ChatMessage> messages) {
  PromptOutline outline;
  auto input = std::ranges::upper_bound(text.inputs(), begin, {}, &jinja::SourceRange::end);
  PromptPlace place;
  for (std::size_t i = 0; i < placed.tokens.size(); ++i) {
    const std::size_t end = placed.ends[i];
    const bool is_image = llm::is_image_token(placed.tokens[i]);
    // Tokens without a text of their own are of the place before them, as all but the first one of an image.
    if (end == begin && i > 0 && !is_image) continue;
    if (end > begin) {
      place = {};
      while (input != text.inputs().end() && input->end <= begin) ++input;
      if (input != text.inputs().end() && input->begin < end) {
        place = {.part = input->source.part, .message = input->source.message};
        if (place.message >= 0 && place.message < std::ssize(messages))
          place.role = known_role(messages[static_cast<std::size_t>(place.message)].role);
      }
    }
    if (is_image) place.part = PromptPart::image;
    outline.add(static_cast<std::int32_t>(first + i), place);
    begin = end;
  }
  return outline;
}

// The text since the last control token.
class PromptTokenizer::Segment {
 public:
  Segment(const llm::Vocab& vocab, PlacedTokens& placed) : vocab_(vocab), placed_(placed) {}

  // `text` is at byte `at` of the whole.
  void add(std::string_view text, std::size_t at) {
    if (text.empty()) return;
    if (text_.empty()) begin_ = at;
    text_ += text;
    end_ = at + text.size();
  }

  Expected<Unit> close() {
    const std::string text = std::exchange(text_, {});
    if (text.empty()) return Unit{};
    const auto tokens = vocab_.tokenize(text, false);
    if (!tokens) return std::unexpected(tokens.error());
    std::size_t at = 0;
    for (const Token token : *tokens) {
      // Some vocabularies lack characters, whose tokens have no text.
      constexpr std::size_t kLackingMax = 16;
      const std::string_view piece = vocab_.piece(token);
      const std::size_t skipped = std::string_view(text).substr(at, piece.size() + kLackingMax).find(piece);
      at = std::min(text.size(), at + piece.size() + (skipped == std::string_view::npos ? 0 : skipped));
      placed_.push_back(token, begin_ + at);
    }
    if (!tokens->empty()) placed_.ends.back() = end_;
    return Unit{};
  }

  // Tokens that stand for the text up to `end`.
  Expected<Unit> put(std::span<const Token> tokens, std::size_t end) {
    if (auto closed = close(); !closed) return closed;
    for (const Token token : tokens) placed_.push_back(token, end);
    return Unit{};
  }

 private:
  const llm::Vocab& vocab_;
  PlacedTokens& placed_;
  std::string text_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

PromptTokenizer::PromptTokenizer(const llm::Vocab& vocab, ImageTokens images)
    : vocab_(vocab), images_(std::move(images)), image_mark_(new_image_mark()) {}

Expected<Unit> PromptTokenizer::append(const jinja::Text& text, std::size_t begin, std::size_t end,
                                       PlacedTokens& placed) const {
  const jinja::Text part = text.part(begin, end);
  const std::string_view bytes = part.bytes();
  Segment segment(vocab_, placed);
  std::size_t at = 0;
  for (const jinja::SourceRange& input : part.inputs()) {
    if (auto done = append_template(bytes.substr(at, input.begin - at), begin + at, segment); !done) return done;
    const std::string_view given = bytes.substr(input.begin, input.end - input.begin);
    if (auto done = append_input(given, begin + input.begin, segment); !done) return done;
    at = input.end;
  }
  if (auto done = append_template(bytes.substr(at), begin + at, segment); !done) return done;
  return segment.close();
}

// Only the template's own text has control tokens.
Expected<Unit> PromptTokenizer::append_template(std::string_view text, std::size_t at, Segment& segment) const {
  if (text.empty()) return Unit{};
  const auto tokens = vocab_.tokenize(text, true);
  if (!tokens) return std::unexpected(tokens.error());
  std::string shown;  // The text of the tokens since the last control token.
  const auto add = [&](std::string_view until) {
    const std::string_view left = without_taken_blanks(until, shown);
    segment.add(left, at + static_cast<std::size_t>(left.data() - until.data()));
    shown.clear();
  };
  for (const Token token : *tokens) {
    const std::string_view piece = vocab_.piece(token);
    shown += piece;
    if (!piece.empty()) continue;
    const std::string name = vocab_.text(token);
    const std::size_t found = name.empty() ? std::string_view::npos : text.find(name);
    if (found == std::string_view::npos) continue;  // It stands for a character that the vocabulary lacks.
    add(text.substr(0, found));
    at += found + name.size();
    text.remove_prefix(found + name.size());
    if (auto done = segment.put(std::span(&token, 1), at); !done) return done;
  }
  add(text);
  return Unit{};
}

Expected<Unit> PromptTokenizer::append_input(std::string_view text, std::size_t at, Segment& segment) const {
  for (std::size_t mark = text.find(image_mark_); mark != std::string_view::npos; mark = text.find(image_mark_)) {
    const std::size_t id = mark + image_mark_.size();
    const std::size_t id_end = std::min(text.size(), text.find(kImageMarkEnd, id));
    const auto image = images_ == nullptr ? fail(ErrorCode::model_capability, "the model takes no images")
                                          : images_(std::string(text.substr(id, id_end - id)));
    if (!image) return std::unexpected(image.error());
    segment.add(text.substr(0, mark), at);
    const std::size_t end = std::min(text.size(), id_end + 1);
    at += end;
    text.remove_prefix(end);
    if (auto done = segment.put(*image, at); !done) return done;
  }
  segment.add(text, at);
  return Unit{};
}

}  // namespace uma::chat
