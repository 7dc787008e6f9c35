// Converts chat messages to the tokens that continue a chain. Text of users never becomes special tokens; the text of templates
// does. Pure; any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/calls/answer_grammar.h"
#include "chat/message_values.h"
#include "chat/prompt_tokens.h"
#include "chat/reply/reply_parser.h"
#include "chat/reply/thinking.h"
#include "chat/reply/written_replies.h"
#include "core/error.h"
#include "core/request.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "jinja/chat_template.h"
#include "llm/model.h"

namespace uma::chat {

// Tokenizes `text` for the end of a chain or, if `at_start`, for a new chain, which begins with BOS and the tokenizer's leading
// space. `parse_special`: see llm::Vocab::tokenize().
[[nodiscard]] Expected<std::vector<Token>> tokenize_text(const llm::Vocab& vocab, std::string_view text, bool at_start,
                                                         bool parse_special = false);

// The inputs of a chat template besides the messages.
struct ChatContext {
  std::int64_t unix_s = 0;                // Time for templates that print the date.
  std::string_view tools{};               // See ChatOptions.
  std::string_view template_arguments{};  // See ChatOptions.
};

// A conversation whose last message is the beginning of the reply, which the model continues.
struct BegunReply {
  jinja::Text prompt;                  // Everything, up to the end of the last message.
  std::string text{};                  // Part of the reply in the prompt, with its marks (ReplyFormat::begun).
  std::string content{};               // That of the last message.
  bool begins_with_reasoning = false;  // See ReplyFormat.
  bool is_thinking = false;            // The model goes on in thoughts.
};

// The name of the template that writes conversations with tools, if a model has it.
inline constexpr std::string_view kToolTemplate = "tool_use";

// Writes conversations for one model: with the model's template; if that is unusable, with libllama's version of it; for a
// model without a template, as ChatML.
class ChatFormat {
 public:
  // `images` is null if the model takes no images. `family` is the name of the family of its replies; empty: as its template
  // shows.
  explicit ChatFormat(const std::shared_ptr<const llm::Model>& model, const ImageTokens& images = nullptr,
                      std::string_view family = {});

  [[nodiscard]] const llm::Model& model() const { return *model_; }
  // The format of a conversation with these tools and template arguments (ChatOptions), as transformers chooses it: with the
  // template that the argument "chat_template" names, else with "tool_use" if there are tools and such a template; else this
  // one, whose name is "default".
  [[nodiscard]] const ChatFormat& chosen(std::string_view tools, std::string_view template_arguments) const;
  [[nodiscard]] const ChatFormat& chosen(const ChatOptions& options) const {
    return chosen(options.tools, options.template_arguments);
  }
  // Errors: E_PROTO_003 if the arguments name a template that the model does not have.
  [[nodiscard]] Expected<Unit> check_name(std::string_view template_arguments) const;
  // Formats the messages. Errors: E_MODEL_003 if neither template works.
  [[nodiscard]] Expected<jinja::Text> write(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                            const ChatContext& context) const;
  // Formats messages whose last one is a reply that goes on. It is written as the template writes it in the past, so that the
  // next turn finds its tokens. Errors: as write(). Requires: a last message of the assistant.
  [[nodiscard]] Expected<BegunReply> write_begun(std::span<const ChatMessage> messages, const ChatContext& context) const;
  // The tokens of a message's content with its images, without the template; as a text of its own.
  [[nodiscard]] Expected<std::vector<Token>> tokenize_content(const ChatMessage& message) const;
  // For texts of write().
  [[nodiscard]] const PromptTokenizer& tokenizer() const { return tokenizer_; }
  // The format of the reply to a prompt with these options. `tools` are theirs (tools_of()); null: they have none.
  [[nodiscard]] ReplyFormat reply_format(const ChatOptions& options, std::span<const Token> prompt,
                                         std::shared_ptr<const Tools> tools) const;
  // Completes what the options say about thoughts (thinking.h).
  void settle_thinking(ChatOptions& options) const;
  // The limit of thoughts in a reply with these options, which are settled; nullopt: its thoughts have no known marks.
  [[nodiscard]] std::optional<ThinkingLimit> thinking_limit(const ChatOptions& options) const;
  // The GBNF of the replies that the options force (call_grammar.h).
  [[nodiscard]] Expected<std::string> forced_grammar(const ChatOptions& options, grammar::LeftOut* left_out = nullptr) const;
  // The grammar of the text behind the mark of an optional tool call (call_grammar.h).
  [[nodiscard]] Expected<std::shared_ptr<const grammar::Grammar>> begun_call_grammar(
      const ChatOptions& options, grammar::LeftOut* left_out = nullptr) const;
  // The grammar of a reply with these options whose text follows `rules.answer` (answer_grammar.h). `rules` says whether
  // thoughts may precede it, as far as the text is concerned.
  [[nodiscard]] AnswerGrammar answer_grammar(const ChatOptions& options, AnswerRules rules) const;
  // Whether texts of this grammar may begin with the mark of thoughts.
  [[nodiscard]] bool has_thoughts(const std::shared_ptr<const grammar::Grammar>& answer) const;
  // The text of these tokens, including marks.
  [[nodiscard]] std::string text_of(std::span<const Token> tokens) const;

 private:
  // With this template; empty: the model has none. A template for tools gets them, also if its family is not known.
  ChatFormat(std::shared_ptr<const llm::Model> model, ImageTokens images, std::string_view family, std::string template_source,
             bool is_for_tools);

  // A history that the template refuses is mended and written once more.
  [[nodiscard]] Expected<jinja::Text> write_by_template(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                                        const ChatContext& context) const;
  // The messages in the template's style, mended if it `has_refused` them (message_values()).
  [[nodiscard]] jinja::Value styled(std::span<const ChatMessage> messages, const ChatContext& context, bool has_refused) const;

  // The messages up to the end of the last one, as the template writes it; nullopt: it does not write its whole content.
  [[nodiscard]] std::optional<jinja::Text> write_to_end(std::span<const ChatMessage> messages,
                                                        const ChatContext& context) const;
  [[nodiscard]] std::vector<Token> tokens_of(std::string_view marks) const;
  // Whether the prompt ends with the begin of thoughts.
  [[nodiscard]] bool opens_thoughts(std::string_view prompt) const;
  [[nodiscard]] std::vector<ChatMessage> with_image_marks(std::span<const ChatMessage> messages) const;

  const std::shared_ptr<const llm::Model> model_;  // Shared, because jobs may outlive the router's entry.
  const PromptTokenizer tokenizer_;
  const std::string source_;        // The template.
  ReplyFormat reply_;               // Everything that a reply may contain.
  const Family* family_ = nullptr;  // Null: it is not known.
  bool template_knows_tools_ = false;
  std::vector<std::pair<std::string_view, bool>> history_variables_;
  std::optional<jinja::ChatTemplate> template_;
  MessageStyle style_;                            // Style that the template wants.
  std::string problem_;                           // The reason why the model's own template is unusable.
  mutable std::atomic<bool> has_warned_ = false;  // Whether a refused conversation was logged.
  std::map<std::string, std::unique_ptr<const ChatFormat>, std::less<>> named_;  // Formats of the model's other templates.
};

// The range of a message in a chain.
struct MessagePlace {
  std::size_t message = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const MessagePlace&) const = default;
};

// The conversation so far. The last message is a reply, and its text ends the chain, so that it can be continued: the
// template's end of turn comes with the next delta.
struct Conversation {
  std::span<const ChatMessage> messages;
  std::span<const Token> tokens;          // The whole chain.
  std::span<const MessagePlace> replies;  // Every reply, in order.
  std::int64_t unix_s = 0;   // Time for templates that print the date: the session's creation, so that the past never changes.
  std::string_view tools{};  // See ChatOptions; valid from now on.
  std::string_view template_arguments{};  // See ChatOptions; valid from now on.
  // The messages, tools or arguments have changed since the chain was written, so the whole chain is written again.
  bool is_changed = false;
  // The last message that is added is a reply that goes on (ChatFormat::write_begun). Requires: no messages so far.
  bool continues_reply = false;
  OwnReplies written{};  // These have the tokens with which they were written, also if they came back as messages.
};

struct ChatTokens {
  enum class History : std::uint8_t {
    stays,      // The chain is a prefix of the new text.
    rewritten,  // The template changed earlier text: `history` replaces the chain, `replies` has the new ranges.
    lost,       // The replies were not found in the new text: `tokens` has the whole conversation.
  };
  History history_change = History::stays;
  std::vector<Token> history;
  std::vector<MessagePlace> replies;
  std::vector<Token> tokens;  // Continues the chain up to the beginning of the next reply.
  // If everything was written again: the length of the system prompt, at least BOS; else 0.
  std::int32_t system_tokens = 0;
  // If everything was written again: the number of tokens before all messages but the system messages at the beginning. Other
  // conversations with the same system prompt and tools begin with them, too. 0: they are not known.
  std::int32_t head_tokens = 0;
  PromptOutline outline;  // Outline of what was written now, by places in the chain: the whole conversation, or `tokens`.
};

// Returns the tokens from the end of a conversation to the beginning of the reply to `added`. Errors: E_MODEL_003 if the
// template cannot be applied.
[[nodiscard]] Expected<ChatTokens> tokenize_chat(const ChatFormat& format, const Conversation& conversation,
                                                 std::span<const ChatMessage> added);

// Stop strings besides the model's end-of-generation tokens: the end of turn of ChatML, if ChatML replaces a missing template.
[[nodiscard]] std::vector<std::string> chat_stop_strings(const llm::Model& model);

}  // namespace uma::chat
