// Resolves the references and combinations of a schema, so that one object has all constraints of a value. Older drafts' forms
// become those of 2020-12. Used by one compilation at a time; throws Refusal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/value.hpp>

#include "grammar/json_schema.h"

namespace uma::grammar {

// In a flattened schema: all patterns of a text but the first, which is `pattern`.
inline constexpr std::string_view kMorePatterns = "pattern*";

class SchemaFlattener {
 public:
  // Whether a key of an object matches a pattern of `place`.
  using MatchesKey = std::function<bool(std::string_view pattern, std::string_view key, const std::string& place)>;

  // `left_out` gets the keywords that no grammar can express.
  SchemaFlattener(LeftOut& left_out, MatchesKey matches_key) : left_out_(left_out), matches_key_(std::move(matches_key)) {}

  // References are relative to `root`, which must outlive their use. The work so far stays counted: each schema has a limit,
  // and all schemas together have another.
  void begin(const boost::json::value& root);
  // Counts work before it is done, because merging and comparing can take much more work than the length of the schema.
  void charge(std::uint64_t units, const std::string& path);
  void charge_all_of(const boost::json::value& value, const std::string& path);
  // Returns `schema` as an object with `anyOf` as its only combination, or as a boolean. The schemas in it stay as they are.
  // `depth`: 0, or one more than that of the schema around it.
  boost::json::value flatten(const boost::json::value& schema, const std::string& path, int depth);
  static boost::json::array types_of(const boost::json::object& schema);

 private:
  static const boost::json::array& schemas_of(const boost::json::value& value, const std::string& path, std::string_view name);
  // Null: the reference is left out.
  const boost::json::value* resolve(const boost::json::value& reference, const std::string& path, std::string& target_path);
  [[nodiscard]] bool has_own_id(std::string_view path);
  static bool is_own_schema(const boost::json::value& schema);
  static const boost::json::value* part_of(const boost::json::value& whole, const std::string& name);
  // Decodes a part of a pointer in a URI fragment.
  static std::string unescaped(std::string_view token);
  // Adds a keyword of `schema` to `plain`, or, if it combines schemas, what it demands to `parts`.
  void flatten_keyword(boost::json::string_view name, const boost::json::value& value, const boost::json::object& schema,
                       const std::string& path, int depth, boost::json::object& plain, std::vector<boost::json::value>& parts);
  void add_type(const boost::json::value& value, const std::string& path, boost::json::object& plain);
  void close_unevaluated(boost::json::value& whole, const std::string& path);
  void leave_out_unsupported(std::string_view name, const boost::json::value& value, const std::string& path);
  // Checks the types of a keyword's values, not whether the values can be satisfied.
  static void check_keyword(std::string_view name, const boost::json::value& value, const std::string& path);
  boost::json::value merge(const boost::json::value& a, const boost::json::value& b, const std::string& path);
  boost::json::value merge_keyword(std::string_view name, const boost::json::value& a, const boost::json::value& b,
                                   const std::string& path);
  boost::json::value merge_types(const boost::json::value& a, const boost::json::value& b, const std::string& path);
  static boost::json::value both_of(const boost::json::value& a, const boost::json::value& b);
  // The schema of a key that the schema's properties do not list, without those of patterns; null: none.
  [[nodiscard]] const boost::json::value* additional_for(std::string_view key, const boost::json::object& schema,
                                                         const std::string& path);
  // Charges for the work of matches_key_.
  [[nodiscard]] bool matches_key(std::string_view pattern, std::string_view key, const std::string& path);
  void merge_properties(boost::json::object& both, const boost::json::object& left, const boost::json::object& right,
                        const std::string& path);
  static void merge_items(boost::json::object& both, const boost::json::object& left, const boost::json::object& right);
  static void merge_patterns(boost::json::object& both, const boost::json::object& left, const boost::json::object& right);
  void merge_pattern_properties(boost::json::object& both, const boost::json::object& left, const boost::json::object& right,
                                const std::string& path);
  [[nodiscard]] bool are_disjoint(const boost::json::array& branches, const std::string& path, int depth);
  // False if it is unknown.
  bool are_disjoint(const boost::json::value& a, const boost::json::value& b, const std::string& path, int depth);

  LeftOut& left_out_;
  const MatchesKey matches_key_;
  const boost::json::value* root_ = nullptr;
  std::size_t flattened_ = 0;
  std::uint64_t work_ = 0;
  std::uint64_t work_max_ = 0;  // For the present schema.
};

}  // namespace uma::grammar
