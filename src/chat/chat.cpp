#include "chat/chat.h"

#include <algorithm>
#include <format>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/utf8.h"
#include "chat/calls/call_grammar.h"
#include "chat/calls/tool_format.h"
#include "chat/message_style.h"
#include "chat/turns.h"
#include "image/message_images.h"
#include "jinja/json_reader.h"

namespace uma::chat {
namespace {

// --- libllama's templates

// Messages are formatted with marks instead of their contents, so that template text and user text can be separated in the
// result. The marks are control characters that no template contains; the whitespace around them shows whether the template
// trims.
std::string mark_of(std::size_t index) {
  return std::format("\x02{}\x03", index);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

Expected<jinja::Text> write_with_library(const llm::Model& model, std::span<const WrittenMessage> messages,
                                         bool add_generation_prompt) {
  std::vector<ChatMessage> marked;
  marked.reserve(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) marked.push_back({messages[i].role, " " + mark_of(i) + " "});
  const auto formatted = model.apply_chat_template(marked, add_generation_prompt);
  if (!formatted) return std::unexpected(formatted.error());

  jinja::Text result;
  std::string_view rest = *formatted;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string mark = mark_of(i);
    const std::size_t at = rest.find(mark);
    if (at == std::string_view::npos) continue;  // The template dropped this message.
    const std::size_t end = at + mark.size();
    const bool has_blanks = at > 0 && rest[at - 1] == ' ' && end < rest.size() && rest[end] == ' ';
    result.append(rest.substr(0, has_blanks ? at - 1 : at));
    const jinja::Text& content = messages[i].content;
    const std::string_view shown = has_blanks ? std::string_view(content.bytes()) : trimmed(content.bytes());
    const auto begin = shown.empty() ? 0 : static_cast<std::size_t>(shown.data() - content.bytes().data());
    result.append(content, begin, begin + shown.size());
    rest.remove_prefix(has_blanks ? end + 1 : end);
  }
  result.append(rest);
  return result;
}

// --- tokens

// The text with the space that some tokenizers insert before the first text of a chain and, as libllama does, before each text
// behind a control token. `tokens` are those of `text`.
std::string with_space_prefixes(const llm::Vocab& vocab, std::string_view text, std::span<const Token> tokens, bool at_start) {
  std::string spaced;
  bool is_first = at_start;
  for (const Token token : tokens) {
    if (!vocab.piece(token).empty()) continue;
    const std::string name = vocab.text(token);
    const std::size_t at = text.find(name);
    if (name.empty() || at == std::string_view::npos) continue;
    if (is_first && at > 0) spaced += ' ';
    spaced += text.substr(0, at + name.size());
    text.remove_prefix(at + name.size());
    is_first = true;
  }
  if (is_first && !text.empty()) spaced += ' ';
  spaced += text;
  return spaced;
}

// Appends the tokens of the beginning of a text, which begins a chain.
Expected<Unit> append_start(const ChatFormat& format, const jinja::Text& text, std::size_t end, PlacedTokens& placed) {
  const llm::Vocab& vocab = format.model().vocab();
  if (auto done = format.tokenizer().append(text, 0, end, placed); !done) return done;
  // Some templates write BOS themselves; it must not appear twice.
  if (vocab.bos() && (placed.tokens.empty() || placed.tokens.front() != *vocab.bos())) {
    placed.tokens.insert(placed.tokens.begin(), *vocab.bos());
    placed.ends.insert(placed.ends.begin(), 0);
  } else if (vocab.bos()) {
    placed.ends.front() = 0;  // It belongs to every beginning, as if it were not in the text.
  }
  return Unit{};
}

constexpr std::string_view kDefaultTemplate = "default";

// The name of the template in its arguments; empty: none.
std::string template_name(std::string_view template_arguments) {
  constexpr std::string_view kName = "chat_template";
  if (!template_arguments.contains(kName)) return "";
  const auto arguments = jinja::read_json(template_arguments, jinja::kOtherInput);
  const auto* dict = arguments ? arguments->as_dict() : nullptr;
  if (dict == nullptr) return "";
  for (const auto& [name, value] : dict->entries) {
    if (name->bytes() == kName && value.as_text() != nullptr) return std::string(value.as_text()->bytes());
  }
  return "";
}

// The thoughts of a reply; empty: it has none.
std::string thoughts_of_message(const ChatMessage& message) {
  const auto extra = jinja::read_json(message.extra, jinja::kOtherInput);
  const jinja::Dict* fields = extra ? extra->as_dict() : nullptr;
  const jinja::Value* thoughts = fields == nullptr ? nullptr : fields->find("reasoning_content");
  return thoughts == nullptr || thoughts->as_text() == nullptr ? "" : thoughts->as_text()->bytes();
}

// --- what the template makes of the past

// The range from the first to the last byte of message `index`.
std::optional<jinja::SourceRange> find_message(const jinja::Text& text, std::size_t index) {
  std::optional<jinja::SourceRange> found;
  for (const jinja::SourceRange& input : text.inputs()) {
    if (input.source.message != static_cast<std::int32_t>(index)) continue;
    if (!found) found = input;
    found->end = input.end;
  }
  return found;
}

// The begin of the first word of a message that is not one of the first `leading`; the end of the text if there is none.
std::size_t begin_of_others(const jinja::Text& text, std::size_t leading, std::size_t messages_count) {
  for (const jinja::SourceRange& input : text.inputs()) {
    const auto message = static_cast<std::size_t>(input.source.message);
    if (message >= leading && message < messages_count) return input.begin;
  }
  return text.size();
}

// Counts the tokens up to the end of the system messages at the beginning, and those before all other messages. Templates
// write tools there, too, most of them behind the system messages.
void count_first_tokens(const jinja::Text& text, std::span<const ChatMessage> messages, const PlacedTokens& placed,
                        ChatTokens& result) {
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  const auto leading = static_cast<std::size_t>(std::ranges::find_if_not(messages, is_system) - messages.begin());
  const auto last = leading == 0 ? std::nullopt : find_message(text, leading - 1);
  const std::size_t system_end = last ? last->end : 0;
  result.system_tokens = static_cast<std::int32_t>(placed.count_before(system_end));
  const std::size_t others = begin_of_others(text, leading, messages.size());
  if (leading == messages.size() || others < system_end) return;
  result.head_tokens = static_cast<std::int32_t>(placed.count_before(others));
}

// The end of `text` in `full`, if `full` begins with `text`, ignoring whitespace around it.
std::optional<std::size_t> end_but_for_blanks(std::string_view full, std::string_view text) {
  const auto is_blank = [](char c) { return std::string_view(" \t\n\r\f\v").contains(c); };
  std::size_t at = 0;
  for (const char c : text) {
    if (is_blank(c)) continue;
    while (at < full.size() && is_blank(full[at])) ++at;
    if (at == full.size() || full[at] != c) return std::nullopt;
    ++at;
  }
  return at;
}

// False if these tokens differ from the message, because a template removed a part of it earlier. Text that is not valid UTF-8
// was replaced in the message and proves nothing.
bool can_be(const ChatFormat& format, std::span<const Token> tokens, std::string_view content) {
  std::string shown;  // Without the texts of marks.
  for (const Token token : tokens) shown += format.model().vocab().piece(token);
  const auto begins = [&](const std::string& text) { return trimmed(text).starts_with(trimmed(content)); };
  return begins(shown) || begins(format.text_of(tokens)) || !is_utf8(shown);
}

ChatContext context_of(const Conversation& conversation) {
  return {.unix_s = conversation.unix_s, .tools = conversation.tools, .template_arguments = conversation.template_arguments};
}

// The begin of the delta in `full`: behind the last reply, if `full` has the same text as the chain up to there, ignoring
// whitespace around replies, which some templates trim.
std::optional<std::size_t> delta_begin(const ChatFormat& format, const Conversation& conversation, const jinja::Text& full) {
  const auto messages = conversation.messages;
  const ChatMessage& last = messages.back();
  std::string reply = last.content;
  if (!conversation.replies.empty()) {
    const MessagePlace& place = conversation.replies.back();
    const auto tokens = conversation.tokens.subspan(place.begin, place.end - place.begin);
    // For a message with reasoning or calls, only the chain has the original text.
    if (!last.extra.empty()) {
      reply = format.text_of(tokens);
    } else if (!can_be(format, tokens, reply)) {
      return std::nullopt;
    }
  }
  const auto prompt = format.write(messages.first(messages.size() - 1), true, context_of(conversation));
  if (!prompt) return std::nullopt;
  const std::string past = prompt->bytes() + reply;
  if (full.bytes().starts_with(past)) return past.size();
  const auto end = end_but_for_blanks(full.bytes(), past);
  if (!end || !last.extra.empty()) return end;
  const auto place = find_message(full, messages.size() - 1);
  if (!place || place->end < *end) return std::nullopt;
  return trimmed(std::string_view(full.bytes()).substr(*end, place->end - *end)).empty() ? std::optional(place->end)
                                                                                         : std::nullopt;
}

// The range of a reply in `full`, with the blanks around it that its own text has, too, so that they are not written twice.
// Nothing before `at` belongs to it.
jinja::SourceRange with_blanks_of(std::string_view text, std::string_view full, std::size_t at, jinja::SourceRange range) {
  const auto core = trimmed(text);
  const auto written = trimmed(full.substr(range.begin, range.end - range.begin));
  if (core.empty() || core != written) return range;
  const auto before = text.substr(0, static_cast<std::size_t>(core.data() - text.data()));
  const auto behind = text.substr(before.size() + core.size());
  const auto begin = static_cast<std::size_t>(written.data() - full.data());
  const std::size_t end = begin + written.size();
  if (full.substr(at, begin - at).ends_with(before)) range.begin = begin - before.size();
  if (full.substr(end).starts_with(behind)) range.end = std::max(range.end, end + behind.size());
  return range;
}

// Makes the chain from `full`. Replies with unchanged text keep their tokens, so the new chain equals the old one up to the
// first difference. Nullopt: a reply was not found.
Expected<std::optional<PlacedTokens>> rewrite_history(const ChatFormat& format, const Conversation& conversation,
                                                      const jinja::Text& full, std::vector<MessagePlace>& replies) {
  PlacedTokens placed;
  std::vector<std::pair<std::size_t, jinja::SourceRange>> changed;  // Messages and their places.
  std::size_t at = 0;                                               // The end of what was appended.
  std::size_t seen = 0;                                             // The end of the last reply.
  const auto append_until = [&](std::size_t end) {
    const auto done = at == 0 ? append_start(format, full, end, placed) : format.tokenizer().append(full, at, end, placed);
    at = end;
    return done;
  };
  const auto place_changed = [&] {
    for (const auto& [message, range] : changed) {
      replies.push_back({message, placed.count_before(range.begin), placed.end_of(range.end)});
    }
    changed.clear();
  };
  for (const MessagePlace& reply : conversation.replies) {
    auto range = find_message(full, reply.message);
    if (!range || range->begin < seen) return std::nullopt;
    const ChatMessage& message = conversation.messages[reply.message];
    const auto original = conversation.tokens.subspan(reply.begin, reply.end - reply.begin);
    const std::string text = format.text_of(original);
    const auto written = trimmed(std::string_view(full.bytes()).substr(range->begin, range->end - range->begin));
    const bool is_unchanged = message.extra.empty()
                                  ? written == trimmed(message.content) && can_be(format, original, message.content)
                                  : written == trimmed(text);
    if (!is_unchanged) {
      changed.emplace_back(reply.message, *range);
      seen = range->end;
      continue;
    }
    *range = with_blanks_of(text, full.bytes(), seen, *range);
    if (auto done = append_until(range->begin); !done) return std::unexpected(done.error());
    place_changed();
    const std::size_t begin = placed.tokens.size();
    std::size_t end = range->begin;
    at = seen = range->end;
    for (const Token token : original) {
      end = std::min(at, end + format.text_of(std::span(&token, 1)).size());
      placed.push_back(token, end);
    }
    if (!original.empty()) placed.ends.back() = at;
    replies.push_back({reply.message, begin, placed.tokens.size()});
  }
  if (conversation.replies.empty() || conversation.replies.back().message + 1 != conversation.messages.size()) {
    return std::nullopt;
  }
  if (auto done = append_until(full.size()); !done) return std::unexpected(done.error());
  place_changed();
  return placed;
}

}  // namespace

Expected<std::vector<Token>> tokenize_text(const llm::Vocab& vocab, std::string_view text, bool at_start, bool parse_special) {
  auto tokens = vocab.tokenize(text, parse_special);
  if (tokens && vocab.adds_space_prefix() && (at_start || parse_special)) {
    const std::string spaced = with_space_prefixes(vocab, text, *tokens, at_start);
    if (spaced.size() > text.size()) tokens = vocab.tokenize(spaced, parse_special);
  }
  if (!tokens || !at_start || !vocab.bos()) return tokens;
  // A text that a client has formatted may have BOS itself.
  const bool has_bos = parse_special && !tokens->empty() && tokens->front() == *vocab.bos();
  if (!has_bos) tokens->insert(tokens->begin(), *vocab.bos());
  return tokens;
}

ChatFormat::ChatFormat(const std::shared_ptr<const llm::Model>& model, const ImageTokens& images, std::string_view family)
    : ChatFormat(model, images, family, model->facts().chat_template, /*is_for_tools=*/false) {
  for (const auto& [name, source] : model_->facts().named_templates) {
    std::unique_ptr<ChatFormat> format(new ChatFormat(model, images, family, source, name == kToolTemplate));
    if (format->template_) named_.emplace(name, std::move(format));
  }
}

ChatFormat::ChatFormat(std::shared_ptr<const llm::Model> model, ImageTokens images, std::string_view family,
                       std::string template_source, bool is_for_tools)
    : model_(std::move(model)), tokenizer_(model_->vocab(), std::move(images)), source_(std::move(template_source)) {
  const std::string& source = source_;
  if (!source.empty()) {
    auto parsed = jinja::ChatTemplate::parse(source);
    if (parsed) {
      template_ = std::move(*parsed);
    } else {
      problem_ = parsed.error().message;
      log_warning("{}: {}; libllama's version of the template is used if it has one", model_->facts().name, problem_);
    }
  }
  if (!family.empty()) {
    family_ = family_named(family);
  } else if (template_) {
    family_ = family_of(source);
  }
  template_knows_tools_ = template_ && (family_ != nullptr || is_for_tools) && source.contains("tools");
  reply_.family = template_knows_tools_ && family_ != nullptr ? family_ : &general_family();
  reply_.thoughts = thoughts_of(source, family_);
  history_variables_ = history_variables(source);
  if (template_) style_ = message_style_of(*template_, family_, model_->facts().bos_text, model_->facts().eos_text);
  reply_.begins_with_blanks = style_.has_blanks_before_replies;
  const llm::Vocab& vocab = model_->vocab();
  const auto token_of = [&](std::string_view mark) -> std::optional<Token> {
    const auto tokens = vocab.tokenize(mark, true);
    return tokens && tokens->size() == 1 ? std::optional(tokens->front()) : std::nullopt;
  };
  for (const std::string_view mark : marks_of(reply_)) {
    const auto token = token_of(mark);
    const bool is_new = token && !std::ranges::contains(reply_.marks, *token, &std::pair<Token, std::string>::first);
    if (is_new && (vocab.piece(*token).empty() || vocab.is_user_defined(*token))) reply_.marks.emplace_back(*token, mark);
  }
  for (const std::string_view end : reply_.family->ends) {
    if (const auto token = token_of(end)) reply_.ends.push_back(*token);
  }
}

const ChatFormat& ChatFormat::chosen(std::string_view tools, std::string_view template_arguments) const {
  if (named_.empty()) return *this;
  std::string name = template_name(template_arguments);
  if (name.empty() && !tools.empty()) name = kToolTemplate;
  const auto found = named_.find(name);
  return found == named_.end() ? *this : *found->second;
}

Expected<Unit> ChatFormat::check_name(std::string_view template_arguments) const {
  const std::string name = template_name(template_arguments);
  if (name.empty() || name == kDefaultTemplate || named_.contains(name)) return Unit{};
  std::string names(kDefaultTemplate);
  for (const auto& [other, format] : named_) names += ", " + other;
  constexpr std::size_t kShownBytesMax = 64;
  const bool is_source = name.contains("{{") || name.contains("{%");
  return std::unexpected(
      Error{ErrorCode::proto_field,
            is_source ? std::format("field \"chat_template\" must name a template of the model ({}): templates in requests are "
                                    "not run",
                                    names)
                      : std::format("field \"chat_template\": the model has no template \"{}\", only {}",
                                    name.substr(0, kShownBytesMax), names),
            "chat_template"});
}

// Letters and digits, which templates leave unchanged.
std::vector<ChatMessage> ChatFormat::with_image_marks(std::span<const ChatMessage> messages) const {
  std::vector<ChatMessage> marked(messages.begin(), messages.end());
  for (ChatMessage& message : marked) {
    const std::vector<image::MessageImage> images = image::images_of(message);
    if (images.empty()) continue;
    for (auto image = images.rbegin(); image != images.rend(); ++image)
      message.content.insert(image->at, tokenizer_.image_mark(image->id));
    message.extra = image::with_images(message.extra, {});
  }
  return marked;
}

Expected<std::vector<Token>> ChatFormat::tokenize_content(const ChatMessage& message) const {
  std::string content = with_image_marks(std::span(&message, 1)).front().content;
  const bool begins_with_text = !content.empty() && !tokenizer_.begins_with_image(content);
  if (model_->vocab().adds_space_prefix() && begins_with_text) content.insert(0, 1, ' ');
  const jinja::Text text = jinja::Text::input(std::move(content), jinja::kOtherInput);
  PlacedTokens placed;
  if (auto done = tokenizer_.append(text, 0, text.size(), placed); !done) return std::unexpected(done.error());
  return std::move(placed.tokens);
}

std::string ChatFormat::text_of(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    const auto mark = std::ranges::find(reply_.marks, token, &std::pair<Token, std::string>::first);
    text += mark == reply_.marks.end() ? model_->vocab().piece(token) : std::string_view(mark->second);
  }
  return text;
}

bool ChatFormat::opens_thoughts(std::string_view prompt) const {
  const std::string_view open = trimmed(reply_.thoughts.open);
  return !open.empty() && trimmed(prompt).ends_with(open);
}

ReplyFormat ChatFormat::reply_format(const ChatOptions& options, std::span<const Token> prompt,
                                     std::shared_ptr<const Tools> tools) const {
  ReplyFormat format = reply_;
  format.has_parallel_calls = tools == nullptr || options.has_parallel_calls;
  format.waits_for_ids = tools != nullptr && options.tool_choice != ToolChoice::automatic && has_late_id(*reply_.family);
  format.tools = std::move(tools);
  constexpr std::size_t kMarkTokensMax = 16;  // Limit for a mark that is several tokens.
  const std::string end = text_of(prompt.last(std::min(prompt.size(), kMarkTokensMax)));
  format.begins_with_reasoning = opens_thoughts(end);
  format.keeps_thoughts = !options.splits_reasoning;
  return format;
}

void ChatFormat::settle_thinking(ChatOptions& options) const {
  chat::settle_thinking(source_, family_, options);
}

std::vector<Token> ChatFormat::tokens_of(std::string_view marks) const {
  return model_->vocab().tokenize(marks, true).value_or(std::vector<Token>());
}

std::optional<ThinkingLimit> ChatFormat::thinking_limit(const ChatOptions& options) const {
  if (reply_.thoughts.close.empty()) return std::nullopt;
  const std::int32_t budget = options.thinking_budget.value_or(-1);
  // Without tools only the answer can follow. The grammar of a forced call has what precedes the call.
  const std::string close(reply_.thoughts.close);
  const bool is_forced = options.tool_choice != ToolChoice::automatic;
  const std::string_view next = is_forced ? "" : !options.tools.empty() ? reply_.family->next_message : reply_.family->answer;
  ThinkingLimit limit{.tokens_max = budget < 0 ? std::numeric_limits<std::int32_t>::max() : budget,
                      .closing = tokens_of(close + std::string(next)),
                      .answer = tokens_of(close + std::string(reply_.family->answer))};
  if (limit.closing.empty()) return std::nullopt;
  return limit;
}

Expected<std::string> ChatFormat::forced_grammar(const ChatOptions& options, grammar::LeftOut* left_out) const {
  ReplyFormat format = reply_;
  // The template's text before a reply shows whether the prompt opens the reasoning.
  const std::vector<ChatMessage> question{{"user", "?"}};
  const auto prompt = write(question, true, {.tools = options.tools, .template_arguments = options.template_arguments});
  if (!prompt) return std::unexpected(prompt.error());
  format.begins_with_reasoning = opens_thoughts(prompt->bytes());
  return call_grammar(format, options, prompt->bytes(), left_out);
}

Expected<std::shared_ptr<const grammar::Grammar>> ChatFormat::begun_call_grammar(const ChatOptions& options,
                                                                                 grammar::LeftOut* left_out) const {
  return chat::begun_call_grammar(reply_, options, left_out);
}

AnswerGrammar ChatFormat::answer_grammar(const ChatOptions& options, AnswerRules rules) const {
  ReplyFormat format = reply_;
  if (!options.splits_reasoning || !thinking_limit(options)) format.thoughts = {};
  rules.may_call = !options.tools.empty();
  rules.may_think = rules.may_think && !format.thoughts.open.empty() && options.thinking_budget != 0;
  return may_precede_answer(format, rules.may_call) ? chat::answer_grammar(format, rules) : AnswerGrammar{};
}

bool ChatFormat::has_thoughts(const std::shared_ptr<const grammar::Grammar>& answer) const {
  return chat::has_thoughts(reply_, answer);
}

Expected<jinja::Text> ChatFormat::write_by_template(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                                    const ChatContext& context) const {
  jinja::ChatTemplateInput input;
  input.add_generation_prompt = add_generation_prompt;
  input.bos_token = model_->facts().bos_text;
  input.eos_token = model_->facts().eos_text;
  input.unix_s = context.unix_s;
  if (const auto arguments = jinja::read_json(context.template_arguments, jinja::kOtherInput);
      arguments && arguments->as_dict()) {
    for (const auto& [name, value] : arguments->as_dict()->entries) input.variables.emplace_back(name->bytes(), value);
  }
  for (const auto& [name, value] : history_variables_) {
    const auto is_given = [&](const jinja::Value::Entry& entry) { return entry.first == name; };
    if (std::ranges::none_of(input.variables, is_given)) input.variables.emplace_back(name, jinja::Value::boolean(value));
  }
  const auto render_with = [&](std::string_view given) {
    if (auto tools = jinja::read_json(given, jinja::kToolsInput); template_knows_tools_ && tools) {
      const std::string_view variable = reply_.family->tools_variable;
      std::erase_if(input.variables, [&](const auto& entry) { return entry.first == variable; });
      if (!variable.empty()) input.variables.emplace_back(std::string(variable), jinja::Value::text(indented_json(*tools)));
      input.tools = std::move(*tools);
    }
    return template_->render(input);
  };
  const auto render = [&](bool has_refused) {
    input.messages = styled(messages, context, has_refused);
    auto text = render_with(context.tools);
    return text || context.tools.empty() ? std::move(text) : render_with(completed_tools(context.tools));
  };
  auto text = render(false);
  return text ? std::move(text) : render(true);
}

jinja::Value ChatFormat::styled(std::span<const ChatMessage> messages, const ChatContext& context, bool has_refused) const {
  const auto is_of_tools = [](const ChatMessage& message) {
    return message.role == "tool" || message.extra.contains("\"tool_calls\"");
  };
  if (template_knows_tools_ || (context.tools.empty() && std::ranges::none_of(messages, is_of_tools)))
    return jinja::Value::list(message_values(messages, style_, has_refused ? &reply_ : nullptr));
  const auto join = [](WrittenMessage& last, const WrittenMessage& next) {
    last.content.append("\n");
    last.content.append(next.content);
    return true;
  };
  auto written = spell_out_tools(messages, context.tools);
  const auto is_empty_reply = [](const WrittenMessage& message) {
    return message.role == "assistant" && trimmed(message.content.bytes()).empty();
  };
  if (has_refused) std::erase_if(written, is_empty_reply);
  std::vector<jinja::Value> values;
  for (WrittenMessage& message : in_turns(std::move(written), style_, join)) {
    values.push_back(jinja::Value::dict(
        {{"role", jinja::Value::text(message.role)}, {"content", jinja::Value::text(std::move(message.content))}}));
  }
  return jinja::Value::list(std::move(values));
}

Expected<jinja::Text> ChatFormat::write(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                        const ChatContext& context) const {
  std::vector<ChatMessage> marked;
  if (std::ranges::any_of(messages, [](const ChatMessage& message) { return !image::images_of(message).empty(); })) {
    marked = with_image_marks(messages);
    messages = marked;
  }
  std::string problem = problem_;
  if (template_) {
    auto text = write_by_template(messages, add_generation_prompt, context);
    if (text) return text;
    problem = text.error().message;
    // libllama's version knows no tools, but the reply would be parsed with tools.
    if (template_knows_tools_ && !context.tools.empty()) return text;
    if (!has_warned_.exchange(true)) {
      log_warning("{}: {}; libllama's version of the template is used if it has one", model_->facts().name, problem);
    }
  }
  auto text = write_with_library(*model_, spell_out_tools(messages, context.tools), add_generation_prompt);
  if (!text && !problem.empty()) {
    return fail(ErrorCode::model_capability, problem + ": send the formatted text as \"prompt\" instead");
  }
  return text;
}

std::optional<jinja::Text> ChatFormat::write_to_end(std::span<const ChatMessage> messages, const ChatContext& context) const {
  if (!template_) return std::nullopt;
  const std::string_view content = messages.back().content;
  auto full = write_by_template(messages, false, context);
  const auto place = full ? find_message(*full, messages.size() - 1) : std::nullopt;
  if (!place) return std::nullopt;
  const std::string_view written = trimmed(std::string_view(full->bytes()).substr(place->begin, place->end - place->begin));
  if (written.empty() || !written.ends_with(trimmed(content))) return std::nullopt;
  jinja::Text prompt = full->part(0, static_cast<std::size_t>(written.data() - full->bytes().data()) + written.size());
  // Most templates trim the content, but a reply goes on behind its blanks.
  const std::string_view begun = trimmed(content);
  const auto end = static_cast<std::size_t>(begun.data() - content.data()) + begun.size();
  prompt.append(jinja::Text::input(std::string(content.substr(end)), place->source));
  return prompt;
}

Expected<BegunReply> ChatFormat::write_begun(std::span<const ChatMessage> given, const ChatContext& context) const {
  std::vector<ChatMessage> messages = with_image_marks(given);
  const auto write_before = [&] { return write(std::span(messages).first(messages.size() - 1), true, context); };
  auto before = write_before();
  if (!before && messages.size() == 1) {
    // Many templates need a message before the reply.
    messages.insert(messages.begin(), {"user", ""});
    before = write_before();
  }
  const ChatMessage& last = messages.back();
  const auto source = static_cast<std::int32_t>(messages.size() - 1);
  if (!before) return std::unexpected(before.error());
  bool is_thinking = opens_thoughts(before->bytes());
  const auto result = [&](const jinja::Text& prompt) {
    const auto end = std::ranges::mismatch(before->bytes(), prompt.bytes()).in2;
    const auto common = static_cast<std::size_t>(end - prompt.bytes().begin());
    const std::string_view bytes = prompt.bytes();
    return BegunReply{.prompt = prompt,
                      .text = std::string(bytes.substr(common)),
                      .content = last.content,
                      .begins_with_reasoning = opens_thoughts(bytes.substr(0, common)),
                      .is_thinking = is_thinking};
  };
  jinja::Text prompt = *before;
  if (!trimmed(last.content).empty()) {
    const bool has_opened = std::exchange(is_thinking, false);
    if (const auto written = write_to_end(messages, context)) return result(*written);
    if (has_opened) prompt.append(std::string(reply_.thoughts.close) + std::string(reply_.family->answer));
    prompt.append(jinja::Text::input(last.content, source));
  } else if (const std::string thoughts = thoughts_of_message(last); !thoughts.empty() && !reply_.thoughts.open.empty()) {
    if (!std::exchange(is_thinking, true)) prompt.append(reply_.thoughts.open);
    prompt.append(jinja::Text::input(thoughts, {source, PromptPart::reasoning}));
  }
  return result(prompt);
}

Expected<ChatTokens> tokenize_chat(const ChatFormat& format, const Conversation& conversation,
                                   std::span<const ChatMessage> added) {
  std::vector<ChatMessage> all(conversation.messages.begin(), conversation.messages.end());
  all.insert(all.end(), added.begin(), added.end());
  const auto full = [&]() -> Expected<jinja::Text> {
    if (!conversation.continues_reply) return format.write(all, true, context_of(conversation));
    auto begun = format.write_begun(all, context_of(conversation));
    if (!begun) return std::unexpected(begun.error());
    return std::move(begun->prompt);
  }();
  if (!full) return std::unexpected(full.error());
  for (const ChatMessage& message : added) {
    for (const image::MessageImage& image : image::images_of(message)) {
      if (full->bytes().contains(format.tokenizer().image_mark(image.id))) continue;
      return fail(ErrorCode::model_capability, "the model's chat template does not write the image");
    }
  }

  ChatTokens result;
  std::optional<PlacedTokens> whole;
  if (!conversation.messages.empty()) {
    if (const auto begin = conversation.is_changed ? std::nullopt : delta_begin(format, conversation, *full)) {
      PlacedTokens delta;
      if (auto done = format.tokenizer().append(*full, *begin, full->size(), delta); !done)
        return std::unexpected(done.error());
      result.outline = outline_of(*full, delta, *begin, conversation.tokens.size(), all);
      result.tokens = std::move(delta.tokens);
      return result;
    }
    auto rewritten = rewrite_history(format, conversation, *full, result.replies);
    if (!rewritten) return std::unexpected(rewritten.error());
    whole = *std::move(rewritten);
    if (!whole) result.replies.clear();
    result.history_change = whole ? ChatTokens::History::rewritten : ChatTokens::History::lost;
  }
  if (!whole) {
    if (auto done = append_start(format, *full, full->size(), whole.emplace()); !done) return std::unexpected(done.error());
    whole = with_written_replies(format.model().vocab(), *full, *std::move(whole), all, conversation.written);
  }
  count_first_tokens(*full, all, *whole, result);
  result.outline = outline_of(*full, *whole, 0, 0, all);
  const std::size_t past = result.replies.empty() ? 0 : result.replies.back().end;
  const auto end = whole->tokens.begin() + static_cast<std::ptrdiff_t>(past);
  result.history.assign(whole->tokens.begin(), end);
  result.tokens.assign(end, whole->tokens.end());
  return result;
}

std::vector<std::string> chat_stop_strings(const llm::Model& model) {
  if (!model.facts().chat_template.empty()) return {};
  constexpr std::string_view kEndOfTurn = "<|im_end|>";
  const auto tokens = model.vocab().tokenize(kEndOfTurn, true);
  const bool is_end_token = tokens && tokens->size() == 1 && model.vocab().is_end_of_generation(tokens->front());
  return is_end_token ? std::vector<std::string>() : std::vector<std::string>{std::string(kEndOfTurn)};
}

}  // namespace uma::chat
