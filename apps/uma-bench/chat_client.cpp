#include "uma-bench/chat_client.h"

#include <utility>

#include "json/json_writer.h"

namespace uma::bench {

std::string& ChatConversation::begin_message() {
  if (!messages_.empty()) messages_ += ',';
  return messages_;
}

void ChatConversation::add_message(std::string_view role, std::string_view text) {
  json::ObjectWriter message(begin_message());
  message.field("role", role);
  message.field("content", text);
  message.close();
}

void ChatConversation::add_reply(std::string_view text, const ToolCall* call) {
  json::ObjectWriter message(begin_message());
  message.field("role", "assistant");
  message.field("content", restore_space_ && !text.starts_with(' ') ? " " + std::string(text) : std::string(text));
  if (call != nullptr) {
    std::string& calls = message.begin("tool_calls");
    calls += '[';
    json::ObjectWriter entry(calls);
    entry.field("id", call->id);
    entry.field("type", "function");
    json::ObjectWriter function(entry.begin("function"));
    function.field("name", call->name);
    function.field("arguments", call->arguments);
    function.close();
    entry.close();
    calls += ']';
  }
  message.close();
}

void ChatConversation::add_tool_result(std::string_view call_id, std::string_view text) {
  json::ObjectWriter message(begin_message());
  message.field("role", "tool");
  message.field("tool_call_id", call_id);
  message.field("content", text);
  message.close();
}

std::string ChatConversation::make_body(std::string_view model, int tokens) const {
  std::string body;
  json::ObjectWriter request(body);
  if (!model.empty()) request.field("model", model);
  request.begin("messages") += "[" + messages_ + "]";
  if (!tools_.empty()) request.begin("tools") += tools_;
  request.field("max_tokens", tokens);
  request.field("temperature", 0);
  request.field("stream", true);
  request.begin("stream_options") += R"({"include_usage":true})";
  request.field("ignore_eos", true);
  request.begin("uma") += R"({"ignore_eos":true})";
  request.close();
  return body;
}

int ChatConversation::take_new_tokens(const StreamRecord& record) {
  return record.prompt_tokens - std::exchange(seen_tokens_, record.prompt_tokens + record.completion_tokens);
}

boost::asio::awaitable<StreamRecord> ChatClient::complete(const Job& job, const ChatConversation& conversation) {
  return stream_.post(job, "/v1/chat/completions", conversation.make_body(stream_.endpoint().model, job.tokens),
                      parse_chat_event);
}

}  // namespace uma::bench
