// The tests of values, as in `value is name(argument)`.
#include <algorithm>
#include <format>

#include "jinja/builtins.h"

namespace uma::jinja {
namespace {

struct TestCall {
  std::string_view name;
  const Value& value;
  const Value& argument;  // Undefined for a test without an argument.
  Budget& budget;
};

struct ValueTest {
  std::string_view name;
  bool takes_argument;
  bool (*passes)(const TestCall& call);
};

std::int64_t integer_in(const TestCall& call, const Value& value) {
  std::int64_t number = 0;
  if (as_integer(value, number)) return number;
  throw TemplateError{std::format("the test \"{}\" needs an int, got {}", call.name, type_name(value))};
}

int order(const TestCall& call) {
  return compare(call.value, call.argument, call.budget);
}

bool is_equal(const TestCall& call) {
  return are_equal(call.value, call.argument, call.budget);
}

bool is_unequal(const TestCall& call) {
  return !is_equal(call);
}

bool is_less(const TestCall& call) {
  return order(call) < 0;
}

bool is_less_or_equal(const TestCall& call) {
  return order(call) <= 0;
}

bool is_greater(const TestCall& call) {
  return order(call) > 0;
}

bool is_greater_or_equal(const TestCall& call) {
  return order(call) >= 0;
}

bool is_divisible(const TestCall& call) {
  const std::int64_t divisor = integer_in(call, call.argument);
  if (divisor == 0) throw TemplateError{"division by zero"};
  return divisor == -1 || integer_in(call, call.value) % divisor == 0;
}

bool is_same(const TestCall& call) {
  return call.value.data().index() == call.argument.data().index() && is_equal(call);
}

bool is_boolean(const TestCall& call, bool wanted) {
  const bool* boolean = call.value.as_boolean();
  return boolean != nullptr && *boolean == wanted;
}

bool is_number(const TestCall& call) {
  return call.value.as_boolean() != nullptr || call.value.is_integer() || call.value.is_double();
}

bool is_sequence(const TestCall& call) {
  const Value& value = call.value;
  return value.as_text() != nullptr || value.as_list() != nullptr || value.as_dict() != nullptr || value.is_undefined();
}

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

// At least one letter of the wanted case, and none of the other.
template <bool (*is_wanted)(char), bool (*is_other)(char)>
bool has_only(const TestCall& call) {
  const TextPtr text = to_text_ptr(call.value, call.budget);
  call.budget.take_steps(text->size() / 64);
  return std::ranges::any_of(text->bytes(), is_wanted) && std::ranges::none_of(text->bytes(), is_other);
}

constexpr ValueTest kTests[] = {
    {"!=", true, is_unequal},
    {"<", true, is_less},
    {"<=", true, is_less_or_equal},
    {"==", true, is_equal},
    {">", true, is_greater},
    {">=", true, is_greater_or_equal},
    {"boolean", false, [](const TestCall& call) { return call.value.as_boolean() != nullptr; }},
    {"callable", false, [](const TestCall& call) { return call.value.as_callable() != nullptr; }},
    {"defined", false, [](const TestCall& call) { return !call.value.is_undefined(); }},
    {"divisibleby", true, is_divisible},
    {"eq", true, is_equal},
    {"equalto", true, is_equal},
    {"even", false, [](const TestCall& call) { return integer_in(call, call.value) % 2 == 0; }},
    {"false", false, [](const TestCall& call) { return is_boolean(call, false); }},
    {"float", false, [](const TestCall& call) { return call.value.is_double(); }},
    {"ge", true, is_greater_or_equal},
    {"greaterthan", true, is_greater},
    {"gt", true, is_greater},
    {"in", true, [](const TestCall& call) { return contains(call.argument, call.value, call.budget); }},
    {"integer", false, [](const TestCall& call) { return call.value.is_integer(); }},
    {"iterable", false, is_sequence},
    {"le", true, is_less_or_equal},
    {"lessthan", true, is_less},
    {"lower", false, has_only<is_lower, is_upper>},
    {"lt", true, is_less},
    {"mapping", false, [](const TestCall& call) { return call.value.as_dict() != nullptr; }},
    {"ne", true, is_unequal},
    {"none", false, [](const TestCall& call) { return call.value.is_none(); }},
    {"number", false, is_number},
    {"odd", false, [](const TestCall& call) { return integer_in(call, call.value) % 2 != 0; }},
    {"sameas", true, is_same},
    {"sequence", false, is_sequence},
    {"string", false, [](const TestCall& call) { return call.value.as_text() != nullptr; }},
    {"true", false, [](const TestCall& call) { return is_boolean(call, true); }},
    {"undefined", false, [](const TestCall& call) { return call.value.is_undefined(); }},
    {"upper", false, has_only<is_upper, is_lower>},
};

const ValueTest* find_test(std::string_view name) {
  const auto* const found = std::ranges::find(kTests, name, &ValueTest::name);
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

bool is_test(std::string_view name) {
  return find_test(name) != nullptr;
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Budget& budget) {
  const ValueTest* test = find_test(name);
  if (test == nullptr) throw TemplateError{std::format("the test \"{}\" is not supported", name)};
  budget.take_steps(1);
  if (arguments.positional.size() != (test->takes_argument ? 1u : 0u) || !arguments.named.empty()) {
    throw TemplateError{std::format("the test \"{}\" takes {} argument", name, test->takes_argument ? "one" : "no")};
  }
  const Value none;
  return test->passes({name, value, test->takes_argument ? arguments.positional.front() : none, budget});
}

}  // namespace uma::jinja
