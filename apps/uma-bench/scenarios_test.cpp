// Scenarios and clients against a server that lives in the test: it answers from a script, on a Unix socket or on loopback.
#include "uma-bench/scenarios.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <format>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <unistd.h>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-bench/test_server.h"
#include "wire/own/frame.h"

namespace uma::bench {
namespace {

using ::testing::HasSubstr;

// Answers each framed request with the frames that `answer` gives for it.
TestServer::Serve framed(std::function<std::vector<std::string>(const boost::json::object&)> answer) {
  return [answer = std::move(answer)](int connection) {
    wire::FrameReader reader(1 << 20);
    for (std::string bytes; !(bytes = receive(connection)).empty();) {
      reader.append(bytes);
      while (const auto body = *reader.next()) {
        std::string frames;
        for (const std::string& event : answer(boost::json::parse(*body).as_object())) {
          wire::append_frame(frames, event);
        }
        send_all(connection, frames);
      }
    }
  };
}

std::vector<std::string> token_events(std::int64_t count) {
  std::vector<std::string> events(static_cast<std::size_t>(count), R"({"id":"g","event":"token","text":" x","token_id":1})");
  events.push_back(std::format(
      R"({{"id":"g","event":"eos","reason":"length","usage":{{"prompt_tokens":32,"reused_tokens":3,"completion_tokens":{}}}}})",
      count));
  return events;
}

class Scenarios : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / std::format("uma_bench_test.{}", getpid())).string();
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  RunOptions over_socket() const {
    return {.endpoint = {.is_http = false, .address = path_}, .timeout_s = 60, .server_pid = {}};
  }
  static RunOptions over_http(const TestServer& server) {
    return {.endpoint = {.is_http = true, .address = std::format("127.0.0.1:{}", server.port())},
            .timeout_s = 60,
            .server_pid = {}};
  }

  std::string path_;
};

TEST_F(Scenarios, BurstCountsEveryTokenOfEveryStream) {
  const auto server = TestServer::on_unix_socket(
      path_, framed([](const boost::json::object& request) { return token_events(request.at("max_tokens").as_int64()); }));
  bench::Run run(over_socket());
  ASSERT_TRUE(run.warm_up());
  const Outcome outcome = run_burst(run, {.streams = 5, .prompt_words = 31, .tokens = 20});
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_EQ(figure(outcome, "requests"), 5);
  EXPECT_EQ(figure(outcome, "generated_tokens"), 100);
  EXPECT_EQ(figure(outcome, "prompt_tokens"), 160);
  EXPECT_EQ(std::ranges::count(outcome.csv, '\n'), 101);
}

TEST_F(Scenarios, AShorterAnswerThanAskedForIsAFailure) {
  const auto server = TestServer::on_unix_socket(path_, framed([](const boost::json::object&) { return token_events(2); }));
  bench::Run run(over_socket());
  const Outcome outcome = run_burst(run, {.streams = 1, .prompt_words = 4, .tokens = 20});
  ASSERT_EQ(outcome.failures.size(), 1u);
  EXPECT_EQ(outcome.failures[0].message, "generated 2 of 20 tokens");
}

TEST_F(Scenarios, StormBeginsAfterTheQuietPhaseOfEveryStream) {
  const auto server = TestServer::on_unix_socket(
      path_, framed([](const boost::json::object& request) { return token_events(request.at("max_tokens").as_int64()); }));
  bench::Run run(over_socket());
  const Outcome outcome = run_storm(run, {.streams = 2,
                                          .prompt_words = 4,
                                          .tokens = 30,
                                          .quiet_tokens = 10,
                                          .long_prompts = 3,
                                          .long_words = 500,
                                          .long_tokens = 5});
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_EQ(figure(outcome, "requests"), 5);
  EXPECT_EQ(figure(outcome, "generated_tokens"), 2 * 30 + 3 * 5);
  EXPECT_GE(figure(outcome, "all_done_ms"), figure(outcome, "long_ttft_p50_ms"));
}

TEST_F(Scenarios, ChatSendsOnlyWhatIsNewAndEndsItsSessions) {
  std::mutex mutex;
  std::multiset<std::string> types;
  std::vector<std::string> later_prompts;
  const auto server =
      TestServer::on_unix_socket(path_, framed([&](const boost::json::object& request) -> std::vector<std::string> {
                                   const std::lock_guard lock(mutex);
                                   const std::string type(request.at("type").as_string());
                                   types.insert(type);
                                   if (type == "create_session") {
                                     return {R"({"id":"create","event":"session","session_id":"s1"})"};
                                   }
                                   EXPECT_EQ(request.at("session_id").as_string(), "s1");
                                   if (type == "end_session") {
                                     return {R"({"id":"end","event":"ack"})"};
                                   }
                                   later_prompts.emplace_back(request.at("prompt").as_string());
                                   return token_events(request.at("max_tokens").as_int64());
                                 }));
  bench::Run run(over_socket());
  const Outcome outcome = run_chat(run, {.users = 1, .turns = 3, .first_words = 40, .words = 4, .tokens = 6});
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_EQ(figure(outcome, "generated_tokens"), 18);
  EXPECT_EQ(types.count("create_session"), 1u);
  EXPECT_EQ(types.count("generate"), 3u);
  EXPECT_EQ(types.count("end_session"), 1u);
  ASSERT_EQ(later_prompts.size(), 3u);
  EXPECT_EQ(std::ranges::count(later_prompts[0], ' '), 39);
  EXPECT_EQ(std::ranges::count(later_prompts[2], ' '), 4);
  EXPECT_TRUE(later_prompts[2].starts_with(' ')) << "a delta continues the text before it";
}

TEST_F(Scenarios, BeforeTheLastTurnOfAChatNobodyIsConnected) {
  std::atomic<int> connections = 0, connected = 0, generations = 0;
  const auto answer = framed([&](const boost::json::object& request) -> std::vector<std::string> {
    const std::string type(request.at("type").as_string());
    if (type == "create_session") return {R"({"id":"create","event":"session","session_id":"s1"})"};
    if (type == "end_session") return {R"({"id":"end","event":"ack"})"};
    EXPECT_EQ(request.at("session_id").as_string(), "s1");
    ++generations;
    return token_events(request.at("max_tokens").as_int64());
  });
  const auto server = TestServer::on_unix_socket(path_, [&](int connection) {
    ++connections;
    ++connected;
    answer(connection);
    --connected;
  });
  bench::Run run(over_socket());
  int generations_before = 0;
  const auto before_last_turn = [&] {
    while (connected > 0) std::this_thread::yield();
    generations_before = generations;
  };
  const Outcome outcome =
      run_chat(run, {.users = 2, .turns = 3, .first_words = 5, .words = 4, .tokens = 6, .before_last_turn = before_last_turn});
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_EQ(generations_before, 4);
  EXPECT_EQ(generations, 6);
  EXPECT_EQ(connections, 4);
  EXPECT_GT(figure(outcome, "last_turn_wall_s"), 0);
}

TEST_F(Scenarios, ABrokenConnectionAndBrokenBytesAreToldApart) {
  {
    const auto server = TestServer::on_unix_socket(path_, [](int connection) { receive(connection); });
    bench::Run run(over_socket());
    const Outcome outcome = run_burst(run, {.streams = 1, .prompt_words = 4, .tokens = 2});
    ASSERT_EQ(outcome.failures.size(), 1u);
    EXPECT_EQ(outcome.failures[0].kind, Failure::Kind::server);
  }
  std::filesystem::remove(path_);
  const auto server = TestServer::on_unix_socket(path_, [](int connection) {
    receive(connection);
    send_all(connection, "HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  bench::Run run(over_socket());
  const Outcome outcome = run_burst(run, {.streams = 1, .prompt_words = 4, .tokens = 2});
  ASSERT_EQ(outcome.failures.size(), 1u);
  EXPECT_EQ(outcome.failures[0].kind, Failure::Kind::protocol);
}

TEST_F(Scenarios, HttpKeepsItsConnectionAndCarriesTheHistory) {
  std::mutex mutex;
  std::vector<std::string> prompts;
  int connections = 0;
  const auto server = TestServer::on_loopback([&](int connection) {
    {
      const std::lock_guard lock(mutex);
      ++connections;
    }
    std::string bytes;
    for (std::string piece; !(piece = receive(connection)).empty();) {
      bytes += piece;
      const std::size_t body = bytes.find("\r\n\r\n");
      if (body == std::string::npos || !bytes.ends_with('}')) {
        continue;
      }
      {
        const std::lock_guard lock(mutex);
        prompts.emplace_back(boost::json::parse(bytes.substr(body + 4)).at("prompt").as_string());
      }
      bytes.clear();
      const std::string events =
          "data: {\"choices\":[{\"text\":\" one\",\"finish_reason\":null}]}\n\n"
          "data: {\"choices\":[{\"text\":\" two\",\"finish_reason\":null}]}\n\n"
          "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":{\"completion_tokens\":2}}\n\n"
          "data: [DONE]\n\n";
      send_all(connection, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
      for (const std::string& chunk : {events.substr(0, 30), events.substr(30)}) {
        send_all(connection, std::format("{:x}\r\n{}\r\n", chunk.size(), chunk));
      }
      send_all(connection, "0\r\n\r\n");
    }
  });
  bench::Run run(over_http(server));
  const Outcome outcome = run_chat(run, {.users = 1, .turns = 2, .first_words = 3, .words = 2, .tokens = 2});
  EXPECT_TRUE(outcome.failures.empty());
  EXPECT_EQ(figure(outcome, "generated_tokens"), 4);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_TRUE(prompts[1].starts_with(prompts[0] + " one two ")) << prompts[1];
  EXPECT_EQ(connections, 1);
}

TEST_F(Scenarios, IpcOverheadAsksTheDoorsInTurnAndComparesThem) {
  std::mutex mutex;
  std::string order;  // Order of the requests: a letter of the listener each.
  const auto serve_as = [&](char listener) {
    return [&, listener](int connection) {
      std::string bytes;
      for (std::string part = receive(connection); !part.empty(); part = receive(connection)) {
        bytes += part;
        if (!bytes.ends_with("}")) continue;  // The body is one object.
        bytes.clear();
        {
          const std::lock_guard lock(mutex);
          order += listener;
        }
        const std::string events =
            "data: {\"choices\":[{\"text\":\" one\",\"finish_reason\":null}]}\n\n"
            "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":{\"completion_tokens\":1}}\n\n"
            "data: [DONE]\n\n";
        send_all(connection, std::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{}",
                                         events.size(), events));
      }
    };
  };
  const auto first_server = TestServer::on_loopback(serve_as('a'));
  const auto second_server = TestServer::on_loopback(serve_as('b'));
  bench::Run first(over_http(first_server));
  bench::Run second(over_http(second_server));
  const std::vector<bench::Run*> listeners{&first, &second};
  const std::vector<Outcome> outcomes = run_ipc_overhead(listeners, {.rounds = 4, .prompt_words = 3, .tokens = 1});
  ASSERT_EQ(outcomes.size(), 2u);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.failures.empty());
    EXPECT_EQ(figure(outcome, "generated_tokens"), 4);
    EXPECT_GT(figure(outcome, "request_p50_ms"), 0);
  }
  EXPECT_GT(figure(outcomes[1], "request_ratio_p50"), 0);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(order, "abbaabba");
}

TEST_F(Scenarios, HttpErrorsCarryTheServersWords) {
  const auto server = TestServer::on_loopback([](int connection) {
    receive(connection);
    send_all(connection, "HTTP/1.1 503 Unavailable\r\nContent-Length: 37\r\n\r\n{\"error\":{\"message\":\"still loading\"}}");
  });
  bench::Run run(over_http(server));
  const Outcome outcome = run_burst(run, {.streams = 1, .prompt_words = 4, .tokens = 2});
  ASSERT_EQ(outcome.failures.size(), 1u);
  EXPECT_EQ(outcome.failures[0].kind, Failure::Kind::server);
  EXPECT_THAT(outcome.failures[0].message, HasSubstr("HTTP 503"));
}

TEST(ProcessCpu, IsKnownForThisProcessAndNotForNone) {
  EXPECT_GE(process_cpu_s(getpid()), 0);
  EXPECT_TRUE(std::isnan(process_cpu_s(0)));
}

}  // namespace
}  // namespace uma::bench
