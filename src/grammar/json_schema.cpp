#include "grammar/json_schema.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <format>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/utf8.h"
#include "grammar/json_pattern.h"
#include "grammar/json_schema_check.h"
#include "grammar/json_schema_flatten.h"
#include "grammar/json_schema_formats.h"
#include "grammar/json_schema_numbers.h"
#include "grammar/json_schema_values.h"
#include "grammar/member_list.h"
#include "grammar/rule_writer.h"
#include "json/field_reader.h"

namespace uma::grammar {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kItemsMax = 1024;       // Items of arrays with a limit; smaller limits of the schema hold.
constexpr std::int64_t kNarrowMax = 40;        // Repetitions in a pattern that is too large as it is.
constexpr std::size_t kFiniteValuesMax = 128;  // Values of which an array may be a set.
constexpr std::size_t kPatternKeysMax = 16;    // Patterns of the keys of one object.

bool looks_ahead(const Pattern& pattern) {
  return pattern.kind == Pattern::Kind::ahead || pattern.kind == Pattern::Kind::not_ahead ||
         std::ranges::any_of(pattern.children, looks_ahead);
}

}  // namespace

class JsonRules::Compiler {
 public:
  Compiler(JsonBlanks blanks, LeftOut* left_out) : blanks_(blanks), left_out_(left_out == nullptr ? unread_ : *left_out) {}

  // Returns the rule of the schema's values.
  std::string add(const boost::json::value& schema, const boost::json::value& root) {
    RuleWriter::Place place = rules_.place();
    const std::size_t places = left_out_.places().size();
    try {
      return add_rules(schema, root);
    } catch (const Refusal&) {
      rules_.take_back(std::move(place));
      left_out_.resize(places);
      text_rules_.clear();
      throw;
    }
  }

  [[nodiscard]] const std::string& gbnf() const { return rules_.gbnf(); }

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
      rules_.define(open.rule, body_of(flattener_.flatten(open.schema, open.path, 0), open.path));
    }
    return rule;
  }

  // Equal schemas share a rule, so that recursion ends.
  std::string rule_of(const boost::json::value& schema, const std::string& path) {
    std::string text = boost::json::serialize(schema);
    flattener_.charge(text.size() / 8, path);
    const auto [known, is_new] = known_.try_emplace(std::move(text));
    if (is_new) {
      known->second = rules_.new_rule();
      open_.push_back({known->second, schema, path});
    }
    return known->second;
  }

  // --- bodies of rules

  std::string body_of(const boost::json::value& schema, const std::string& path) {
    if (schema == false) return joined({});
    if (schema == true) return value_rule();
    const boost::json::object& object = schema.get_object();
    if (object.contains("enum")) return literals(object, path);
    if (const boost::json::value* branches = object.if_contains("anyOf")) {
      boost::json::object rest = object;
      rest.erase("anyOf");
      std::vector<std::string> alternatives;
      const boost::json::array& all = branches->get_array();
      for (std::size_t i = 0; i < all.size(); ++i) {
        alternatives.push_back(rest.empty() ? rule_of(all[i], below(path, "anyOf", i))
                                            : rule_of(boost::json::object{{"allOf", boost::json::array{rest, all[i]}}}, path));
      }
      return joined(alternatives);
    }
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
    if (type == "string" && has_json(schema)) return json_text(schema, path);
    if (type == "string") return std::format(R"("\"" {} "\"")", string(schema, path));
    if (type == "array") return array(schema, path);
    return object(schema, path);
  }

  static std::string literal_of(const boost::json::value& value, const std::string& path) {
    if (!is_finite(value)) refuse(below(path, "enum"), "has a number that is too large");
    std::string text;
    append_json(text, value);
    return gbnf_literal(text);
  }

  // The listed values that the other keywords allow.
  std::string literals(const boost::json::object& schema, const std::string& path) {
    std::vector<std::string> alternatives;
    for (const boost::json::value& value : schema.at("enum").get_array()) {
      if (checker_.allows(schema, value, path)) alternatives.push_back(literal_of(value, path));
    }
    std::string all = joined(alternatives);
    if (all.size() > kSchemaBytesMax || states_of(std::move(alternatives)) > Grammar::kStatesMax)
      refuse(below(path, "enum"), "has more values than a grammar can have: send fewer or shorter ones");
    return all;
  }

  // The states of a grammar for the texts, whose common beginnings share theirs.
  static std::size_t states_of(std::vector<std::string> texts) {
    std::ranges::sort(texts);
    std::size_t states = 0;
    std::string_view before;
    for (const std::string& text : texts) {
      states += static_cast<std::size_t>(text.end() - std::ranges::mismatch(text, before).in1);
      before = text;
    }
    return states;
  }

  // --- numbers

  std::string number(const boost::json::object& schema, const std::string& path, bool is_integer) {
    NumberBounds bounds;
    for (const auto& [name, is_low, excludes] :
         {std::tuple("minimum", true, false), std::tuple("exclusiveMinimum", true, true), std::tuple("maximum", false, false),
          std::tuple("exclusiveMaximum", false, true)}) {
      const boost::json::value* value = schema.if_contains(name);
      if (value == nullptr) continue;
      NumberBound bound = bound_of(*value, excludes);
      std::optional<NumberBound>& kept = is_low ? bounds.low : bounds.high;
      const auto order = kept ? compare(bound, *kept) : std::weak_ordering::equivalent;
      if (!kept || (is_low ? order > 0 : order < 0) || (order == 0 && excludes)) kept = std::move(bound);
    }
    const bool has_bounds = bounds.low || bounds.high;
    std::optional<Divisor> divisor;
    if (const boost::json::value* multiple = schema.if_contains("multipleOf")) {
      divisor = divisor_of(*multiple);
      if (!divisor) left_out_.add(below(path, "multipleOf"), "has too many digits");
      if (divisor && divisor->decimals == 0) is_integer = true;
      if (divisor && divisor->units == 1 && is_integer) divisor.reset();
    }
    if (!is_integer && !has_bounds && !divisor) return add_number(any_number(), std::nullopt).value();
    // Readers divide doubles, which have 15 digits, or whole numbers up to 2^53.
    if (divisor && divisor->decimals > 0 && !has_bounds) {
      bounds = {.low = NumberBound{.is_negative = true, .whole = "999999"}, .high = NumberBound{.whole = "999999"}};
    } else if (divisor) {
      const auto& given = bounds.low ? bounds.low : bounds.high;
      const std::string_view end = given && given->whole.size() > 15 ? "99999999999999999999" : "9007199254740991";
      if (!bounds.low) bounds.low = NumberBound{.is_negative = true, .whole = std::string(end)};
      if (!bounds.high) bounds.high = NumberBound{.whole = std::string(end)};
    }
    auto texts = is_integer ? integers_between(bounds) : numbers_between(bounds);
    if (!texts) {
      left_out_.add(below(path, bounds.low && bounds.low->whole.size() > 40 ? "minimum" : "maximum"), "has too many digits");
      texts = is_integer ? integers_between({}) : numbers_between({});
    }
    if (texts->empty()) return joined({});
    if (auto rule = add_number(*texts, divisor)) return *rule;
    left_out_.add(below(path, "multipleOf"), "needs too large a grammar");
    return add_number(*texts, std::nullopt).value();
  }

  [[nodiscard]] std::optional<std::string> add_number(const std::string& texts, std::optional<Divisor> divisor) {
    const std::string key = divisor ? std::format("{} {} {}", texts, divisor->units, divisor->decimals) : texts;
    return shared_text(key, [&] {
      return texts_.add({.all = {read_pattern(std::format("^(?:{})$", texts)).value()}, .divisor = divisor}, Spelling::plain);
    });
  }

  // The rule of a text or a number, which equal ones share; nullopt: as `make` says.
  template <typename Make>
  [[nodiscard]] std::optional<std::string> shared_text(const std::string& key, const Make& make) {
    if (const auto known = text_rules_.find(key); known != text_rules_.end()) return known->second;
    const std::optional<std::string> text = make();
    constexpr std::size_t kShortBytes = 64;
    if (!text || *text == joined({})) return text;
    if (text->size() <= kShortBytes) return text_rules_[key] = *text;
    const std::string rule = rules_.new_rule();
    rules_.define(rule, *text);
    return text_rules_[key] = rule;
  }

  // --- strings

  // The conditions that a schema sets for a text.
  struct TextConditions {
    std::vector<Pattern> patterns{};
    std::optional<Pattern> format{};
    std::optional<Pattern> long_format{};  // The format with its own limits, where `format` is the shorter one.
    std::int64_t min = 0;
    std::int64_t max = kUnlimited;

    [[nodiscard]] bool has_length() const { return min > 0 || max != kUnlimited; }
    [[nodiscard]] TextLanguage language() const {
      TextLanguage all{.all = patterns, .min = min};
      if (format) all.all.push_back(*format);
      if (max != kUnlimited) all.max = max;
      return all;
    }
  };

  TextConditions conditions_of(const boost::json::object& schema, const std::string& path) {
    TextConditions conditions{.patterns = checker_.patterns_of(schema, path),
                              .min = count_of(schema, "minLength", 0),
                              .max = count_of(schema, "maxLength", kUnlimited)};
    // An unknown format constrains nothing.
    if (const boost::json::value* format = schema.if_contains("format")) {
      const std::string_view name = format->get_string();
      std::string_view pattern = format_pattern(name);
      if (is_local_format(name)) left_out_.add(below(path, "format"), "depends on the machine that reads it");
      if (!pattern.empty()) {
        conditions.format = read_pattern(pattern).value();
        if (conditions.max >= format_length_max(name).value_or(kUnlimited)) conditions.max = kUnlimited;
        // Where the length cuts it, or a pattern does, a shorter automaton helps.
        const PatternLength length = length_of(*conditions.format);
        const bool is_cut = conditions.max != kUnlimited && (!length.max || *length.max > conditions.max);
        if (is_cut || !conditions.patterns.empty())
          conditions.long_format = std::exchange(conditions.format, read_pattern(format_pattern(name, true)).value());
      }
    }
    return conditions;
  }

  // The text between the quotes.
  std::string string(const boost::json::object& schema, const std::string& path) {
    boost::json::object key;
    for (const std::string_view name : {std::string_view("pattern"), kMorePatterns, std::string_view("format"),
                                        std::string_view("minLength"), std::string_view("maxLength")}) {
      if (const boost::json::value* value = schema.if_contains(name)) key[name] = *value;
    }
    const std::string text = boost::json::serialize(key);
    flattener_.charge(text.size() / 8, path);
    return shared_text(text, [&] { return std::optional(text_of(schema, path)); }).value();
  }

  // With as many of the conditions as there is a grammar for.
  std::string text_of(const boost::json::object& schema, const std::string& path) {
    TextConditions conditions = conditions_of(schema, path);
    const auto leave_out = [&](std::string_view keyword) {
      if (schema.contains(keyword)) left_out_.add(below(path, keyword), "needs too large a grammar");
    };
    for (bool is_narrowed = false;;) {
      const auto text = texts_.add(conditions.language(), Spelling::json);
      const bool is_narrow = conditions.format && (!conditions.patterns.empty() || conditions.has_length());
      // Formats have only some of their texts.
      if (text && !(is_narrow && *text == joined({}))) return *text;
      const bool may_narrow = std::ranges::any_of(conditions.patterns, looks_ahead);
      if (may_narrow && !text && !std::exchange(is_narrowed, true)) {
        // Assertions about long texts multiply the states.
        for (Pattern& pattern : conditions.patterns) pattern = narrowed(std::move(pattern), kNarrowMax);
      } else if (is_narrow && !text && conditions.patterns.empty() && conditions.long_format) {
        conditions.format = std::exchange(conditions.long_format, std::nullopt);
      } else if (is_narrow) {
        conditions.format.reset();
        leave_out("format");
      } else if (!conditions.patterns.empty() && conditions.has_length()) {
        conditions.min = 0;
        conditions.max = kUnlimited;
        leave_out("minLength");
        leave_out("maxLength");
      } else if (!conditions.patterns.empty()) {
        // Patterns may be too many together.
        conditions.patterns.pop_back();
        leave_out("pattern");
      } else if (conditions.format) {
        conditions.format.reset();
        leave_out("format");
      } else {
        conditions = {};
        leave_out("minLength");
        leave_out("maxLength");
      }
    }
  }

  // Whether the text is a JSON text: an annotation, which readers that ask for it rely on.
  static bool has_json(const boost::json::object& schema) {
    const boost::json::value* media = schema.if_contains("contentMediaType");
    return media != nullptr && *media == "application/json" && !schema.contains("pattern") && !schema.contains("format") &&
           !schema.contains("minLength") && !schema.contains("maxLength") && !schema.contains("contentEncoding");
  }

  // A string with a JSON text, whose own texts need no escapes.
  std::string json_text(const boost::json::object& schema, const std::string& path) {
    if (const boost::json::value* content = schema.if_contains("contentSchema");
        content != nullptr && *content != true && *content != boost::json::object())
      left_out_.add(below(path, "contentSchema"), "is not supported");
    const std::string number = add_number(any_number(), std::nullopt).value();
    const std::string inner = rules_.shared("inner-text", R"("\\\"" [^"\\\x00-\x1f]* "\\\"")");
    const std::string value = rules_.shared(
        "inner", std::format(R"({} | {} | "true" | "false" | "null" | json-inner-array | json-inner-object)", inner, number));
    (void)rules_.shared("inner-array", R"("[" (json-inner (", " json-inner)*)? "]")");
    (void)rules_.shared("inner-object",
                        R"("{" (json-inner-text ": " json-inner (", " json-inner-text ": " json-inner)*)? "}")");
    return std::format(R"("\"" {} "\"")", value);
  }

  // --- arrays

  std::string blank_rule() {
    return blanks_ == JsonBlanks::python ? R"("")" : rules_.shared("blank", R"((" " | "\n" [ \t]{0,20})?)");
  }
  std::string comma_rule() { return blanks_ == JsonBlanks::python ? R"(", ")" : std::format(R"("," {})", blank_rule()); }
  [[nodiscard]] std::string_view after_colon() const { return blanks_ == JsonBlanks::python ? R"(" ")" : R"(" "?)"; }

  std::string array(const boost::json::object& schema, const std::string& path) {
    const boost::json::value* unique = schema.if_contains("uniqueItems");
    if (unique != nullptr && *unique == true && count_of(schema, "maxItems", 2) > 1) {
      if (auto set = set_of(schema, path)) return *set;
      left_out_.add(below(path, "uniqueItems"), "is supported for a few listed values");
    }
    const boost::json::value* prefix_value = schema.if_contains("prefixItems");
    const boost::json::array prefix = prefix_value == nullptr ? boost::json::array() : prefix_value->get_array();
    const boost::json::value* items = schema.if_contains("items");
    const auto prefix_count = static_cast<std::int64_t>(prefix.size());
    std::int64_t min = count_of(schema, "minItems", 0);
    if (min > kItemsMax) {
      left_out_.add(below(path, "minItems"), std::format("is supported up to {}", kItemsMax));
      min = 0;
    }
    const bool has_max = schema.contains("maxItems");
    // Items without a schema are generated only if minItems requires them.
    const bool is_closed = items == nullptr ? !prefix.empty() && min <= prefix_count : *items == false;
    const std::int64_t max = is_closed ? std::min(prefix_count, count_of(schema, "maxItems", prefix_count))
                                       : count_of(schema, "maxItems", kItemsMax);
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
      const std::string rule = rules_.new_rule();
      rules_.define(rule, from_here);
      rest = i >= min ? rule + "?" : rule;
    }
    return std::format(R"("[" {0} {1} {0} "]")", blank, rest);
  }

  // The grammar of an array without equal items; nullopt: there is none, or it would be too large.
  std::optional<std::string> set_of(const boost::json::object& schema, const std::string& path) {
    const boost::json::value* items = schema.if_contains("items");
    if (items == nullptr || schema.contains("prefixItems")) return std::nullopt;
    std::vector<boost::json::value> values;
    if (!append_values(*items, below(path, "items"), values, 0)) return std::nullopt;
    MemberList list{
        .comma = comma_rule(), .min = count_of(schema, "minItems", 0), .max = count_of(schema, "maxItems", kUnlimited)};
    for (const boost::json::value& value : values) list.members.push_back({.text = literal_of(value, path)});
    constexpr std::size_t kAnyOrderMax = 5;
    const bool has_any_order = values.size() <= kAnyOrderMax && rules_.rules_left() > kSchemaRulesMax / 2;
    if (!has_any_order && (!list.is_small() || rules_.rules_left() < kSchemaRulesMax / 4)) return std::nullopt;
    const std::string members = has_any_order ? in_any_order(list) : list_rules(list, rules_);
    return std::format(R"("[" {0} {1} {0} "]")", blank_rule(), members);
  }

  // The members of the list in every order; few of them.
  std::string in_any_order(const MemberList& list) {
    const std::size_t sets = std::size_t{1} << list.members.size();
    std::vector<std::string> rules(sets);  // Rules for what may follow each set of members.
    for (std::size_t set = sets; set-- > 0;) {
      const auto count = static_cast<std::int64_t>(std::popcount(set));
      std::vector<std::string> alternatives;
      if (count >= list.min && count <= list.max) alternatives.emplace_back(R"("")");
      for (std::size_t i = 0; i < list.members.size() && count < list.max; ++i) {
        if ((set >> i & 1) != 0) continue;
        alternatives.push_back(
            std::format("{} {} {}", set == 0 ? R"("")" : list.comma, list.members[i].text, rules[set | 1u << i]));
      }
      rules[set] = rules_.new_rule();
      rules_.define(rules[set], joined(alternatives));
    }
    return rules[0];
  }

  // Appends all values of the schema. False: they are too many.
  bool append_values(const boost::json::value& schema, const std::string& path, std::vector<boost::json::value>& values,
                     int depth) {
    const boost::json::value flat = flattener_.flatten(schema, path, 0);
    const boost::json::object* object = flat.if_object();
    if (object == nullptr || depth > 4) return false;
    const auto add = [&](const boost::json::value& value) {
      if (!checker_.allows(*object, value, path)) return true;
      flattener_.charge(values.size() + 1, path);
      if (std::ranges::none_of(values, [&](const auto& known) { return same_value(known, value); })) values.push_back(value);
      return values.size() <= kFiniteValuesMax;
    };
    if (const boost::json::value* listed = object->if_contains("enum")) return std::ranges::all_of(listed->get_array(), add);
    if (const boost::json::value* branches = object->if_contains("anyOf")) {
      if (object->size() > 1) return false;
      return std::ranges::all_of(branches->get_array(),
                                 [&](const auto& branch) { return append_values(branch, path, values, depth + 1); });
    }
    const boost::json::array types = SchemaFlattener::types_of(*object);
    return std::ranges::all_of(types, [&](const boost::json::value& type) {
      if (type == "null") return add(nullptr);
      if (type == "boolean") return add(false) && add(true);
      if (type != "integer") return false;
      const double low = bound_among(*object, "minimum", "exclusiveMinimum");
      const double high = bound_among(*object, "maximum", "exclusiveMaximum");
      if (!(std::abs(low) < 1e9 && high - low < kFiniteValuesMax)) return false;
      bool has_room = true;
      for (auto value = static_cast<std::int64_t>(std::floor(low)); has_room && static_cast<double>(value) <= high; ++value)
        has_room = add(value);
      return has_room;
    });
  }
  static double bound_among(const boost::json::object& schema, std::string_view name, std::string_view other) {
    for (const std::string_view key : {name, other}) {
      if (const boost::json::value* bound = schema.if_contains(key)) return bound->to_number<double>();
    }
    return std::numeric_limits<double>::infinity();
  }

  // --- objects

  // The keys that an object may have, with the schemas of their values.
  struct Keys {
    boost::json::object listed{};  // Their schemas; `false` for one that must not be there.
    std::set<std::string, std::less<>> required{};
    std::optional<TextConditions> others{};                            // Conditions of others; nullopt: there are no others.
    std::vector<std::pair<Pattern, boost::json::value>> by_pattern{};  // The schemas of others that match.
    boost::json::value additional = true;                              // The schema of others that match none.
  };

  Keys keys_of(const boost::json::object& schema, const std::string& path) {
    Keys keys;
    if (const boost::json::value* listed = schema.if_contains("properties")) keys.listed = listed->get_object();
    if (const boost::json::value* required = schema.if_contains("required")) {
      for (const boost::json::value& key : required->get_array()) keys.required.emplace(key.get_string());
    }
    const boost::json::value* additional = schema.if_contains("additionalProperties");
    if (additional != nullptr) keys.additional = *additional;
    read_key_patterns(keys, schema, path);
    // An object with listed properties has no others, unless the schema allows them.
    const bool has_names = !keys.listed.empty() || !keys.by_pattern.empty();
    if (additional == nullptr && has_names) keys.additional = false;
    if (keys.additional != false || !keys.by_pattern.empty()) keys.others = TextConditions{};
    // A required property without a schema has the schema of additional properties, if no pattern matches it.
    for (const std::string& key : keys.required) {
      if (!keys.listed.contains(key)) keys.listed[key] = additional == nullptr ? true : additional_for(key, keys, path);
    }
    apply_key_names(keys, schema, path);
    apply_key_patterns(keys, path);
    return keys;
  }

  void read_key_patterns(Keys& keys, const boost::json::object& schema, const std::string& path) {
    const boost::json::value* patterns = schema.if_contains("patternProperties");
    if (patterns == nullptr) return;
    for (const auto& [text, of_pattern] : patterns->get_object()) {
      const std::string place = below(below(path, "patternProperties"), text);
      if (keys.by_pattern.size() == kPatternKeysMax) {
        left_out_.add(place, std::format("is one of more than {} patterns", kPatternKeysMax));
      } else if (auto pattern = checker_.pattern_of(text, place)) {
        keys.by_pattern.emplace_back(*std::move(pattern), of_pattern);
      }
    }
  }

  // Applies `propertyNames`.
  void apply_key_names(Keys& keys, const boost::json::object& schema, const std::string& path) {
    const boost::json::value* names = schema.if_contains("propertyNames");
    if (names == nullptr) return;
    const std::string place = below(path, "propertyNames");
    const boost::json::value flat = flattener_.flatten(*names, place, 0);
    if (flat.is_bool()) {
      if (flat == true) return;
      for (auto& member : keys.listed) member.value() = false;
      keys.others.reset();
      return;
    }
    const boost::json::object& of_names = flat.get_object();
    const boost::json::array types = SchemaFlattener::types_of(of_names);
    if (std::ranges::find(types, boost::json::value("string")) == types.end() && of_names.contains("type")) keys.others.reset();
    for (auto& member : keys.listed) {
      if (!checker_.allows(of_names, boost::json::value(member.key()), place, 1)) member.value() = false;
    }
    std::vector<boost::json::value> values;
    if (of_names.contains("enum") || of_names.contains("anyOf")) {
      if (append_values(*names, place, values, 0)) {
        for (const boost::json::value& name : values) {
          if (keys.others && name.is_string() && !keys.listed.contains(name.get_string()))
            keys.listed[name.get_string()] = additional_for(name.get_string(), keys, path);
        }
      } else {
        left_out_.add(place, "has too many alternatives");
        return;
      }
      keys.others.reset();
    } else if (keys.others) {
      keys.others = conditions_of(of_names, place);
    }
  }

  bool matches_key(const Pattern& pattern, std::string_view key, const std::string& path) {
    return checker_.matches_all({pattern}, key, below(path, "patternProperties")).value_or(false);
  }

  // The schema of a key that is not listed, without those of patterns: any value if one matches it.
  boost::json::value additional_for(std::string_view key, const Keys& keys, const std::string& path) {
    const auto matches = [&](const auto& each) { return matches_key(each.first, key, path); };
    return std::ranges::any_of(keys.by_pattern, matches) ? boost::json::value(true) : keys.additional;
  }

  // Listed keys have the schemas of the patterns that they match, too.
  void apply_key_patterns(Keys& keys, const std::string& path) {
    for (auto& member : keys.listed) {
      for (const auto& [pattern, of_pattern] : keys.by_pattern) {
        if (matches_key(pattern, std::string_view(member.key()), path))
          member.value() = boost::json::object{{"allOf", boost::json::array{member.value(), of_pattern}}};
      }
    }
  }

  // The rule of members that are not listed; empty: there are none.
  std::string other_member(const Keys& keys, const std::string& path) {
    if (!keys.others) return "";
    std::vector<std::string> alternatives;
    const auto add = [&](TextLanguage language, const boost::json::value& schema, const std::string& place) {
      if (schema == false) return;
      if (!keys.listed.empty()) language.none.push_back(one_of_names(keys.listed));
      const auto key = texts_.add(language, Spelling::json);
      // The object is closed where its other keys have no grammar.
      if (!key || *key == joined({})) return;
      alternatives.push_back(std::format(R"("\"" {} "\":" {} {})", *key, after_colon(), rule_of(schema, place)));
    };
    // A key that matches several patterns is left to none of them.
    for (std::size_t i = 0; i < keys.by_pattern.size(); ++i) {
      TextLanguage language = keys.others->language();
      for (std::size_t j = 0; j < keys.by_pattern.size(); ++j)
        (i == j ? language.all : language.none).push_back(keys.by_pattern[j].first);
      add(std::move(language), keys.by_pattern[i].second, below(path, "patternProperties"));
    }
    TextLanguage language = keys.others->language();
    for (const auto& [pattern, of_pattern] : keys.by_pattern) language.none.push_back(pattern);
    add(std::move(language), keys.additional, below(path, "additionalProperties"));
    if (alternatives.empty()) return "";
    const std::string rule = rules_.new_rule();
    rules_.define(rule, joined(alternatives));
    return rule;
  }

  static Pattern one_of_names(const boost::json::object& listed) {
    Pattern names{.kind = Pattern::Kind::alternatives};
    for (const auto& member : listed) names.children.push_back(literal_pattern(member.key()));
    return names;
  }

  std::string object(const boost::json::object& schema, const std::string& path) {
    const Keys keys = keys_of(schema, path);
    MemberList list{.others = other_member(keys, path),
                    .comma = comma_rule(),
                    .min = count_of(schema, "minProperties", 0),
                    .max = count_of(schema, "maxProperties", kUnlimited)};
    for (const auto& [name, value] : keys.listed) {
      const std::string key(name);
      const bool is_required = keys.required.contains(key);
      if (value == false && !is_required) continue;
      const std::string member = rules_.new_rule();
      rules_.define(member, std::format("{} {} {}", gbnf_literal(boost::json::serialize(name) + ":"), after_colon(),
                                        rule_of(value, below(below(path, "properties"), key))));
      list.members.push_back({.text = member, .is_required = is_required});
    }
    // Other keys may come twice.
    if (!list.others.empty() && list.min > std::ssize(keys.required) + 1)
      left_out_.add(below(path, "minProperties"), "is supported for listed properties, and as 1");
    if (!list.is_small()) {
      for (const std::string_view name : {"minProperties", "maxProperties"}) {
        if (schema.contains(name)) left_out_.add(below(path, name), "needs too large a grammar");
      }
      list.min = 0;
      list.max = kUnlimited;
    }
    const std::string blank = blank_rule();
    if (list.members.empty() && list.others.empty() && list.min == 0) return std::format(R"("{{" {} "}}")", blank);
    return std::format(R"("{{" {0} {1} {0} "}}")", blank, list_rules(list, rules_));
  }

  // --- anything

  std::string value_rule() {
    if (!rules_.has_shared("value")) {
      const std::string blank = blank_rule();
      const std::string character = texts_.character_rule();
      const std::string number = add_number(any_number(), std::nullopt).value();
      const std::string value = rules_.shared(
          "value",
          std::format(R"(json-object | json-array | "\"" {}* "\"" | {} | "true" | "false" | "null")", character, number));
      const std::string comma = comma_rule();
      (void)rules_.shared("object", std::format(R"("{{" {0} (json-member ({1} json-member)*)? {0} "}}")", blank, comma));
      (void)rules_.shared("member", std::format(R"("\"" {}* "\":" {} json-value)", character, after_colon()));
      (void)rules_.shared("array", std::format(R"("[" {0} (json-value ({1} json-value)*)? {0} "]")", blank, comma));
    }
    return "json-value";
  }

  const JsonBlanks blanks_;
  LeftOut unread_;  // For callers that do not ask.
  LeftOut& left_out_;
  RuleWriter rules_;
  TextRules texts_{rules_};
  SchemaFlattener flattener_{left_out_, [this](std::string_view pattern, std::string_view key, const std::string& place) {
                               const auto read = checker_.pattern_of(pattern, place);
                               return read && checker_.matches_all({*read}, key, place).value_or(false);
                             }};
  SchemaChecker checker_{flattener_, texts_, left_out_};
  std::map<std::string, std::string> known_;       // The rule of each schema, indexed by its text.
  std::map<std::string, std::string> text_rules_;  // Rules for texts and numbers, by their conditions.
  std::deque<Open> open_;
};

void LeftOut::add(const std::string& place, std::string_view why) {
  if (refuses_) refuse(place, std::string(why));
  constexpr std::size_t kBytesMax = 200;
  const std::string text =
      place.size() > kBytesMax
          ? std::string(std::string_view(place).substr(0, valid_utf8_length(std::string_view(place).substr(0, kBytesMax)))) +
                "…"
          : place;
  if (std::ranges::find(places_, text) != places_.end()) return;
  if (places_.size() < kPlacesMax) places_.push_back(text);
  if (places_.size() == kPlacesMax) places_.back() = "and others";
}

void LeftOut::set_field(std::string_view field, std::size_t first) {
  for (std::size_t i = first; i < places_.size(); ++i) {
    if (places_[i].starts_with('#')) places_[i].insert(0, field);
  }
}

JsonRules::JsonRules(JsonBlanks blanks, LeftOut* left_out) : compiler_(std::make_unique<Compiler>(blanks, left_out)) {}
JsonRules::~JsonRules() = default;

const std::string& JsonRules::gbnf() const {
  return compiler_->gbnf();
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

Expected<std::string> json_schema_gbnf(std::string_view schema, LeftOut* left_out) {
  JsonRules rules(JsonBlanks::any, left_out);
  const auto root = rules.add(schema);
  if (!root) return std::unexpected(root.error());
  return std::format("root ::= {}\n{}", *root, rules.gbnf());
}

Expected<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema, LeftOut* left_out) {
  const auto gbnf = json_schema_gbnf(schema, left_out);
  if (!gbnf) return std::unexpected(gbnf.error());
  auto grammar = Grammar::parse(*gbnf);
  // Any other error is about the size.
  if (!grammar && grammar.error().message.contains("no finite text"))
    return fail(ErrorCode::proto_field, "no JSON value satisfies the schema");
  return grammar;
}

}  // namespace uma::grammar
