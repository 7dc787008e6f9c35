// One generation, shown while it comes.
#pragma once

#include <boost/json/object.hpp>

#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct TurnEnd {
  bool is_interrupted = false;    // by Ctrl-C; the session keeps what was said
  bool is_output_closed = false;  // nobody reads the output any more
  boost::json::object usage;      // the receipt; empty when the daemon did not send it in time
};

// Sends `request` and writes its text to `output`. Ctrl-C, or an output that nobody reads, cancels it: the daemon then has
// three seconds to confirm, after which (or at a second Ctrl-C) the connection is given up.
// Ends the text with a newline: on a terminal only where there is none, elsewhere always.
// A generation that ends by itself, by `stop` or by length, is a TurnEnd; every other end is a Failure.
Result<TurnEnd> run_turn(Client& client, boost::json::object request, Output& output, Interrupts& interrupts);

// "34 prompt tokens (30 reused from hot, 4 computed), 25 new, first after 12 ms, 85.3 tokens/s, seed 7"
[[nodiscard]] std::string receipt_line(const boost::json::object& usage);

}  // namespace uma::cli
