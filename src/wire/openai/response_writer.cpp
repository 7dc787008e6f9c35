#include "wire/openai/response_writer.h"

#include <algorithm>
#include <format>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"
#include "wire/openai/sealed_reasoning.h"
#include "wire/own/cache_diagnostics.h"
#include "wire/own/event_codec.h"

namespace uma::wire {
namespace {

std::string_view prefix_of(Item::Kind kind) {
  switch (kind) {
    case Item::Kind::message:
      return "msg";
    case Item::Kind::reasoning:
      return "rs";
    case Item::Kind::call:
      return "fc";
    case Item::Kind::call_output:
      break;
  }
  return "fco";
}

std::string_view type_of(Item::Kind kind) {
  switch (kind) {
    case Item::Kind::message:
      return "message";
    case Item::Kind::reasoning:
      return "reasoning";
    case Item::Kind::call:
      return "function_call";
    case Item::Kind::call_output:
      break;
  }
  return "function_call_output";
}

std::string_view status_name(ItemStatus status) {
  switch (status) {
    case ItemStatus::in_progress:
      return "in_progress";
    case ItemStatus::completed:
      return "completed";
    case ItemStatus::incomplete:
      break;
  }
  return "incomplete";
}

// The extra text field `name` of a message; empty if it is missing.
std::string text_of(const boost::json::object& fields, std::string_view name) {
  const boost::json::value* value = fields.if_contains(name);
  const boost::json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : std::string(*text);
}

boost::json::object extra_of(const ChatMessage& message) {
  if (message.extra.empty()) return {};
  boost::system::error_code problem;
  boost::json::value extra = json::parse(message.extra, {}, problem);
  return extra.is_object() ? std::move(extra.get_object()) : boost::json::object();
}

constexpr std::string_view kAudioUrl = "data:audio/";

// The images of a message with a content of `content_bytes`, in the format of capability/message_images.h.
std::vector<ItemImage> images_of(const boost::json::object& extra, std::size_t content_bytes) {
  std::vector<ItemImage> images;
  const boost::json::value* value = extra.if_contains("images");
  const boost::json::array* array = value == nullptr ? nullptr : value->if_array();
  if (array == nullptr) return images;
  for (const boost::json::value& given : *array) {
    const boost::json::object* image = given.if_object();
    const boost::json::value* at = image == nullptr ? nullptr : image->if_contains("at");
    const std::size_t least = images.empty() ? 0 : images.back().at;
    if (at == nullptr || !at->is_int64() || std::cmp_less(at->get_int64(), least)) return {};
    images.push_back(
        {.at = std::min(static_cast<std::size_t>(at->get_int64()), content_bytes), .id = text_of(*image, "sha256")});
  }
  return images;
}

void add_calls(std::vector<Item>& items, const boost::json::object& extra, std::string_view session, MessagePosition place,
               const ResponseTools& tools) {
  const boost::json::value* value = extra.if_contains("tool_calls");
  const boost::json::array* calls = value == nullptr ? nullptr : value->if_array();
  if (calls == nullptr) return;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const boost::json::object* call = (*calls)[i].if_object();
    const boost::json::value* inner = call == nullptr ? nullptr : call->if_contains("function");
    const boost::json::object* function = inner == nullptr ? nullptr : inner->if_object();
    if (function == nullptr) continue;
    items.push_back({.kind = Item::Kind::call,
                     .id = item_id(Item::Kind::call, session, place, static_cast<std::int32_t>(i)),
                     .text = text_of(*function, "arguments"),
                     .call_id = text_of(*call, "id")});
    set_tool(items.back(), tools, text_of(*function, "name"));
  }
}

void write_usage(json::ObjectWriter& parent, const ResponseFacts& facts) {
  json::ObjectWriter usage(parent.begin("usage"));
  usage.field("input_tokens", facts.prompt_tokens);
  json::ObjectWriter input(usage.begin("input_tokens_details"));
  input.field("cached_tokens", facts.reused_tokens);
  input.close();
  usage.field("output_tokens", facts.completion_tokens);
  json::ObjectWriter output(usage.begin("output_tokens_details"));
  output.field("reasoning_tokens", facts.reasoning_tokens);
  output.close();
  usage.field("total_tokens", facts.prompt_tokens + facts.completion_tokens);
  usage.close();
}

// Writes umad's extensions: the session, and at the end the finish reason and the usage.
void write_own(json::ObjectWriter& parent, const ResponseFacts& facts) {
  json::ObjectWriter own(parent.begin("uma"));
  if (!facts.session.empty()) {
    own.field("session_id", facts.session);
    own.field("turn", facts.turn);
  }
  if (facts.reason) own.field("reason", finish_reason_name(*facts.reason));
  if (facts.receipt != nullptr) append_usage(own.begin("usage"), *facts.receipt);
  own.close();
}

// When the reply had ended, from what its receipt says of its time. Stored replies know no more.
std::int64_t completed_s(const ResponseFacts& facts) {
  if (facts.receipt == nullptr) return facts.created_s;
  const Usage& usage = *facts.receipt;
  double seconds = usage.ttft_ms / 1000;
  if (usage.tokens_per_s > 0) seconds += (usage.completion_tokens - 1) / usage.tokens_per_s;
  return facts.created_s + static_cast<std::int64_t>(seconds);
}

}  // namespace

std::string item_id(Item::Kind kind, std::string_view session, MessagePosition place, std::int32_t call) {
  std::string id = std::format("{}_{}_{}_{}", prefix_of(kind), session, place.turn, place.number);
  if (kind == Item::Kind::call) id += std::format("_{}", call);
  return id;
}

void set_tool(Item& call, const ResponseTools& tools, std::string_view function) {
  ResponseTool tool = tools.find(function);
  call.name = std::move(tool.name);
  call.space = std::move(tool.space);
  call.is_custom = tool.is_custom;
}

void add_items(std::vector<Item>& items, const ChatMessage& message, std::string_view session, MessagePosition place,
               const ResponseTools& tools) {
  const boost::json::object extra = extra_of(message);
  if (message.role == "tool") {
    items.push_back({.kind = Item::Kind::call_output,
                     .id = item_id(Item::Kind::call_output, session, place),
                     .text = message.content,
                     .call_id = text_of(extra, "tool_call_id"),
                     .images = images_of(extra, message.content.size())});
    return;
  }
  const std::size_t before = items.size();
  if (std::string thought = text_of(extra, "reasoning_content"); !thought.empty()) {
    items.push_back(
        {.kind = Item::Kind::reasoning, .id = item_id(Item::Kind::reasoning, session, place), .text = std::move(thought)});
  }
  Item said{.kind = Item::Kind::message,
            .id = item_id(Item::Kind::message, session, place),
            .text = message.content,
            .role = message.role,
            .images = images_of(extra, message.content.size())};
  if (!message.content.empty()) items.push_back(said);
  add_calls(items, extra, session, place, tools);
  if (items.size() == before) items.push_back(std::move(said));  // The message is empty.
}

namespace {

void append_text_part(std::string& out, const Item& item, std::string_view text) {
  json::ObjectWriter part(out);
  if (item.kind == Item::Kind::reasoning) {
    part.field("type", "reasoning_text");
  } else if (item.role == "assistant") {
    part.field("type", "output_text");
    part.begin("annotations") += "[]";
    append_logprobs(part.begin("logprobs"), item.logprobs, /*with_ids=*/false);
  } else {
    part.field("type", "input_text");
  }
  part.field("text", text);
  part.close();
}

// Appends the clip of the URL "data:audio/FORMAT;base64,DATA".
void append_audio_part(std::string& out, std::string_view url) {
  const std::size_t comma = url.find(',');
  json::ObjectWriter part(out);
  part.field("type", "input_audio");
  json::ObjectWriter clip(part.begin("input_audio"));
  clip.field("data", url.substr(comma + 1));
  clip.field("format", url.substr(kAudioUrl.size(), url.find(';') - kAudioUrl.size()));
  clip.close();
  part.close();
}

void append_image_part(std::string& out, const ItemImage& image) {
  if (image.url.starts_with(kAudioUrl)) return append_audio_part(out, image.url);
  json::ObjectWriter part(out);
  part.field("type", "input_image");
  part.field("detail", "auto");
  part.null_field("file_id");
  if (image.url.empty()) {
    part.null_field("image_url");
  } else {
    part.field("image_url", image.url);
  }
  part.close();
}

// Appends the text with the images at their positions.
void append_content(std::string& out, const Item& item) {
  const std::string_view text = item.text;
  std::size_t begin = 0;
  bool is_first = true;
  const auto separate = [&] {
    if (!std::exchange(is_first, false)) out += ',';
  };
  const auto append_text_until = [&](std::size_t end) {
    if (begin == end) return;
    separate();
    append_text_part(out, item, text.substr(begin, end - begin));
    begin = end;
  };
  for (const ItemImage& image : item.images) {
    append_text_until(image.at);
    separate();
    append_image_part(out, image);
  }
  append_text_until(text.size());
  if (is_first) append_text_part(out, item, "");  // The message is empty.
}

}  // namespace

void append_content_part(std::string& out, const Item& item) {
  append_text_part(out, item, item.text);
}

void append_item(std::string& out, const Item& item, ItemStatus status) {
  const bool has_content = status != ItemStatus::in_progress;
  json::ObjectWriter object(out);
  object.field("id", item.id);
  object.field("type", item.is_custom ? "custom_tool_call" : type_of(item.kind));
  object.field("status", status_name(status));
  if (item.turn) {
    json::ObjectWriter own(object.begin("uma"));
    own.field("turn", *item.turn);
    own.close();
  }
  switch (item.kind) {
    case Item::Kind::message:
    case Item::Kind::reasoning: {
      if (item.kind == Item::Kind::message) {
        object.field("role", item.role);
      } else {
        object.begin("summary") += "[]";
      }
      std::string& content = object.begin("content");
      content += '[';
      if (has_content) append_content(content, item);
      content += ']';
      if (item.seals_reasoning && has_content) object.field("encrypted_content", sealed_reasoning(item.text));
      break;
    }
    case Item::Kind::call:
      object.field("call_id", item.call_id);
      object.field("name", item.name);
      if (!item.space.empty()) object.field("namespace", item.space);
      if (item.is_custom) {
        object.field("input", has_content ? input_of_arguments(item.text) : "");
      } else {
        object.field("arguments", has_content ? std::string_view(item.text) : "");
      }
      break;
    case Item::Kind::call_output:
      object.field("call_id", item.call_id);
      if (item.images.empty()) {
        object.field("output", item.text);
      } else {
        std::string& output = object.begin("output");
        output += '[';
        append_content(output, item);
        output += ']';
      }
      break;
  }
  object.close();
}

// OpenAI has no other status: a reply that was cut for any reason is incomplete, and `uma.reason` has the exact one.
std::string_view response_status(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
    case FinishReason::tool_calls:
      return "completed";
    case FinishReason::error:
      return "failed";
    case FinishReason::cancelled:
      return "cancelled";
    default:
      return "incomplete";
  }
}

void append_response(std::string& out, const ResponseFacts& facts) {
  const std::string_view status = facts.reason ? response_status(*facts.reason) : "in_progress";
  json::ObjectWriter object(out, facts.request);
  object.field("id", facts.id);
  object.field("object", "response");
  object.field("created_at", facts.created_s);
  if (status == "completed") {
    object.field("completed_at", completed_s(facts));
  } else {
    object.null_field("completed_at");
  }
  object.field("status", status);
  object.field("model", facts.model);
  if (status == "failed") {
    json::ObjectWriter error(object.begin("error"));
    error.field("code", facts.error_code);
    error.field("message", facts.error);
    error.close();
  } else {
    object.null_field("error");
  }
  if (status == "incomplete") {
    object.begin("incomplete_details") += R"({"reason":"max_output_tokens"})";
  } else {
    object.null_field("incomplete_details");
  }
  // Only the last item can be cut.
  json::append_array(object.begin("output"), facts.output, [&](const Item& item) {
    const bool is_whole = status == "completed" || &item != &facts.output.back();
    append_item(out, item, is_whole ? ItemStatus::completed : ItemStatus::incomplete);
  });
  object.null_field("user");
  if (facts.reason) {
    write_usage(object, facts);
  } else {
    object.null_field("usage");
  }
  if (facts.is_compared && facts.receipt != nullptr) write_openai_diagnostics(object, facts.receipt->cache_miss);
  write_own(object, facts);
  object.close();
}

}  // namespace uma::wire
