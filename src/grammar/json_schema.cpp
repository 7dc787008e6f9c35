#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <format>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/utf8.h"
#include "grammar/json_pattern.h"
#include "grammar/json_schema_flatten.h"
#include "grammar/json_schema_formats.h"
#include "grammar/json_schema_numbers.h"
#include "grammar/json_schema_values.h"
#include "json/field_reader.h"

namespace uma::grammar {
namespace {

// Length of strings. Generated strings are not longer; smaller limits of the schema hold.
constexpr std::int64_t kLengthMax = 4096;
constexpr std::int64_t kItemsMax = 1024;  // Items of arrays with a limit, in the same way.

}  // namespace

class JsonRules::Compiler {
 public:
  explicit Compiler(JsonBlanks blanks) : blanks_(blanks) {}

  // Returns the rule of the schema's values.
  std::string add(const boost::json::value& schema, const boost::json::value& root) {
    const std::size_t bytes = gbnf.size();
    const std::size_t rules = rules_count_;
    const std::set<std::string> shared = shared_;
    try {
      return add_rules(schema, root);
    } catch (const Refusal&) {
      gbnf.resize(bytes);
      rules_count_ = rules;
      shared_ = shared;
      throw;
    }
  }

  std::string gbnf;

 private:
  struct Open {
    std::string rule;
    boost::json::value schema;
    std::string path;
  };

  std::string add_rules(const boost::json::value& schema, const boost::json::value& root) {
    flattener_.begin(root);
    known_.clear();
    open_.clear();
    const std::string rule = rule_of(schema, "#");
    while (!open_.empty()) {
      const Open open = std::move(open_.front());
      open_.pop_front();
      define(open.rule, body_of(flattener_.flatten(open.schema, open.path, 0), open.path));
    }
    return rule;
  }

  void define(const std::string& rule, std::string_view body) {
    gbnf += rule;
    gbnf += " ::= ";
    gbnf += body;
    gbnf += '\n';
    // Rules repeat merged parts of the schema.
    if (gbnf.size() > kSchemaBytesMax) throw Refusal{"#", "the schema is too large as a grammar"};
  }
  std::string new_rule() {
    if (++rules_count_ > kSchemaRulesMax)
      throw Refusal{"#", std::format("the schema needs more than {} rules", kSchemaRulesMax)};
    return std::format("json-{}", rules_count_);
  }
  // A rule that several schemas share.
  std::string shared(const std::string& name, std::string_view body) {
    const std::string rule = "json-" + name;
    if (shared_.insert(name).second) define(rule, body);
    return rule;
  }

  // Equal schemas share a rule, so that recursion ends.
  std::string rule_of(const boost::json::value& schema, const std::string& path) {
    std::string text = boost::json::serialize(schema);
    flattener_.charge(text.size() / 8, path);
    const auto [known, is_new] = known_.try_emplace(std::move(text));
    if (is_new) {
      known->second = new_rule();
      open_.push_back({known->second, schema, path});
    }
    return known->second;
  }

  // --- bodies of rules

  std::string body_of(const boost::json::value& schema, const std::string& path) {
    if (schema == false) return "[]";
    if (schema == true) return value_rule();
    const boost::json::object& object = schema.get_object();
    if (const boost::json::value* branches = object.if_contains("anyOf")) {
      boost::json::object rest = object;
      rest.erase("anyOf");
      std::vector<std::string> alternatives;
      for (const boost::json::value& branch : branches->get_array()) {
        alternatives.push_back(
            rule_of(rest.empty() ? branch : boost::json::object{{"allOf", boost::json::array{rest, branch}}}, path));
      }
      return joined(alternatives);
    }
    if (object.contains("enum")) return literals(object, path);
    std::vector<std::string> alternatives;
    const boost::json::array types = SchemaFlattener::types_of(object);
    for (const boost::json::value& type : types) {
      const std::string_view name = type.get_string();
      // "number" includes the integers.
      if (name == "integer" && std::ranges::find(types, boost::json::value("number")) != types.end()) continue;
      alternatives.push_back(body_of_type(name, object, path));
    }
    return joined(alternatives);
  }

  std::string body_of_type(std::string_view type, const boost::json::object& schema, const std::string& path) {
    if (type == "null") return "\"null\"";
    if (type == "boolean") return R"(("true" | "false"))";
    if (type == "integer" || type == "number") return number(schema, path, type == "integer");
    if (type == "string") return string(schema, path);
    if (type == "array") return array(schema, path);
    return object(schema, path);
  }

  // The listed values that the type allows. Other constraints are not checked, so they are refused.
  static std::string literals(const boost::json::object& schema, const std::string& path) {
    for (const auto& member : schema) {
      const std::string_view name = member.key();
      static constexpr std::array<std::string_view, 19> kAssertions = {
          "properties", "required",         "additionalProperties", "minProperties", "maxProperties", "items",   "prefixItems",
          "minItems",   "maxItems",         "uniqueItems",          "minLength",     "maxLength",     "pattern", "minimum",
          "maximum",    "exclusiveMinimum", "exclusiveMaximum",     "multipleOf",    "format"};
      if (std::ranges::contains(kAssertions, name)) refuse(below(path, name), "is not supported beside \"enum\" or \"const\"");
    }
    std::vector<std::string> alternatives;
    const boost::json::value* type = schema.if_contains("type");
    const boost::json::array types = type == nullptr ? boost::json::array() : SchemaFlattener::types_of(schema);
    for (const boost::json::value& value : schema.at("enum").get_array()) {
      if (type != nullptr &&
          std::ranges::none_of(types, [&](const boost::json::value& given) { return is_of_type(value, given.get_string()); }))
        continue;
      if (!is_finite(value)) refuse(below(path, "enum"), "has a number that is too large");
      std::string text;
      append_json(text, value);
      alternatives.push_back(gbnf_literal(text));
    }
    return joined(alternatives);
  }

  // --- numbers

  static std::string number(const boost::json::object& schema, const std::string& path, bool is_integer) {
    if (const boost::json::value* multiple = schema.if_contains("multipleOf")) {
      if (multiple->to_number<double>() != 1) refuse(below(path, "multipleOf"), "is supported only as 1");
      is_integer = true;
    }
    Bounds bounds;
    const auto bound = [&](std::string_view name, bool is_low, bool excludes) {
      const boost::json::value* value = schema.if_contains(name);
      if (value == nullptr) return;
      double limit = value->to_number<double>();
      bool is_excluded = excludes;
      if (is_integer) {
        // The nearest integer inside the bound.
        const double whole = is_low ? std::ceil(limit) : std::floor(limit);
        limit = is_excluded && whole == limit ? whole + (is_low ? 1 : -1) : whole;
        is_excluded = false;
      } else if (limit != std::trunc(limit)) {
        refuse(below(path, name), "must be a whole number for the type \"number\"");
      }
      constexpr double kEnd = static_cast<double>(kIntegerEnd);
      if (is_low ? limit <= -kEnd : limit >= kEnd) return;  // No generated number is beyond this bound.
      if (is_low ? limit >= kEnd : limit <= -kEnd) refuse(below(path, name), "needs numbers of more than 15 digits");
      std::optional<std::int64_t>& kept = is_low ? bounds.low : bounds.high;
      bool& kept_excluded = is_low ? bounds.low_excluded : bounds.high_excluded;
      const auto whole = static_cast<std::int64_t>(limit);
      const bool is_tighter = !kept || (is_low ? whole > *kept : whole < *kept) || (whole == *kept && is_excluded);
      if (!is_tighter) return;
      kept = whole;
      kept_excluded = is_excluded;
    };
    bound("minimum", true, false);
    bound("exclusiveMinimum", true, true);
    bound("maximum", false, false);
    bound("exclusiveMaximum", false, true);
    if (is_integer) return bounds.low && bounds.high && *bounds.low > *bounds.high ? joined({}) : integers(bounds);
    return numbers(bounds);
  }

  // --- strings

  std::string character_rule() {
    return shared("character",
                  R"([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | )"
                  R"([dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2})))");
  }

  static std::int64_t count(const boost::json::object& schema, std::string_view name, std::int64_t otherwise) {
    const boost::json::value* value = schema.if_contains(name);
    return value == nullptr ? otherwise : static_cast<std::int64_t>(std::min(value->to_number<double>(), 1e15));
  }

  std::string string(const boost::json::object& schema, const std::string& path) {
    const std::int64_t min = count(schema, "minLength", 0);
    const std::int64_t max = count(schema, "maxLength", std::numeric_limits<std::int64_t>::max());
    const boost::json::value* pattern = schema.if_contains("pattern");
    const boost::json::value* format = schema.if_contains("format");
    if (pattern != nullptr && format != nullptr) refuse(below(path, "format"), "is not supported beside \"pattern\"");
    if (pattern != nullptr || format != nullptr) {
      const std::string_view name = pattern != nullptr ? "pattern" : "format";
      const std::string_view given = (pattern != nullptr ? pattern : format)->get_string();
      const std::string_view text = pattern != nullptr ? given : format_pattern(given);
      if (text.empty() && pattern == nullptr) {
        refuse(below(path, name), std::format("\"{}\" is not supported; supported are date, time, date-time, duration, uuid, "
                                              "email, hostname, ipv4, ipv6 and uri",
                                              given));
      }
      const auto compiled = compile_pattern(text, character_rule());
      if (!compiled) refuse(below(path, name), compiled.error().message);
      const bool is_within =
          compiled->characters_min >= min &&
          (max == std::numeric_limits<std::int64_t>::max() || (compiled->characters_max && *compiled->characters_max <= max));
      if (!is_within) {
        refuse(below(path, name), "matches texts outside minLength and maxLength: write the length into the pattern");
      }
      return std::format(R"("\"" {} "\"")", compiled->gbnf);
    }
    if (min > kLengthMax) refuse(below(path, "minLength"), std::format("is supported up to {}", kLengthMax));
    if (min > max) return joined({});
    if (schema.contains("maxLength"))
      return std::format(R"("\"" {}{{{},{}}} "\"")", character_rule(), min, std::min(max, kLengthMax));
    return std::format(R"("\"" {}{{{},}} "\"")", character_rule(), min);
  }

  // --- arrays

  std::string blank_rule() { return blanks_ == JsonBlanks::python ? R"("")" : shared("blank", R"((" " | "\n" [ \t]{0,20})?)"); }
  std::string comma_rule() { return blanks_ == JsonBlanks::python ? R"(", ")" : std::format(R"("," {})", blank_rule()); }
  [[nodiscard]] std::string_view after_colon() const { return blanks_ == JsonBlanks::python ? R"(" ")" : R"(" "?)"; }

  std::string array(const boost::json::object& schema, const std::string& path) {
    if (const boost::json::value* unique = schema.if_contains("uniqueItems"); unique != nullptr && *unique == true) {
      if (count(schema, "maxItems", 2) > 1) refuse(below(path, "uniqueItems"), "is not supported");
    }
    const boost::json::value* prefix_value = schema.if_contains("prefixItems");
    const boost::json::array prefix = prefix_value == nullptr ? boost::json::array() : prefix_value->get_array();
    const boost::json::value* items = schema.if_contains("items");
    const auto prefix_count = static_cast<std::int64_t>(prefix.size());
    const std::int64_t min = count(schema, "minItems", 0);
    const bool has_max = schema.contains("maxItems");
    // Items without a schema are generated only if minItems requires them.
    const bool is_closed = items == nullptr ? !prefix.empty() && min <= prefix_count : *items == false;
    const std::int64_t max =
        is_closed ? std::min(prefix_count, count(schema, "maxItems", prefix_count)) : count(schema, "maxItems", kItemsMax);
    if (min > kItemsMax) refuse(below(path, "minItems"), std::format("is supported up to {}", kItemsMax));
    if (min > max) return joined({});
    const std::string blank = blank_rule();
    const auto item = [&](std::int64_t i) {
      const auto index = static_cast<std::size_t>(i);
      if (i < prefix_count) return rule_of(prefix[index], below(path, "prefixItems", index));
      return items == nullptr ? value_rule() : rule_of(*items, below(path, "items"));
    };
    if (max == 0) return std::format(R"("[" {} "]")", blank);
    const std::string comma = comma_rule();
    // Built from the end: `rest` may follow the items before it.
    std::string rest;
    if (max > prefix_count) {
      const std::int64_t least = std::max<std::int64_t>(0, min - std::max<std::int64_t>(prefix_count, 1));
      const std::int64_t most = std::min(max, kItemsMax) - std::max<std::int64_t>(prefix_count, 1);
      const std::string more = std::format("({} {})", comma, item(prefix_count));
      rest = has_max ? std::format("{}{{{},{}}}", more, least, std::max(least, most)) : std::format("{}{{{},}}", more, least);
    }
    const std::int64_t single = std::max<std::int64_t>(std::min(max, prefix_count), 1);  // Items with a rule of their own.
    for (std::int64_t i = single - 1; i >= 0; --i) {
      std::string here = i == 0 ? item(i) : std::format("{} {}", comma, item(i));
      const std::string from_here = rest.empty() ? here : std::format("{} {}", here, rest);
      const std::string rule = new_rule();
      define(rule, from_here);
      rest = i >= min ? rule + "?" : rule;
    }
    return std::format(R"("[" {0} {1} {0} "]")", blank, rest);
  }

  // --- objects

  std::string object(const boost::json::object& schema, const std::string& path) {
    const boost::json::value* properties_value = schema.if_contains("properties");
    boost::json::object properties = properties_value == nullptr ? boost::json::object() : properties_value->get_object();
    const boost::json::value* additional = schema.if_contains("additionalProperties");
    std::set<std::string, std::less<>> required;
    if (const boost::json::value* keys = schema.if_contains("required")) {
      for (const boost::json::value& key : keys->get_array()) required.emplace(key.get_string());
    }
    // A required property without a schema has the schema of additional properties.
    for (const std::string& key : required) {
      if (!properties.contains(key)) properties[key] = additional == nullptr ? boost::json::value(true) : *additional;
    }
    // An object with listed properties has no others, unless the schema allows them.
    const bool is_open = additional == nullptr ? properties.empty() : *additional != false;
    check_counts(schema, path, properties.size(), required.size(), is_open);

    const std::string blank = blank_rule();
    const std::string comma = comma_rule();
    std::string rest;   // Behind a member.
    std::string first;  // Before the first member.
    if (is_open) {
      const std::string value =
          additional == nullptr ? value_rule() : rule_of(*additional, below(path, "additionalProperties"));
      const std::string member = new_rule();
      define(member, std::format(R"({} ":" {} {})", key_rule(properties), after_colon(), value));
      const std::int64_t most =
          std::min(count(schema, "maxProperties", kItemsMax), kItemsMax) - static_cast<std::int64_t>(properties.size());
      const bool has_max = schema.contains("maxProperties");
      rest = has_max ? std::format("({} {}){{0,{}}}", comma, member, std::max<std::int64_t>(most, 0))
                     : std::format("({} {})*", comma, member);
      const std::string others =
          has_max ? std::format("({} {}){{0,{}}}", comma, member, std::max<std::int64_t>(most - 1, 0)) : rest;
      const bool needs_one = count(schema, "minProperties", 0) > 0 && required.empty() && properties.empty();
      first = has_max && most < 1 ? "" : std::format("({} {}){}", member, others, needs_one ? "" : "?");
    }
    for (auto property = properties.end(); property != properties.begin();) {
      --property;
      const std::string key(property->key());
      const bool is_required = required.contains(key);
      const std::string member = new_rule();
      define(member, std::format("{} {} {}", gbnf_literal(boost::json::serialize(boost::json::string_view(key)) + ":"),
                                 after_colon(), rule_of(property->value(), below(below(path, "properties"), key))));
      // Rules, so that the following text is not repeated twice each time.
      const std::string first_rule = new_rule();
      const std::string alone = rest.empty() ? member : std::format("{} {}", member, rest);
      define(first_rule, is_required     ? alone
                         : first.empty() ? std::format("({})?", alone)
                                         : std::format("{} | {}", alone, first));
      const std::string rest_rule = new_rule();
      define(rest_rule, std::format("({} {}){} {}", comma, member, is_required ? "" : "?", rest));
      first = first_rule;
      rest = rest_rule;
    }
    if (first.empty()) return std::format(R"("{{" {} "}}")", blank);
    return std::format(R"("{{" {0} {1} {0} "}}")", blank, first);
  }

  static void check_counts(const boost::json::object& schema, const std::string& path, std::size_t listed, std::size_t required,
                           bool is_open) {
    const auto min = static_cast<std::size_t>(count(schema, "minProperties", 0));
    if (min > required && !(min == 1 && listed == 0 && is_open)) {
      refuse(below(path, "minProperties"), "is supported only up to the number of \"required\" properties");
    }
    const auto max = static_cast<std::size_t>(count(schema, "maxProperties", 1'000'000'000'000));
    if (max < listed) refuse(below(path, "maxProperties"), "is not supported below the number of listed properties");
  }

  // The names of properties that are not listed. They have no escapes, so no spelling of a listed name is possible.
  std::string key_rule(const boost::json::object& listed) {
    if (listed.empty()) return std::format(R"("\"" {}* "\"")", character_rule());
    // A prefix tree of the listed names.
    struct Node {
      std::map<std::string, std::size_t> next;  // Indexed by the next character.
      bool is_name = false;
    };
    std::vector<Node> nodes(1);
    for (const auto& member : listed) {
      std::size_t at = 0;
      const std::string_view key = member.key();
      for (std::size_t i = 0; i < key.size();) {
        std::size_t end = i + 1;
        while (end < key.size() && (static_cast<unsigned char>(key[end]) & 0xC0) == 0x80) ++end;
        const auto [next, is_new] = nodes[at].next.try_emplace(std::string(key.substr(i, end - i)), nodes.size());
        const std::size_t child = next->second;
        if (is_new) nodes.emplace_back();
        at = child;
        i = end;
      }
      nodes[at].is_name = true;
    }
    std::vector<std::string> rules;
    for (std::size_t i = 0; i < nodes.size(); ++i) rules.push_back(new_rule());
    const std::string any = shared("plain", R"([^"\\\x00-\x1f]*)");
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      // Here the name ends, or another character follows, or a character of a listed name.
      std::vector<std::string> alternatives;
      if (!nodes[i].is_name) alternatives.emplace_back("\"\"");
      std::string others = R"([^"\\\x00-\x1f)";
      for (const auto& [character, child] : nodes[i].next) {
        if (character == "\"" || character == "\\" || static_cast<unsigned char>(character[0]) < 0x20)
          continue;  // Such a character is always escaped.
        others += character == "]" || character == "-" || character == "^" ? "\\" + character : character;
        alternatives.push_back(std::format("{} {}", gbnf_literal(character), rules[child]));
      }
      alternatives.push_back(std::format("{}] {}", others, any));
      define(rules[i], joined(alternatives));
    }
    return std::format(R"("\"" {} "\"")", rules[0]);
  }

  // --- anything

  std::string value_rule() {
    if (shared_.insert("value").second) {
      const std::string blank = blank_rule();
      const std::string character = character_rule();
      define("json-value", std::format(R"(json-object | json-array | "\"" {}* "\"" | {} | "true" | "false" | "null")",
                                       character, numbers({})));
      const std::string comma = comma_rule();
      define("json-object", std::format(R"("{{" {0} (json-member ({1} json-member)*)? {0} "}}")", blank, comma));
      define("json-member", std::format(R"("\"" {}* "\":" {} json-value)", character, after_colon()));
      define("json-array", std::format(R"("[" {0} (json-value ({1} json-value)*)? {0} "]")", blank, comma));
    }
    return "json-value";
  }

  const JsonBlanks blanks_;
  SchemaFlattener flattener_;
  std::map<std::string, std::string> known_;  // The rule of each schema, indexed by its text.
  std::deque<Open> open_;
  std::set<std::string> shared_;
  std::size_t rules_count_ = 0;
};

JsonRules::JsonRules(JsonBlanks blanks) : compiler_(std::make_unique<Compiler>(blanks)) {}
JsonRules::~JsonRules() = default;

const std::string& JsonRules::gbnf() const {
  return compiler_->gbnf;
}

Expected<std::string> JsonRules::add(std::string_view schema) {
  if (schema.size() > kSchemaBytesMax) {
    return fail(ErrorCode::proto_field,
                std::format("the schema has {} bytes; the limit is {}", schema.size(), kSchemaBytesMax));
  }
  if (!is_utf8(schema)) return fail(ErrorCode::proto_field, "the schema is not valid UTF-8");
  boost::system::error_code problem;
  const boost::json::value root = json::parse(schema, {}, problem);
  if (problem) return fail(ErrorCode::proto_field, "the schema is not valid JSON: " + problem.message());
  return add(root, root);
}

Expected<std::string> JsonRules::add(const boost::json::value& schema, const boost::json::value& root) {
  try {
    return compiler_->add(schema, root);
  } catch (const Refusal& refusal) {
    return fail(ErrorCode::proto_field, std::format("{}: {}", refusal.path, refusal.what));
  }
}

Expected<std::string> json_schema_gbnf(std::string_view schema) {
  JsonRules rules;
  const auto root = rules.add(schema);
  if (!root) return std::unexpected(root.error());
  return std::format("root ::= {}\n{}", *root, rules.gbnf());
}

Expected<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema) {
  const auto gbnf = json_schema_gbnf(schema);
  if (!gbnf) return std::unexpected(gbnf.error());
  auto grammar = Grammar::parse(*gbnf);
  // Any other error is about the size.
  if (!grammar && grammar.error().message.contains("no finite text"))
    return fail(ErrorCode::proto_field, "no JSON value satisfies the schema");
  return grammar;
}

}  // namespace uma::grammar
