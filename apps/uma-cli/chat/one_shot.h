// `uma-cli --prompt`: prints one answer and exits.
#pragma once

#include <string>

#include "uma-cli/chat/attachments.h"
#include "uma-cli/chat/generation_flags.h"
#include "uma-cli/client.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct OneShot {
  std::string prompt;
  std::string model;          // Empty: the default model.
  std::string session;        // Id or name; empty: no session. A new name creates a session.
  Attachments attachments{};  // To put before the prompt.
  GenerationFlags generation;
  bool is_raw = false;       // Continues the text, even if the model has a chat template.
  bool shows_usage = false;  // Prints the receipt on standard error.
};

// Returns an interrupted Failure for an interrupted generation, and success if the reader of the output left.
Result<void> run_one_shot(Client& client, const OneShot& command, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
