#include "make_model/scripted_model.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <format>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <gguf.h>
#include <llama.h>

#include "make_model/gguf_writer.h"
#include "make_model/hand_metadata.h"
#include "make_model/prose_vocabulary.h"
#include "make_model/scripted_weights.h"
#include "make_model/vocabulary.h"

namespace uma {

namespace {

constexpr std::size_t kScriptedPieceBytes = 8;
constexpr std::array<std::string_view, 6> kScriptedControls{"<|system_turn|>", "<|user_turn|>", "<|assistant_turn|>",
                                                            "<|tool_turn|>",   "<|tools|>",     "<|result|>"};

// NAME is replaced by the tool's, THINKING by kThinkingTemplate if the script has reasoning: from the mark of its end in a
// template, programs learn that a model reasons.
constexpr std::string_view kScriptedTemplate = R"({%- set ns = namespace(result=-1, offered=false) -%}
{%- for tool in tools or [] -%}
{%- if tool.function.name == 'NAME' -%}{%- set ns.offered = true -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}{%- set ns.result = loop.index0 -%}
{%- elif message.role == 'assistant' and not message.tool_calls -%}{%- set ns.result = -1 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}
{{- '<|system_turn|>' -}}
{%- if ns.offered -%}{{- '<|tools|>' -}}{%- endif -%}
{%- for tool in tools -%}{{- tool | tojson + '\n' -}}{%- endfor -%}
{{- '</s>' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|assistant_turn|>' -}}
THINKING{%- if message.content -%}{{- message.content -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
{%- if call.function.arguments is string -%}{{- call.function.arguments -}}
{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{%- else -%}
{%- if message.role == 'tool' -%}{{- '<|tool_turn|>' -}}
{%- if ns.offered and ns.result == loop.index0 -%}{{- '<|result|>' -}}{%- endif -%}
{%- elif message.role == 'user' -%}{{- '<|user_turn|>' -}}
{%- else -%}{{- '<|system_turn|>' -}}{%- endif -%}
{%- if message.content -%}{{- message.content -}}{%- endif -%}
{%- endif -%}
{{- '</s>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_turn|>' -}}{%- endif -%})";

constexpr std::string_view kThinkingTemplate =
    R"({%- if message.reasoning_content -%}{{- '<think>' + message.reasoning_content + '</think>' -}}{%- endif -%}
)";

void replace_once(std::string& text, std::string_view part, std::string_view by) {
  text.replace(text.find(part), part.size(), by);
}

// Adds the tokens of a script to a vocabulary.
class ScriptTokenizer {
 public:
  ScriptTokenizer() : vocabulary_(make_prose_vocabulary(kScriptedControls)) {
    seen_.insert(vocabulary_.texts.begin(), vocabulary_.texts.end());
  }

  [[nodiscard]] std::int64_t id_of(std::string_view text) const {
    return std::ranges::find(vocabulary_.texts, text) - vocabulary_.texts.begin();
  }

  // Makes the text one token wherever it appears.
  std::int64_t add_mark(const std::string& text) {
    const std::int64_t id = id_of(text);
    if (seen_.insert(text).second) add(text, LLAMA_TOKEN_TYPE_USER_DEFINED);
    vocabulary_.types[static_cast<std::size_t>(id)] = LLAMA_TOKEN_TYPE_USER_DEFINED;
    return id;
  }

  // Divides the text into new tokens, each followed by the next and the last by `end`, if there is one. Returns their ids.
  // Texts with spaces are new in any case, because the tokens of other texts have U+2581 for a space.
  std::expected<std::vector<std::int64_t>, std::string> add_text(std::string_view what, std::string_view text,
                                                                 std::optional<std::int64_t> end) {
    std::vector<std::string> pieces;
    while (!text.empty()) {
      std::size_t bytes = std::min(text.size(), kScriptedPieceBytes);
      while (bytes < text.size() && (is_inside_character(text[bytes]) || seen_.contains(std::string(text.substr(0, bytes))))) {
        ++bytes;
      }
      pieces.emplace_back(text.substr(0, bytes));
      while (pieces.size() > 1 && seen_.contains(pieces.back())) {  // The end of the text, which cannot grow to the right.
        const std::string last = std::move(pieces.back());
        pieces.pop_back();
        seen_.erase(pieces.back());
        pieces.back() += last;
      }
      if (!seen_.insert(pieces.back()).second) {
        return std::unexpected(
            std::format("{} is \"{}\", which is a token of other texts: make it longer", what, pieces.back()));
      }
      text.remove_prefix(bytes);
    }
    std::vector<std::int64_t> ids;
    for (std::string& piece : pieces) {
      if (!ids.empty()) next_.emplace_back(ids.back(), std::ssize(vocabulary_.texts));
      ids.push_back(add(std::move(piece), LLAMA_TOKEN_TYPE_NORMAL));
    }
    if (end) next_.emplace_back(ids.back(), *end);
    return ids;
  }

  void set_next(std::int64_t token, std::int64_t next) { next_.emplace_back(token, next); }

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

  [[nodiscard]] std::vector<ScriptedTokens::Token> tokens() const {
    std::vector<ScriptedTokens::Token> tokens(vocabulary_.size());
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      const std::string& text = vocabulary_.texts[id];
      const bool is_control = vocabulary_.types[id] == LLAMA_TOKEN_TYPE_CONTROL;
      tokens[id].ends_quote = is_control || text.contains('\n') || text == "<0x0A>" || text == "<0x0D>";
    }
    for (const auto& [token, next] : next_) tokens[static_cast<std::size_t>(token)] = {.next = next, .ends_quote = true};
    return tokens;
  }

 private:
  static bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

  std::int64_t add(std::string text, llama_token_type type) {
    vocabulary_.texts.push_back(std::move(text));
    vocabulary_.scores.push_back(0);
    vocabulary_.types.push_back(type);
    return std::ssize(vocabulary_.texts) - 1;
  }

  Vocabulary vocabulary_;
  std::unordered_set<std::string> seen_;
  std::vector<std::pair<std::int64_t, std::int64_t>> next_;
};

std::expected<ScriptedTokens, std::string> place_script(const Script& script, ScriptTokenizer& tokenizer) {
  ScriptedTokens placed;
  placed.begin = kTokenBos;
  placed.end = kTokenEos;
  placed.turn_mark = tokenizer.id_of("<|assistant_turn|>");
  placed.tool_mark = tokenizer.id_of("<|tools|>");
  placed.result_mark = tokenizer.id_of("<|result|>");
  placed.quote_mark = script.quote_after.empty() ? placed.result_mark : tokenizer.add_mark(script.quote_after);
  placed.full_stop = kTokenOfByteZero + '.';
  tokenizer.set_next(placed.full_stop, placed.end);

  // The marks of the reasoning are tokens of their own, as in trained models, so that a program can close it.
  std::optional<std::int64_t> thinking_open;
  std::optional<std::int64_t> thinking_close;
  if (!script.thinking.empty()) {
    thinking_open = tokenizer.add_mark("<think>");
    thinking_close = tokenizer.add_mark("</think>");
  }
  const auto reasoning = tokenizer.add_text("thinking", script.thinking, thinking_close);
  // The mark has pieces of its own: the grammar of a call begins behind it.
  const auto mark = tokenizer.add_text("tool", "<tool_call>", std::nullopt);
  const auto call = tokenizer.add_text(
      "tool", std::format("\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>", script.tool, script.arguments),
      placed.end);
  const auto prefix = tokenizer.add_text("answer_prefix", script.answer_prefix, std::nullopt);
  const auto plain = tokenizer.add_text("plain_answer", script.plain_answer, placed.end);
  for (const auto* text : {&reasoning, &mark, &call, &prefix, &plain}) {
    if (!*text) return std::unexpected(text->error());
  }
  if (prefix->size() < 2) {
    return std::unexpected(std::format("answer_prefix is \"{}\", which is one token: make it longer", script.answer_prefix));
  }
  tokenizer.set_next(mark->back(), call->front());
  if (thinking_open) {
    tokenizer.set_next(*thinking_open, reasoning->front());
    tokenizer.set_next(*thinking_close, mark->front());
  }
  placed.call = thinking_open.value_or(mark->front());
  placed.answer = prefix->front();
  placed.plain_answer = plain->front();
  placed.before_last_of_prefix = (*prefix)[prefix->size() - 2];
  placed.tokens = tokenizer.tokens();
  if (std::ssize(placed.tokens) > kScriptedTokensMax) {
    return std::unexpected(std::format("the script has {} tokens too many: make its texts shorter",
                                       std::ssize(placed.tokens) - kScriptedTokensMax));
  }
  return placed;
}

std::string scripted_template(const Script& script) {
  std::string chat_template(kScriptedTemplate);
  replace_once(chat_template, "NAME", script.tool);
  replace_once(chat_template, "THINKING", script.thinking.empty() ? "" : kThinkingTemplate);
  return chat_template;
}

}  // namespace

std::expected<void, std::string> write_scripted_model(const Script& script, const std::filesystem::path& path) {
  ScriptTokenizer tokenizer;
  const auto placed = place_script(script, tokenizer);
  if (!placed) return std::unexpected(placed.error());
  GgufPtr gguf(gguf_init_empty());
  set_hand_metadata(gguf.get(),
                    {.name = "uma scripted",
                     .layers = kScriptedLayers,
                     .feed_forward = kScriptedFeedForward,
                     .chat_template = scripted_template(script)},
                    tokenizer.vocabulary());
  return write_gguf(std::move(gguf), list_scripted_matrices(*placed), GGML_TYPE_F16, /*seed=*/1, path);
}

}  // namespace uma
