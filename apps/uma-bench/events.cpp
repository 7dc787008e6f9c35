#include "uma-bench/events.h"

#include <format>

#include <boost/json.hpp>

namespace uma::bench {

namespace {

std::unexpected<Failure> protocol_failure(std::string_view what, std::string_view bytes) {
  constexpr std::size_t kShown = 120;
  return std::unexpected(Failure{Failure::Kind::protocol, std::format("{}: {}", what, bytes.substr(0, kShown))});
}

std::expected<boost::json::object, Failure> parse_object(std::string_view bytes) {
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(bytes, error);
  if (error || !value.is_object()) {
    return protocol_failure("not a JSON object", bytes);
  }
  return std::move(value.get_object());
}

// Fields of an event are optional: a missing field counts as zero or empty.
std::string text_of(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

int count_of(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr && value->is_int64() ? static_cast<int>(value->get_int64()) : 0;
}

const boost::json::object* object_of(const boost::json::object& object, std::string_view name) {
  const boost::json::value* value = object.if_contains(name);
  return value != nullptr ? value->if_object() : nullptr;
}

// Quotes inside a JSON string are escaped, so these bytes only match a field of the event itself.
bool is_plain_token(std::string_view bytes, std::string_view field) {
  return bytes.contains(field);
}

// The object of an event of OpenAI's API; an event with an error becomes Failure::server.
std::expected<boost::json::object, Failure> parse_openai_object(std::string_view data) {
  auto event = parse_object(data);
  if (event && event->contains("error")) {
    return std::unexpected(Failure{Failure::Kind::server, error_message(data)});
  }
  return event;
}

// Null: the event has no choice, such as the one with the usage.
const boost::json::object* first_choice(const boost::json::object& event) {
  const boost::json::value* value = event.if_contains("choices");
  const boost::json::array* choices = value != nullptr ? value->if_array() : nullptr;
  return choices != nullptr && !choices->empty() ? choices->front().if_object() : nullptr;
}

std::optional<UsageReport> usage_of(const boost::json::object& event) {
  const boost::json::object* usage = object_of(event, "usage");
  if (usage == nullptr) {
    return std::nullopt;
  }
  const boost::json::object* details = object_of(*usage, "prompt_tokens_details");
  return UsageReport{.prompt_tokens = count_of(*usage, "prompt_tokens"),
                     .reused_tokens = details != nullptr ? count_of(*details, "cached_tokens") : 0,
                     .completion_tokens = count_of(*usage, "completion_tokens")};
}

std::expected<ServerEvent, Failure> end_of_stream(const boost::json::object& event) {
  const std::string reason = text_of(event, "reason");
  if (reason != "stop" && reason != "length") {
    return std::unexpected(Failure{Failure::Kind::server, std::format("ended with reason {}: {} {}", reason,
                                                                      text_of(event, "code"), text_of(event, "message"))});
  }
  ServerEvent result{.is_end = true};
  if (const boost::json::object* usage = object_of(event, "usage")) {
    result.usage = UsageReport{.prompt_tokens = count_of(*usage, "prompt_tokens"),
                               .reused_tokens = count_of(*usage, "reused_tokens"),
                               .completion_tokens = count_of(*usage, "completion_tokens")};
  }
  return result;
}

}  // namespace

std::expected<ServerEvent, Failure> parse_frame_event(std::string_view body, bool with_text) {
  if (!with_text && is_plain_token(body, R"("event":"token")")) {
    return ServerEvent{.is_token = true};
  }
  const auto event = parse_object(body);
  if (!event) {
    return std::unexpected(event.error());
  }
  const std::string kind = text_of(*event, "event");
  if (kind.empty()) {
    return protocol_failure("an event without a type", body);
  }
  if (kind == "error") {
    return std::unexpected(
        Failure{Failure::Kind::server, std::format("{}: {}", text_of(*event, "code"), text_of(*event, "message"))});
  }
  if (kind == "eos") {
    return end_of_stream(*event);
  }
  if (kind == "token") {
    return ServerEvent{.is_token = true, .text = text_of(*event, "text")};
  }
  return ServerEvent{.session_id = text_of(*event, "session_id")};
}

std::expected<ServerEvent, Failure> parse_completion_event(std::string_view data, bool with_text) {
  if (data == "[DONE]") {
    return ServerEvent{.is_end = true};
  }
  if (!with_text && is_plain_token(data, R"("finish_reason":null)")) {
    return ServerEvent{.is_token = true};
  }
  const auto event = parse_openai_object(data);
  if (!event) {
    return std::unexpected(event.error());
  }
  ServerEvent result{.usage = usage_of(*event)};
  if (const boost::json::object* choice = first_choice(*event)) {
    const boost::json::value* finish_reason = choice->if_contains("finish_reason");
    result.is_token = finish_reason == nullptr || finish_reason->is_null();
    result.text = text_of(*choice, "text");
  }
  return result;
}

std::expected<ServerEvent, Failure> parse_chat_event(std::string_view data) {
  if (data == "[DONE]") {
    return ServerEvent{.is_end = true};
  }
  const auto event = parse_openai_object(data);
  if (!event) {
    return std::unexpected(event.error());
  }
  ServerEvent result{.usage = usage_of(*event)};
  const boost::json::object* choice = first_choice(*event);
  if (const boost::json::object* delta = choice != nullptr ? object_of(*choice, "delta") : nullptr) {
    result.text = text_of(*delta, "content");
    result.is_token = !result.text.empty() || !text_of(*delta, "reasoning_content").empty() || delta->contains("tool_calls");
  }
  return result;
}

std::string error_message(std::string_view body) {
  if (const auto object = parse_object(body)) {
    if (const boost::json::object* error = object_of(*object, "error")) {
      return text_of(*error, "message");
    }
  }
  return std::string(body);
}

void SseReader::append(std::string_view bytes) {
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  buffer_ += bytes;
}

std::optional<std::string_view> SseReader::next() {
  for (;;) {
    const std::size_t end = buffer_.find('\n', consumed_);
    if (end == std::string::npos) {
      return std::nullopt;
    }
    std::string_view line = std::string_view(buffer_).substr(consumed_, end - consumed_);
    consumed_ = end + 1;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.starts_with("data:")) {
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      return line;
    }
  }
}

}  // namespace uma::bench
