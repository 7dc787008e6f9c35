#include "grammar/json_schema_formats.h"

#include <format>
#include <string>

namespace uma::grammar {

std::string_view format_pattern(std::string_view format) {
  static constexpr std::string_view kDate =
      "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))";
  static constexpr std::string_view kTime =
      "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
  static const std::string date_time = std::format("^{}T{}$", kDate, kTime);
  static const std::string date = std::format("^{}$", kDate);
  static const std::string time = std::format("^{}$", kTime);
  if (format == "date-time") return date_time;
  if (format == "date") return date;
  if (format == "time") return time;
  if (format == "duration")
    return "^P([0-9]{1,6}W|(([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)(T([0-9]{1,6}H([0-9]"
           "{1,"
           "6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))?|T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M("
           "[0-9]{1,"
           "6}S)?|[0-9]{1,6}S)))$";
  if (format == "uuid") return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  if (format == "ipv4")
    return "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$";
  if (format == "ipv6") return "^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$";
  if (format == "hostname") return "^[a-z]([a-z0-9]{0,20})(\\.[a-z]([a-z0-9]{0,20})){0,3}$";
  if (format == "email")
    return "^[a-z0-9]([a-z0-9_+]{0,30})(\\.[a-z0-9_+]{1,20}){0,2}@[a-z]([a-z0-9]{0,20})(\\.[a-z]([a-z0-9]{0,20})){1,3}$";
  if (format == "uri") return "^https?://[a-z]([a-z0-9]{0,20})(\\.[a-z]([a-z0-9]{0,20})){0,3}(/[A-Za-z0-9._~-]{0,60}){0,8}$";
  return {};
}

}  // namespace uma::grammar
