// Parses the expressions of templates, token by token. Errors are thrown as TemplateError, with the line. The parser
// has one function for each level of the grammar, hence their number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <format>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/parser.h"

namespace uma::jinja {

// Limit for nested brackets, signs and blocks, and for the depth of trees from long chains of operators. A level of brackets
// takes about 15 calls of this parser, and one or two of the interpreter.
inline constexpr std::int32_t kNestingMax = 64;
inline constexpr std::int32_t kTreeDepthMax = 256;

class ExpressionParser {
 protected:
  using Kind = Expression::Kind;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  class Level {
   public:
    explicit Level(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kNestingMax) parser_.fail(std::format("nested deeper than {} levels", kNestingMax));
    }
    ~Level() { --parser_.nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  [[noreturn]] void fail(std::string message) const { throw TemplateError{std::move(message), now().line}; }
  [[noreturn]] void fail_expected(std::string_view wanted) const;
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool is_symbol(std::string_view symbol) const { return now().kind == Token::Kind::symbol && now().value == symbol; }
  bool is_name(std::string_view name) const { return now().kind == Token::Kind::name && now().value == name; }
  bool take_symbol(std::string_view symbol);
  bool take_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  void expect_name(std::string_view name);
  std::string expect_identifier(std::string_view what);
  void expect_block_end();
  // An expression, or several ones separated by commas.
  ExpressionPtr parse_tuple(bool with_condition = true);
  ExpressionPtr parse_expression();
  ExpressionPtr parse_filter(ExpressionPtr value);
  // Filters, tests and calls behind a value. Null represents the content of a block.
  ExpressionPtr parse_filters(ExpressionPtr value);

 private:
  static std::string shown(const Token& token);
  std::unique_ptr<Expression> make(Kind kind, std::int32_t line) const;
  void add(Expression& parent, ExpressionPtr child) const;
  ExpressionPtr combine(Kind kind, std::string name, std::int32_t line, ExpressionPtr left, ExpressionPtr right) const;
  bool is_end_of_tuple() const;
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  // Takes the comparison operator at this place; empty: there is none.
  std::string take_comparison();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr literal(Value value, std::int32_t line) const;
  ExpressionPtr parse_primary();
  ExpressionPtr parse_brackets();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  // Any number of attributes, items and calls.
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr value);
  void parse_arguments(Expression& call);
  ExpressionPtr parse_test(ExpressionPtr value);
  // Whether the next token is the argument of a test: `x is divisibleby 3`.
  bool begins_argument() const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::int32_t nesting_ = 0;
};

}  // namespace uma::jinja
