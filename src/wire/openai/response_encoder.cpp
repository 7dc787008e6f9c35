#include "wire/openai/response_encoder.h"

#include <format>
#include <utility>

#include "json/json_writer.h"
#include "wire/openai/openai_codec.h"
#include "wire/own/event_codec.h"

namespace uma::wire {

ResponseEncoder::ResponseEncoder(const ResponseId& id, ResponseForm form)
    : response_(id.response),
      form_(std::make_shared<const ResponseForm>(std::move(form))),
      model_(form_->model),
      id_(response_id_text(id)),
      session_(id.session) {}

void ResponseEncoder::set_place(const ResponseBegunEvent& place) {
  session_ = place.session.value;
  place_ = {.turn = place.turn, .number = place.number};
  has_session_ = true;
  if (!place.model.empty()) model_ = place.model;
  id_ = response_id_text({session_, response_});
}

void ResponseEncoder::append_response(std::string& out, std::string_view request, const std::vector<Item>& output,
                                      const EosEvent* eos) const {
  ResponseFacts facts{.id = id_,
                      .request = request,
                      .model = model_,
                      .created_s = form_->created_s,
                      .session = has_session_ ? std::string_view(session_) : "",
                      .turn = place_.turn,
                      .output = output};
  if (eos != nullptr) {
    facts.reason = eos->reason;
    if (eos->error) {
      facts.error = eos->error->message;
      if (is_overflow(eos->error->code)) facts.error_code = openai_code(eos->error->code);
    }
    facts.prompt_tokens = eos->usage.prompt_tokens;
    facts.reused_tokens = eos->usage.reused_tokens;
    facts.completion_tokens = eos->usage.completion_tokens;
    facts.reasoning_tokens = eos->usage.reasoning_tokens;
    facts.receipt = &eos->usage;
    facts.is_compared = form_->is_compared;
  }
  wire::append_response(out, facts);
}

// Writes an event {"type","sequence_number",…}; write(object) adds the rest.
template <class WriteT>
void ResponseEncoder::append_event(std::string& out, std::string_view type, WriteT&& write) {
  out += std::format("event: {}\ndata: ", type);
  json::ObjectWriter object(out);
  object.field("type", type);
  object.field("sequence_number", events_++);
  write(object);
  object.close();
  out += "\n\n";
}

// Writes an event of the open item. Messages and reasoning have one part.
template <class WriteT>
void ResponseEncoder::append_item_event(std::string& out, std::string_view type, WriteT&& write) {
  append_event(out, type, [&](json::ObjectWriter& object) {
    object.field("item_id", items_.back().id);
    object.field("output_index", items_.size() - 1);
    if (items_.back().kind != Item::Kind::call) object.field("content_index", 0);
    write(object);
  });
}

void ResponseEncoder::append_begun_event(std::string& out, std::string_view type) {
  append_event(out, type, [&](json::ObjectWriter& object) {
    append_response(object.begin("response"), form_->brief_request, {}, nullptr);
  });
}

void ResponseEncoder::append_ended_event(std::string& out, const EosEvent& eos) {
  const std::string_view status = response_status(eos.reason);
  const std::string_view type = status == "failed"      ? "response.failed"
                                : status == "completed" ? "response.completed"
                                                        : "response.incomplete";
  append_event(out, type,
               [&](json::ObjectWriter& object) { append_response(object.begin("response"), form_->request, items_, &eos); });
}

Item ResponseEncoder::begun_item(Item::Kind kind, std::int32_t call) const {
  return {.kind = kind,
          .id = item_id(kind, session_, place_, call),
          .text = "",
          .role = kind == Item::Kind::message ? "assistant" : "",
          .seals_reasoning = form_->seals_reasoning};
}

void ResponseEncoder::begin_item(std::string& out, Item item) {
  if (is_in_item_) end_item(out, ItemStatus::completed);
  items_.push_back(std::move(item));
  is_in_item_ = true;
  append_event(out, "response.output_item.added", [&](json::ObjectWriter& object) {
    object.field("output_index", items_.size() - 1);
    append_item(object.begin("item"), items_.back(), ItemStatus::in_progress);
  });
  if (items_.back().kind == Item::Kind::call) return;
  append_item_event(out, "response.content_part.added",
                    [&](json::ObjectWriter& object) { append_content_part(object.begin("part"), items_.back()); });
}

void ResponseEncoder::end_item(std::string& out, ItemStatus status) {
  const Item& item = items_.back();
  switch (item.kind) {
    case Item::Kind::call:
      if (item.is_custom) {
        const std::string input = input_of_arguments(item.text);
        append_item_event(out, "response.custom_tool_call_input.delta",
                          [&](json::ObjectWriter& object) { object.field("delta", input); });
        append_item_event(out, "response.custom_tool_call_input.done",
                          [&](json::ObjectWriter& object) { object.field("input", input); });
        break;
      }
      append_item_event(out, "response.function_call_arguments.done", [&](json::ObjectWriter& object) {
        object.field("name", item.name);
        object.field("arguments", item.text);
      });
      break;
    case Item::Kind::reasoning:
      append_item_event(out, "response.reasoning_text.done",
                        [&](json::ObjectWriter& object) { object.field("text", item.text); });
      break;
    default:
      append_item_event(out, "response.output_text.done", [&](json::ObjectWriter& object) {
        object.field("text", item.text);
        object.begin("logprobs") += "[]";
      });
  }
  if (item.kind != Item::Kind::call) {
    append_item_event(out, "response.content_part.done",
                      [&](json::ObjectWriter& object) { append_content_part(object.begin("part"), item); });
  }
  append_event(out, "response.output_item.done", [&](json::ObjectWriter& object) {
    object.field("output_index", items_.size() - 1);
    append_item(object.begin("item"), item, status);
  });
  is_in_item_ = false;
}

// Appends the next piece of the open item.
void ResponseEncoder::append_delta(std::string& out, std::string_view text, std::span<const TokenLogprobs> logprobs) {
  Item& item = items_.back();
  item.text += text;
  if (item.is_custom) return;  // The input is known when its JSON is complete.
  const bool is_said = item.kind == Item::Kind::message;
  const std::string_view type = is_said                              ? "response.output_text.delta"
                                : item.kind == Item::Kind::reasoning ? "response.reasoning_text.delta"
                                                                     : "response.function_call_arguments.delta";
  append_item_event(out, type, [&](json::ObjectWriter& object) {
    object.field("delta", text);
    if (is_said) append_logprobs(object.begin("logprobs"), logprobs, /*with_ids=*/false);
  });
}

void ResponseEncoder::append_first(std::string& out) {
  append_begun_event(out, "response.created");
  append_begun_event(out, "response.in_progress");
}

void ResponseEncoder::append_text(std::string& out, std::string_view text, std::span<const TokenLogprobs> logprobs) {
  if (!is_in(Item::Kind::message)) {
    Item item = begun_item(Item::Kind::message);
    // The stored conversation has one message with the whole reply.
    if (!items_.empty() && items_.back().kind == Item::Kind::call) item.id += std::format("_{}", items_.size());
    begin_item(out, std::move(item));
  }
  append_delta(out, text, logprobs);
}

void ResponseEncoder::append_part(std::string& out, const ReplyPart& part) {
  if (part.kind == ReplyPart::Kind::reasoning) {
    if (!is_in(Item::Kind::reasoning)) begin_item(out, begun_item(Item::Kind::reasoning));
  } else if (!part.id.empty()) {
    Item call = begun_item(Item::Kind::call, part.call);
    call.call_id = part.id;
    set_tool(call, form_->tools, part.name);
    begin_item(out, std::move(call));
  }
  if (!part.text.empty()) append_delta(out, part.text);
}

void ResponseEncoder::append_last(std::string& out, const EosEvent& eos) {
  for (const ReplyPart& part : eos.parts) append_part(out, part);
  if (!eos.text.empty()) append_text(out, eos.text, eos.logprobs);
  const std::string_view status = response_status(eos.reason);
  if (status != "failed") {
    if (items_.empty()) begin_item(out, begun_item(Item::Kind::message));
    if (is_in_item_) end_item(out, status == "completed" ? ItemStatus::completed : ItemStatus::incomplete);
  }
  append_ended_event(out, eos);
}

void ResponseEncoder::append_warmed(std::string& out, EosEvent eos) {
  if (!eos.error) eos.reason = FinishReason::stop;  // It was not cut: nothing more was wanted.
  append_ended_event(out, eos);
}

void ResponseEncoder::append_whole(std::string& out, std::vector<Item> items, const EosEvent& eos) {
  append_first(out);
  for (Item& item : items) {
    const std::string text = std::exchange(item.text, "");
    begin_item(out, std::move(item));
    if (!text.empty()) append_delta(out, text);
  }
  append_last(out, eos);
}

void ResponseEncoder::append_end(std::string& out, std::uint64_t number, std::vector<Item> items, const EosEvent& eos) {
  items_ = std::move(items);
  events_ = number;
  append_ended_event(out, eos);
}

std::string ResponseEncoder::json_of_stream(const EosEvent& eos) const {
  std::string out;
  append_response(out, form_->request, items_, &eos);
  return out;
}

std::string ResponseEncoder::json_in_progress() const {
  std::string out;
  append_response(out, form_->request, {}, nullptr);
  return out;
}

std::string ResponseEncoder::json(const EosEvent& eos) const {
  std::vector<Item> items;
  Item said = begun_item(Item::Kind::message);
  said.text = eos.text;
  said.logprobs = eos.logprobs;
  for (const ReplyPart& part : eos.parts) {
    if (part.kind != ReplyPart::Kind::reasoning) continue;
    items.push_back(begun_item(Item::Kind::reasoning));
    items.back().text = part.text;
  }
  if (!eos.text.empty()) items.push_back(said);
  for (const ReplyPart& part : eos.parts) {
    if (part.kind != ReplyPart::Kind::tool_call) continue;
    items.push_back(begun_item(Item::Kind::call, part.call));
    items.back().call_id = part.id;
    set_tool(items.back(), form_->tools, part.name);
    items.back().text = part.text;
  }
  if (items.empty()) items.push_back(std::move(said));
  std::string out;
  append_response(out, form_->request, items, &eos);
  return out;
}

std::string response_error_event(const Error& error) {
  std::string out = "event: error\ndata: ";
  json::ObjectWriter object(out);
  object.field("type", "error");
  object.field("code", code_name(error.code));
  object.field("message", error.message);
  object.null_field("param");
  object.close();
  return out + "\n\n";
}

std::string input_tokens_json(std::int32_t tokens) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("object", "response.input_tokens");
  object.field("input_tokens", tokens);
  object.close();
  return out;
}

}  // namespace uma::wire
