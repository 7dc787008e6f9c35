// The agents' afternoon against a server that lives in the test: its tokens are words, and it caches every prompt and reply.
#include "uma-bench/agent.h"

#include <algorithm>
#include <atomic>
#include <format>
#include <mutex>
#include <sstream>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "uma-bench/test_server.h"

namespace uma::bench {
namespace {

using Words = std::vector<std::string>;

void append_words(Words& words, std::string_view text) {
  std::istringstream stream{std::string(text)};
  for (std::string word; stream >> word;) words.push_back(word);
}

// The prompt as a template would write it: tools, then each message behind its role.
Words prompt_of(const boost::json::object& request) {
  Words words;
  if (const boost::json::value* tools = request.if_contains("tools")) append_words(words, boost::json::serialize(*tools));
  for (const boost::json::value& message : request.at("messages").as_array()) {
    append_words(words, message.at("role").as_string());
    append_words(words, message.at("content").as_string());
    if (const boost::json::value* calls = message.as_object().if_contains("tool_calls")) {
      append_words(words, boost::json::serialize(*calls));
    }
  }
  words.emplace_back("assistant");
  return words;
}

class WordServer {
 public:
  // Returns the events of the answer to one request.
  std::string answer(const boost::json::object& request) {
    const std::lock_guard lock(mutex_);
    Words words = prompt_of(request);
    const std::size_t prompt_tokens = words.size();
    std::size_t cached = 0;
    for (const Words& known : cache_) {
      const auto common = static_cast<std::size_t>(std::ranges::mismatch(words, known).in1 - words.begin());
      if (common >= kSharedMin) cached = std::max(cached, std::min(common, prompt_tokens - 1));
    }
    const std::int64_t tokens = request.at("max_tokens").as_int64();
    std::string events = R"(data: {"choices":[{"delta":{"role":"assistant","content":""}}]})"
                         "\n\n";
    for (std::int64_t i = 0; i < tokens; ++i) {
      words.push_back(std::format("reply{}", replies_++));
      events += std::format(R"(data: {{"choices":[{{"delta":{{"content":" {}"}}}}]}})", words.back()) + "\n\n";
    }
    events +=
        std::format(R"(data: {{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":{},)", prompt_tokens, tokens) +
        std::format(R"("prompt_tokens_details":{{"cached_tokens":{}}}}}}})", cached) + "\n\ndata: [DONE]\n\n";
    cache_.push_back(std::move(words));
    return events;
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    cache_.clear();
  }

  void serve(int connection) {
    ++connected_;
    std::string bytes;
    for (std::string part = receive(connection); !part.empty(); part = receive(connection)) {
      bytes += part;
      const std::size_t head = bytes.find("\r\n\r\n");
      const std::size_t length = bytes.find("Content-Length: ");
      if (head == std::string::npos || length == std::string::npos) continue;
      const std::string body = bytes.substr(head + 4);
      if (body.size() < std::stoul(bytes.substr(length + 16))) continue;
      bytes.clear();
      const std::string events = answer(boost::json::parse(body).as_object());
      send_all(connection, std::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{}",
                                       events.size(), events));
    }
    --connected_;
  }

  [[nodiscard]] int connected() const { return connected_; }

 private:
  static constexpr std::size_t kSharedMin = 5;

  std::mutex mutex_;
  std::vector<Words> cache_;
  int replies_ = 0;
  std::atomic<int> connected_ = 0;
};

constexpr AgentOptions kShort{.agents = 2,
                              .turns = 4,
                              .task_turns = 2,
                              .scale = 1,
                              .system_words = 50,
                              .tools = 3,
                              .tool_words = 10,
                              .task_words = 9,
                              .result_words_min = 10,
                              .result_words_max = 30,
                              .tokens = 6,
                              .side_system_words = 20,
                              .summary_words = 15,
                              .title_tokens = 2,
                              .summary_tokens = 3,
                              .chat_words = 5,
                              .chat_tokens = 4,
                              .chat_every_s = 0};

RunOptions over_http(const TestServer& server) {
  return {
      .endpoint = {.is_http = true, .address = std::format("127.0.0.1:{}", server.port())}, .timeout_s = 60, .server_pid = {}};
}

std::int64_t rows_of(const Outcome& outcome, const std::string& part) {
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = outcome.csv.find("\n" + part + ",", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(Agent, AServerThatCachesEverythingComputesTheLeast) {
  WordServer words;
  const auto server = TestServer::on_loopback([&](int connection) { words.serve(connection); });
  bench::Run run(over_http(server));
  const Outcome outcome = run_agent(run, kShort, nullptr);
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_EQ(rows_of(outcome, "agent"), 8);
  EXPECT_EQ(rows_of(outcome, "title"), 2);
  EXPECT_EQ(rows_of(outcome, "summary"), 2);
  EXPECT_GE(rows_of(outcome, "chat"), 1);
  // The role behind the second agent's first text is not counted as new.
  EXPECT_EQ(figure(outcome, "first_half_agents_computed_tokens"), figure(outcome, "first_half_agents_least_tokens") + 1);
  EXPECT_EQ(figure(outcome, "second_half_agents_computed_tokens"), figure(outcome, "second_half_agents_least_tokens"));
  EXPECT_EQ(figure(outcome, "chat_computed_ratio"), 1);
  EXPECT_GT(figure(outcome, "agent_last_prompt_tokens"), figure(outcome, "agent_first_prompt_tokens"));
}

TEST(Agent, AServerThatForgetsInTheMiddleComputesItsPromptsAgain) {
  WordServer words;
  const auto server = TestServer::on_loopback([&](int connection) { words.serve(connection); });
  bench::Run run(over_http(server));
  const Outcome outcome = run_agent(run, kShort, [&] {
    while (words.connected() > 0) std::this_thread::yield();
    words.forget();
  });
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_LT(figure(outcome, "first_half_agents_computed_ratio"), 1.05);
  EXPECT_GT(figure(outcome, "second_half_agents_computed_ratio"), 2);
  EXPECT_GT(figure(outcome, "resumed_turn_max_ms"), 0);
}

TEST(Agent, ARefusedTurnEndsItsAgentAndIsReported) {
  const auto server = TestServer::on_loopback([&](int connection) {
    receive(connection);
    const std::string_view body = R"({"error":{"message":"prompt is too long"}})";
    send_all(connection, std::format("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  });
  bench::Run run(over_http(server));
  const Outcome outcome = run_agent(run, kShort, nullptr);
  EXPECT_EQ(rows_of(outcome, "agent"), 2) << "one turn of each agent";
  ASSERT_FALSE(outcome.failures.empty());
  EXPECT_EQ(outcome.failures[0].kind, Failure::Kind::server);
  EXPECT_EQ(outcome.failures[0].message, "HTTP 400: prompt is too long");
}

}  // namespace
}  // namespace uma::bench
