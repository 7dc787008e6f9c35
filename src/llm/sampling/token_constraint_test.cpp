#include "llm/sampling/token_constraint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "llm/sampling/sampler.h"

namespace uma::llm {
namespace {

// Words, parts of words, a token without text and an end-of-generation token.
class WordVocab final : public Vocab {
 public:
  WordVocab() : ordered_(order_pieces(*this)) {}
  [[nodiscard]] std::int32_t size() const override { return static_cast<std::int32_t>(kPieces.size()); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  [[nodiscard]] std::string_view piece(Token token) const override { return kPieces[static_cast<std::size_t>(token)]; }
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return ordered_; }
  [[nodiscard]] bool is_end_of_generation(Token token) const override { return token == kEnd[0]; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return kEnd; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

  static constexpr std::array<std::string_view, 14> kPieces = {"a",  "ab", "abc", "b", "bc",   "c",    "",
                                                               "</", "ac", "ab",  "é", "\xc3", "\xa9", "abd"};
  static constexpr std::array<Token, 1> kEnd = {7};

 private:
  std::vector<OrderedPiece> ordered_;
};

const WordVocab kVocab;

std::vector<Token> allowed_by_mask(TokenConstraint& constraint) {
  std::vector<float> logits(static_cast<std::size_t>(kVocab.size()), 0.0f);
  constraint.mask(logits);
  std::vector<Token> allowed;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) allowed.push_back(static_cast<Token>(i));
  }
  return allowed;
}

TokenConstraint constraint_of(std::string_view gbnf) {
  return {grammar::Grammar::parse(gbnf).value(), kVocab};
}

TEST(OrderPieces, HasEveryPieceAfterThoseThatItBeginsWith) {
  ASSERT_EQ(kVocab.ordered_pieces().size(), 12u);
  std::string_view before;
  for (const OrderedPiece& ordered : kVocab.ordered_pieces()) {
    const std::string_view piece = kVocab.piece(ordered.token);
    EXPECT_LE(before, piece);
    EXPECT_EQ(before.substr(0, ordered.shared), piece.substr(0, ordered.shared));
    EXPECT_TRUE(ordered.shared == before.size() || ordered.shared == piece.size() ||
                before[ordered.shared] != piece[ordered.shared]);
    before = piece;
  }
}

TEST(TokenConstraint, AllowsFurtherEndsWhereTheTextMayEnd) {
  constexpr std::array<Token, 1> kFurther = {6};  // It has no text.
  TokenConstraint constraint(grammar::Grammar::parse(R"(root ::= "a" "b"?)").value(), kVocab, {}, kFurther);
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{0, 1, 9}));
  EXPECT_FALSE(constraint.allows(6));
  constraint.accept(0);
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{3, 6, 7}));
  EXPECT_TRUE(constraint.allows(6));
}

TEST(TokenConstraint, AllowsTokensWhoseWholeTextMayCome) {
  TokenConstraint constraint = constraint_of(R"(root ::= "abc" [ab]* "é"?)");
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{0, 1, 2, 9}));
  constraint.accept(0);
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{3, 4}));
  constraint.accept(4);
  EXPECT_TRUE(constraint.can_end());
  EXPECT_FALSE(constraint.is_complete());
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{0, 1, 3, 7, 9, 10, 11}));
  constraint.accept(11);
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{12})) << "half a character";
  constraint.accept(12);
  EXPECT_TRUE(constraint.is_complete());
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{7}));
}

TEST(TokenConstraint, TheMaskIsWhatIsAllowedOneByOne) {
  Random random(3);
  for (const std::string_view gbnf :
       {R"(root ::= ("a" | "b" root "c" | "é")*)", R"(root ::= [a-c]{3,9} | "</")", R"(root ::= .*)"}) {
    TokenConstraint constraint = constraint_of(gbnf);
    for (int step = 0; step < 30; ++step) {
      const std::vector<Token> allowed = allowed_by_mask(constraint);
      for (Token token = 0; token < kVocab.size(); ++token) {
        EXPECT_EQ(std::ranges::contains(allowed, token), constraint.allows(token)) << gbnf << ": " << token;
      }
      if (allowed.empty() || constraint.is_complete()) break;
      const Token next = allowed[random.next_below(allowed.size())];
      if (!kVocab.is_end_of_generation(next)) constraint.accept(next);
    }
  }
}

// A constrained draw equals a draw from the masked logits, for every cut and however few likely tokens are allowed.
TEST(SamplerConstraint, ChoosesAsFromMaskedLogits) {
  std::vector<SamplingParams> kinds(8);
  for (std::size_t i = 1; i < kinds.size(); ++i) kinds[i].temperature = 1.3;
  kinds[2].top_k = 3;
  kinds[3].top_p = 0.6;
  kinds[4].min_p = 0.3;
  kinds[5].top_k = 4;
  kinds[5].top_p = 0.7;
  kinds[6].top_k = 5;
  kinds[6].min_p = 0.2;
  kinds[7].repeat_penalty = 1.4;
  constexpr std::array<std::string_view, 3> kGrammars = {R"(root ::= [ab]+)", R"(root ::= "abd" | "ac" | "a")",
                                                         R"(root ::= .*)"};
  Random random(11);
  for (const SamplingParams& params : kinds) {
    for (const std::string_view gbnf : kGrammars) {
      std::vector<float> logits;
      for (std::int32_t i = 0; i < kVocab.size(); ++i) logits.push_back(static_cast<float>(random.next_unit() * 4));
      std::vector<float> masked = logits;
      constraint_of(gbnf).mask(masked);
      Sampler free(params, 5, {});
      Distribution expected;
      free.distribution(masked, expected);

      Sampler constrained(params, 6, {});
      constrained.constrain(std::make_unique<TokenConstraint>(constraint_of(gbnf)));
      std::vector<float> copy = logits;
      Distribution actual;
      constrained.distribution(copy, actual);
      ASSERT_EQ(actual.size(), expected.size());
      std::map<Token, int> counts;
      constexpr int kDraws = 20'000;
      for (int i = 0; i < kDraws; ++i) {
        copy = logits;
        ++counts[constrained.sample(copy)];
      }
      int in_expected = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(actual[i].token, expected[i].token);
        EXPECT_NEAR(actual[i].chance, expected[i].chance, 1e-12);
        const double deviation = std::sqrt(expected[i].chance * (1 - expected[i].chance) / kDraws);
        EXPECT_NEAR(counts[expected[i].token] / static_cast<double>(kDraws), expected[i].chance, 5 * deviation + 1e-9)
            << gbnf << ": " << expected[i].token;
        in_expected += counts[expected[i].token];
      }
      EXPECT_EQ(in_expected, kDraws) << gbnf;
    }
  }
}

TEST(SamplerConstraint, ReportsThatNoTokenIsLeft) {
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams params;
    params.temperature = temperature;
    Sampler sampler(params, 1, {});
    sampler.constrain(std::make_unique<TokenConstraint>(constraint_of(R"(root ::= "xyz")")));
    std::vector<float> logits(static_cast<std::size_t>(kVocab.size()), 1.0f);
    EXPECT_EQ(sampler.sample(logits), kNoToken);
    logits.assign(logits.size(), 1.0f);
    EXPECT_EQ(sampler.verify(logits, 1, {{1, 1.0}}), kNoToken);
  }
}

TEST(SamplerConstraint, NotesWhatIsAccepted) {
  Sampler sampler({}, 1, {});
  sampler.accept(3);  // A token of the prompt.
  sampler.constrain(std::make_unique<TokenConstraint>(constraint_of(R"(root ::= "ac")")));
  sampler.accept(0);
  EXPECT_FALSE(sampler.is_complete());
  sampler.accept(5);
  EXPECT_TRUE(sampler.is_complete());
}

TEST(TokenConstraint, TakesTheTextOfMarks) {
  const std::vector<std::pair<Token, std::string>> marks = {{6, "<m>"}};
  const auto made = [&](std::string_view gbnf) {
    return TokenConstraint(grammar::Grammar::parse(gbnf).value(), kVocab, marks);
  };
  TokenConstraint open = made(R"(root ::= "a" "<m>" "b")");
  EXPECT_FALSE(open.allows(6));
  open.accept(0);
  EXPECT_TRUE(open.allows(6));
  EXPECT_EQ(allowed_by_mask(open), (std::vector<Token>{6}));
  open.accept(6);
  EXPECT_EQ(allowed_by_mask(open), (std::vector<Token>{3}));
  EXPECT_FALSE(constraint_of(R"(root ::= "<m>" | "a")").allows(6)) << "without its text it has none";
}

TEST(TokenConstraint, GoesOnBehindAText) {
  TokenConstraint constraint = constraint_of(R"(root ::= "xyz" "ab")");
  EXPECT_TRUE(constraint.accept_text("xyz"));
  EXPECT_EQ(allowed_by_mask(constraint), (std::vector<Token>{0, 1, 9}));
  EXPECT_FALSE(constraint.accept_text("q"));
  EXPECT_TRUE(allowed_by_mask(constraint).empty());
}

// The tokens of trained vocabularies: the longest piece is the tokenizer's.
class LongestVocab final : public Vocab {
 public:
  LongestVocab() : ordered_(order_pieces(*this)) {}
  [[nodiscard]] std::int32_t size() const override { return static_cast<std::int32_t>(kPieces.size()); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool) const override {
    std::vector<Token> tokens;
    while (!text.empty()) {
      Token best = kNoToken;
      for (Token token = 0; token < size(); ++token) {
        if (text.starts_with(piece(token)) && (best == kNoToken || piece(token).size() > piece(best).size())) best = token;
      }
      if (best == kNoToken) return fail(ErrorCode::runtime_decode, "no piece");
      tokens.push_back(best);
      text.remove_prefix(piece(best).size());
    }
    return tokens;
  }
  [[nodiscard]] std::string_view piece(Token token) const override { return kPieces[static_cast<std::size_t>(token)]; }
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return ordered_; }
  [[nodiscard]] bool is_end_of_generation(Token) const override { return false; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return {}; }
  [[nodiscard]] std::optional<Token> bos() const override { return std::nullopt; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  static constexpr std::array<std::string_view, 12> kPieces = {"<",   "c",   ">", "<c>", "{",  "\"",
                                                               "{\"", "\"c", "x", " ",   " <", "\n<c"};
  std::vector<OrderedPiece> ordered_;
};

std::vector<std::string> pieces_allowed(const Vocab& vocab, TokenConstraint& constraint) {
  std::vector<float> logits(static_cast<std::size_t>(vocab.size()), 0.0f);
  constraint.mask(logits);
  std::vector<std::string> pieces;
  for (Token token = 0; token < vocab.size(); ++token) {
    const bool is_allowed = std::isfinite(logits[static_cast<std::size_t>(token)]);
    EXPECT_EQ(is_allowed, constraint.allows(token)) << vocab.piece(token);
    if (is_allowed) pieces.emplace_back(vocab.piece(token));
  }
  return pieces;
}

const std::vector<std::pair<Token, std::string>> kMark{{3, "<c>"}};

std::shared_ptr<const grammar::Grammar> grammar_of(std::string_view text) {
  return grammar::Grammar::parse(text).value();
}

TEST(TokenConstraint, AMarkIsNotSpelled) {
  const LongestVocab vocab;
  TokenConstraint constraint(grammar_of(R"(root ::= "x"? "<c>{\"" ("c" | "<c>"))"), vocab, kMark);
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_allowed(vocab, constraint), (Pieces{"<c>", "x"})) << "not its first letter";
  constraint.accept(3);
  EXPECT_EQ(pieces_allowed(vocab, constraint), (Pieces{"{", "{\""})) << "other text has the tokens of the model's choice";
  constraint.accept(6);
  EXPECT_EQ(pieces_allowed(vocab, constraint), (Pieces{"c", "<c>"}));
}

TEST(TokenConstraint, AMarkIsNotSpelledBehindBlanksOfItsFirstToken) {
  const LongestVocab vocab;
  TokenConstraint constraint(grammar_of(R"(root ::= [ \n]? "<c>{")"), vocab, kMark);
  EXPECT_EQ(pieces_allowed(vocab, constraint), (std::vector<std::string>{"<c>", " "})) << R"(not " <", nor "\n<c")";
  constraint.accept(9);
  EXPECT_EQ(pieces_allowed(vocab, constraint), (std::vector<std::string>{"<c>"}));
  TokenConstraint other(grammar_of(R"(root ::= " " ("<c>" | "<x"))"), vocab, kMark);
  EXPECT_EQ(pieces_allowed(vocab, other), (std::vector<std::string>{" ", " <"}));
}

TEST(TokenConstraint, WhatMayBecomeOtherTextIsNoMark) {
  const LongestVocab vocab;
  TokenConstraint constraint(grammar_of(R"(root ::= "<c>" | "<x")"), vocab, kMark);
  EXPECT_EQ(pieces_allowed(vocab, constraint), (std::vector<std::string>{"<", "<c>"}));
}

TEST(TokenConstraint, AMarkThatCannotBeChosenIsSpelled) {
  const LongestVocab vocab;
  constexpr std::array<Token, 1> kEnds = {3};
  const auto grammar = grammar_of(R"(root ::= "<c>x{" ("c" | "x"))");
  TokenConstraint ending(grammar, vocab, kMark, kEnds);
  EXPECT_EQ(pieces_allowed(vocab, ending), std::vector<std::string>{"<"}) << "the reply would end before its text";
  TokenConstraint excluding(grammar, vocab, kMark);
  excluding.exclude(3);
  EXPECT_EQ(pieces_allowed(vocab, excluding), (std::vector<std::string>{"<", "<c>"}));
}

}  // namespace
}  // namespace uma::llm
