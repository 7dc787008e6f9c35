// The replies of a model that plays them (played_weights.h), as JSON:
//     {"tokens": [{"text": "<|call|>", "is_control": true}, {"text": "ask7"}, ...],
//      "cues": [{"text": "ask7", "echo": "7", "reply": 0}, ...],
//      "replies": [{"after": 9, "tokens": ["<|call|>", "k", null]}],
//      "end": "<|im_end|>"}
// `tokens` adds tokens to those of all bytes and of the printable ASCII characters; a token that is no control token is found
// in every text. Reply `reply` follows a cue after this number of tokens; null is the place of the cue's echo. Then comes
// `end`, which may be absent: "</s>". In the replies, "▁" is a space, and "<0xE2>" a byte.
#pragma once

#include <cstddef>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace uma {

struct Replies {
  struct Token {
    std::string text;
    bool is_control = false;
  };
  struct Cue {
    std::string text;
    std::string echo;
    std::size_t reply = 0;
  };
  struct Reply {
    std::size_t after = 0;
    std::vector<std::optional<std::string>> tokens;
  };
  std::vector<Token> tokens;
  std::vector<Cue> cues;
  std::vector<Reply> replies;
  std::string end = "</s>";
};

// The error names the field.
[[nodiscard]] std::expected<Replies, std::string> parse_replies(std::string_view text);
[[nodiscard]] std::expected<Replies, std::string> read_replies(const std::filesystem::path& path);

// Writes a model that plays the replies. The file is complete or does not exist (gguf_writer.h). The error names what is
// impossible, or has the file system's message.
[[nodiscard]] std::expected<void, std::string> write_played_model(const Replies& replies, const std::string& chat_template,
                                                                  const std::filesystem::path& path);

}  // namespace uma
