#include "uma-cli/chat/one_shot.h"

#include <boost/json/array.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

boost::json::object models(bool has_chat_template, const char* state = "ready") {
  return {{"models",
           boost::json::array{boost::json::object{{"name", "m"}, {"state", state}, {"has_chat_template", has_chat_template}}}}};
}

// Serves requests until the client leaves: `models` as given, generations with "ok"; collects what was asked.
FakeDaemon::Script serve_reply(bool has_chat_template, std::vector<boost::json::object>& requests) {
  return [has_chat_template, &requests](FakeConnection& connection) {
    for (boost::json::object request = connection.read(); !request.empty(); request = connection.read()) {
      const bool is_models = text_field(request, "type") == "models";
      connection.answer(request, is_models ? "models" : "eos",
                        is_models ? models(has_chat_template) : boost::json::object{{"reason", "stop"}, {"text", "ok"}});
      requests.push_back(std::move(request));
    }
  };
}

class OneShotTest : public ::testing::Test {
 protected:
  Result<void> run(FakeDaemon::Script script, const OneShot& command) {
    FakeDaemon daemon({std::move(script)});
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    return run_one_shot(**client, command, screen_.output(), interrupts_);
  }

  Interrupts interrupts_;
  Screen screen_{false, interrupts_};
  std::vector<boost::json::object> requests_;
};

TEST_F(OneShotTest, SendsAUserMessageWhereTheModelHasAChatTemplate) {
  OneShot command;
  command.prompt = "Hi";
  command.generation.max_tokens = 5;
  command.generation.stop = {"a", "b"};
  ASSERT_TRUE(run(serve_reply(true, requests_), command));
  ASSERT_EQ(requests_.size(), 2u);
  EXPECT_EQ(boost::json::serialize(array_field(requests_[1], "messages")), R"([{"role":"user","content":"Hi"}])");
  EXPECT_FALSE(requests_[1].contains("prompt"));
  EXPECT_EQ(int_field(requests_[1], "max_tokens"), 5);
  EXPECT_EQ(boost::json::serialize(array_field(requests_[1], "stop")), R"(["a","b"])");
  EXPECT_FALSE(requests_[1].contains("temperature")) << "the daemon's defaults hold for what was not given";
  EXPECT_EQ(screen_.text(), "ok\n");
}

TEST_F(OneShotTest, SendsATextWhereItHasNoneOrWhenRaw) {
  OneShot command;
  command.prompt = "Once";
  ASSERT_TRUE(run(serve_reply(false, requests_), command));
  EXPECT_EQ(text_field(requests_.back(), "prompt"), "Once");
  command.is_raw = true;
  ASSERT_TRUE(run(serve_reply(true, requests_), command));
  EXPECT_EQ(text_field(requests_.back(), "prompt"), "Once");
  EXPECT_FALSE(requests_.back().contains("messages"));
}

TEST_F(OneShotTest, WaitsForAModelThatIsLoadingBeforeItDecides) {
  OneShot command;
  command.prompt = "Hi";
  ASSERT_TRUE(run(
      [](FakeConnection& connection) {
        connection.answer(connection.read(), "models", models(false, "loading"));
        connection.answer(connection.read(), "models", models(true));
        const boost::json::object request = connection.read();
        EXPECT_TRUE(request.contains("messages"));
        connection.answer(request, "eos", {{"reason", "stop"}});
      },
      command));
}

TEST_F(OneShotTest, CreatesANamedSessionThatDoesNotExistYet) {
  OneShot command;
  command.prompt = "Hi";
  command.session = "notes";
  command.model = "m";
  ASSERT_TRUE(run(
      [](FakeConnection& connection) {
        boost::json::object request = connection.read();
        EXPECT_EQ(text_field(request, "session_id"), "notes");
        connection.fail(request, "E_SESSION_001");
        request = connection.read();
        EXPECT_EQ(text_field(request, "type"), "create_session");
        EXPECT_EQ(text_field(request, "name"), "notes");
        EXPECT_EQ(text_field(request, "model"), "m");
        connection.answer(request, "session", {{"session_id", "x"}});
        request = connection.read();
        EXPECT_EQ(text_field(request, "type"), "generate");
        EXPECT_EQ(text_field(request, "prompt"), "Hi");
        connection.answer(request, "eos", {{"reason", "stop"}, {"text", "hello"}});
      },
      command));
  EXPECT_EQ(screen_.text(), "hello\n");
}

TEST_F(OneShotTest, DoesNotMakeASessionOutOfAnIdThatIsUnknown) {
  OneShot command;
  command.prompt = "Hi";
  command.session = "0123456789abcdef0123456789ABCDEF";
  const auto result = run([](FakeConnection& connection) { connection.fail(connection.read(), "E_SESSION_001"); }, command);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().server_code, "E_SESSION_001");
}

TEST_F(OneShotTest, UsesTheSessionThatSomebodyElseCreatedMeanwhile) {
  OneShot command;
  command.prompt = "Hi";
  command.session = "notes";
  ASSERT_TRUE(run(
      [](FakeConnection& connection) {
        connection.fail(connection.read(), "E_SESSION_001");
        connection.fail(connection.read(), "E_PROTO_003");
        connection.answer(connection.read(), "eos", {{"reason", "stop"}});
      },
      command));
}

}  // namespace
}  // namespace uma::cli
