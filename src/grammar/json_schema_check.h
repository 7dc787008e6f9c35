// Whether a value that a schema lists satisfies the schema's other keywords.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <boost/json/value.hpp>

#include "grammar/json_pattern.h"
#include "grammar/json_schema_flatten.h"

namespace uma::grammar {

// The conditions for texts and numbers, as far as they can be read. Keywords that cannot are noted.
class SchemaChecker {
 public:
  SchemaChecker(SchemaFlattener& flattener, TextRules& texts, LeftOut& left_out)
      : flattener_(flattener), texts_(texts), left_out_(left_out) {}

  // `schema` is flattened. A keyword that cannot be checked is left out. `format` is an annotation beside listed values.
  [[nodiscard]] bool allows(const boost::json::object& schema, const boost::json::value& value, const std::string& path,
                            int depth = 0);

  // The pattern of a keyword; nullopt: it is left out.
  [[nodiscard]] std::optional<Pattern> pattern_of(std::string_view text, const std::string& place);
  // All patterns of a flattened schema that can be read.
  [[nodiscard]] std::vector<Pattern> patterns_of(const boost::json::object& schema, const std::string& path);
  // Whether the text matches a pattern of `place`; nullopt: it is left out.
  [[nodiscard]] std::optional<bool> matches_all(std::vector<Pattern> patterns, std::string_view text, const std::string& place);

 private:
  [[nodiscard]] bool allows_part(const boost::json::value& schema, const boost::json::value& value, const std::string& path,
                                 int depth);
  [[nodiscard]] bool allows_text(const boost::json::object& schema, std::string_view text, const std::string& path);
  [[nodiscard]] bool allows_number(const boost::json::object& schema, const boost::json::value& number,
                                   const std::string& path);
  [[nodiscard]] bool allows_array(const boost::json::object& schema, const boost::json::array& items, const std::string& path,
                                  int depth);
  [[nodiscard]] bool allows_object(const boost::json::object& schema, const boost::json::object& members,
                                   const std::string& path, int depth);

  SchemaFlattener& flattener_;
  TextRules& texts_;
  LeftOut& left_out_;
};

// The value of a keyword that counts something.
[[nodiscard]] std::int64_t count_of(const boost::json::object& schema, std::string_view name, std::int64_t otherwise);

}  // namespace uma::grammar
