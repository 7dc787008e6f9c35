// `uma-cli chat`: a conversation, one line per turn. The daemon keeps it as a session. A named session stays and can be
// resumed; an unnamed session is deleted when the chat ends.
#pragma once

#include <string>

#include "uma-cli/chat/attachments.h"
#include "uma-cli/chat/generation_flags.h"
#include "uma-cli/chat/line_reader.h"
#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct ChatOptions {
  std::string session;        // Id or name to resume, or the name of a new session; empty: an unnamed session.
  std::string system;         // System message of a new session.
  std::string model;          // Model of a new session; empty: the default model.
  std::string on_full;        // "error" or "shift", for a new session; empty: the daemon's default.
  Attachments attachments{};  // For the first message.
  GenerationFlags generation;
  bool shows_usage = false;
};

// At a terminal an error of the daemon is reported and the chat goes on. With piped lines it ends the chat, since the following
// lines would build on it. Returns the failure that ended the chat.
Result<void> run_chat(Client& client, const ChatOptions& options, LineReader& lines, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
