#include "llm/sampling/token_constraint.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace uma::llm {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Blanks that one token may have together with the first letters of a mark, as " <" has.
constexpr std::array<std::string_view, 12> kLeads = {"",   " ",    "  ",     "   ",  "    ", "\t",
                                                     "\n", "\n\n", "\n\n\n", "\r\n", " \n",  "\n "};

}  // namespace

std::string_view TokenConstraint::text_of(Token token) const {
  const auto mark = std::ranges::find(marks_, token, &std::pair<Token, std::string>::first);
  return mark == marks_.end() ? vocab_.piece(token) : std::string_view(mark->second);
}

std::size_t TokenConstraint::given_from(std::string_view lead, std::string_view mark) {
  mark_places_.assign(1, reader_.next(place_, lead));
  if (mark_places_.back() == grammar::GrammarReader::kNowhere) return mark.size();
  for (const char c : mark) {
    mark_places_.push_back(reader_.next(mark_places_.back(), static_cast<std::uint8_t>(c)));
    if (mark_places_.back() == grammar::GrammarReader::kNowhere) return mark.size();
  }
  std::size_t from = mark.size();
  while (from > 1 && reader_.only_next(mark_places_[from - 1]) == static_cast<std::uint8_t>(mark[from - 1])) --from;
  return from;
}

bool TokenConstraint::may_be_chosen(Token mark) const {
  return !vocab_.is_end_of_generation(mark) && !std::ranges::contains(ends_, mark) && !std::ranges::contains(excluded_, mark);
}

bool TokenConstraint::allows(Token token) {
  if (vocab_.is_end_of_generation(token) || std::ranges::contains(ends_, token)) return can_end();
  const std::string_view piece = text_of(token);
  if (piece.empty() || reader_.next(place_, piece) == grammar::GrammarReader::kNowhere) return false;
  return std::ranges::none_of(marks_, [&](const auto& mark) {
    const std::string_view text = mark.second;
    return may_be_chosen(mark.first) && std::ranges::any_of(kLeads, [&](std::string_view lead) {
             if (!piece.starts_with(lead)) return false;
             const std::string_view letters = piece.substr(lead.size());
             return !letters.empty() && text.size() > letters.size() && text.starts_with(letters) &&
                    letters.size() >= given_from(lead, text);
           });
  });
}

void TokenConstraint::mask(std::span<float> logits) {
  allowed_.assign(logits.size(), false);
  places_.assign(1, place_);
  // places_ ends at the last refused piece, or right before it.
  for (const OrderedPiece& ordered : vocab_.ordered_pieces()) {
    if (ordered.shared + 1 < places_.size()) places_.resize(ordered.shared + 1);
    if (places_.back() == grammar::GrammarReader::kNowhere) continue;  // The piece begins like a refused one.
    const std::string_view piece = vocab_.piece(ordered.token);
    while (places_.back() != grammar::GrammarReader::kNowhere && places_.size() <= piece.size()) {
      places_.push_back(reader_.next(places_.back(), static_cast<std::uint8_t>(piece[places_.size() - 1])));
    }
    const auto index = static_cast<std::size_t>(ordered.token);
    if (places_.back() != grammar::GrammarReader::kNowhere && index < allowed_.size()) allowed_[index] = true;
  }
  for (const auto& [token, text] : marks_) {
    const auto index = static_cast<std::size_t>(token);
    if (index < allowed_.size()) allowed_[index] = reader_.next(place_, text) != grammar::GrammarReader::kNowhere;
  }
  for (const auto& [mark, text] : marks_) {
    if (!may_be_chosen(mark)) continue;
    for (const std::string_view lead : kLeads) {
      for (std::size_t count = given_from(lead, text); count < text.size(); ++count)
        forbid_piece(std::string(lead) + text.substr(0, count));
    }
  }
  const bool may_end = can_end();
  for (const std::span<const Token> ends : {vocab_.end_of_generation(), ends_}) {
    for (const Token token : ends) {
      if (static_cast<std::size_t>(token) < allowed_.size()) allowed_[static_cast<std::size_t>(token)] = may_end;
    }
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!allowed_[i]) logits[i] = kForbidden;
  }
}

void TokenConstraint::forbid_piece(std::string_view piece) {
  const auto piece_of = [&](const OrderedPiece& ordered) { return vocab_.piece(ordered.token); };
  for (const OrderedPiece& ordered : std::ranges::equal_range(vocab_.ordered_pieces(), piece, {}, piece_of)) {
    if (const auto index = static_cast<std::size_t>(ordered.token); index < allowed_.size()) allowed_[index] = false;
  }
}

void TokenConstraint::accept(Token token) {
  reader_.limit_work(kWorkMax);
  place_ = reader_.next(place_, text_of(token));
}

bool TokenConstraint::accept_text(std::string_view text) {
  reader_.limit_work(kWorkMax);
  place_ = reader_.next(place_, text);
  reader_.limit_work(kWorkMax);  // For the next token.
  return place_ != grammar::GrammarReader::kNowhere;
}

}  // namespace uma::llm
