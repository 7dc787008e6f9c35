// `uma-cli chat`: a conversation, one line a turn. The daemon keeps it as a session: a named one stays and can be resumed, one
// without a name ends with the chat.
#pragma once

#include <string>
#include <vector>

#include "uma-cli/client.h"
#include "uma-cli/generation_flags.h"
#include "uma-cli/line_reader.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct ChatOptions {
  std::string session;  // id or name to resume, or the name of a new session; empty: a session that ends with the chat
  std::string system;   // of a new session
  std::string model;    // of a new session; empty: the default model
  std::string on_full;  // of a new session: error, shift; empty: the daemon's default
  std::vector<std::string> images{};  // files and addresses, before the first message
  GenerationFlags generation;
  bool shows_usage = false;
};

// At a terminal, what the daemon refuses is reported and the chat goes on; with piped lines it is the end, since what follows
// would build on it. Returns the failure that ended the chat.
Result<void> run_chat(Client& client, const ChatOptions& options, LineReader& lines, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
