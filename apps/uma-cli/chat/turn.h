// Runs one generation and prints its text as it arrives.
#pragma once

#include <string>

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct TurnEnd {
  bool is_interrupted = false;    // By Ctrl-C; the session keeps the text generated so far.
  bool is_output_closed = false;  // The output has no reader any more.
  boost::json::object usage;      // The receipt; empty if the daemon did not send it in time.
  std::string text;               // The whole reply.
};

// Sends `request` and writes its text to `output`, to a terminal as ReplyView shows it. A Ctrl-C, or an output without a
// reader, cancels the generation. The daemon then has three seconds to confirm; after that, or after a second Ctrl-C, the
// connection is closed. The text ends with a newline, which on a terminal is added only if it is missing. A generation that
// ends by itself, by `stop` or by length is a TurnEnd; any other end is a Failure.
Result<TurnEnd> run_turn(Client& client, boost::json::object request, Output& output, Interrupts& interrupts);

// A line such as "34 prompt tokens (30 reused from hot, 4 computed), 25 new, first after 12 ms, 85.3 tokens/s, seed 7".
[[nodiscard]] std::string receipt_line(const boost::json::object& usage);

}  // namespace uma::cli
