#include "wire/anthropic/message_blocks.h"

#include <algorithm>
#include <array>
#include <format>
#include <iterator>
#include <string_view>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "json/json_writer.h"
#include "wire/generate_fields.h"
#include "wire/image_fields.h"
#include "wire/openai/history_fields.h"
#include "wire/own/event_codec.h"

namespace uma::wire {
namespace {

// Blocks of features that only Anthropic's servers have. A conversation may contain them if another server began it.
constexpr std::array<std::string_view, 5> kBlocksLeftOut = {"server_tool_use", "mcp_tool_use", "tool_reference", "compaction",
                                                            "container_upload"};

void add_line(std::string& text, std::string_view line) {
  if (!text.empty()) text += '\n';
  text += line;
}

// Calls read(block) for each block of the array `name`, whose blocks are objects.
template <class ReadT>
void for_each_block(json::FieldReader& fields, std::string_view name, const boost::json::array& blocks, ReadT&& read) {
  for (std::size_t i = 0; i < blocks.size() && fields.ok(); ++i) {
    const std::string place = std::format("{}[{}]", name, i);
    const boost::json::object* object = blocks[i].if_object();
    if (object == nullptr) return fields.fail_field(place, "must be an object");
    json::FieldReader block(*object, std::format("{}{}.", fields.path(), place));
    read(block);
    if (!block.ok()) fields.fail_as(block);
  }
}

// Calls read(inner) with the required object `name`.
template <class ReadT>
void inside_field(json::FieldReader& fields, std::string_view name, ReadT&& read) {
  const boost::json::object* object = fields.object(name);
  if (object == nullptr) return fields.fail_field(name, "is required");
  json::FieldReader inner(*object, std::format("{}{}.", fields.path(), name));
  read(inner);
  if (!inner.ok()) fields.fail_as(inner);
}

// Reads a string, or blocks of text, each as a line.
std::string texts_of_blocks(json::FieldReader& fields, std::string_view name) {
  const boost::json::value* content = fields.find(name);
  if (content == nullptr) return "";
  if (!content->is_array()) return fields.text(name).value_or("");
  std::string text;
  for_each_block(fields, name, content->get_array(), [&](json::FieldReader& block) {
    if (block.required_text("type") != "text") return block.fail_field("type", R"(must be "text")");
    add_line(text, block.required_text("text"));
  });
  return text;
}

// A text with its title and other facts, in tags.
std::string tagged_text(json::FieldReader& block, std::string_view tag, std::string_view fact, std::string_view text) {
  std::string out = std::format("<{}>", tag);
  for (const std::string_view name : {std::string_view("title"), fact}) {
    const auto value = block.text(name);
    if (value && !value->empty()) out += std::format("\n<{}>{}</{}>", name, *value, name);
  }
  return out + std::format("\n{}\n</{}>", text, tag);
}

std::string document_text(json::FieldReader& block) {
  std::string text;
  inside_field(block, "source", [&](json::FieldReader& source) {
    const std::string type = source.required_text("type");
    if (type == "text") {
      text = source.required_text("data");
    } else if (type == "content") {
      text = texts_of_blocks(source, "content");
    } else {
      source.fail_field("type", R"(must be "text" or "content": send other documents, such as PDF files, as text or images)");
    }
  });
  return tagged_text(block, "document", "context", text);
}

// The text of a block; nullopt for a block of another kind.
std::optional<std::string> block_text(json::FieldReader& block, std::string_view type) {
  if (type == "text") return block.required_text("text");
  if (type == "document") return document_text(block);
  if (type != "search_result") return std::nullopt;
  return tagged_text(block, "search_result", "source", texts_of_blocks(block, "content"));
}

bool is_image(std::string_view type) {
  return type == "image" || type == "image_url" || type == "input_image";
}

}  // namespace

void ConversationReader::read(json::FieldReader& fields, Input& input, std::vector<std::string>& left_out) {
  read_system(fields);
  system_bytes_ = system_.size();
  const boost::json::array* messages = fields.array("messages");
  if (messages == nullptr) {
    fields.fail_field("messages", "is required");
    return;
  }
  for_each_block(fields, "messages", *messages, [&](json::FieldReader& message) { read_message(message); });
  end_turn();
  if (messages_.empty()) fields.fail_field("messages", "must contain at least one message of the user or the assistant");
  if (images_.size() > kImagesPerRequestMax) {
    fields.fail_field("messages", std::format("have {} images, but the limit is {}", images_.size(), kImagesPerRequestMax));
  }
  if (!fields.ok()) return;
  if (continued_ != nullptr) {
    if (!system_.empty() && system_ != continued_->system) {
      fields.fail_field(kThreadSystemField, R"(is another text than "system" here: leave it out, or begin a new thread )"
                                            "(differing field(s): system)");
    }
  } else if (!system_.empty()) {
    messages_.insert(messages_.begin(), {"system", std::move(system_)});
    for (InputImage& image : images_) ++image.message;
  }
  input.messages = std::move(messages_);
  input.images = std::move(images_);
  left_out = std::move(left_out_);
}

// Reads a string, or blocks of text.
void ConversationReader::read_system(json::FieldReader& fields) {
  const boost::json::value* system = fields.find("system");
  if (system == nullptr) return;
  if (!system->is_array()) {
    system_ = without_billing_line(fields.text("system").value_or(""));
    return;
  }
  for_each_block(fields, "system", system->get_array(), [&](json::FieldReader& block) {
    if (block.required_text("type") != "text") return block.fail_field("type", R"(must be "text")");
    const std::string text = without_billing_line(block.required_text("text"));
    if (!text.empty()) add_line(system_, text);
  });
}

void ConversationReader::read_message(json::FieldReader& message) {
  const std::string role = message.required_text("role");
  if (role == "system") return read_system_message(message);
  const bool is_users = role == "user";
  if (!is_users && role != "assistant") {
    return message.fail_field("role", R"(must be "user", "assistant" or "system")");
  }
  if (is_users) {  // Even an empty message is one.
    (void)user();
  } else {
    (void)reply();
  }
  const boost::json::value* content = message.find("content");
  if (content != nullptr && content->is_array()) {
    return for_each_block(message, "content", content->get_array(), [&](json::FieldReader& block) {
      if (is_users) {
        read_user_block(block);
      } else {
        read_reply_block(block);
      }
    });
  }
  const bool is_required = is_users && !message.is_null("content");
  const std::string text = is_required ? message.required_text("content") : message.text("content").value_or("");
  if (is_users) {
    add_user_text(text);
  } else {
    reply().text += text;
  }
}

// A message of the system before the first reply belongs to the system prompt. Later ones stay where they are, because
// templates take no other system message, and a change of the system prompt would change the whole prompt.
void ConversationReader::read_system_message(json::FieldReader& message) {
  if (message.find("content") == nullptr) message.fail_field("content", "is required");
  const std::string text = without_billing_line(texts_of_blocks(message, "content"));
  if (text.empty()) return;
  if (has_replied_) {
    add_user_text(std::format("<system-reminder>\n{}\n</system-reminder>", text));
  } else {
    add_line(system_, text);
  }
}

bool ConversationReader::leaves_out(std::string_view type) {
  // Newer tools of Anthropic's servers have results with names of the same kind.
  if (!std::ranges::contains(kBlocksLeftOut, type)) {
    if (!type.ends_with("_tool_result")) return false;
    type = "*_tool_result";
  }
  if (!std::ranges::contains(left_out_, type)) left_out_.emplace_back(type);
  return true;
}

void ConversationReader::read_user_block(json::FieldReader& block) {
  const std::string type = block.required_text("type");
  if (const auto text = block_text(block, type)) return add_user_text(*text);
  if (is_image(type)) return user().images.push_back(image_of(block, 0, user().text.size()));
  if (type == "tool_result") return read_result(block);
  if (block.ok() && !leaves_out(type)) {
    block.fail_field("type", R"(must be "text", "image", "document", "search_result" or "tool_result" in a user's message)");
  }
}

void ConversationReader::read_reply_block(json::FieldReader& block) {
  const std::string type = block.required_text("type");
  if (type == "text") {
    reply().text += block.required_text("text");
  } else if (type == "thinking") {
    add_line(reply().reasoning, block.required_text("thinking"));
  } else if (type == "tool_use") {
    read_call(block);
  } else if (is_image(type)) {
    reply().text += kImageOfReply;
  } else if (type != "redacted_thinking" && block.ok() && !leaves_out(type)) {
    block.fail_field("type", R"(must be "text", "thinking", "redacted_thinking" or "tool_use" in an assistant's message)");
  }
}

void ConversationReader::read_call(json::FieldReader& block) {
  if (reply().calls.size() == kCallsMax) {
    return block.fail_field("type", std::format("is the {}th call in a row, which exceeds the limit", kCallsMax + 1));
  }
  std::string id = given_id(block, "id");
  if (id.empty()) id = made_call_id(messages_.size(), reply().calls.size());
  reply().calls.push_back({.kind = ReplyPart::Kind::tool_call,
                           .text = called_arguments(block, "input"),
                           .id = std::move(id),
                           .name = called_name(block)});
  call_names_.insert_or_assign(reply().calls.back().id, reply().calls.back().name);
}

void ConversationReader::read_result(json::FieldReader& block) {
  const std::string id = given_id(block, "tool_use_id");
  std::string text = block.boolean("is_error").value_or(false) ? "Error: " : "";
  auto end_line = [&text, is_first = true] mutable {
    if (!std::exchange(is_first, false)) text += '\n';
  };
  const boost::json::value* content = block.find("content");
  // Blocks have types; rows of data may have them, too.
  const auto is_block = [](const boost::json::value& part) { return type_of_part(part) || is_content_part(part); };
  const boost::json::array* list = content == nullptr ? nullptr : content->if_array();
  if (list != nullptr && (list->empty() || std::ranges::any_of(*list, is_block))) {
    for (std::size_t i = 0; i < list->size() && block.ok(); ++i) {
      if (leaves_out(type_of_part((*list)[i]).value_or(""))) continue;
      end_line();
      text += result_part(block, (*list)[i], std::format("{}content[{}].", block.path(), i), text.size());
    }
  } else if (content != nullptr && !content->is_string()) {
    text += json_text(block, "content", *content);
  } else {
    text += block.text("content").value_or("");
  }
  std::string extra;
  json::ObjectWriter object(extra);
  if (!id.empty()) object.field("tool_call_id", id);
  if (const auto call = call_names_.find(id); call != call_names_.end()) object.field("name", call->second);
  object.close();
  user().results.push_back({"tool", std::move(text), extra == "{}" ? "" : std::move(extra)});
}

// The text of a part of a tool's result. An image is noted at byte `at`. What cannot be read does not end the conversation.
std::string ConversationReader::result_part(json::FieldReader& block, const boost::json::value& part, const std::string& path,
                                            std::size_t at) {
  if (is_content_part(part)) {
    if (auto said = written_part(block, "content", part)) return std::move(said->text);
  }
  if (const boost::json::object* object = part.if_object()) {
    json::FieldReader fields(*object, path);
    const std::string type = fields.text("type").value_or("");
    if (is_image(type)) {
      InputImage image = image_of(fields, user().results.size(), at);
      if (fields.ok()) {
        user().result_images.push_back(std::move(image));
        return "";
      }
    } else if (const auto said = block_text(fields, type); said && fields.ok()) {
      return *said;
    }
  }
  return text_of_other_part(block, "content", part);
}

// The image of a block; `message` and `at` are its place.
InputImage ConversationReader::image_of(json::FieldReader& block, std::size_t message, std::size_t at) {
  std::string field = block.path();
  field.pop_back();  // The point behind the block's name.
  return {.message = message, .at = at, .source = image_part(block).value_or(ImageSource()), .field = std::move(field)};
}

void ConversationReader::add_user_text(std::string_view text) {
  if (!text.empty()) add_line(user().text, text);
}

ConversationReader::UserTurn& ConversationReader::user() {
  if (!user_) {
    end_turn();
    user_.emplace();
  }
  return *user_;
}

ConversationReader::Reply& ConversationReader::reply() {
  if (!reply_) {
    end_turn();
    reply_.emplace();
    has_replied_ = true;
  }
  return *reply_;
}

// Adds the messages of the open turn.
void ConversationReader::end_turn() {
  if (user_) {
    const bool has_results = !user_->results.empty();
    for (InputImage& image : user_->result_images) image.message += messages_.size();
    std::ranges::move(user_->result_images, std::back_inserter(images_));
    std::ranges::move(user_->results, std::back_inserter(messages_));
    if (!has_results || !user_->text.empty() || !user_->images.empty()) {
      for (InputImage& image : user_->images) image.message = messages_.size();
      std::ranges::move(user_->images, std::back_inserter(images_));
      messages_.push_back({"user", std::move(user_->text)});
    }
    user_.reset();
  }
  if (reply_) {
    messages_.push_back({"assistant", std::move(reply_->text), reply_extra(reply_->reasoning, reply_->calls)});
    reply_.reset();
  }
}

}  // namespace uma::wire
