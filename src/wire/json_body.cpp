#include "wire/json_body.h"

#include <boost/json/value.hpp>

namespace uma::wire {

std::expected<boost::json::object, RejectedBody> parse_body(std::string_view body, boost::json::storage_ptr memory) {
  boost::system::error_code problem;
  boost::json::value root = json::parse(body, std::move(memory), problem);
  if (problem) {
    return std::unexpected(RejectedBody{{ErrorCode::proto_json, "the body is not JSON: " + problem.message()}, ""});
  }
  if (!root.is_object()) {
    return std::unexpected(RejectedBody{{ErrorCode::proto_json, "the body must be one JSON object"}, ""});
  }
  return std::move(root.get_object());
}

}  // namespace uma::wire
