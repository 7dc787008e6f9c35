#include "uma-cli/client.h"

#include <csignal>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

class ClientTest : public ::testing::Test {
 protected:
  // The outcome of one call to a daemon that plays `script`.
  Result<boost::json::object> call(FakeDaemon::Script script) {
    FakeDaemon daemon({std::move(script)});
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    return (*client)->call({{"type", "ping"}}, "pong");
  }

  Interrupts interrupts_;
};

TEST_F(ClientTest, ReturnsTheAnswerAndIgnoresEventsItDoesNotKnow) {
  auto answer = call([](FakeConnection& connection) {
    const boost::json::object request = connection.read();
    EXPECT_EQ(text_field(request, "type"), "ping");
    connection.answer(request, "weather", {{"sky", "blue"}});
    connection.answer(request, "pong", {{"n", 7}});
  });
  ASSERT_TRUE(answer);
  EXPECT_EQ(int_field(*answer, "n"), 7);
}

TEST_F(ClientTest, ReadsFramesThatArriveByteByByte) {
  auto answer = call([](FakeConnection& connection) {
    std::string bytes;
    wire::append_frame(bytes,
                       boost::json::serialize(boost::json::object{{"id", connection.read().at("id")}, {"event", "pong"}}));
    for (const char byte : bytes) connection.write_bytes({&byte, 1});
  });
  EXPECT_TRUE(answer);
}

TEST_F(ClientTest, TurnsAnErrorFrameIntoAFailureWithItsCode) {
  auto answer = call([](FakeConnection& connection) { connection.fail(connection.read(), "E_SESSION_001"); });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().exit_code, ExitCode::server);
  EXPECT_EQ(answer.error().server_code, "E_SESSION_001");
  EXPECT_EQ(answer.error().message, "no");
}

TEST_F(ClientTest, TakesAnErrorWithoutAnIdAsTheAnswer) {
  auto answer = call([](FakeConnection& connection) {
    (void)connection.read();
    connection.write_body(R"({"id":null,"event":"error","code":"E_PROTO_002","message":"too large"})");
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().exit_code, ExitCode::server);
  EXPECT_EQ(answer.error().server_code, "E_PROTO_002");
}

TEST_F(ClientTest, CallsEverythingElseThanAFrameAProtocolError) {
  const std::vector<std::string> bodies = {"not json",
                                           "[1]",
                                           "{}",
                                           R"({"id":"1"})",
                                           R"({"event":"pong"})",
                                           R"({"id":1,"event":"pong"})",
                                           R"({"id":"99","event":"pong"})",
                                           R"({"id":null,"event":"pong"})",
                                           "{\"id\":\"1\",\"event\":\"\xff\"}"};
  for (const std::string& body : bodies) {
    auto answer = call([&body](FakeConnection& connection) {
      (void)connection.read();
      connection.write_body(body);
    });
    ASSERT_FALSE(answer) << body;
    EXPECT_EQ(answer.error().exit_code, ExitCode::protocol) << body;
  }
}

TEST_F(ClientTest, RefusesAFrameLongerThanAnyAnswer) {
  auto answer = call([](FakeConnection& connection) {
    (void)connection.read();
    connection.write_bytes("\xff\xff\xff\x7f");
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().exit_code, ExitCode::protocol);
}

TEST_F(ClientTest, SaysSoWhenTheDaemonGoesAwayInTheMiddle) {
  auto answer = call([](FakeConnection& connection) {
    (void)connection.read();
    connection.write_bytes(std::string_view("\x20\0\0\0{\"id\"", 9));
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().exit_code, ExitCode::server);
  EXPECT_THAT(answer.error().message, ::testing::HasSubstr("closed the connection"));
}

TEST_F(ClientTest, ConnectsAgainWhenTheDaemonClosedTheIdleConnection) {
  const auto serve_one = [](FakeConnection& connection) { connection.answer(connection.read(), "pong"); };
  FakeDaemon daemon({serve_one, serve_one, serve_one});
  auto client = Client::connect(daemon.path(), interrupts_);
  ASSERT_TRUE(client);
  ASSERT_TRUE((*client)->call({{"type", "ping"}}, "pong"));
  // The daemon plays one script after the other: that it serves another client proves that it closed the first connection.
  auto other = Client::connect(daemon.path(), interrupts_);
  ASSERT_TRUE(other);
  ASSERT_TRUE((*other)->call({{"type", "ping"}}, "pong"));
  EXPECT_TRUE((*client)->call({{"type", "ping"}}, "pong"));
}

TEST_F(ClientTest, TellsWhatToDoWhenThereIsNoDaemon) {
  auto client = Client::connect("/tmp/uma_cli_test.no_such_socket", interrupts_);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().exit_code, ExitCode::server);
  EXPECT_EQ(client.error().message,
            "no daemon answers on /tmp/uma_cli_test.no_such_socket: start one with `umad --model FILE`");
}

TEST_F(ClientTest, TakesTheFirstDaemonThatAnswers) {
  FakeDaemon daemon({[](FakeConnection& connection) { connection.answer(connection.read(), "pong"); }});
  auto client =
      Client::connect({"/tmp/uma_cli_test.no_such_socket", daemon.path(), "/tmp/uma_cli_test.never_tried"}, interrupts_);
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ((*client)->path(), daemon.path());
  EXPECT_TRUE((*client)->call({{"type", "ping"}}, "pong"));
}

TEST_F(ClientTest, NamesAllSocketsThatItTried) {
  auto client = Client::connect({"/nonexistent/a", "/nonexistent/b", "/nonexistent/c"}, interrupts_);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().message,
            "no daemon answers on /nonexistent/a, /nonexistent/b or /nonexistent/c: start one with `umad --model FILE`");
}

TEST_F(ClientTest, RefusesAPathThatNoSocketCanHave) {
  auto client = Client::connect(std::string(200, 'x'), interrupts_);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().exit_code, ExitCode::usage);
}

TEST_F(ClientTest, StopsWaitingAtCtrlC) {
  auto answer = call([](FakeConnection& connection) {
    (void)connection.read();
    kill(getpid(), SIGINT);
    EXPECT_TRUE(connection.read().empty()) << "the client gives the connection up";
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().exit_code, ExitCode::interrupted);
  EXPECT_EQ(interrupts_.take(), 1);
}

TEST_F(ClientTest, SendsARequestThatDoesNotFitTheSocketsBuffer) {
  const std::string text(4u << 20, 'x');
  FakeDaemon daemon({[&text](FakeConnection& connection) {
    const boost::json::object request = connection.read();
    EXPECT_EQ(text_field(request, "prompt"), text);
    connection.answer(request, "eos");
  }});
  auto client = Client::connect(daemon.path(), interrupts_);
  ASSERT_TRUE(client);
  EXPECT_TRUE((*client)->call({{"prompt", text}}, "eos"));
}

}  // namespace
}  // namespace uma::cli
