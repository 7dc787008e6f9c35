#include "uma-cli/launch.h"

#include <string>

#include <boost/json/parse.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

LaunchTarget target() {
  return {.url = "http://127.0.0.1:8642", .key = "", .model = "my \"model\"", .window = 32'768};
}

TEST(Launch, EveryAgentGetsTheAddressAndTheModel) {
  for (const std::string& agent : launch_agents()) {
    const std::string text = shell_text(plan_launch(agent, target()));
    EXPECT_THAT(text, HasSubstr("http://127.0.0.1:8642")) << agent;
    EXPECT_THAT(text, HasSubstr("model")) << agent;
  }
}

TEST(Launch, CodexGetsAProviderOfItsOwn) {
  const LaunchPlan plan = plan_launch("codex", target());
  EXPECT_THAT(plan.command, Contains(R"(model_providers.uma.base_url="http://127.0.0.1:8642/v1")"));
  EXPECT_THAT(plan.command, Contains(R"(model="my \"model\"")"));
  EXPECT_THAT(plan.command, Contains("model_context_window=32768"));
  LaunchTarget unknown = target();
  unknown.window = 0;
  EXPECT_THAT(shell_text(plan_launch("codex", unknown)), Not(HasSubstr("model_context_window")));
}

TEST(Launch, ClaudeAsksThisModelForSideRequestsToo) {
  const LaunchPlan plan = plan_launch("claude", target());
  EXPECT_THAT(plan.environment, Contains(Pair("ANTHROPIC_SMALL_FAST_MODEL", target().model)));
  EXPECT_THAT(plan.environment, Contains(Pair("ANTHROPIC_AUTH_TOKEN", "uma")));
  LaunchTarget with_key = target();
  with_key.key = "secret";
  EXPECT_THAT(plan_launch("claude", with_key).environment, Contains(Pair("ANTHROPIC_AUTH_TOKEN", "secret")));
}

TEST(Launch, OpencodeGetsItsConfigurationAsJson) {
  const LaunchPlan plan = plan_launch("opencode", target());
  ASSERT_EQ(plan.environment.size(), 1u);
  const boost::json::value config = boost::json::parse(plan.environment.front().second);
  EXPECT_EQ(config.at("model"), "uma/my \"model\"");
  EXPECT_EQ(config.at("provider").at("uma").at("models").at(target().model).at("limit").at("context"), 32'768);
}

TEST(Launch, ASmallWindowIsToldBefore) {
  LaunchTarget small = target();
  EXPECT_EQ(window_warning(small), "");
  small.window = 8'192;
  EXPECT_THAT(window_warning(small), HasSubstr("at most 8192 tokens"));
  small.window = 0;
  EXPECT_EQ(window_warning(small), "");
}

TEST(Launch, TheShellsTextIsQuoted) {
  EXPECT_EQ(shell_text({.environment = {{"A", "it's $HOME"}}, .command = {"run", "", "a b", "plain-1.0"}}),
            "export A='it'\\''s $HOME'\nrun '' 'a b' plain-1.0\n");
}

}  // namespace
}  // namespace uma::cli
