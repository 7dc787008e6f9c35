// Finds out which form of messages a chat template takes, by rendering short conversations once, when the model is loaded. Only
// what no rendering shows is in the table of families (decision 56).
#pragma once

#include <string>

#include "chat/family.h"
#include "chat/message_values.h"
#include "jinja/chat_template.h"

namespace uma::chat {

// The style in which the template shows thoughts, calls and contents once and unescaped. `family` is null if the template's
// calls are not known. Cost: at most 35 renderings of few steps.
[[nodiscard]] MessageStyle message_style_of(const jinja::ChatTemplate& chat_template, const Family* family,
                                            const std::string& bos_text, const std::string& eos_text);

}  // namespace uma::chat
