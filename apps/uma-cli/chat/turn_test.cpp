#include "uma-cli/chat/turn.h"

#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

class TurnTest : public ::testing::Test {
 protected:
  Result<TurnEnd> run(FakeDaemon::Script script, Output& output) {
    FakeDaemon daemon({std::move(script)});
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    return run_turn(**client, {{"type", "generate"}, {"prompt", "x"}}, output, interrupts_);
  }

  Interrupts interrupts_;
  Screen pipe_{false, interrupts_};
  Screen terminal_{true, interrupts_};
};

void say(FakeConnection& connection, const boost::json::object& request, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) connection.answer(request, "token", {{"text", text}, {"token_id", 1}});
}

TEST_F(TurnTest, PrintsTokensAndTheRestThatEosBrings) {
  auto end = run(
      [](FakeConnection& connection) {
        const boost::json::object request = connection.read();
        say(connection, request, {"Hel", "", "lo"});
        connection.answer(request, "progress", {{"stage", "prefill"}});
        connection.answer(request, "eos", {{"reason", "length"}, {"text", "!"}, {"usage", {{"completion_tokens", 4}}}});
      },
      pipe_.output());
  ASSERT_TRUE(end);
  EXPECT_EQ(pipe_.text(), "Hello!\n");
  EXPECT_EQ(int_field(end->usage, "completion_tokens"), 4);
  EXPECT_FALSE(end->is_interrupted);
}

TEST_F(TurnTest, AddsTheFinalNewlineAlwaysToAPipeAndOnlyWhereItIsMissingToATerminal) {
  const auto script = [](FakeConnection& connection) {
    const boost::json::object request = connection.read();
    say(connection, request, {"one\n"});
    connection.answer(request, "eos", {{"reason", "stop"}});
  };
  ASSERT_TRUE(run(script, pipe_.output()));
  EXPECT_EQ(pipe_.text(), "one\n\n");
  ASSERT_TRUE(run(script, terminal_.output()));
  EXPECT_EQ(terminal_.text(), "one\n");
}

TEST_F(TurnTest, ObeysNoControlCharacterOnATerminalAndAltersNothingInAPipe) {
  const auto script = [](FakeConnection& connection) {
    const boost::json::object request = connection.read();
    say(connection, request, {"\x1b[2J", "\tx\xc2\x9b"});
    connection.answer(request, "eos", {{"reason", "stop"}});
  };
  ASSERT_TRUE(run(script, terminal_.output()));
  EXPECT_EQ(terminal_.text(), "^[[2J\tx<9B>\n");
  ASSERT_TRUE(run(script, pipe_.output()));
  EXPECT_EQ(pipe_.text(), "\x1b[2J\tx\xc2\x9b\n");
}

TEST_F(TurnTest, CtrlCCancelsAndWaitsForTheEnd) {
  auto end = run(
      [](FakeConnection& connection) {
        const boost::json::object request = connection.read();
        say(connection, request, {"half"});
        kill(getpid(), SIGINT);
        const boost::json::object cancel = connection.read();
        EXPECT_EQ(text_field(cancel, "type"), "cancel");
        EXPECT_EQ(text_field(cancel, "target"), text_field(request, "id"));
        connection.answer(cancel, "ack", {{"cancelled", true}});
        connection.answer(request, "eos", {{"reason", "cancelled"}, {"usage", {{"completion_tokens", 1}}}});
      },
      terminal_.output());
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->is_interrupted);
  EXPECT_EQ(int_field(end->usage, "completion_tokens"), 1);
  EXPECT_THAT(terminal_.text(), ::testing::StartsWith("half\n"));
}

TEST_F(TurnTest, TheConnectionIsUsableAfterACancelWhateverComesFirst) {
  for (const bool is_ack_first : {true, false}) {
    FakeDaemon daemon({[is_ack_first](FakeConnection& connection) {
      const boost::json::object request = connection.read();
      kill(getpid(), SIGINT);
      const boost::json::object cancel = connection.read();
      if (is_ack_first) connection.answer(cancel, "ack");
      connection.answer(request, "eos", {{"reason", "cancelled"}});
      if (!is_ack_first) connection.answer(cancel, "ack");
      connection.answer(connection.read(), "pong");
    }});
    auto client = Client::connect(daemon.path(), interrupts_);
    ASSERT_TRUE(client);
    auto end = run_turn(**client, {{"prompt", "x"}}, pipe_.output(), interrupts_);
    ASSERT_TRUE(end);
    EXPECT_TRUE(end->is_interrupted);
    EXPECT_TRUE((*client)->call({{"type", "ping"}}, "pong"));
  }
}

TEST_F(TurnTest, ASecondCtrlCDoesNotWaitForTheDaemon) {
  auto end = run(
      [](FakeConnection& connection) {
        (void)connection.read();
        kill(getpid(), SIGINT);
        EXPECT_EQ(text_field(connection.read(), "type"), "cancel");
        kill(getpid(), SIGINT);
        EXPECT_TRUE(connection.read().empty()) << "the client gave the connection up";
      },
      pipe_.output());
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->is_interrupted);
}

TEST_F(TurnTest, AnOutputThatNobodyReadsCancels) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  Output output(ends[1], false, interrupts_);
  auto end = run(
      [&ends](FakeConnection& connection) {
        const boost::json::object request = connection.read();
        close(ends[0]);  // No token is on its way: the client sees it all the same.
        const boost::json::object cancel = connection.read();
        EXPECT_EQ(text_field(cancel, "type"), "cancel");
        connection.answer(cancel, "ack");
        say(connection, request, {"unread"});
        connection.answer(request, "eos", {{"reason", "cancelled"}});
      },
      output);
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->is_output_closed);
  EXPECT_FALSE(end->is_interrupted);
  close(ends[1]);
}

TEST_F(TurnTest, SaysWhyAGenerationDidNotEndByItself) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"cancelled", "cancelled"}, {"timeout", "time limit"}, {"slow_consumer", "too slowly"}, {"error", "no"}};
  for (const auto& [reason, words] : cases) {
    auto end = run(
        [&reason](FakeConnection& connection) {
          const boost::json::object request = connection.read();
          say(connection, request, {"part"});
          connection.answer(request, "eos", {{"reason", reason}, {"code", "E_RUNTIME_001"}, {"message", "no"}});
        },
        terminal_.output());
    ASSERT_FALSE(end) << reason;
    EXPECT_EQ(end.error().exit_code, ExitCode::server) << reason;
    EXPECT_THAT(end.error().message, ::testing::HasSubstr(words));
    EXPECT_TRUE(terminal_.output().at_line_start()) << "the message begins its own line";
  }
}

TEST_F(TurnTest, AFullDiskIsAFailure) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "this system has no /dev/full";
  Output output(full, false, interrupts_);
  auto end = run(
      [](FakeConnection& connection) {
        const boost::json::object request = connection.read();
        say(connection, request, {"x"});
        EXPECT_TRUE(connection.read().empty()) << "the client leaves, which cancels";
      },
      output);
  ASSERT_FALSE(end);
  EXPECT_THAT(end.error().message, ::testing::HasSubstr("cannot write"));
  close(full);
}

TEST(ReceiptLine, SaysWhatWasReusedAndHowFastItWent) {
  const boost::json::object usage = {
      {"prompt_tokens", 34}, {"reused_tokens", 30}, {"recomputed_tokens", 4}, {"completion_tokens", 25},
      {"tier", "hot"},       {"ttft_ms", 12.4},     {"tokens_per_s", 85.31},  {"seed", 18446744073709551615u}};
  EXPECT_EQ(
      receipt_line(usage),
      "34 prompt tokens (30 reused from hot, 4 computed), 25 new, first after 12 ms, 85.3 tokens/s, seed 18446744073709551615");
  EXPECT_EQ(receipt_line({{"prompt_tokens", 1}, {"completion_tokens", 0}}), "1 prompt token, 0 new");
  EXPECT_EQ(
      receipt_line({{"prompt_tokens", 9}, {"completion_tokens", 2}, {"reasoning_tokens", 1}, {"reuse_reason", "rewritten"}}),
      "9 prompt tokens, 2 new (1 of reasoning), the template rewrote the past");
  EXPECT_EQ(receipt_line({{"prompt_tokens", 9}, {"completion_tokens", 2}, {"dropped_turns", 3}}),
            "9 prompt tokens, 2 new, context full: the 3 oldest turns were dropped");
  EXPECT_EQ(receipt_line({{"prompt_tokens", 9}, {"completion_tokens", 2}, {"dropped_turns", 1}}),
            "9 prompt tokens, 2 new, context full: the oldest turn was dropped");
}

}  // namespace
}  // namespace uma::cli
