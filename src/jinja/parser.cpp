#include "jinja/parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <format>
#include <initializer_list>
#include <utility>

#include "jinja/expression_parser.h"
#include "jinja/lexer.h"

namespace uma::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Body run() {
    Body body = parse_body({});
    if (now().kind == Token::Kind::block_begin) {
      next();
      fail(std::format("unmatched \"{}\"", now().value));
    }
    return body;
  }

 private:
  // --- statements

  // Statements up to a tag that begins with one of `ends`, which is not taken; without `ends`, up to the end of the template.
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

  // Takes the tag that closes a block, from its name to its end.
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
      if (loops_ == 0) fail(std::format("\"{}\" is outside of a loop", now().value));
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
      if (!names.empty() && now().kind != Token::Kind::name) break;  // A trailing comma.
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

  // A body that is separate from the loop around it.
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
        fail("a parameter without a default follows one with a default");
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

  std::int32_t loops_ = 0;   // Open loops in the current macro.
  std::int32_t macros_ = 0;  // Open macros.
};
}  // namespace

Body parse(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    throw TemplateError{std::format("the template has {} bytes; the limit is {}", source.size(), kSourceBytesMax)};
  }
  return Parser(tokenize(source)).run();
}

}  // namespace uma::jinja
