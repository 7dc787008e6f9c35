// The script of a scripted model (scripted_weights.h): a call, an answer that quotes the call's result, and a plain reply.
#pragma once

#include <expected>
#include <filesystem>
#include <string>
#include <string_view>

namespace uma {

struct Script {
  std::string tool;           // The name of the function that is called if a request offers it.
  std::string arguments;      // Their JSON, as chat templates write it: {"path": "a", "all": true}
  std::string answer_prefix;  // The answer to the call's result: this, a quotation of the result, and a full stop.
  std::string quote_after;    // The quotation begins behind this text in the result; empty: at the beginning of the result.
  std::string thinking;       // The reasoning before the call; empty: none.
  std::string plain_answer;   // The reply to requests that do not offer the tool.
};

// Reads JSON:
//     {"tool": {"name": "read_file", "arguments": {"path": "notes.txt"}}, "answer_prefix": "The file says: ",
//      "quote_after": "Password:", "plain_answer": "A short reply."}
// quote_after and "thinking" may be absent. The error names the field.
[[nodiscard]] std::expected<Script, std::string> parse_script(std::string_view text);
[[nodiscard]] std::expected<Script, std::string> read_script(const std::filesystem::path& path);

}  // namespace uma
