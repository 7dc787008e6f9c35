// Why tokens of a prompt were computed again, in sentences.
#pragma once

#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// The lines for a receipt (`usage` in docs/protocol/socket.md).
[[nodiscard]] std::string why_text(const boost::json::object& usage);
// Prints them for a reply by its id, for the last reply of a session, or for the last one of all if `reply` is empty.
Result<void> print_why(Client& client, const std::string& reply, Output& output, bool as_json);

}  // namespace uma::cli
