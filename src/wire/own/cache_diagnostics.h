// The comparison of prompts in the forms of Anthropic's API (`diagnostics`) and OpenAI's (`prompt_cache_diagnostics`).
#pragma once

#include <string_view>

#include "core/cache_miss.h"
#include "json/field_reader.h"
#include "json/json_writer.h"

namespace uma::wire {

// Reads Anthropic's "diagnostics".
[[nodiscard]] Comparison message_comparison(json::FieldReader& fields);
// Reads OpenAI's "prompt_cache_options".
[[nodiscard]] Comparison openai_comparison(json::FieldReader& fields);
// The id of a reply of any API without the API's prefix.
[[nodiscard]] std::string_view reply_name(std::string_view id);

// Writes "diagnostics": null if the prompts do not differ. Anthropic compares requests, whatever is held.
void write_message_diagnostics(json::ObjectWriter& parent, const CacheMiss& miss);
// Writes "prompt_cache_diagnostics".
void write_openai_diagnostics(json::ObjectWriter& parent, const CacheMiss& miss);

}  // namespace uma::wire
