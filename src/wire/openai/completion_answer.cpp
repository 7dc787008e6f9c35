#include "wire/openai/completion_answer.h"

#include <algorithm>
#include <format>
#include <iterator>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "json/json_writer.h"
#include "wire/openai/response_tools.h"
#include "wire/own/cache_diagnostics.h"
#include "wire/own/event_codec.h"

namespace uma::wire {
namespace {

// OpenAI has no other reasons: a reply that was cut for any reason ends with "length", and `uma.reason` has the exact one.
std::string_view openai_finish_reason(FinishReason reason) {
  return reason == FinishReason::stop || reason == FinishReason::tool_calls ? finish_reason_name(reason) : "length";
}

void write_usage(json::ObjectWriter& parent, const Usage& usage) {
  json::ObjectWriter object(parent.begin("usage"));
  object.field("prompt_tokens", usage.prompt_tokens);
  object.field("completion_tokens", usage.completion_tokens);
  object.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json::ObjectWriter details(object.begin("prompt_tokens_details"));
  details.field("cached_tokens", usage.reused_tokens);
  details.close();
  json::ObjectWriter completion(object.begin("completion_tokens_details"));
  completion.field("reasoning_tokens", usage.reasoning_tokens);
  completion.close();
  object.close();
}

// Writes the receipt: umad's finish reason, and the usage. `is_compared`: also the comparison of prompts that OpenAI's
// responses have, and its chat completions do not.
void write_receipt(json::ObjectWriter& parent, const EosEvent& eos, bool is_compared) {
  json::ObjectWriter object(parent.begin("uma"));
  object.field("reason", finish_reason_name(eos.reason));
  append_usage(object.begin("usage"), eos.usage);
  if (is_compared) write_openai_diagnostics(object, eos.usage.cache_miss);
  object.close();
}

// Appends a call of a custom tool, which has one text.
void append_input_call(std::string& out, const ReplyPart& call, bool is_delta) {
  json::ObjectWriter object(out);
  if (is_delta) object.field("index", call.call);
  object.field("id", call.id);
  object.field("type", "custom");
  json::ObjectWriter custom(object.begin("custom"));
  custom.field("name", call.name);
  custom.field("input", input_of_arguments(call.text));
  custom.close();
  object.close();
}

std::int64_t characters_begun(std::string_view bytes) {
  return std::ranges::count_if(bytes, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
}

// Whether the tokenizer has inserted a blank before `text`, which these are the tokens of.
bool has_inserted_blank(std::span<const TokenLogprobs> tokens, std::string_view text) {
  std::string bytes;
  for (const TokenLogprobs& place : tokens) bytes += place.chosen.bytes;
  return bytes.size() == text.size() + 1 && bytes.starts_with(' ') && bytes.ends_with(text);
}

// A token's text. A part of a character is written in OpenAI's format, bytes:\xe2\x80.
std::string text_of(const TokenLogprob& token) {
  if (is_utf8(token.bytes)) return token.bytes;
  std::string text = "bytes:";
  for (const char byte : token.bytes) text += std::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Appends an object from token text to logprob with the most likely tokens and the chosen one. If several tokens have the same
// text, the most likely one counts.
void append_likeliest(std::string& out, const TokenLogprobs& place) {
  std::vector<std::string> written;
  json::ObjectWriter object(out);
  const auto add = [&](const TokenLogprob& token) {
    std::string text = text_of(token);
    if (std::ranges::contains(written, text)) return;
    if (!written.empty()) out += ',';
    json::append_string(out, text);
    out += ':';
    json::append_number(out, token.logprob, kLogprobDecimals);
    written.push_back(std::move(text));
  };
  for (const TokenLogprob& token : place.top) add(token);
  add(place.chosen);
  object.close();
}

void append_event_begin(std::string& out) {
  out += "data: ";
}
void append_event_end(std::string& out) {
  out += "\n\n";
}

}  // namespace

CompletionAnswer::CompletionAnswer(AnswerForm form) : form_(std::move(form)), choices_(form_.prompts * form_.n) {
  UMA_CHECK(!choices_.empty() && (form_.echoes.empty() || form_.echoes.size() == form_.prompts));
  const bool is_chat = form_.kind == CompletionKind::chat;
  const auto write = [&](std::string& out, std::string_view object_name) {
    json::ObjectWriter object(out);
    object.field("id", std::format("{}-{}", is_chat ? "chatcmpl" : "cmpl", form_.id));
    object.field("object", object_name);
    object.field("created", form_.created_s);
    object.field("model", form_.model);
  };
  write(whole_head_, is_chat ? "chat.completion" : "text_completion");
  write(chunk_head_, is_chat ? "chat.completion.chunk" : "text_completion");
}

std::string_view CompletionAnswer::echo(std::size_t choice) const {
  return form_.echoes.empty() ? std::string_view() : form_.echoes[choice / form_.n];
}

// Returns true when all choices have ended.
bool CompletionAnswer::end(std::size_t choice, EosEvent eos) {
  UMA_CHECK(!choices_[choice].end);
  choices_[choice].end = std::move(eos);
  return ++ended_ == choices_.size();
}

// The cost of all choices together. A prompt counts once, and its tokens that no choice had to compute are cached.
Usage CompletionAnswer::usage() const {
  Usage total;
  for (std::size_t first = 0; first < choices_.size(); first += form_.n) {
    const Usage& prompt = choices_[first].end->usage;
    total.prompt_tokens += prompt.prompt_tokens;
    std::int32_t reused = prompt.reused_tokens;
    for (std::size_t i = first; i < first + form_.n; ++i) {
      const Usage& usage = choices_[i].end->usage;
      reused = std::min(reused, usage.reused_tokens);
      total.completion_tokens += usage.completion_tokens;
      total.reasoning_tokens += usage.reasoning_tokens;
    }
    total.reused_tokens += reused;
  }
  return total;
}

// `is_first_unknown`: nothing has predicted the first token, which begins a prompt.
void CompletionAnswer::write_logprobs(std::string& out, Choice& choice, std::span<const TokenLogprobs> logprobs,
                                      bool is_first_unknown) const {
  const auto is_unknown = [&](const TokenLogprobs& place) { return is_first_unknown && &place == &logprobs.front(); };
  json::ObjectWriter object(out);
  if (form_.kind == CompletionKind::chat) {
    append_logprobs(object.begin("content"), logprobs, false);
    object.null_field("refusal");
    return object.close();
  }
  json::append_array(object.begin("tokens"), logprobs,
                     [&](const TokenLogprobs& place) { json::append_string(out, text_of(place.chosen)); });
  json::append_array(object.begin("token_logprobs"), logprobs, [&](const TokenLogprobs& place) {
    if (is_unknown(place)) {
      out += "null";
    } else {
      json::append_number(out, place.chosen.logprob, kLogprobDecimals);
    }
  });
  json::append_array(object.begin("top_logprobs"), logprobs, [&](const TokenLogprobs& place) {
    if (is_unknown(place)) {
      out += "null";
    } else {
      append_likeliest(out, place);
    }
  });
  json::append_array(object.begin("text_offset"), logprobs, [&](const TokenLogprobs& place) {
    json::append_integer(out, std::max<std::int64_t>(0, choice.characters));
    choice.characters += characters_begun(place.chosen.bytes);
  });
  object.close();
}

// Writes one chunk with one choice: write_delta(choice) adds the new content. `eos` is set for the chunk that ends the choice.
template <class WriteT>
void CompletionAnswer::append_chunk(std::string& out, std::size_t index, const EosEvent* eos,
                                    std::span<const TokenLogprobs> logprobs, WriteT&& write_delta) {
  append_event_begin(out);
  json::ObjectWriter object(out, chunk_head_);
  object.begin("choices") += '[';
  {
    json::ObjectWriter choice(out);
    choice.field("index", index);
    write_delta(choice);
    if (logprobs.empty()) {
      choice.null_field("logprobs");
    } else {
      write_logprobs(choice.begin("logprobs"), choices_[index], logprobs, false);
    }
    if (eos == nullptr) {
      choice.null_field("finish_reason");
    } else {
      choice.field("finish_reason", openai_finish_reason(eos->reason));
    }
    choice.close();
  }
  out += ']';
  if (form_.includes_usage) object.null_field("usage");
  if (eos != nullptr) write_receipt(object, *eos, is_compared(index));
  object.close();
  append_event_end(out);
}

void CompletionAnswer::append_first(std::string& out, std::size_t choice) {
  if (form_.kind == CompletionKind::text) {
    if (!echo(choice).empty()) append_text(out, choice, echo(choice), {});
    return;
  }
  append_chunk(out, choice, nullptr, {}, [&](json::ObjectWriter& object) {
    json::ObjectWriter delta(object.begin("delta"));
    delta.field("role", "assistant");
    delta.field("content", echo(choice));
    delta.close();
  });
}

void CompletionAnswer::append_text(std::string& out, std::size_t choice, std::string_view text,
                                   std::span<const TokenLogprobs> logprobs) {
  append_chunk(out, choice, nullptr, logprobs, [&](json::ObjectWriter& object) {
    if (form_.kind == CompletionKind::text) return object.field("text", text);
    json::ObjectWriter delta(object.begin("delta"));
    delta.field("content", text);
    delta.close();
  });
}

void CompletionAnswer::append_part(std::string& out, std::size_t choice, const ReplyPart& part) {
  std::optional<ReplyPart>& custom = choices_[choice].custom_call;
  if (custom && part.kind == ReplyPart::Kind::tool_call && part.call == custom->call) {
    custom->text += part.text;
    return;
  }
  append_custom_call(out, choice);
  if (part.kind == ReplyPart::Kind::tool_call && std::ranges::contains(form_.custom_tools, part.name)) {
    custom = part;
    return;
  }
  append_chunk(out, choice, nullptr, {}, [&](json::ObjectWriter& object) {
    json::ObjectWriter delta(object.begin("delta"));
    if (part.kind == ReplyPart::Kind::reasoning) {
      delta.field("reasoning_content", part.text);
    } else {
      delta.begin("tool_calls") += '[';
      json::ObjectWriter call(out);
      call.field("index", part.call);
      if (!part.id.empty()) {
        call.field("id", part.id);
        call.field("type", "function");
      }
      json::ObjectWriter function(call.begin("function"));
      if (!part.name.empty()) function.field("name", part.name);
      function.field("arguments", part.text);
      function.close();
      call.close();
      out += ']';
    }
    delta.close();
  });
}

void CompletionAnswer::append_custom_call(std::string& out, std::size_t choice) {
  const auto call = std::exchange(choices_[choice].custom_call, std::nullopt);
  if (!call) return;
  append_chunk(out, choice, nullptr, {}, [&](json::ObjectWriter& object) {
    json::ObjectWriter delta(object.begin("delta"));
    delta.begin("tool_calls") += '[';
    append_input_call(out, *call, /*is_delta=*/true);
    out += ']';
    delta.close();
  });
}

void CompletionAnswer::append_last(std::string& out, std::size_t choice, const EosEvent& eos) {
  for (const ReplyPart& part : eos.parts) append_part(out, choice, part);
  append_custom_call(out, choice);
  if (!eos.text.empty()) append_text(out, choice, eos.text, eos.logprobs);
  bool is_over = true;
  if (eos.error) {
    append_event_begin(out);
    out += error_json(*eos.error, 500, "");
    append_event_end(out);
  } else {
    append_chunk(out, choice, &eos, {}, [&](json::ObjectWriter& object) {
      if (form_.kind == CompletionKind::text) return object.field("text", "");
      json::ObjectWriter(object.begin("delta")).close();
    });
    is_over = end(choice, EosEvent{.usage = eos.usage, .text = "", .error = std::nullopt});
    if (is_over && form_.includes_usage) {
      append_event_begin(out);
      json::ObjectWriter object(out, chunk_head_);
      object.begin("choices") += "[]";
      write_usage(object, usage());
      object.close();
      append_event_end(out);
    }
  }
  if (is_over) out += "data: [DONE]\n\n";
}

// Writes text, reasoning and tool calls of a whole reply.
void CompletionAnswer::write_reply(json::ObjectWriter& message, std::size_t choice) const {
  const EosEvent& eos = *choices_[choice].end;
  const std::string text = std::string(echo(choice)) + eos.text;
  const auto is_call = [](const ReplyPart& part) { return part.kind == ReplyPart::Kind::tool_call; };
  const bool has_calls = std::ranges::any_of(eos.parts, is_call);
  if (text.empty() && has_calls) {
    message.null_field("content");
  } else {
    message.field("content", text);
  }
  for (const ReplyPart& part : eos.parts) {
    if (part.kind == ReplyPart::Kind::reasoning) message.field("reasoning_content", part.text);
  }
  if (!has_calls) return;
  std::string& out = message.begin("tool_calls");
  json::append_array(out, eos.parts | std::views::filter(is_call), [&](const ReplyPart& call) {
    if (std::ranges::contains(form_.custom_tools, call.name)) return append_input_call(out, call, /*is_delta=*/false);
    append_call_json(out, call);
  });
}

void CompletionAnswer::write_choice(std::string& out, std::size_t index) {
  Choice& made = choices_[index];
  const EosEvent& eos = *made.end;
  json::ObjectWriter choice(out);
  choice.field("index", index);
  if (form_.kind == CompletionKind::chat) {
    json::ObjectWriter message(choice.begin("message"));
    message.field("role", "assistant");
    write_reply(message, index);
    message.null_field("refusal");
    message.close();
  } else {
    choice.field("text", std::string(echo(index)) + eos.text);
  }
  if (form_.has_logprobs) {
    std::vector<TokenLogprobs> all = std::move(made.end->prompt_logprobs);
    const bool has_prompt = !all.empty();
    if (has_inserted_blank(all, echo(index))) made.characters = -1;  // It is not part of the text.
    std::ranges::move(made.end->logprobs, std::back_inserter(all));
    if (made.end->end_logprobs) all.push_back(*std::move(made.end->end_logprobs));
    write_logprobs(choice.begin("logprobs"), made, all, has_prompt);
  } else {
    choice.null_field("logprobs");
  }
  choice.field("finish_reason", openai_finish_reason(eos.reason));
  if (choices_.size() > 1) write_receipt(choice, eos, is_compared(index));
  choice.close();
}

std::string CompletionAnswer::whole(std::size_t choice, const EosEvent& eos) {
  std::string out;
  if (!end(choice, eos)) return out;
  json::ObjectWriter object(out, whole_head_);
  object.begin("choices") += '[';
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    write_choice(out, i);
  }
  out += ']';
  write_usage(object, usage());
  if (choices_.size() == 1) write_receipt(object, eos, form_.is_compared);
  object.close();
  return out;
}

}  // namespace uma::wire
