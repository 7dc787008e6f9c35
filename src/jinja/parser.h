// The syntax tree of a chat template, and its parser. Constructs that chat templates do not use are refused with name and line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace uma::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Argument {
  std::string name;  // Empty: a positional argument.
  ExpressionPtr value;
};

struct Expression {
  enum class Kind : std::uint8_t {
    literal,      // value
    name,         // name
    list,         // operands
    tuple,        // operands
    dict,         // operands: key, value, key, value ...
    attribute,    // operands[0].name
    item,         // operands[0][operands[1]]
    slice,        // operands[0][operands[1]:operands[2]:operands[3]], the last three may be null.
    call,         // operands[0](arguments)
    filter,       // operands[0] | name(arguments); operands[0] is null for the content of a block.
    test,         // operands[0] is name(arguments).
    negate,       // -operands[0]
    plus,         // +operands[0]
    logical_not,  // Not operands[0].
    arithmetic,   // operands[0] name operands[1].
    concat,       // Operands, each printed.
    compare,      // operands[0] names[0] operands[1] names[1] operands[2] ...
    logical_and,  // operands[0] and operands[1].
    logical_or,   // operands[0] or operands[1].
    conditional,  // operands[0] if operands[1] else operands[2], which may be null.
  };
  Kind kind;
  std::int32_t line = 0;
  std::int32_t depth = 1;
  std::string name;
  std::vector<std::string> names;
  Value value;
  std::vector<ExpressionPtr> operands;
  std::vector<Argument> arguments;
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Branch {
  ExpressionPtr condition;  // Null: else.
  Body body;
};

struct Statement {
  enum class Kind : std::uint8_t {
    text,           // text
    output,         // value
    conditional,    // branches
    loop,           // For names in value if condition: body, else_body.
    assign,         // Set names = value.
    assign_member,  // Set names[0].names[1] = value.
    capture,        // Set names[0] | value: body; value may be null.
    macro,          // Macro names[0](parameters): body.
    call,           // call(parameters) value: body
    filter,         // Filter value: body.
    scope,          // generation: body
    leave_loop,     // break
    next_round,     // continue
  };
  Kind kind;
  std::int32_t line = 0;
  TextPtr text;
  ExpressionPtr value;
  ExpressionPtr condition;
  std::vector<std::string> names;
  std::vector<Argument> parameters;  // An argument without a value has no default.
  std::vector<Branch> branches;
  Body body;
  Body else_body;
};

inline constexpr std::size_t kSourceBytesMax = 131'072;

// Throws TemplateError.
[[nodiscard]] Body parse(std::string_view source);

}  // namespace uma::jinja
