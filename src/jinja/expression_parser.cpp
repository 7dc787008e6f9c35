#include "jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <initializer_list>
#include <utility>

#include "base/read_number.h"

namespace uma::jinja {

void ExpressionParser::fail_expected(std::string_view wanted) const {
  fail(std::format("expected {}, got {}", wanted, shown(now())));
}

std::string ExpressionParser::shown(const Token& token) {
  switch (token.kind) {
    case Token::Kind::end:
      return "the end of the template";
    case Token::Kind::block_end:
      return "\"%}\"";
    case Token::Kind::variable_end:
      return "\"}}\"";
    case Token::Kind::string:
      return "a string";
    default:
      return std::format("\"{}\"", token.value.substr(0, 40));
  }
}

bool ExpressionParser::take_symbol(std::string_view symbol) {
  if (!is_symbol(symbol)) return false;
  next();
  return true;
}

bool ExpressionParser::take_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!take_symbol(symbol)) fail_expected(std::format("\"{}\"", symbol));
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!take_name(name)) fail_expected(std::format("\"{}\"", name));
}

std::string ExpressionParser::expect_identifier(std::string_view what) {
  if (now().kind != Token::Kind::name) fail_expected(what);
  return next().value;
}

void ExpressionParser::expect_block_end() {
  if (now().kind != Token::Kind::block_end) fail_expected("\"%}\"");
  next();
}

// --- expressions, from the loosest binding to the tightest

std::unique_ptr<Expression> ExpressionParser::make(Kind kind, std::int32_t line) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

void ExpressionParser::add(Expression& parent, ExpressionPtr child) const {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kTreeDepthMax) fail(std::format("an expression of more than {} levels", kTreeDepthMax));
  }
  parent.operands.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::combine(Kind kind, std::string name, std::int32_t line, ExpressionPtr left,
                                        ExpressionPtr right) const {
  auto expression = make(kind, line);
  expression->name = std::move(name);
  add(*expression, std::move(left));
  add(*expression, std::move(right));
  return expression;
}

bool ExpressionParser::is_end_of_tuple() const {
  return now().kind == Token::Kind::block_end || now().kind == Token::Kind::variable_end || is_symbol(")") || is_name("if") ||
         is_name("recursive");
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition) {
  const auto parse_item = [&] { return with_condition ? parse_expression() : parse_or(); };
  const std::int32_t line = now().line;
  ExpressionPtr first = parse_item();
  if (!is_symbol(",")) return first;
  auto tuple = make(Kind::tuple, line);
  add(*tuple, std::move(first));
  while (take_symbol(",")) {
    if (is_end_of_tuple()) break;
    add(*tuple, parse_item());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::parse_expression() {
  const Level level(*this);
  ExpressionPtr value = parse_or();
  while (is_name("if")) {
    auto conditional = make(Kind::conditional, next().line);
    add(*conditional, std::move(value));
    add(*conditional, parse_or());
    add(*conditional, take_name("else") ? parse_expression() : nullptr);
    value = std::move(conditional);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    const std::int32_t line = next().line;
    left = combine(Kind::logical_or, "", line, std::move(left), parse_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    const std::int32_t line = next().line;
    left = combine(Kind::logical_and, "", line, std::move(left), parse_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(*this);
  auto expression = make(Kind::logical_not, next().line);
  add(*expression, parse_not());
  return expression;
}

std::string ExpressionParser::take_comparison() {
  for (const std::string_view symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (take_symbol(symbol)) return std::string(symbol);
  }
  if (take_name("in")) return "in";
  if (is_name("not") && after().kind == Token::Kind::name && after().value == "in") {
    next();
    next();
    return "not in";
  }
  return "";
}

ExpressionPtr ExpressionParser::parse_compare() {
  const std::int32_t line = now().line;
  ExpressionPtr left = parse_sum();
  std::string comparison = take_comparison();
  if (comparison.empty()) return left;
  auto expression = make(Kind::compare, line);
  add(*expression, std::move(left));
  for (; !comparison.empty(); comparison = take_comparison()) {
    expression->names.push_back(std::move(comparison));
    add(*expression, parse_sum());
  }
  return expression;
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (is_symbol("+") || is_symbol("-")) {
    Token symbol = next();
    left = combine(Kind::arithmetic, std::move(symbol.value), symbol.line, std::move(left), parse_concat());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  const std::int32_t line = now().line;
  ExpressionPtr first = parse_product();
  if (!is_symbol("~")) return first;
  auto expression = make(Kind::concat, line);
  add(*expression, std::move(first));
  while (take_symbol("~")) add(*expression, parse_product());
  return expression;
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
    Token symbol = next();
    left = combine(Kind::arithmetic, std::move(symbol.value), symbol.line, std::move(left), parse_power());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (is_symbol("**")) {
    Token symbol = next();
    left = combine(Kind::arithmetic, std::move(symbol.value), symbol.line, std::move(left), parse_unary());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  if (is_symbol("-") || is_symbol("+")) {
    const Level level(*this);
    auto expression = make(is_symbol("-") ? Kind::negate : Kind::plus, now().line);
    next();
    add(*expression, parse_unary(/*with_filters=*/false));
    return with_filters ? parse_filters(std::move(expression)) : std::move(expression);
  }
  ExpressionPtr value = parse_postfix(parse_primary());
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::literal(Value value, std::int32_t line) const {
  auto expression = make(Kind::literal, line);
  expression->value = std::move(value);
  return expression;
}

ExpressionPtr ExpressionParser::parse_primary() {
  const std::int32_t line = now().line;
  switch (now().kind) {
    case Token::Kind::name: {
      std::string name = next().value;
      if (name == "true" || name == "True") return literal(Value::boolean(true), line);
      if (name == "false" || name == "False") return literal(Value::boolean(false), line);
      if (name == "none" || name == "None") return literal(Value::none(), line);
      auto expression = make(Kind::name, line);
      expression->name = std::move(name);
      return expression;
    }
    case Token::Kind::string: {
      std::string text = next().value;
      while (now().kind == Token::Kind::string) text += next().value;
      return literal(Value::text(text), line);
    }
    case Token::Kind::integer: {
      std::int64_t number = 0;
      const std::string& digits = now().value;
      if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc())
        fail("an integer is too large");
      next();
      return literal(Value::integer(number), line);
    }
    case Token::Kind::floating: {
      double number = 0;
      const std::string& digits = now().value;
      if (read_number(digits.data(), digits.data() + digits.size(), number).ec != std::errc()) fail("a number is too large");
      next();
      return literal(Value::number(number), line);
    }
    default:
      break;
  }
  if (is_symbol("(")) return parse_brackets();
  if (is_symbol("[")) return parse_list();
  if (is_symbol("{")) return parse_dict();
  fail_expected("an expression");
}

ExpressionPtr ExpressionParser::parse_brackets() {
  const std::int32_t line = next().line;
  if (take_symbol(")")) return make(Kind::tuple, line);
  ExpressionPtr value = parse_tuple();
  expect_symbol(")");
  return value;
}

ExpressionPtr ExpressionParser::parse_list() {
  auto list = make(Kind::list, next().line);
  while (!is_symbol("]")) {
    if (!list->operands.empty()) {
      expect_symbol(",");
      if (is_symbol("]")) break;
    }
    add(*list, parse_expression());
  }
  next();
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  auto dict = make(Kind::dict, next().line);
  while (!is_symbol("}")) {
    if (!dict->operands.empty()) {
      expect_symbol(",");
      if (is_symbol("}")) break;
    }
    add(*dict, parse_expression());
    expect_symbol(":");
    add(*dict, parse_expression());
  }
  next();
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    if (is_symbol(".")) {
      const std::int32_t line = next().line;
      if (now().kind == Token::Kind::integer) {
        value = combine(Kind::item, "", line, std::move(value), parse_primary());
        continue;
      }
      auto expression = make(Kind::attribute, line);
      expression->name = expect_identifier("the name of an attribute");
      add(*expression, std::move(value));
      value = std::move(expression);
    } else if (is_symbol("[")) {
      value = parse_subscript(std::move(value));
    } else if (is_symbol("(")) {
      auto expression = make(Kind::call, now().line);
      add(*expression, std::move(value));
      parse_arguments(*expression);
      value = std::move(expression);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  const std::int32_t line = next().line;
  ExpressionPtr first;
  if (!is_symbol(":")) {
    first = parse_expression();
    if (take_symbol("]")) return combine(Kind::item, "", line, std::move(value), std::move(first));
  }
  expect_symbol(":");
  auto slice = make(Kind::slice, line);
  add(*slice, std::move(value));
  add(*slice, std::move(first));
  const auto part = [&] { return is_symbol(":") || is_symbol("]") ? nullptr : parse_expression(); };
  add(*slice, part());
  add(*slice, take_symbol(":") ? part() : nullptr);
  expect_symbol("]");
  return slice;
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_symbol("(");
  while (!is_symbol(")")) {
    if (!call.arguments.empty()) {
      expect_symbol(",");
      if (is_symbol(")")) break;
    }
    if (is_symbol("*") || is_symbol("**")) fail("arguments with * are not supported");
    Argument argument;
    if (now().kind == Token::Kind::name && after().kind == Token::Kind::symbol && after().value == "=") {
      argument.name = next().value;
      next();
    } else if (!call.arguments.empty() && !call.arguments.back().name.empty()) {
      fail("a positional argument follows a named argument");
    }
    argument.value = parse_expression();
    call.depth = std::max(call.depth, argument.value->depth + 1);
    call.arguments.push_back(std::move(argument));
  }
  next();
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr value) {
  auto filter = make(Kind::filter, now().line);
  filter->name = expect_identifier("the name of a filter");
  add(*filter, std::move(value));
  if (is_symbol("(")) parse_arguments(*filter);
  return filter;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value) {
  while (true) {
    if (take_symbol("|")) {
      value = parse_filter(std::move(value));
    } else if (value != nullptr && is_name("is")) {
      value = parse_test(std::move(value));
    } else if (value != nullptr && is_symbol("(")) {
      value = parse_postfix(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  auto test = make(Kind::test, next().line);
  const bool is_negated = take_name("not");
  test->name = expect_identifier("the name of a test");
  add(*test, std::move(value));
  if (is_symbol("(")) {
    parse_arguments(*test);
  } else if (begins_argument()) {
    const Level level(*this);
    Argument argument{.name = "", .value = parse_postfix(parse_primary())};
    test->depth = std::max(test->depth, argument.value->depth + 1);
    test->arguments.push_back(std::move(argument));
  }
  if (!is_negated) return test;
  auto negation = make(Kind::logical_not, test->line);
  add(*negation, std::move(test));
  return negation;
}

bool ExpressionParser::begins_argument() const {
  switch (now().kind) {
    case Token::Kind::string:
    case Token::Kind::integer:
    case Token::Kind::floating:
      return true;
    case Token::Kind::symbol:
      return now().value == "[" || now().value == "{";
    case Token::Kind::name:
      return !std::ranges::contains(std::array<std::string_view, 7>{"and", "or", "else", "if", "in", "is", "not"}, now().value);
    default:
      return false;
  }
}

}  // namespace uma::jinja
