#include "wire/openai/responses_decoder.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <format>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "core/limits.h"
#include "json/json_writer.h"
#include "wire/agent_fields.h"
#include "wire/generate_fields.h"
#include "wire/image_fields.h"
#include "wire/openai/compaction.h"
#include "wire/openai/history_fields.h"
#include "wire/openai/response_form.h"
#include "wire/openai/response_ids.h"
#include "wire/openai/sealed_reasoning.h"
#include "wire/own/cache_diagnostics.h"
#include "wire/own/event_codec.h"
#include "wire/own/metadata_fields.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"
#include "wire/thinking_fields.h"

namespace uma::wire {
namespace {

constexpr std::string_view kReferenceType = "item_reference";

void fail_unknown(json::FieldReader& fields, std::string_view name, std::string_view what) {
  fields.fail_field(name, std::format("is not the id of an existing {}: it never existed or was deleted", what),
                    ErrorCode::session_unknown);
}

std::string item_role(json::FieldReader& item) {
  std::string role = item.required_text("role");
  if (role == "developer") return "system";  // The newer name of the same role.
  if (item.ok() && role != "system" && role != "user" && role != "assistant") {
    item.fail_field("role", R"(must be "user", "assistant", "system" or "developer")");
  }
  return role;
}

// Reads a string, or parts of text and, for a user or a tool, images, which are added to `images` for the message `index`.
// Parts that are reasoning are added to `reasoning`. The output of a tool may be missing, or an object.
std::string item_content(json::FieldReader& item, std::string_view name, std::string_view role, std::size_t index,
                         std::vector<InputImage>& images, std::string& reasoning) {
  const auto cleaned = [is_system = role == "system"](std::string text) {
    return is_system ? without_billing_line(std::move(text)) : text;
  };
  const boost::json::value* content = item.find(name);
  const bool is_tools = role == "tool";
  if (content == nullptr && (role == "assistant" || is_tools || item.is_null(name))) return "";
  if (is_tools && !content->is_string() && (!content->is_array() || is_list_of_values(*content))) {
    return json_text(item, name, *content);
  }
  if (content == nullptr || !content->is_array()) return cleaned(item.required_text(name));
  std::string text;
  for (std::size_t i = 0; i < content->get_array().size() && item.ok(); ++i) {
    const boost::json::object* object = content->get_array()[i].if_object();
    if (object != nullptr && role != "system") {
      const std::string field = std::format("{}{}[{}]", item.path(), name, i);
      json::FieldReader part(*object, field + ".");
      auto image = image_part(part);
      if (!part.ok() && !is_tools) item.fail_as(part);
      if (!part.ok()) image.reset();
      if (image && role == "assistant") {
        text += kImageOfReply;
        continue;
      }
      if (image && (!is_tools || image->media == Media::image)) {
        images.push_back({.message = index, .at = text.size(), .source = std::move(*image), .field = field});
        continue;
      }
    }
    const bool is_other = is_tools && !is_content_part(content->get_array()[i]);
    auto said = is_other ? std::nullopt : written_part(item, name, content->get_array()[i]);
    if (!said && is_tools) said = WrittenPart{.text = text_of_other_part(item, name, content->get_array()[i])};
    if (!said) {
      item.fail_field(name, unknown_part(content->get_array()[i]) +
                                R"(must be a string or an array of {"type": "input_text", "text": ...})"
                                R"( and, for a user or a tool, {"type": "input_image", "image_url": ...})"
                                R"( or, for a user, {"type": "input_audio", "input_audio": {"data": ..., "format": ...}})");
      return "";
    }
    (said->is_reasoning ? reasoning : text) += cleaned(std::move(said->text));
  }
  return text;
}

// Reads the text of a reasoning item, which clients that store nothing send as encrypted_content. The summary is ignored.
std::string reasoning_field(json::FieldReader& item) {
  const boost::json::value* content = item.find("content");
  std::string text = content == nullptr ? "" : joined_texts(item, "content", *content);
  return text.empty() ? reasoning_of(item.text("encrypted_content").value_or("")) : text;
}

// Items of features that only OpenAI's servers have: calls that they run, whose results are not known here, calls of tools that
// this server leaves out, and their outputs.
constexpr std::array<std::string_view, 19> kItemsLeftOut = {
    "web_search_call",  "file_search_call",     "code_interpreter_call", "image_generation_call",
    "computer_call",    "computer_call_output", "local_shell_call",      "local_shell_call_output",
    "shell_call",       "shell_call_output",    "apply_patch_call",      "apply_patch_call_output",
    "mcp_call",         "mcp_list_tools",       "mcp_approval_request",  "mcp_approval_response",
    "tool_search_call", "tool_search_output",   "compaction_trigger"};

bool is_output(std::string_view type) {
  return type == "function_call_output" || type == "custom_tool_call_output";
}

// The type of an item. One with an id alone refers to an item, and one with a role is a message.
std::string item_type(json::FieldReader& item) {
  if (auto type = item.text("type")) return *std::move(type);
  const bool is_reference = item.find("id") != nullptr && item.find("role") == nullptr && item.find("content") == nullptr;
  return is_reference ? std::string(kReferenceType) : "message";
}

// Converts items to messages. Consecutive reasoning, texts and calls of the assistant form one message. Images of users and
// tools go to `images`, the types of items that are left out to `left_out`.
class MessageReader {
 public:
  MessageReader(const ReferencedItems& stored, std::vector<InputImage>& images, std::vector<std::string>& left_out)
      : stored_(stored), images_(images), left_out_(left_out) {}

  void read(json::FieldReader& item) {
    const std::string type = item_type(item);
    if (type == "message") {
      read_message(item);
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else if (type == "function_call" || type == "custom_tool_call") {
      read_call(item, type == "custom_tool_call");
    } else if (is_output(type)) {
      read_output(item);
    } else if (type == kReferenceType) {
      read_stored(item);
    } else if (type == "compaction") {
      read_compaction(item);
    } else if (std::ranges::contains(kItemsLeftOut, type)) {
      leave_out(type);
    } else if (item.ok()) {
      item.fail_field("type",
                      R"(must be "message", "reasoning", "function_call", "custom_tool_call", the output of one of these )"
                      R"(calls, or "item_reference")");
    }
  }

  [[nodiscard]] std::vector<ChatMessage> take() {
    end_reply();
    return std::move(messages_);
  }

 private:
  struct Reply {
    std::string reasoning;
    std::optional<std::string> content;
    std::vector<ReplyPart> calls;
  };

  void read_message(json::FieldReader& item) {
    std::string role = item_role(item);
    // A user's message follows the assistant's message that ends here.
    const std::size_t index = messages_.size() + (reply_ ? 1 : 0);
    std::string reasoning;
    std::string content = item_content(item, "content", role, index, images_, reasoning);
    const bool is_reply = role == "assistant";
    if (is_reply && content.empty()) content = item.text("refusal").value_or("");
    if (!is_reply) {
      end_reply();
      messages_.push_back({std::move(role), std::move(content)});
      return;
    }
    const bool belongs = reply_ && !reply_->content && reply_->calls.empty() &&
                         (reasoning.empty() || reply_->reasoning.empty() || reasoning == reply_->reasoning);
    if (!belongs) {
      end_reply();
      reply_.emplace();
    }
    if (!reasoning.empty()) reply_->reasoning = std::move(reasoning);
    // Lists show an empty text only where there is nothing else.
    if (!content.empty() || reply_->reasoning.empty()) reply_->content = std::move(content);
  }

  // Reads an item that the client has not sent, but that is stored.
  void read_stored(json::FieldReader& item) {
    const std::string id = item.required_text("id", {1, 256});
    if (!item.ok()) return;
    const auto stored = stored_.find(id);
    if (stored == stored_.end()) return fail_unknown(item, "id", "stored item");
    if (stored->second.size() > stored_bytes_left_) {
      return item.fail_field(
          "id", std::format("refers to items of more than {} bytes together, which is the limit", kConversationBytesMax));
    }
    stored_bytes_left_ -= stored->second.size();
    boost::system::error_code problem;
    const boost::json::value value = json::parse(stored->second, {}, problem);
    json::FieldReader inner(value.as_object(), item.path());
    read(inner);
    if (!inner.ok()) item.fail_as(inner);
  }

  void read_output(json::FieldReader& item) {
    end_reply();
    std::string extra;
    json::ObjectWriter object(extra);
    if (const std::string id = given_id(item, "call_id"); !id.empty()) object.field("tool_call_id", id);
    object.close();
    std::string reasoning;  // No tool reasons: it is dropped.
    std::string output = item_content(item, "output", "tool", messages_.size(), images_, reasoning);
    messages_.push_back({"tool", std::move(output), extra == "{}" ? "" : std::move(extra)});
  }

  void read_reasoning(json::FieldReader& item) {
    std::string text = reasoning_field(item);
    if (text.empty()) return;
    end_reply();
    reply_.emplace();
    reply_->reasoning = std::move(text);
  }

  // The summary of an earlier part of the conversation. That of another server cannot be read.
  void read_compaction(json::FieldReader& item) {
    std::string text = text_of_compaction(item.text("encrypted_content").value_or(""));
    if (text.empty()) return leave_out("compaction");
    end_reply();
    messages_.push_back({"user", std::move(text)});
  }

  void leave_out(const std::string& type) {
    if (!std::ranges::contains(left_out_, type)) left_out_.push_back(type);
  }

  void read_call(json::FieldReader& item, bool is_custom) {
    if (!reply_) reply_.emplace();
    if (reply_->calls.size() == kCallsMax)
      item.fail_field("type", std::format("is the {}th call in a row, which exceeds the limit", kCallsMax + 1));
    std::string id = given_id(item, "call_id");
    if (id.empty()) id = made_call_id(messages_.size(), reply_->calls.size());
    reply_->calls.push_back({.kind = ReplyPart::Kind::tool_call,
                             .text = is_custom ? arguments_of_input(item.text("input").value_or("")) : called_arguments(item),
                             .id = std::move(id),
                             .name = function_name(item.text("namespace", kGivenIdBytes).value_or(""), called_name(item))});
  }

  void end_reply() {
    if (!reply_) return;
    messages_.push_back({"assistant", std::move(reply_->content).value_or(""), reply_extra(reply_->reasoning, reply_->calls)});
    reply_.reset();
  }

  const ReferencedItems& stored_;
  std::size_t stored_bytes_left_ = kConversationBytesMax;  // An item may be referred to several times.
  std::vector<InputImage>& images_;
  std::vector<std::string>& left_out_;
  std::vector<ChatMessage> messages_;
  std::optional<Reply> reply_;  // The assistant's message that the next item may belong to.
};

// The facts that the items of a request need and leave.
struct ItemFacts {
  const ReferencedItems& stored;
  std::vector<std::string> left_out{};  // Types of items that are left out.
};

std::vector<ChatMessage> items_field(json::FieldReader& fields, std::string_view name, ItemFacts& facts,
                                     std::vector<InputImage>& images) {
  MessageReader reader(facts.stored, images, facts.left_out);
  const boost::json::array* items = fields.array(name);
  if (items == nullptr) return {};
  for (std::size_t i = 0; i < items->size() && fields.ok(); ++i) {
    const boost::json::object* object = (*items)[i].if_object();
    if (object == nullptr) {
      fields.fail_field(std::format("{}[{}]", name, i), "must be an object");
      break;
    }
    json::FieldReader item(*object, std::format("{}[{}].", name, i));
    reader.read(item);
    if (!item.ok()) fields.fail_as(item);
  }
  std::vector<ChatMessage> messages = reader.take();
  if (messages.empty() && !items->empty()) fields.fail_field(name, "has no text: only the text of reasoning items is used");
  if (images.size() > kImagesPerRequestMax) {
    fields.fail_field(name, std::format("has {} images and clips, but the limit is {}", images.size(), kImagesPerRequestMax));
  }
  return messages;
}

std::vector<ChatMessage> input_field(json::FieldReader& fields, ItemFacts& facts, std::vector<InputImage>& images) {
  const boost::json::value* input = fields.find("input");
  if (input == nullptr) {
    // Input of the conversation may wait; a new session has none.
    if (fields.find("conversation") == nullptr) fields.fail_field("input", "is required");
    return {};
  }
  if (!input->is_array()) return {{"user", fields.text("input", {.min = 1}).value_or("")}};
  if (input->get_array().empty()) fields.fail_field("input", "must contain at least one item");
  return items_field(fields, "input", facts, images);
}

std::optional<OnFull> truncation_field(json::FieldReader& fields) {
  const auto truncation = fields.text("truncation");
  if (!truncation) return std::nullopt;
  if (*truncation == "auto") return OnFull::shift;
  if (*truncation != "disabled") fields.fail_field("truncation", R"(must be "auto" or "disabled")");
  return OnFull::error;
}

// Reads "conv_…", or an object with that id.
std::string conversation_field(json::FieldReader& fields) {
  const boost::json::value* value = fields.find("conversation");
  if (value == nullptr) return "";
  const boost::json::object* object = value->if_object();
  std::string text;
  if (object != nullptr) {
    json::FieldReader inner(*object, "conversation.");
    text = inner.required_text("id");
    if (!inner.ok()) fields.fail_as(inner);
  } else {
    text = fields.text("conversation").value_or("");
  }
  if (!fields.ok()) return "";
  auto session = parse_conversation_id(text);
  if (!session) fail_unknown(fields, "conversation", "conversation");
  return std::move(session).value_or("");
}

// Reads `include`, which asks for additional output. Most values concern tools that umad does not run.
void read_include(json::FieldReader& fields, ResponseCall& call) {
  bool wants_logprobs = false;
  const boost::json::array* names = fields.array("include");
  for (std::size_t i = 0; names != nullptr && i < names->size(); ++i) {
    const std::string name = fields.checked_text("include", (*names)[i], {}).value_or("");
    if (name == "message.output_text.logprobs") wants_logprobs = true;
    if (name == "reasoning.encrypted_content") call.seals_reasoning = true;
  }
  const auto top = fields.integer("top_logprobs", 0, kTopLogprobsMax);
  if (wants_logprobs) {
    call.generate.options.logprobs = static_cast<std::int32_t>(top.value_or(0));
    if (call.is_background) {
      fields.fail_field("include", "cannot have \"message.output_text.logprobs\" with \"background\": they are not stored");
    }
  } else if (top.value_or(0) > 0) {
    fields.fail_field("top_logprobs", "needs \"message.output_text.logprobs\" in \"include\"");
  }
}

// Reads umad's extensions under "uma".
void read_response_options(json::FieldReader& fields, GenerateRequest& generate) {
  GenerateOptions& options = generate.options;
  const boost::json::object* object = fields.object("uma");
  if (object == nullptr) return;
  json::FieldReader own(*object, "uma.");
  read_own_options(own, options);
  generate.regenerate = own.boolean("regenerate").value_or(false);
  if (generate.regenerate && fields.find("conversation") == nullptr) {
    own.fail_field("regenerate", R"(needs field "conversation", whose last reply is made again)");
  } else if (generate.regenerate && fields.find("input") != nullptr) {
    own.fail_field("regenerate", R"(and field "input" exclude each other: the last input is answered again)");
  }
  if (!own.ok()) fields.fail_as(own);
}

// Replaces a custom tool or one in a namespace, which a choice names, by the function that the model gets.
void name_function(boost::json::object& named) {
  const auto text = [&](std::string_view name) {
    const boost::json::value* value = named.if_contains(name);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
  };
  if (text("type") != "custom" && text("namespace").empty()) return;
  const std::string function = function_name(text("namespace"), text("name"));
  named = {{"type", "function"}, {"name", function}};
}

// Reads the options of a chat. The model gets the functions of `tools`, and tool_choice names one of them, or several.
ChatOptions response_chat_options(json::FieldReader& fields, const ResponseTools& tools, std::vector<std::string>& warnings) {
  boost::json::object plain;
  const auto keep = [&](std::string_view name) {
    if (const boost::json::value* value = fields.find(name)) plain.emplace(name, *value);
  };
  for (const std::string_view name :
       {"parallel_tool_calls", "chat_template_kwargs", "chat_template", "documents", "tool_choice"})
    keep(name);
  for (const std::string_view name : kThinkingFields) keep(name);
  plain["tools"] = tools.functions();
  if (boost::json::value* choice = plain.if_contains("tool_choice"); choice != nullptr && choice->is_object()) {
    name_function(choice->get_object());
    if (boost::json::value* allowed = choice->get_object().if_contains("tools"); allowed != nullptr && allowed->is_array()) {
      for (boost::json::value& tool : allowed->get_array()) {
        if (tool.is_object()) name_function(tool.get_object());
      }
    }
  }
  json::FieldReader reader(plain);
  ChatOptions options = chat_options(reader, ToolShape::flat, &warnings);
  if (!reader.ok()) fields.fail_as(reader);
  return options;
}

// The instructions of a reply that belongs to no session are its system message.
void put_instructions_first(const ResponseRequest& response, Input& input) {
  if (!response.instructions) return;
  input.messages.insert(input.messages.begin(), {"system", *response.instructions});
  for (InputImage& image : input.images) ++image.message;
}

ResponseCall read_response(json::FieldReader& fields, std::string id, const ReferencedItems& stored,
                           std::string_view held_previous = "") {
  ResponseCall call;
  ItemFacts facts{.stored = stored};
  GenerateRequest& generate = call.generate;
  generate.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  generate.agent = agent_of_fields(fields);
  generate.input.messages = input_field(fields, facts, generate.input.images);
  for (const std::string& type : facts.left_out) {
    call.warnings.push_back(std::format("items of type {} were left out: this server cannot read them", type));
  }

  ResponseRequest response;
  response.id = std::move(id);
  if (auto instructions = fields.text("instructions")) response.instructions = without_billing_line(std::move(*instructions));
  response.is_kept = fields.boolean("store").value_or(true);
  response.on_full = truncation_field(fields);
  generate.session = conversation_field(fields);
  const std::string previous = fields.text("previous_response_id").value_or("");
  if (!previous.empty()) {
    if (!generate.session.empty()) {
      fields.fail_field("previous_response_id", R"(and field "conversation" exclude each other: leave one of the two out)");
    } else if (auto named = parse_response_id(previous)) {
      generate.session = std::move(named->session);
      response.previous = std::move(named->response);
    } else {
      fail_unknown(fields, "previous_response_id", "response");
    }
  }

  GenerateOptions& options = generate.options;
  options.sampling.temperature = 1;
  read_common_sampling(fields, options.sampling);
  read_own_sampling(fields, options.sampling, NegativeTopK::off);
  options.stop = stop_field(fields);
  options.max_tokens = max_tokens_field(fields, "max_output_tokens");
  // A reply without a token is no turn, so nothing could be stored.
  if (options.max_tokens == 0) fields.fail_field("max_output_tokens", "must be at least 1, or -1: a response has a reply");
  options.stream = fields.boolean("stream").value_or(false);
  call.is_background = fields.boolean("background").value_or(false);
  if (call.is_background && !response.is_kept)
    fields.fail_field("background", R"(needs "store": a response in the background is fetched later)");
  call.tools = ResponseTools(fields);
  options.chat = response_chat_options(fields, call.tools, call.warnings);
  options.chat.splits_reasoning = true;
  for (const std::string& type : call.tools.left_out()) {
    call.warnings.push_back(std::format("the tool {} is not available on this server", type));
  }
  read_include(fields, call);
  read_grammar(fields, options);
  read_adapters(fields, options);
  read_response_options(fields, generate);
  read_constraints(fields, options);
  generate.comparison = openai_comparison(fields);
  generate.comparison.id = response.id;

  const std::string metadata = metadata_field(fields);
  const auto repeat = [&](Repeated how) {
    return repeated_fields(fields,
                           {.generate = generate,
                            .response = response,
                            .tools = call.tools,
                            .is_background = call.is_background,
                            .previous = held_previous.empty() ? std::string_view(previous) : held_previous,
                            .metadata = metadata},
                           how);
  };
  call.request = repeat(Repeated::all);
  call.brief_request = repeat(Repeated::brief);
  call.tools.drop_definitions();
  if (generate.session.empty() && !response.is_kept) {
    put_instructions_first(response, generate.input);
    return call;
  }
  response.request = call.request;
  generate.response = std::move(response);
  return call;
}

}  // namespace

std::vector<std::string> referenced_items(std::string_view body) {
  std::vector<std::string> ids;
  if (!body.contains("\"id\"")) return ids;
  const auto object = parse_body(body, {});
  if (!object) return ids;
  for (const std::string_view name : {"input", "items"}) {
    const boost::json::value* given = object->if_contains(name);
    const boost::json::array* items = given == nullptr ? nullptr : given->if_array();
    for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
      const boost::json::object* each = (*items)[i].if_object();
      if (each == nullptr) continue;
      json::FieldReader item(*each);
      if (item_type(item) == kReferenceType) ids.push_back(item.text("id").value_or(""));
    }
  }
  return ids;
}

std::expected<ResponseCall, RejectedBody> decode_token_count(std::string_view body) {
  return decode_request<ResponseCall>(RequestRoute::responses, body, [&](json::FieldReader& fields) {
    for (const std::string_view name : {"conversation", "previous_response_id"}) {
      if (fields.find(name) != nullptr) fields.fail_field(name, "is not counted: send the whole input");
    }
    ResponseCall call = read_response(fields, "", {});
    if (call.generate.response) put_instructions_first(*call.generate.response, call.generate.input);
    call.generate.response.reset();
    return call;
  });
}

std::expected<ResponseCall, RejectedBody> decode_response(std::string_view body, std::string id, const ReferencedItems& stored,
                                                          std::string_view held_previous) {
  return decode_request<ResponseCall>(RequestRoute::responses, body, [&](json::FieldReader& fields) {
    return read_response(fields, std::move(id), stored, held_previous);
  });
}

std::expected<CreateSessionRequest, RejectedBody> decode_conversation(std::string_view body, const ReferencedItems& stored) {
  return decode_body<CreateSessionRequest>(body.empty() ? "{}" : body, [&](json::FieldReader& fields) {
    CreateSessionRequest request;
    request.mode = SessionMode::chat;
    std::vector<InputImage> images;
    ItemFacts facts{.stored = stored};
    request.messages = items_field(fields, "items", facts, images);
    if (!images.empty())
      fields.fail_field("items", "must not have images or clips in this request: add them after the conversation was created");
    request.metadata = metadata_field(fields);
    request.takes_default_system = false;
    return request;
  });
}

std::expected<std::vector<MetadataChange>, RejectedBody> decode_metadata(std::string_view body) {
  return decode_body<std::vector<MetadataChange>>(body, [](json::FieldReader& fields) {
    if (fields.find("metadata") == nullptr) fields.fail_field("metadata", "is required");
    return whole_metadata(fields);
  });
}

std::expected<Input, RejectedBody> decode_items(std::string_view body, const ReferencedItems& stored) {
  return decode_body<Input>(body, [&](json::FieldReader& fields) {
    Input input;
    ItemFacts facts{.stored = stored};
    input.messages = items_field(fields, "items", facts, input.images);
    if (input.empty()) fields.fail_field("items", "must contain at least one item");
    return input;
  });
}

}  // namespace uma::wire
