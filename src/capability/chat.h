// Turns what users write into the tokens that continue a chain. Text of users never becomes special tokens; the text of
// templates does. Pure; any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capability/chat_template.h"
#include "capability/reply_parser.h"
#include "core/error.h"
#include "core/request.h"
#include "llm/grammar.h"
#include "llm/model.h"

namespace uma::capability {

// Tokens of `text` at the end of a chain, or, where `at_start`, of a new one: there BOS and the tokenizer's leading space come
// first.
[[nodiscard]] Expected<std::vector<Token>> tokenize_text(const llm::Vocab& vocab, std::string_view text, bool at_start);

// What a conversation is written with, beside its messages.
struct ChatContext {
  std::int64_t unix_s = 0;                // the time that templates tell
  std::string_view tools{};               // ChatOptions
  std::string_view template_arguments{};  // ChatOptions
};

// The tokens that stand for the image with this id (MessageImage::id). Called by any thread; may block on the disk.
using ImageTokens = std::function<Expected<std::vector<Token>>(const std::string& id)>;

// How one model writes conversations: by its own template; where that cannot be used, by libllama's version of it; ChatML where
// the model has none.
class ChatFormat {
 public:
  // `images`: null where the model reads none.
  explicit ChatFormat(std::shared_ptr<const llm::Model> model, ImageTokens images = nullptr);

  [[nodiscard]] const llm::Model& model() const { return *model_; }
  // Errors: E_MODEL_003 when no way to write them is left.
  [[nodiscard]] Expected<jinja::Text> write(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                            const ChatContext& context) const;
  // Appends the tokens of what users wrote: text, with images where write() has put their marks.
  [[nodiscard]] Expected<Unit> append_input(std::string_view input, std::vector<Token>& tokens) const;
  // What write() puts in the place of an image. Nobody can guess it, so no text of a user is one.
  [[nodiscard]] std::string image_mark(const std::string& id) const { return image_mark_ + id; }
  // What to look for in the reply to such a prompt.
  [[nodiscard]] ReplyFormat reply_format(const ChatOptions& options, std::span<const Token> prompt) const;
  // GBNF of the replies that the options force (call_grammar.h).
  [[nodiscard]] Expected<std::string> forced_grammar(const ChatOptions& options) const;
  // What follows the mark of a call that nobody forces (call_grammar.h).
  [[nodiscard]] Expected<std::shared_ptr<const llm::Grammar>> begun_call_grammar(const ChatOptions& options) const;
  // What these tokens say, with the marks among them.
  [[nodiscard]] std::string text_of(std::span<const Token> tokens) const;

 private:
  [[nodiscard]] Expected<jinja::Text> write_by_template(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                                        const ChatContext& context) const;

  [[nodiscard]] std::vector<ChatMessage> with_image_marks(std::span<const ChatMessage> messages) const;

  const ImageTokens images_;
  const std::string image_mark_;             // an image's id follows it
  std::shared_ptr<const llm::Model> model_;  // shared: the format is used by jobs that outlive a router's interest in it
  ReplyFormat reply_;                        // all that its replies can have
  bool template_knows_tools_ = false;
  std::optional<ChatTemplate> template_;
  std::string problem_;                           // why there is none, though the model has one
  mutable std::atomic<bool> has_warned_ = false;  // of conversations that its template refuses
};

// Where the tokens of a message lie in a chain.
struct MessagePlace {
  std::size_t message = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const MessagePlace&) const = default;
};

// What was said so far. The last message is a reply; its text ends the chain, so that it can still be continued: the template's
// end of turn comes with the next delta.
struct Conversation {
  std::span<const ChatMessage> messages;
  std::span<const Token> tokens;          // the chain
  std::span<const MessagePlace> replies;  // of every turn, in order
  std::int64_t unix_s = 0;   // the time that templates tell: of the session's creation, so that it never rewrites the past
  std::string_view tools{};  // ChatOptions, from now on
  std::string_view template_arguments{};  // ChatOptions, from now on
  bool is_changed = false;  // the chain was written from other messages, tools or arguments: all of it is written anew
};

struct ChatTokens {
  enum class History : std::uint8_t {
    stays,      // the chain is a beginning of the whole
    rewritten,  // the template writes it differently now: `history` replaces the chain, `replies` says where they lie there
    lost,       // nor can the turns be found again: `tokens` are the whole conversation
  };
  History history_change = History::stays;
  std::vector<Token> history;
  std::vector<MessagePlace> replies;
  std::vector<Token> tokens;  // from there to the point where the model answers
  // Where the whole was written anew: those up to the end of its system prompt, BOS at least; else 0.
  std::int32_t system_tokens = 0;
};

// Tokens that bring a conversation to the point where the model answers `added`.
// Errors: E_MODEL_003 when the template cannot be applied.
[[nodiscard]] Expected<ChatTokens> tokenize_chat(const ChatFormat& format, const Conversation& conversation,
                                                 std::span<const ChatMessage> added);

// Stop strings a chat needs beside the model's own end tokens: where ChatML stands in for a missing template, its end of turn.
[[nodiscard]] std::vector<std::string> chat_stop_strings(const llm::Model& model);

}  // namespace uma::capability
