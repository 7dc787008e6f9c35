// Reads the conversation of Anthropic's Messages API: `system`, and `messages`, which consist of blocks.
//
// The result has OpenAI's form: one system message, then messages of the user, the assistant and tools. Messages of one role in
// a row become one. A user's results of tools come before its text, each as a message of its own. `cache_control` is ignored,
// so a text and a single block with that text give equal messages.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

#include "core/event.h"
#include "core/image.h"
#include "core/request.h"
#include "json/field_reader.h"
#include "wire/anthropic/message_threads.h"

namespace uma::wire {

class ConversationReader {
 public:
  // `continued`: the thread whose new messages are read, or null. Its system prompt may be repeated and is not part of the
  // result; another one fails as kThreadSystemField.
  explicit ConversationReader(const HeldThread* continued = nullptr) : continued_(continued) {
    if (continued == nullptr) return;
    has_replied_ = true;
    call_names_ = continued->call_names;
  }
  // Reads both fields; a failure becomes one of `fields`. `left_out` gets the types of blocks that were left out, each once.
  void read(json::FieldReader& fields, Input& input, std::vector<std::string>& left_out);
  // Bytes of the system message that are the field `system`, at its beginning; system messages before the first reply follow.
  [[nodiscard]] std::size_t system_bytes() const { return system_bytes_; }

 private:
  // The user's side of a turn, as far as it was read.
  struct UserTurn {
    std::vector<ChatMessage> results;  // Messages of tools.
    std::string text;
    std::vector<InputImage> images;         // Images of the text; `message` is not set yet.
    std::vector<InputImage> result_images;  // Images of the results, whose index is `message`.
  };
  struct Reply {
    std::string reasoning;
    std::string text;
    std::vector<ReplyPart> calls;
  };

  void read_system(json::FieldReader& fields);
  void read_message(json::FieldReader& message);
  void read_system_message(json::FieldReader& message);
  void read_user_block(json::FieldReader& block);
  void read_reply_block(json::FieldReader& block);
  void read_call(json::FieldReader& block);
  void read_result(json::FieldReader& block);
  [[nodiscard]] std::string result_part(json::FieldReader& block, const boost::json::value& part, const std::string& path,
                                        std::size_t at);
  [[nodiscard]] static InputImage image_of(json::FieldReader& block, std::size_t message, std::size_t at);
  [[nodiscard]] bool leaves_out(std::string_view type);
  void add_user_text(std::string_view text);
  UserTurn& user();
  Reply& reply();
  void end_turn();

  const HeldThread* const continued_;
  std::string system_;
  std::size_t system_bytes_ = 0;
  std::vector<ChatMessage> messages_;  // Without the system message.
  std::vector<InputImage> images_;
  std::optional<UserTurn> user_;  // At most one of the two is open.
  std::optional<Reply> reply_;
  bool has_replied_ = false;                                    // A message of the assistant was read.
  std::map<std::string, std::string, std::less<>> call_names_;  // The tool of each call, by the call's id.
  std::vector<std::string> left_out_;
};

}  // namespace uma::wire
