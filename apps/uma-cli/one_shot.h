// `uma-cli --prompt`: one answer, then the end.
#pragma once

#include <string>
#include <vector>

#include "uma-cli/client.h"
#include "uma-cli/generation_flags.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct OneShot {
  std::string prompt;
  std::string model;                  // empty: the default model
  std::string session;                // id or name; empty: none. A name that does not exist yet is created
  std::vector<std::string> images{};  // files and addresses, before the prompt
  GenerationFlags generation;
  bool is_raw = false;       // the model's text continued, even where it has a chat template
  bool shows_usage = false;  // the receipt, on standard error
};

// An interrupted generation is an interrupted Failure; a reader that left is a success.
Result<void> run_one_shot(Client& client, const OneShot& command, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
