#include "uma-cli/chat/chat.h"

#include <csignal>
#include <deque>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"
#include "uma-cli/sessions.h"

namespace uma::cli {
namespace {

// Lines as a person would type them, or as a pipe would bring them.
class ScriptedLines final : public LineReader {
 public:
  ScriptedLines(bool is_terminal, std::vector<Line> lines) : is_terminal_(is_terminal), lines_(lines.begin(), lines.end()) {}
  void complete_with(const Completer& completer) override { completer_ = completer; }
  // A line that begins with a tab is completed, not typed.
  Line read(const std::string&) override {
    while (!lines_.empty() && lines_.front().text.starts_with('\t')) {
      completed_.push_back(completer_(lines_.front().text.substr(1)));
      lines_.pop_front();
    }
    if (lines_.empty()) return {LineEnd::end_of_input, ""};
    Line line = lines_.front();
    lines_.pop_front();
    return line;
  }
  [[nodiscard]] bool is_terminal() const override { return is_terminal_; }
  [[nodiscard]] std::size_t lines_left() const { return lines_.size(); }
  [[nodiscard]] const std::vector<std::vector<std::string>>& completed() const { return completed_; }

 private:
  const bool is_terminal_;
  std::deque<Line> lines_;
  Completer completer_;
  std::vector<std::vector<std::string>> completed_;
};

Line typed(std::string text) {
  return {LineEnd::line, std::move(text)};
}

// Sessions with names and turn counts, enough for a chat. Collects the requests.
class FakeSessions {
 public:
  void serve(FakeConnection& connection) {
    for (boost::json::object request = connection.read(); !request.empty(); request = connection.read()) {
      requests_.push_back(request);
      answer(connection, request);
    }
  }
  [[nodiscard]] std::vector<std::string> types() const {
    std::vector<std::string> types;
    types.reserve(requests_.size());
    for (const boost::json::object& request : requests_) types.push_back(text_field(request, "type"));
    return types;
  }
  [[nodiscard]] const boost::json::object& request(std::size_t index) const { return requests_.at(index); }
  [[nodiscard]] const std::vector<std::string>& live() const { return live_; }
  std::vector<std::string> live_;
  std::string refusal_;  // Code with which generations are refused.

 private:
  void answer(FakeConnection& connection, const boost::json::object& request) {
    const std::string type = text_field(request, "type");
    const std::string session = text_field(request, "session_id");
    if (type == "models") {
      connection.answer(
          request, "models",
          {{"models", boost::json::array{boost::json::object{{"name", "m"}, {"state", "ready"}, {"reads_images", true}}}}});
    } else if (type == "create_session" || type == "fork_session") {
      const std::string name = text_field(request, "name");
      live_.push_back(name.empty() ? "id" + std::to_string(++count_) : name);
      connection.answer(request, "session", {{"session_id", live_.back()}, {"name", name}});
    } else if (type == "list_sessions") {
      connection.answer(request, "sessions", {{"sessions", boost::json::array{boost::json::object{{"session_id", "listed"}}}}});
    } else if (!std::ranges::contains(live_, session)) {
      connection.fail(request, kUnknownSession);
    } else if (type == "get_session") {
      connection.answer(request, "session",
                        {{"session_id", session},
                         {"turns", 3},
                         {"messages", boost::json::array{boost::json::object{{"role", "user"}, {"content", "one"}},
                                                         boost::json::object{{"role", "assistant"}, {"content", "two"}}}}});
    } else if (type == "end_session" || type == "rewind_session") {
      if (type == "end_session") std::erase(live_, session);
      connection.answer(request, "ack", {{"turns", 1}});
    } else if (!refusal_.empty()) {
      connection.fail(request, refusal_);
    } else {
      connection.answer(request, "eos", {{"reason", "stop"}, {"text", "(" + type + ")"}, {"usage", {{"prompt_tokens", 1}}}});
    }
  }

  std::vector<boost::json::object> requests_;
  int count_ = 0;
};

class ChatTest : public ::testing::Test {
 protected:
  Result<void> chat(std::vector<Line> lines, bool is_terminal = true) {
    FakeDaemon daemon({[this](FakeConnection& connection) { sessions_.serve(connection); }});
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    ScriptedLines reader(is_terminal, std::move(lines));
    auto result = run_chat(**client, options_, reader, screen_.output(), interrupts_);
    lines_left_ = reader.lines_left();
    completed_ = reader.completed();
    return result;
  }

  Interrupts interrupts_;
  Screen screen_{false, interrupts_};
  FakeSessions sessions_;
  ChatOptions options_;
  std::size_t lines_left_ = 0;
  std::vector<std::vector<std::string>> completed_;
};

TEST_F(ChatTest, EachLineIsATurnOfOneSessionThatEndsWithTheChat) {
  options_.system = "Be kind.";
  options_.on_full = "shift";
  ASSERT_TRUE(chat({typed("one"), typed(""), typed("  "), typed("two")}, false));
  EXPECT_THAT(sessions_.types(), ::testing::ElementsAre("models", "create_session", "generate", "generate", "end_session"));
  EXPECT_EQ(text_field(sessions_.request(1), "system"), "Be kind.");
  EXPECT_EQ(text_field(sessions_.request(1), "on_full"), "shift");
  EXPECT_GT(int_field(sessions_.request(1), "ttl_s"), 0) << "the daemon forgets a session whose chat was killed";
  EXPECT_EQ(text_field(sessions_.request(2), "prompt"), "one");
  EXPECT_EQ(text_field(sessions_.request(3), "session_id"), "id1");
  EXPECT_THAT(sessions_.live(), ::testing::IsEmpty());
  EXPECT_EQ(screen_.text(), "(generate)\n(generate)\n") << "a pipe gets the answers and nothing else";
}

TEST_F(ChatTest, ANamedSessionIsCreatedOnceAndStays) {
  options_.session = "notes";
  ASSERT_TRUE(chat({typed("one")}));
  EXPECT_THAT(sessions_.live(), ::testing::ElementsAre("notes"));
  ASSERT_TRUE(chat({typed("two")}));
  EXPECT_THAT(sessions_.live(), ::testing::ElementsAre("notes"));
  EXPECT_EQ(std::ranges::count(sessions_.types(), "create_session"), 1);
  EXPECT_THAT(screen_.text(), ::testing::HasSubstr("resumed"));
}

TEST_F(ChatTest, ABackslashAtTheEndJoinsLines) {
  ASSERT_TRUE(chat({typed("one\\"), typed("two\\"), typed("three")}));
  EXPECT_EQ(text_field(sessions_.request(2), "prompt"), "one\ntwo\nthree");
  ASSERT_TRUE(chat({typed("dropped\\"), {LineEnd::interrupted, ""}, typed("kept")}));
  EXPECT_EQ(text_field(sessions_.request(6), "prompt"), "kept");
}

TEST_F(ChatTest, CommandsDoWhatHelpSays) {
  ASSERT_TRUE(chat({typed("/help"), typed("/fork"), typed("/fork copy"), typed("/rewind 1"), typed("/regenerate"),
                    typed("/sessions"), typed("/switch id1"), typed("/system Be brief."), typed("/new kept"), typed("/usage"),
                    typed("/exit"), typed("not read")}));
  EXPECT_THAT(sessions_.types(),
              ::testing::ElementsAre("models", "create_session", "fork_session", "fork_session", "rewind_session", "regenerate",
                                     "list_sessions", "get_session", "create_session", "create_session", "end_session",
                                     "end_session", "end_session"));
  EXPECT_EQ(text_field(sessions_.request(4), "session_id"), "copy");
  EXPECT_EQ(int_field(sessions_.request(4), "turn"), 1);
  EXPECT_EQ(text_field(sessions_.request(8), "system"), "Be brief.");
  EXPECT_THAT(sessions_.live(), ::testing::ElementsAre("copy", "kept")) << "what has no name ends with the chat";
  EXPECT_EQ(lines_left_, 1u);
  EXPECT_THAT(screen_.text(), ::testing::AllOf(::testing::HasSubstr("/rewind N"), ::testing::HasSubstr("(regenerate)"),
                                               ::testing::HasSubstr("listed")));
}

TEST_F(ChatTest, AWrongCommandIsToldAndNothingIsSent) {
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(chat({typed("/nope"), typed("/rewind"), typed("/rewind -1"), typed("/rewind 1x"), typed("/switch"),
                    typed("/exit now"), typed("/system"), typed("/"), typed("caf\xc3")}));
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(sessions_.types(), ::testing::ElementsAre("models", "create_session", "end_session"));
  EXPECT_THAT(told, ::testing::HasSubstr("/nope: /help"));
  EXPECT_EQ(std::ranges::count(told, '\n'), 9);
}

TEST_F(ChatTest, ImagesGoWithTheNextMessage) {
  options_.attachments.images = {"https://host/a.png"};
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(chat({typed("What?"), typed("/image http://host/b.png"), typed("/image /absent/c.png"), typed("/image"),
                    typed("And this?"), typed("Well.")}));
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, ::testing::HasSubstr("/absent/c.png: No such file"));
  EXPECT_THAT(told, ::testing::HasSubstr("/image needs"));
  EXPECT_THAT(sessions_.types(), ::testing::ElementsAre("models", "models", "create_session", "generate", "models", "generate",
                                                        "generate", "end_session"));
  const auto content = [&](std::size_t request) {
    return boost::json::serialize(array_field(sessions_.request(request), "messages").at(0).at("content"));
  };
  EXPECT_EQ(content(3), R"([{"url":"https://host/a.png","type":"image"},{"type":"text","text":"What?"}])");
  EXPECT_EQ(content(5), R"([{"url":"http://host/b.png","type":"image"},{"type":"text","text":"And this?"}])");
  EXPECT_EQ(text_field(sessions_.request(6), "prompt"), "Well.");
  EXPECT_THAT(screen_.text(), ::testing::HasSubstr("1 file with the next message"));
}

TEST_F(ChatTest, TabCompletesCommandsAndNames) {
  ASSERT_TRUE(chat({typed("\t/s"), typed("\t/model "), typed("\t/switch "), typed("\thello"), typed("\t/x")}));
  using Lines = std::vector<std::string>;
  EXPECT_EQ(completed_, (std::vector<Lines>{{"/system ", "/sessions", "/switch ", "/save "}, {"/model m"}, {}, {}, {}}));
  EXPECT_EQ(common_beginning({"/sessions", "/switch "}), "/s");
  EXPECT_EQ(common_beginning({"\u00e4", "\u00f6"}), "") << "not half of a character";
}

TEST_F(ChatTest, AnotherModelTheClipboardAndAFile) {
  const std::string path = ::testing::TempDir() + "uma-chat-" + std::to_string(getpid()) + ".md";
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(chat({typed("/copy"), typed("/model nope"), typed("/model m"), typed("one"), typed("/copy"),
                    typed("/save " + path), typed("/save " + path)}));
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, ::testing::HasSubstr("no answer yet"));
  EXPECT_THAT(told, ::testing::HasSubstr("there is no model nope"));
  EXPECT_THAT(told, ::testing::HasSubstr("File exists"));
  EXPECT_EQ(text_field(sessions_.request(4), "model"), "m");
  EXPECT_THAT(told, ::testing::HasSubstr("/copy needs a terminal")) << "the output is none";
  std::ifstream file(path);
  const std::string saved((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(saved, "## You\n\none\n\n## Reply\n\ntwo\n\n");
  unlink(path.c_str());
}

TEST_F(ChatTest, ASpaceInFrontSendsASlashAsText) {
  ASSERT_TRUE(chat({typed(" /etc is a folder")}));
  EXPECT_EQ(text_field(sessions_.request(2), "prompt"), " /etc is a folder");
}

TEST_F(ChatTest, ARefusedTurnEndsPipedInputButNotAConversation) {
  sessions_.refusal_ = "E_LIMIT_004";
  const auto piped = chat({typed("one"), typed("two")}, false);
  ASSERT_FALSE(piped);
  EXPECT_EQ(piped.error().server_code, "E_LIMIT_004");
  EXPECT_EQ(lines_left_, 1u);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(chat({typed("one"), typed("two")}));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("E_LIMIT_004"));
  EXPECT_EQ(lines_left_, 0u);
}

TEST_F(ChatTest, CtrlCAtTheEmptyPromptLeavesTheSecondTime) {
  const Line ctrl_c{LineEnd::interrupted, ""};
  ASSERT_TRUE(chat({ctrl_c, typed("one"), ctrl_c, {LineEnd::discarded, ""}, ctrl_c, ctrl_c, typed("not read")}));
  EXPECT_EQ(lines_left_, 1u);
  EXPECT_THAT(sessions_.live(), ::testing::IsEmpty());
}

TEST_F(ChatTest, CtrlCWhileItAnswersStopsTheTurnAndKeepsTheSession) {
  FakeDaemon daemon({[](FakeConnection& connection) {
    connection.answer(connection.read(), "models", {});
    connection.answer(connection.read(), "session", {{"session_id", "s"}});
    const boost::json::object turn = connection.read();
    connection.answer(turn, "token", {{"text", "half"}});
    kill(getpid(), SIGINT);
    const boost::json::object cancel = connection.read();
    EXPECT_EQ(text_field(cancel, "target"), text_field(turn, "id"));
    connection.answer(cancel, "ack");
    connection.answer(turn, "eos", {{"reason", "cancelled"}});
    const boost::json::object next = connection.read();
    EXPECT_EQ(text_field(next, "session_id"), "s");
    EXPECT_EQ(text_field(next, "prompt"), "again");
    connection.answer(next, "eos", {{"reason", "stop"}, {"text", "whole"}});
    connection.answer(connection.read(), "ack");
  }});
  auto client = Client::connect(daemon.path(), interrupts_);
  ASSERT_TRUE(client);
  ScriptedLines lines(true, {typed("first"), typed("again")});
  EXPECT_TRUE(run_chat(**client, options_, lines, screen_.output(), interrupts_));
  EXPECT_THAT(screen_.text(), ::testing::HasSubstr("half\nwhole\n"));
}

TEST_F(ChatTest, ADaemonThatGoesAwayEndsTheChat) {
  FakeDaemon daemon({[](FakeConnection& connection) {
    connection.answer(connection.read(), "models", {});
    connection.answer(connection.read(), "session", {{"session_id", "s"}});
    (void)connection.read();
  }});
  auto client = Client::connect(daemon.path(), interrupts_);
  ASSERT_TRUE(client);
  ScriptedLines lines(true, {typed("first"), typed("not read")});
  // Nobody accepts a second connection; the end of the chat must not wait for one.
  unlink(daemon.path().c_str());
  const auto result = run_chat(**client, options_, lines, screen_.output(), interrupts_);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().exit_code, ExitCode::server);
  EXPECT_THAT(result.error().message, ::testing::HasSubstr("closed the connection"));
}

}  // namespace
}  // namespace uma::cli
