#include "core/error.h"

#include "base/thrown.h"

namespace uma {

std::string_view code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::proto_json:
      return "E_PROTO_001";
    case ErrorCode::proto_frame:
      return "E_PROTO_002";
    case ErrorCode::proto_field:
    case ErrorCode::session_name_taken:
      return "E_PROTO_003";
    case ErrorCode::proto_type:
      return "E_PROTO_004";
    case ErrorCode::proto_id_in_flight:
      return "E_PROTO_005";
    case ErrorCode::limit_prompt:
      return "E_LIMIT_001";
    case ErrorCode::limit_sessions:
      return "E_LIMIT_002";
    case ErrorCode::limit_wait:
      return "E_LIMIT_003";
    case ErrorCode::limit_context:
      return "E_LIMIT_004";
    case ErrorCode::limit_quota:
      return "E_LIMIT_005";
    case ErrorCode::model_unknown:
      return "E_MODEL_001";
    case ErrorCode::model_load:
      return "E_MODEL_002";
    case ErrorCode::model_capability:
      return "E_MODEL_003";
    case ErrorCode::session_unknown:
      return "E_SESSION_001";
    case ErrorCode::session_busy:
      return "E_SESSION_002";
    case ErrorCode::runtime_decode:
      return "E_RUNTIME_001";
    case ErrorCode::io_failed:
      return "E_IO_001";
    case ErrorCode::outcome_unknown:
      return "E_IO_002";
    case ErrorCode::auth:
      break;
  }
  return "E_AUTH_001";
}

Error thrown_error(const std::source_location& place) {
  note_thrown(place);  // The exception's text may contain the daemon's paths, so only the log gets it.
  return {ErrorCode::runtime_decode,
          "the daemon failed at this request: try again, and report it with the daemon's log if that fails, too"};
}

}  // namespace uma
