#include "capability/jinja_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <initializer_list>
#include <utility>

#include "capability/jinja_lexer.h"

namespace uma::capability::jinja {
namespace {

// Of brackets, signs and blocks inside each other, and of the trees that long chains of operators make. A level of brackets is
// some 15 calls of this parser; of the interpreter, one or two.
constexpr std::int32_t kNestingMax = 64;
constexpr std::int32_t kTreeDepthMax = 256;

using Kind = Expression::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body run() {
    Body body = parse_body({});
    if (now().kind == Token::Kind::block_begin) {
      next();
      fail(std::format("\"{}\" closes nothing", now().value));
    }
    return body;
  }

 private:
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kNestingMax) parser_.fail(std::format("more than {} levels inside each other", kNestingMax));
    }
    ~Level() { --parser_.nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(std::string message) const { throw TemplateError{std::move(message), now().line}; }
  [[noreturn]] void fail_expected(std::string_view wanted) const {
    fail(std::format("{} is expected, not {}", wanted, shown(now())));
  }
  static std::string shown(const Token& token) {
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

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool is_symbol(std::string_view symbol) const { return now().kind == Token::Kind::symbol && now().value == symbol; }
  bool is_name(std::string_view name) const { return now().kind == Token::Kind::name && now().value == name; }
  bool take_symbol(std::string_view symbol) {
    if (!is_symbol(symbol)) return false;
    next();
    return true;
  }
  bool take_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  void expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) fail_expected(std::format("\"{}\"", symbol));
  }
  void expect_name(std::string_view name) {
    if (!take_name(name)) fail_expected(std::format("\"{}\"", name));
  }
  std::string expect_identifier(std::string_view what) {
    if (now().kind != Token::Kind::name) fail_expected(what);
    return next().value;
  }
  void expect_block_end() {
    if (now().kind != Token::Kind::block_end) fail_expected("\"%}\"");
    next();
  }

  // --- statements

  // Statements up to a tag that begins with one of `ends`, which stays; or up to the end, where nothing shall be closed.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Body body;
    while (true) {
      const Token& token = now();
      if (token.kind == Token::Kind::end) {
        if (ends.size() > 0) fail(std::format("\"{}\" is missing", *(ends.end() - 1)));
        return body;
      }
      if (token.kind == Token::Kind::text) {
        auto statement = begin(Statement::Kind::text);
        statement->text = std::make_shared<const Text>(next().value);
        body.push_back(std::move(statement));
      } else if (token.kind == Token::Kind::variable_begin) {
        auto statement = begin(Statement::Kind::output);
        next();
        statement->value = parse_tuple();
        if (now().kind != Token::Kind::variable_end) fail_expected("\"}}\"");
        next();
        body.push_back(std::move(statement));
      } else {
        if (after().kind == Token::Kind::name) {
          const std::string_view name = after().value;
          if (std::ranges::find(ends, name) != ends.end()) return body;
          if (ends.size() == 0 && (name.starts_with("end") || name == "else" || name == "elif")) return body;
        }
        next();
        body.push_back(parse_statement());
      }
    }
  }

  // The tag that closes a block: its name, up to and with its end.
  void close(std::string_view name) {
    next();
    expect_name(name);
    expect_block_end();
  }

  std::unique_ptr<Statement> begin(Statement::Kind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = now().line;
    return statement;
  }

  std::unique_ptr<Statement> parse_statement() {
    if (now().kind != Token::Kind::name) fail_expected("the name of a statement");
    if (is_name("if")) return parse_if();
    if (is_name("for")) return parse_for();
    if (is_name("set")) return parse_set();
    if (is_name("macro")) return parse_macro();
    if (is_name("call")) return parse_call_block();
    if (is_name("filter")) return parse_filter_block();
    if (is_name("generation")) return parse_generation();
    if (is_name("break") || is_name("continue")) {
      if (loops_ == 0) fail(std::format("\"{}\" outside of a loop", now().value));
      auto statement = begin(is_name("break") ? Statement::Kind::leave_loop : Statement::Kind::next_round);
      next();
      expect_block_end();
      return statement;
    }
    fail(std::format("the statement \"{}\" is not supported", now().value));
  }

  std::unique_ptr<Statement> parse_if() {
    auto statement = begin(Statement::Kind::conditional);
    next();
    ExpressionPtr condition = parse_tuple();
    expect_block_end();
    while (true) {
      Body body = parse_body({"elif", "else", "endif"});
      statement->branches.push_back({std::move(condition), std::move(body)});
      next();
      if (take_name("elif")) {
        condition = parse_tuple();
        expect_block_end();
        continue;
      }
      if (take_name("else")) {
        expect_block_end();
        statement->branches.push_back({nullptr, parse_body({"endif"})});
        next();
      }
      expect_name("endif");
      expect_block_end();
      return statement;
    }
  }

  std::vector<std::string> parse_targets() {
    const bool has_brackets = take_symbol("(");
    std::vector<std::string> names;
    do {
      if (!names.empty() && now().kind != Token::Kind::name) break;  // a comma at the end
      names.push_back(expect_identifier("a name"));
      check_target(names.back());
    } while (take_symbol(","));
    if (has_brackets) expect_symbol(")");
    return names;
  }

  void check_target(std::string_view name) const {
    constexpr std::array<std::string_view, 14> kKeywords = {"true", "false", "none", "True", "False", "None", "and",
                                                            "or",   "not",   "in",   "is",   "if",    "else", "loop"};
    if (std::ranges::find(kKeywords, name) != kKeywords.end()) fail(std::format("\"{}\" cannot be assigned to", name));
  }

  std::unique_ptr<Statement> parse_for() {
    auto statement = begin(Statement::Kind::loop);
    next();
    statement->names = parse_targets();
    expect_name("in");
    statement->value = parse_tuple(/*with_condition=*/false);
    if (take_name("if")) statement->condition = parse_expression();
    if (is_name("recursive")) fail("recursive loops are not supported");
    expect_block_end();
    ++loops_;
    statement->body = parse_body({"else", "endfor"});
    --loops_;
    next();
    if (take_name("else")) {
      expect_block_end();
      statement->else_body = parse_body({"endfor"});
      next();
    }
    expect_name("endfor");
    expect_block_end();
    return statement;
  }

  std::unique_ptr<Statement> parse_set() {
    auto statement = begin(Statement::Kind::assign);
    next();
    if (now().kind == Token::Kind::name && after().kind == Token::Kind::symbol && after().value == ".") {
      statement->kind = Statement::Kind::assign_member;
      statement->names.push_back(next().value);
      next();
      statement->names.push_back(expect_identifier("a name"));
    } else {
      statement->names = parse_targets();
    }
    if (take_symbol("=")) {
      statement->value = parse_tuple();
      expect_block_end();
      return statement;
    }
    if (statement->kind != Statement::Kind::assign || statement->names.size() != 1) fail_expected("\"=\"");
    statement->kind = Statement::Kind::capture;
    if (is_symbol("|")) statement->value = parse_filters(nullptr);
    expect_block_end();
    statement->body = parse_apart("endset");
    return statement;
  }

  // A body that is not part of the loop around it.
  Body parse_apart(std::string_view end) {
    const std::int32_t loops = std::exchange(loops_, 0);
    Body body = parse_body({end});
    close(end);
    loops_ = loops;
    return body;
  }

  void parse_parameters(Statement& statement) {
    expect_symbol("(");
    while (!is_symbol(")")) {
      if (!statement.parameters.empty()) {
        expect_symbol(",");
        if (is_symbol(")")) break;
      }
      Argument parameter{.name = expect_identifier("the name of a parameter"), .value = nullptr};
      check_target(parameter.name);
      if (take_symbol("=")) {
        parameter.value = parse_expression();
      } else if (!statement.parameters.empty() && statement.parameters.back().value != nullptr) {
        fail("a parameter without a default behind one that has it");
      }
      statement.parameters.push_back(std::move(parameter));
    }
    expect_symbol(")");
  }

  std::unique_ptr<Statement> parse_macro() {
    auto statement = begin(Statement::Kind::macro);
    if (loops_ > 0 || macros_ > 0) fail("a macro inside a loop or another macro is not supported");
    next();
    statement->names.push_back(expect_identifier("the name of the macro"));
    check_target(statement->names.front());
    parse_parameters(*statement);
    expect_block_end();
    ++macros_;
    statement->body = parse_apart("endmacro");
    --macros_;
    return statement;
  }

  std::unique_ptr<Statement> parse_call_block() {
    auto statement = begin(Statement::Kind::call);
    next();
    if (is_symbol("(")) parse_parameters(*statement);
    statement->value = parse_expression();
    if (statement->value->kind != Kind::call) fail("a call block needs the call of a macro");
    expect_block_end();
    ++macros_;
    statement->body = parse_apart("endcall");
    --macros_;
    return statement;
  }

  std::unique_ptr<Statement> parse_filter_block() {
    auto statement = begin(Statement::Kind::filter);
    next();
    statement->value = parse_filter(nullptr);
    statement->value = parse_filters(std::move(statement->value));
    expect_block_end();
    statement->body = parse_apart("endfilter");
    return statement;
  }

  std::unique_ptr<Statement> parse_generation() {
    auto statement = begin(Statement::Kind::scope);
    next();
    expect_block_end();
    statement->body = parse_apart("endgeneration");
    return statement;
  }

  // --- expressions, from the loosest binding to the tightest

  std::unique_ptr<Expression> make(Kind kind, std::int32_t line) const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = line;
    return expression;
  }

  void add(Expression& parent, ExpressionPtr child) const {
    if (child != nullptr) {
      parent.depth = std::max(parent.depth, child->depth + 1);
      if (parent.depth > kTreeDepthMax) fail(std::format("an expression of more than {} levels", kTreeDepthMax));
    }
    parent.operands.push_back(std::move(child));
  }

  ExpressionPtr combine(Kind kind, std::string name, std::int32_t line, ExpressionPtr left, ExpressionPtr right) const {
    auto expression = make(kind, line);
    expression->name = std::move(name);
    add(*expression, std::move(left));
    add(*expression, std::move(right));
    return expression;
  }

  bool is_end_of_tuple() const {
    return now().kind == Token::Kind::block_end || now().kind == Token::Kind::variable_end || is_symbol(")") || is_name("if") ||
           is_name("recursive");
  }

  // An expression, or several with commas between.
  ExpressionPtr parse_tuple(bool with_condition = true) {
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

  ExpressionPtr parse_expression() {
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

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (is_name("or")) {
      const std::int32_t line = next().line;
      left = combine(Kind::logical_or, "", line, std::move(left), parse_and());
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (is_name("and")) {
      const std::int32_t line = next().line;
      left = combine(Kind::logical_and, "", line, std::move(left), parse_not());
    }
    return left;
  }

  ExpressionPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Level level(*this);
    auto expression = make(Kind::logical_not, next().line);
    add(*expression, parse_not());
    return expression;
  }

  // The comparison that begins here, taken; empty: none.
  std::string take_comparison() {
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

  ExpressionPtr parse_compare() {
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

  ExpressionPtr parse_sum() {
    ExpressionPtr left = parse_concat();
    while (is_symbol("+") || is_symbol("-")) {
      Token symbol = next();
      left = combine(Kind::arithmetic, std::move(symbol.value), symbol.line, std::move(left), parse_concat());
    }
    return left;
  }

  ExpressionPtr parse_concat() {
    const std::int32_t line = now().line;
    ExpressionPtr first = parse_product();
    if (!is_symbol("~")) return first;
    auto expression = make(Kind::concat, line);
    add(*expression, std::move(first));
    while (take_symbol("~")) add(*expression, parse_product());
    return expression;
  }

  ExpressionPtr parse_product() {
    ExpressionPtr left = parse_power();
    while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
      Token symbol = next();
      left = combine(Kind::arithmetic, std::move(symbol.value), symbol.line, std::move(left), parse_power());
    }
    return left;
  }

  ExpressionPtr parse_power() {
    ExpressionPtr left = parse_unary();
    while (is_symbol("**")) {
      Token symbol = next();
      left = combine(Kind::arithmetic, std::move(symbol.value), symbol.line, std::move(left), parse_unary());
    }
    return left;
  }

  ExpressionPtr parse_unary(bool with_filters = true) {
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

  ExpressionPtr literal(Value value, std::int32_t line) const {
    auto expression = make(Kind::literal, line);
    expression->value = std::move(value);
    return expression;
  }

  ExpressionPtr parse_primary() {
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
        if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc())
          fail("a number is too large");
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

  ExpressionPtr parse_brackets() {
    const std::int32_t line = next().line;
    if (take_symbol(")")) return make(Kind::tuple, line);
    ExpressionPtr value = parse_tuple();
    expect_symbol(")");
    return value;
  }

  ExpressionPtr parse_list() {
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

  ExpressionPtr parse_dict() {
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

  // Attributes, items and calls, as often as they come.
  ExpressionPtr parse_postfix(ExpressionPtr value) {
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

  ExpressionPtr parse_subscript(ExpressionPtr value) {
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

  void parse_arguments(Expression& call) {
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
        fail("an argument by position behind one by name");
      }
      argument.value = parse_expression();
      call.depth = std::max(call.depth, argument.value->depth + 1);
      call.arguments.push_back(std::move(argument));
    }
    next();
  }

  ExpressionPtr parse_filter(ExpressionPtr value) {
    auto filter = make(Kind::filter, now().line);
    filter->name = expect_identifier("the name of a filter");
    add(*filter, std::move(value));
    if (is_symbol("(")) parse_arguments(*filter);
    return filter;
  }

  // Filters, tests and calls behind a value; a null value stands for what a block holds.
  ExpressionPtr parse_filters(ExpressionPtr value) {
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

  ExpressionPtr parse_test(ExpressionPtr value) {
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

  // Whether what follows the name of a test is its argument: `x is divisibleby 3`.
  bool begins_argument() const {
    switch (now().kind) {
      case Token::Kind::string:
      case Token::Kind::integer:
      case Token::Kind::floating:
        return true;
      case Token::Kind::symbol:
        return now().value == "[" || now().value == "{";
      case Token::Kind::name:
        return !std::ranges::contains(std::array<std::string_view, 7>{"and", "or", "else", "if", "in", "is", "not"},
                                      now().value);
      default:
        return false;
    }
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::int32_t nesting_ = 0;
  std::int32_t loops_ = 0;   // around what is read, of the same macro
  std::int32_t macros_ = 0;  // around what is read
};

}  // namespace

Body parse(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    throw TemplateError{std::format("the template has {} bytes, the limit is {}", source.size(), kSourceBytesMax)};
  }
  return Parser(tokenize(source)).run();
}

}  // namespace uma::capability::jinja
