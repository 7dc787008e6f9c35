#include "llm/picture/prompt_weights.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <optional>
#include <utility>

#include "base/read_number.h"
#include "base/text.h"

namespace uma::llm {
namespace {

constexpr float kMore = 1.1F;
constexpr float kWeightMax = 10;  // Limit of a part, also if brackets stand in brackets.
constexpr std::string_view kBreak = "BREAK";

class PromptReader {
 public:
  explicit PromptReader(std::string_view prompt) : left_(prompt) {}

  std::vector<PromptPart> read() {
    while (!left_.empty()) read_next();
    end_part();
    for (; !open_.empty(); open_.pop_back()) multiply(open_.back().first_part, open_.back().is_round ? kMore : 1 / kMore);
    return std::move(parts_);
  }

 private:
  struct Open {
    bool is_round;
    std::size_t first_part;
  };

  void read_next() {
    const char next = left_.front();
    left_.remove_prefix(1);
    switch (next) {
      case '\\':
        if (!left_.empty() && std::string_view("()[]\\").contains(left_.front())) {
          text_ += left_.front();
          left_.remove_prefix(1);
        } else {
          text_ += next;
        }
        return;
      case '(':
      case '[':
        end_part();
        open_.push_back({.is_round = next == '(', .first_part = parts_.size()});
        return;
      case ')':
        return close(true, kMore, next);
      case ']':
        return close(false, 1 / kMore, next);
      case ':':
        if (const auto weight = weight_before_bracket()) return close(true, *weight, ')');
        text_ += next;
        return;
      default:
        text_ += next;
        if (text_.ends_with(kBreak) && is_word_end(text_, left_)) {
          text_.resize(text_.size() - kBreak.size());
          end_part();
          begins_piece_ = true;
        }
    }
  }

  // BREAK is a word of its own.
  static bool is_word_end(std::string_view text, std::string_view left) {
    const auto is_of_word = [](char c) {
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      return is_letter || (c >= '0' && c <= '9') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
    };
    const std::string_view before = text.substr(0, text.size() - kBreak.size());
    return (before.empty() || !is_of_word(before.back())) && (left.empty() || !is_of_word(left.front()));
  }

  // Reads "1.3)" behind a colon, if a round bracket is the last open one.
  std::optional<float> weight_before_bracket() {
    if (open_.empty() || !open_.back().is_round) return std::nullopt;
    const std::size_t end = left_.find(')');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view number = trim(left_.substr(0, end));
    float weight = 0;
    const auto read = read_number(number.data(), number.data() + number.size(), weight);
    if (read.ec != std::errc() || read.ptr != number.data() + number.size() || !std::isfinite(weight)) return std::nullopt;
    left_.remove_prefix(end + 1);
    return weight;
  }

  void close(bool is_round, float factor, char bracket) {
    if (open_.empty() || open_.back().is_round != is_round) {
      text_ += bracket;
      return;
    }
    end_part();
    multiply(open_.back().first_part, factor);
    open_.pop_back();
  }
  void multiply(std::size_t first_part, float factor) {
    for (std::size_t i = first_part; i < parts_.size(); ++i)
      parts_[i].weight = std::clamp(parts_[i].weight * factor, -kWeightMax, kWeightMax);
  }
  void end_part() {
    if (text_.empty()) return;
    parts_.push_back({.text = std::exchange(text_, {}), .weight = 1, .begins_piece = std::exchange(begins_piece_, false)});
  }

  std::string_view left_;
  std::string text_;  // Text of the part that is being read.
  bool begins_piece_ = false;
  std::vector<Open> open_;
  std::vector<PromptPart> parts_;
};

}  // namespace

Expected<std::vector<PromptPart>> read_prompt(std::string_view prompt) {
  for (const std::string_view begin : {"<lora:", "<lyco:", "<hypernet:"}) {
    if (prompt.contains(begin)) {
      return fail(ErrorCode::proto_field,
                  std::format("\"{}…>\" in a prompt is not supported: there are no such additions to a model", begin));
    }
  }
  return PromptReader(prompt).read();
}

}  // namespace uma::llm
