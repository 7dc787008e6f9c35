#include "jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <format>
#include <memory>
#include <optional>
#include <string_view>

#include "jinja/builtins.h"

namespace uma::jinja {

// The names of the template, of a macro's call, of a loop (cleared for each round), or of a block. Lives on the stack of the
// interpreter.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;  // The keys belong to the tree and the environment.
};

namespace {

// Limit for nested expressions, bodies and macros.
constexpr std::int32_t kCallDepthMax = 512;

enum class Flow : std::uint8_t { on, leave_loop, next_round };

class Interpreter {
 public:
  Interpreter(const Environment& environment, Budget& budget) : budget_(budget), unix_s_(environment.unix_s) {
    for (const auto& [name, value] : environment.variables) root_.names.emplace_back(name, value);
  }

  Text run(const Body& body) {
    Text out;
    try {
      run_body(body, root_, out);
    } catch (TemplateError& error) {
      if (error.line == 0) error.line = line_;
      throw;
    }
    return out;
  }

 private:
  using Kind = Expression::Kind;

  class Level {
   public:
    explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
      if (++interpreter_.depth_ > kCallDepthMax) throw TemplateError{"the template's calls are nested too deep"};
    }
    ~Level() { --interpreter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Interpreter& interpreter_;
  };

  // --- names

  Value* find(Scope& scope, std::string_view name) {
    for (Scope* at = &scope; at != nullptr; at = at->parent) {
      const auto found = std::ranges::find(at->names, name, &std::pair<std::string_view, Value>::first);
      budget_.take_steps(static_cast<std::uint64_t>(found - at->names.begin()) / 16);
      if (found != at->names.end()) return &found->second;
    }
    return nullptr;
  }

  void assign(Scope& scope, std::string_view name, Value value) {
    const auto found = std::ranges::find(scope.names, name, &std::pair<std::string_view, Value>::first);
    budget_.take_steps(1 + static_cast<std::uint64_t>(found - scope.names.begin()) / 16);
    if (found == scope.names.end()) {
      scope.names.emplace_back(name, std::move(value));
    } else {
      found->second = std::move(value);
    }
  }

  void assign_all(Scope& scope, const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return assign(scope, names.front(), value);
    const auto items = items_of(value, budget_);
    if (items->items.size() != names.size()) {
      throw TemplateError{std::format("{} values for {} names", items->items.size(), names.size())};
    }
    for (std::size_t i = 0; i < names.size(); ++i) assign(scope, names[i], items->items[i]);
  }

  // --- statements

  Flow run_body(const Body& body, Scope& scope, Text& out) {
    const Level level(*this);
    for (const auto& statement : body) {
      line_ = statement->line;
      budget_.take_steps();
      if (const Flow flow = run_statement(*statement, scope, out); flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  void emit(Text& out, const Text& text) {
    budget_.take_bytes(text.size());
    out.append(text);
  }

  Flow run_statement(const Statement& statement, Scope& scope, Text& out) {
    switch (statement.kind) {
      case Statement::Kind::text:
        emit(out, *statement.text);
        break;
      case Statement::Kind::output:
        emit(out, *to_text_ptr(evaluate(*statement.value, scope), budget_));
        break;
      case Statement::Kind::conditional:
        for (const Branch& branch : statement.branches) {
          if (branch.condition == nullptr || is_true(evaluate(*branch.condition, scope)))
            return run_body(branch.body, scope, out);
        }
        break;
      case Statement::Kind::loop:
        return run_loop(statement, scope, out);
      case Statement::Kind::assign:
        assign_all(scope, statement.names, evaluate(*statement.value, scope));
        break;
      case Statement::Kind::assign_member:
        assign_member(statement, scope);
        break;
      case Statement::Kind::capture:
        assign(scope, statement.names.front(), captured(statement, scope));
        break;
      case Statement::Kind::filter:
        emit(out, *to_text_ptr(captured(statement, scope), budget_));
        break;
      case Statement::Kind::macro:
        assign(scope, statement.names.front(),
               Value(std::make_shared<const Callable>(Callable{
                   .kind = Callable::Kind::macro, .name = statement.names.front(), .self = {}, .definition = &statement})));
        break;
      case Statement::Kind::call:
        run_call_block(statement, scope, out);
        break;
      case Statement::Kind::scope: {
        Scope inner{.parent = &scope, .names = {}};
        (void)run_body(statement.body, inner, out);  // No `break` leaves it: the parser refuses that.
        break;
      }
      case Statement::Kind::leave_loop:
        return Flow::leave_loop;
      case Statement::Kind::next_round:
        return Flow::next_round;
    }
    return Flow::on;
  }

  Flow run_loop(const Statement& statement, Scope& scope, Text& out) {
    std::shared_ptr<const List> items = items_of(evaluate(*statement.value, scope), budget_);
    Scope inner{.parent = &scope, .names = {}};
    if (statement.condition != nullptr) {
      std::vector<Value> kept;
      for (const Value& item : items->items) {
        inner.names.clear();
        assign_all(inner, statement.names, item);
        if (is_true(evaluate(*statement.condition, inner))) kept.push_back(item);
      }
      items = std::make_shared<const List>(List{.items = std::move(kept)});
    }
    if (items->items.empty()) {
      inner.names.clear();
      return run_body(statement.else_body, inner, out);
    }
    // Sharing the value with the body is safe: the body cannot store it, because no list, dict or namespace takes a loop (nor a
    // callable, whose scope is as short-lived).
    const auto loop = std::make_shared<Loop>(Loop{.items = items, .index = 0});
    const Value loop_value{Value::Variant(std::shared_ptr<const Loop>(loop))};
    for (loop->index = 0; loop->index < items->items.size(); ++loop->index) {
      budget_.take_steps();
      inner.names.clear();
      inner.names.emplace_back("loop", loop_value);
      assign_all(inner, statement.names, items->items[loop->index]);
      if (run_body(statement.body, inner, out) == Flow::leave_loop) break;
    }
    return Flow::on;
  }

  void assign_member(const Statement& statement, Scope& scope) {
    const std::string& name = statement.names[0];
    const Value* target = find(scope, name);
    const Value held = target == nullptr ? Value() : *target;  // A copy, because evaluation may move the names.
    Namespace* space = held.as_namespace();
    if (space == nullptr)
      throw TemplateError{std::format("\"{}\" is not a namespace, so \"{}.{}\" cannot be set", name, name, statement.names[1])};
    Value value = evaluate(*statement.value, scope);
    if (value.as_loop() != nullptr || value.as_callable() != nullptr) {
      throw TemplateError{std::format("a {} cannot be put into a namespace", type_name(value))};
    }
    const auto found = std::ranges::find(space->entries, statement.names[1], &Value::Entry::first);
    budget_.take_steps(1 + space->entries.size() / 16);
    if (found == space->entries.end()) {
      space->entries.emplace_back(statement.names[1], std::move(value));
    } else {
      found->second = std::move(value);
    }
  }

  // The output of a block, after its filters.
  Value captured(const Statement& statement, Scope& scope) {
    Scope inner{.parent = &scope, .names = {}};
    Text text;
    run_body(statement.body, inner, text);
    Value value = Value::text(std::move(text));
    return statement.value == nullptr ? value : run_filters(*statement.value, scope, std::move(value));
  }

  Value run_filters(const Expression& filter, Scope& scope, Value value) {
    const Level level(*this);
    if (filter.operands[0] != nullptr) value = run_filters(*filter.operands[0], scope, std::move(value));
    return apply_filter(filter.name, value, arguments_of(filter, scope), budget_);
  }

  void run_call_block(const Statement& statement, Scope& scope, Text& out) {
    const Expression& call = *statement.value;
    const Value callee = evaluate(*call.operands[0], scope);
    const Callable* macro = callee.as_callable();
    if (macro == nullptr || macro->kind != Callable::Kind::macro) throw TemplateError{"a call block needs the call of a macro"};
    const Value caller(std::make_shared<const Callable>(
        Callable{.kind = Callable::Kind::caller, .name = "caller", .self = {}, .definition = &statement, .scope = &scope}));
    emit(out, call_macro(*macro, arguments_of(call, scope), &caller));
  }

  // A macro sees the names of the template; the block of a call sees the names at its place.
  Text call_macro(const Callable& macro, const Arguments& arguments, const Value* caller) {
    const Level level(*this);
    const Statement& definition = *macro.definition;
    const std::int32_t line = line_;
    Scope inner{.parent = macro.scope == nullptr ? &root_ : macro.scope, .names = {}};
    if (caller != nullptr) inner.names.emplace_back("caller", *caller);
    if (arguments.positional.size() > definition.parameters.size()) {
      throw TemplateError{std::format("\"{}\" takes {} arguments, got {}", macro.name, definition.parameters.size(),
                                      arguments.positional.size())};
    }
    for (const auto& [name, value] : arguments.named) {
      if (!std::ranges::contains(definition.parameters, name, &Argument::name)) {
        throw TemplateError{std::format("\"{}\" has no argument \"{}\"", macro.name, name)};
      }
    }
    for (std::size_t i = 0; i < definition.parameters.size(); ++i) {
      const Argument& parameter = definition.parameters[i];
      const auto named =
          std::ranges::find(arguments.named, std::string_view(parameter.name), &std::pair<std::string_view, Value>::first);
      if (i < arguments.positional.size()) {
        assign(inner, parameter.name, arguments.positional[i]);
      } else if (named != arguments.named.end()) {
        assign(inner, parameter.name, named->second);
      } else {
        assign(inner, parameter.name,
               parameter.value == nullptr ? Value::undefined(parameter.name) : evaluate(*parameter.value, inner));
      }
    }
    Text text;
    run_body(definition.body, inner, text);
    line_ = line;
    return text;
  }

  // --- expressions

  Arguments arguments_of(const Expression& expression, Scope& scope) {
    Arguments arguments;
    for (const Argument& argument : expression.arguments) {
      Value value = evaluate(*argument.value, scope);
      if (argument.name.empty()) {
        arguments.positional.push_back(std::move(value));
      } else {
        arguments.named.emplace_back(argument.name, std::move(value));
      }
    }
    return arguments;
  }

  Value evaluate(const Expression& expression, Scope& scope) {
    const Level level(*this);
    budget_.take_steps();
    line_ = expression.line;
    switch (expression.kind) {
      case Kind::literal:
        return expression.value;
      case Kind::name:
        return name_value(expression.name, scope);
      case Kind::list:
      case Kind::tuple:
        return list_value(expression, scope);
      case Kind::dict:
        return dict_value(expression, scope);
      case Kind::attribute:
        return get_attribute(evaluate(*expression.operands[0], scope), expression.name, budget_);
      case Kind::item:
        return item_value(expression, scope);
      case Kind::slice:
        return slice_value(expression, scope);
      case Kind::call:
        return call_value(expression, scope);
      case Kind::filter: {
        const Value value = evaluate(*expression.operands[0], scope);
        const Arguments arguments = arguments_of(expression, scope);
        line_ = expression.line;
        return apply_filter(expression.name, value, arguments, budget_);
      }
      case Kind::test:
        return test_value(expression, scope);
      case Kind::negate:
      case Kind::plus:
        return signed_value(evaluate(*expression.operands[0], scope), expression.kind == Kind::negate);
      case Kind::logical_not:
        return Value::boolean(!is_true(evaluate(*expression.operands[0], scope)));
      case Kind::arithmetic:
        return arithmetic_value(expression, scope);
      case Kind::concat:
        return concat_value(expression, scope);
      case Kind::compare:
        return compare_value(expression, scope);
      case Kind::logical_and:
      case Kind::logical_or: {
        Value left = evaluate(*expression.operands[0], scope);
        if (is_true(left) == (expression.kind == Kind::logical_or)) return left;
        return evaluate(*expression.operands[1], scope);
      }
      case Kind::conditional:
        if (is_true(evaluate(*expression.operands[1], scope))) return evaluate(*expression.operands[0], scope);
        if (expression.operands[2] == nullptr) return Value::undefined("an inline if without else");
        return evaluate(*expression.operands[2], scope);
    }
    return {};
  }

  Value name_value(const std::string& name, Scope& scope) {
    if (const Value* found = find(scope, name)) return *found;
    return find_function(name);
  }

  Value list_value(const Expression& expression, Scope& scope) {
    std::vector<Value> items;
    items.reserve(expression.operands.size());
    for (const ExpressionPtr& item : expression.operands) items.push_back(evaluate(*item, scope));
    return Value::list(std::move(items), expression.kind == Kind::tuple);
  }

  Value dict_value(const Expression& expression, Scope& scope) {
    std::vector<std::pair<Key, Value>> entries;
    for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
      const Value key = evaluate(*expression.operands[i], scope);
      entries.emplace_back(key_of(key), evaluate(*expression.operands[i + 1], scope));
    }
    return Value::dict(std::move(entries));
  }

  static Key key_of(const Value& value) {
    if (value.is_integer()) return Key::integer(std::get<std::int64_t>(value.data()));
    if (value.as_text() != nullptr) return Key(std::get<TextPtr>(value.data()));
    throw TemplateError{std::format("the keys of a dict must be texts or integers, got {}", type_name(value))};
  }

  Value namespace_of(const Dict& dict) {
    Namespace& made = namespaces_.emplace_back();
    for (const auto& [key, value] : dict.entries) made.entries.emplace_back(key->bytes(), value);
    return Value(Value::Variant(&made));
  }

  Value item_value(const Expression& expression, Scope& scope) {
    const Value container = evaluate(*expression.operands[0], scope);
    return get_item(container, evaluate(*expression.operands[1], scope), budget_);
  }

  Value slice_value(const Expression& expression, Scope& scope) {
    const Value container = evaluate(*expression.operands[0], scope);
    const auto part = [&](std::size_t i) {
      return expression.operands[i] == nullptr ? Value::none() : evaluate(*expression.operands[i], scope);
    };
    const Value begin = part(1);
    const Value end = part(2);
    return get_slice(container, begin, end, part(3), budget_);
  }

  Value call_value(const Expression& expression, Scope& scope) {
    const Value callee = evaluate(*expression.operands[0], scope);
    const Callable* callable = callee.as_callable();
    if (callable == nullptr) {
      if (callee.is_undefined())
        throw TemplateError{std::format("\"{}\" is not a function", std::get<Undefined>(callee.data()).name)};
      throw TemplateError{std::format("a value of type {} cannot be called", type_name(callee))};
    }
    const Arguments arguments = arguments_of(expression, scope);
    line_ = expression.line;
    switch (callable->kind) {
      case Callable::Kind::function:
        if (callable->name == "namespace") {
          return namespace_of(*call_function("namespace", arguments, unix_s_, budget_).as_dict());
        }
        return call_function(callable->name, arguments, unix_s_, budget_);
      case Callable::Kind::method:
        return call_method(callable->self, callable->name, arguments, budget_);
      case Callable::Kind::macro:
      case Callable::Kind::caller:
        return Value::text(call_macro(*callable, arguments, nullptr));
    }
    return {};
  }

  Value test_value(const Expression& expression, Scope& scope) {
    const Value value = evaluate(*expression.operands[0], scope);
    const Arguments arguments = arguments_of(expression, scope);
    line_ = expression.line;
    return Value::boolean(apply_test(expression.name, value, arguments, budget_));
  }

  static Value signed_value(const Value& value, bool is_negated) {
    std::int64_t whole = 0;
    if (as_integer(value, whole)) {
      if (is_negated && whole == INT64_MIN) fail_too_large();
      return Value::integer(is_negated ? -whole : whole);
    }
    if (!value.is_double()) throw TemplateError{std::format("a value of type {} has no sign", type_name(value))};
    const double number = std::get<double>(value.data());
    return Value::number(is_negated ? -number : number);
  }

  [[noreturn]] static void fail_too_large() { throw TemplateError{"an integer is too large"}; }

  Value concat_value(const Expression& expression, Scope& scope) {
    Text text;
    for (const ExpressionPtr& operand : expression.operands) emit(text, *to_text_ptr(evaluate(*operand, scope), budget_));
    return Value::text(std::move(text));
  }

  Value compare_value(const Expression& expression, Scope& scope) {
    Value left = evaluate(*expression.operands[0], scope);
    for (std::size_t i = 0; i < expression.names.size(); ++i) {
      Value right = evaluate(*expression.operands[i + 1], scope);
      if (!holds(left, expression.names[i], right)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  bool holds(const Value& left, std::string_view comparison, const Value& right) {
    if (comparison == "==") return are_equal(left, right, budget_);
    if (comparison == "!=") return !are_equal(left, right, budget_);
    if (comparison == "in") return contains(right, left, budget_);
    if (comparison == "not in") return !contains(right, left, budget_);
    check_defined(left);
    check_defined(right);
    const int order = compare(left, right, budget_);
    if (comparison == "<") return order < 0;
    if (comparison == "<=") return order <= 0;
    if (comparison == ">") return order > 0;
    return order >= 0;
  }

  static void check_defined(const Value& value) {
    if (value.is_undefined()) throw TemplateError{std::format("\"{}\" is undefined", std::get<Undefined>(value.data()).name)};
  }

  Value arithmetic_value(const Expression& expression, Scope& scope) {
    const Value left = evaluate(*expression.operands[0], scope);
    const Value right = evaluate(*expression.operands[1], scope);
    line_ = expression.line;
    const std::string_view symbol = expression.name;
    if (symbol == "%" && left.as_text() != nullptr) throw TemplateError{"formatting with \"%\" is not supported"};
    check_defined(left);
    check_defined(right);
    std::int64_t whole_left = 0;
    std::int64_t whole_right = 0;
    const bool is_left_whole = as_integer(left, whole_left);
    const bool is_right_whole = as_integer(right, whole_right);
    if (is_left_whole && is_right_whole && symbol != "/" && !(symbol == "**" && whole_right < 0)) {
      return whole_value(whole_left, symbol, whole_right);
    }
    double real_left = 0;
    double real_right = 0;
    if (as_double(left, real_left) && as_double(right, real_right)) return real_value(real_left, symbol, real_right);
    if (symbol == "+") {
      if (auto sum = joined(left, right)) return std::move(*sum);
    }
    if (symbol == "*" && is_right_whole) {
      if (auto product = repeated(left, whole_right)) return std::move(*product);
    }
    if (symbol == "*" && is_left_whole) {
      if (auto product = repeated(right, whole_left)) return std::move(*product);
    }
    throw TemplateError{std::format("\"{}\" of {} and {} is not supported", symbol, type_name(left), type_name(right))};
  }

  static Value whole_value(std::int64_t left, std::string_view symbol, std::int64_t right) {
    std::int64_t result = 0;
    bool is_too_large = false;
    if (symbol == "+") {
      is_too_large = __builtin_add_overflow(left, right, &result);
    } else if (symbol == "-") {
      is_too_large = __builtin_sub_overflow(left, right, &result);
    } else if (symbol == "*") {
      is_too_large = __builtin_mul_overflow(left, right, &result);
    } else if (symbol == "**") {
      result = 1;
      for (std::int64_t power = right; power > 0 && !is_too_large && !(left >= -1 && left <= 1); --power) {
        is_too_large = __builtin_mul_overflow(result, left, &result);
      }
      if (left == 0) result = right == 0 ? 1 : 0;
      if (left == -1) result = right % 2 == 0 ? 1 : -1;
    } else {
      if (right == 0) throw TemplateError{"division by zero"};
      if (right == -1) {
        is_too_large = symbol == "//" && left == INT64_MIN;
        result = symbol == "//" && !is_too_large ? -left : 0;
      } else {
        // Python rounds down, C++ towards zero.
        const bool rounds = left % right != 0 && (left < 0) != (right < 0);
        result = symbol == "//" ? left / right - (rounds ? 1 : 0) : left % right + (rounds ? right : 0);
      }
    }
    if (is_too_large) fail_too_large();
    return Value::integer(result);
  }

  static Value real_value(double left, std::string_view symbol, double right) {
    if (symbol == "+") return Value::number(left + right);
    if (symbol == "-") return Value::number(left - right);
    if (symbol == "*") return Value::number(left * right);
    if (symbol == "**") return Value::number(std::pow(left, right));
    if (right == 0) throw TemplateError{"division by zero"};
    if (symbol == "/") return Value::number(left / right);
    if (symbol == "//") return Value::number(std::floor(left / right));
    const double rest = std::fmod(left, right);
    return Value::number(rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest);
  }

  std::optional<Value> joined(const Value& left, const Value& right) {
    if (left.as_text() != nullptr && right.as_text() != nullptr) {
      Text text;
      emit(text, *left.as_text());
      emit(text, *right.as_text());
      return Value::text(std::move(text));
    }
    const List* list = left.as_list();
    const List* other = right.as_list();
    if (list == nullptr || other == nullptr || list->is_tuple != other->is_tuple) return std::nullopt;
    budget_.take_steps(list->items.size() + other->items.size());
    std::vector<Value> items = list->items;
    items.insert(items.end(), other->items.begin(), other->items.end());
    return Value::list(std::move(items), list->is_tuple);
  }

  std::optional<Value> repeated(const Value& value, std::int64_t count) {
    if (const Text* unit = value.as_text()) {
      Text text;
      for (std::int64_t i = 0; i < count; ++i) {
        budget_.take_steps();
        emit(text, *unit);
      }
      return Value::text(std::move(text));
    }
    const List* list = value.as_list();
    if (list == nullptr) return std::nullopt;
    std::vector<Value> items;
    for (std::int64_t i = 0; i < count; ++i) {
      budget_.take_steps(1 + list->items.size());
      items.insert(items.end(), list->items.begin(), list->items.end());
    }
    return Value::list(std::move(items), list->is_tuple);
  }

  Budget& budget_;
  std::int64_t unix_s_;
  std::deque<Namespace> namespaces_;  // Values point to them until the rendering ends.
  Scope root_;
  std::int32_t depth_ = 0;
  std::int32_t line_ = 0;  // The current line, for messages.
};

}  // namespace

Text run(const Body& body, const Environment& environment, Budget& budget) {
  return Interpreter(environment, budget).run(body);
}

}  // namespace uma::jinja
