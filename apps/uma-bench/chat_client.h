// A client of OpenAI's POST /v1/chat/completions with "stream": true, and the conversation that it sends whole each time.
#pragma once

#include <string>
#include <string_view>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "uma-bench/client.h"
#include "uma-bench/http_stream.h"

namespace uma::bench {

struct ToolCall {
  std::string id{};
  std::string name{};
  std::string arguments{};  // JSON text, as OpenAI's API has it.
};

// The messages so far as JSON, and how many of their tokens the server has already seen.
class ChatConversation {
 public:
  // `tools` is a JSON array; empty: none. With `restore_space` a reply without a space at its beginning gets one: llama-server
  // removes it, and for tokenizers whose words contain their space the reply would otherwise be another text.
  explicit ChatConversation(std::string tools = {}, bool restore_space = false)
      : tools_(std::move(tools)), restore_space_(restore_space) {}

  void add_message(std::string_view role, std::string_view text);
  // `call` may be null.
  void add_reply(std::string_view text, const ToolCall* call);
  void add_tool_result(std::string_view call_id, std::string_view text);

  // The body of a request for exactly `tokens` new tokens, greedy.
  [[nodiscard]] std::string make_body(std::string_view model, int tokens) const;

  // Returns the tokens of this prompt that were not in the last prompt or its reply, which is the least that a server has to
  // compute. Then counts the prompt and its reply as seen.
  [[nodiscard]] int take_new_tokens(const StreamRecord& record);

 private:
  std::string& begin_message();

  std::string tools_;
  bool restore_space_;
  std::string messages_;  // A JSON array without its brackets.
  int seen_tokens_ = 0;
};

class ChatClient {
 public:
  // `clock` must outlive the client.
  ChatClient(const boost::asio::any_io_executor& executor, const Endpoint& endpoint, const RunClock& clock)
      : stream_(executor, endpoint, clock) {}

  // Requests the next reply. Of the job, everything but the prompt counts. Requires: both outlive the call.
  boost::asio::awaitable<StreamRecord> complete(const Job& job, const ChatConversation& conversation);
  // Closes the connection; the next call connects again.
  void disconnect() { stream_.close(); }

 private:
  HttpStream stream_;
};

}  // namespace uma::bench
