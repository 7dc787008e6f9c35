// Writes a model that follows a script (script.h), so that an agent can run its whole loop with it: the model calls a tool,
// reads the result and quotes it. scripted_weights.h explains the weights.
//
// Its chat template decides what is visible: the mark of the tool, if the tool is offered, and the mark of a result, if the
// last tool message is newer than the last answer of the assistant. So each question of a conversation is answered by a call
// first.
#pragma once

#include <expected>
#include <filesystem>
#include <string>

#include "make_model/script.h"

namespace uma {

// The file is complete or does not exist (gguf_writer.h). The error names the text of the script that is impossible, or has the
// file system's message.
[[nodiscard]] std::expected<void, std::string> write_scripted_model(const Script& script, const std::filesystem::path& path);

}  // namespace uma
