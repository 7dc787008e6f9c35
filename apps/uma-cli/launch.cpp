#include "uma-cli/launch.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <format>
#include <iostream>
#include <unistd.h>
#include <utility>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "uma-cli/fields.h"
#include "uma-cli/models/models.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

// Agents insist on a key, and send it to a daemon that needs none.
constexpr const char* kNoKey = "uma";

// The first requests of the agents had 8,000 to 23,000 tokens (docs/CLIENTS.md), and the work comes on top.
constexpr std::int64_t kWindowMin = 32'768;

std::string key_or_any(const LaunchTarget& target) {
  return target.key.empty() ? kNoKey : target.key;
}

LaunchPlan plan_codex(const LaunchTarget& target) {
  const auto text = [](const std::string& name, const std::string& value) {
    return name + "=" + boost::json::serialize(boost::json::string(value));  // A TOML string, which JSON's are.
  };
  LaunchPlan plan{.environment = {{"UMA_API_KEY", key_or_any(target)}}, .command = {"codex"}};
  std::vector<std::string> settings = {text("model", target.model),
                                       text("model_provider", "uma"),
                                       text("model_providers.uma.name", "uma-serve"),
                                       text("model_providers.uma.base_url", target.url + "/v1"),
                                       text("model_providers.uma.wire_api", "responses"),
                                       text("model_providers.uma.env_key", "UMA_API_KEY"),
                                       text("web_search", "disabled")};
  if (target.window > 0) settings.push_back(std::format("model_context_window={}", target.window));
  for (std::string& setting : settings) {
    plan.command.emplace_back("-c");
    plan.command.push_back(std::move(setting));
  }
  return plan;
}

LaunchPlan plan_claude(const LaunchTarget& target) {
  LaunchPlan plan{.environment = {{"ANTHROPIC_BASE_URL", target.url},
                                  {"ANTHROPIC_AUTH_TOKEN", key_or_any(target)},
                                  {"ANTHROPIC_API_KEY", ""},  // The user's own key stays here.
                                  {"ANTHROPIC_MODEL", target.model},
                                  {"ANTHROPIC_SMALL_FAST_MODEL", target.model},
                                  {"ANTHROPIC_DEFAULT_HAIKU_MODEL", target.model},
                                  {"CLAUDE_CODE_ATTRIBUTION_HEADER", "0"},
                                  {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"}},
                  .command = {"claude"}};
  if (target.window > 0) plan.environment.emplace_back("CLAUDE_CODE_MAX_CONTEXT_TOKENS", std::to_string(target.window));
  return plan;
}

LaunchPlan plan_opencode(const LaunchTarget& target) {
  boost::json::object model{{"name", target.model}};
  if (target.window > 0) model["limit"] = {{"context", target.window}, {"output", target.window / 4}};
  boost::json::object options{{"baseURL", target.url + "/v1"}, {"apiKey", key_or_any(target)}};
  boost::json::object provider{{"npm", "@ai-sdk/openai-compatible"},
                               {"name", "uma-serve"},
                               {"options", std::move(options)},
                               {"models", boost::json::object{{target.model, std::move(model)}}}};
  const boost::json::object config{{"model", "uma/" + target.model},
                                   {"small_model", "uma/" + target.model},
                                   {"provider", boost::json::object{{"uma", std::move(provider)}}}};
  return {.environment = {{"OPENCODE_CONFIG_CONTENT", boost::json::serialize(config)}}, .command = {"opencode"}};
}

LaunchPlan plan_qwen(const LaunchTarget& target) {
  return {.environment = {{"OPENAI_BASE_URL", target.url + "/v1"},
                          {"OPENAI_API_KEY", key_or_any(target)},
                          {"OPENAI_MODEL", target.model}},
          .command = {"qwen", "--auth-type", "openai"}};
}

struct Agent {
  const char* name;
  LaunchPlan (*plan)(const LaunchTarget& target);
};

constexpr Agent kAgents[] = {{"claude", plan_claude}, {"codex", plan_codex}, {"opencode", plan_opencode}, {"qwen", plan_qwen}};

// The word for a shell, quoted if it has to be.
std::string quoted(const std::string& word) {
  const bool is_plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=@%+,").contains(c);
  });
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

Result<std::string> find_url(Client& client) {
  const auto answer = client.call({{"type", "ping"}}, "pong");
  if (!answer) return std::unexpected(answer.error());
  std::string url = text_field(*answer, "http");
  if (url.empty()) {
    return fail(ExitCode::usage,
                "the daemon serves no HTTP, which agents need: its log says why, or give the URL of another one with --url");
  }
  return url;
}

}  // namespace

std::vector<std::string> launch_agents() {
  std::vector<std::string> names;
  for (const Agent& agent : kAgents) names.emplace_back(agent.name);
  return names;
}

LaunchPlan plan_launch(std::string_view agent, const LaunchTarget& target) {
  return std::ranges::find(kAgents, agent, &Agent::name)->plan(target);
}

std::string shell_text(const LaunchPlan& plan) {
  std::string text;
  for (const auto& [name, value] : plan.environment) text += std::format("export {}={}\n", name, quoted(value));
  for (const std::string& word : plan.command) text += (&word == &plan.command.front() ? "" : " ") + quoted(word);
  return text + '\n';
}

std::string window_warning(const LaunchTarget& target) {
  if (target.window == 0 || target.window >= kWindowMin) return "";
  return std::format(
      "a conversation with {} has at most {} tokens, and agents need {} or more: start umad with a larger --n-ctx, or a model "
      "that "
      "was trained for more",
      printable_line(target.model), target.window, kWindowMin);
}

Result<void> run_launch(Client& client, const LaunchOptions& options, Output& output, Interrupts& interrupts) {
  const auto model = find_model(client, options.model, interrupts);
  if (!model) return std::unexpected(model.error());
  if (model->empty()) {
    return fail(ExitCode::usage,
                std::format("the daemon has no model \"{}\": uma-cli models lists them", printable_line(options.model)));
  }
  const auto url = options.url.empty() ? find_url(client) : Result<std::string>(options.url);
  if (!url) return std::unexpected(url.error());
  LaunchTarget target{.url = *url,
                      .key = options.key,
                      .model = text_field(*model, "name"),
                      .window = static_cast<std::int64_t>(number_field(*model, "sequence_tokens_max"))};
  const auto plan_with = [&](const LaunchTarget& facts) {
    LaunchPlan made = plan_launch(options.agent, facts);
    made.command.insert(made.command.end(), options.arguments.begin(), options.arguments.end());
    return made;
  };
  LaunchPlan plan = plan_with(target);
  if (!options.key.empty() && !options.only_prints) target.key = "...";  // A key does not belong on the screen.
  if (const std::string warning = window_warning(target); !warning.empty()) std::cerr << "uma-cli: " << warning << '\n';
  const std::string shown = printable(shell_text(plan_with(target)));
  if (options.only_prints) return print(output, shown);
  std::cerr << shown << std::flush;
  for (const auto& [name, value] : plan.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (std::string& word : plan.command) words.push_back(word.data());
  words.push_back(nullptr);
  ::execvp(words.front(), words.data());
  return fail(ExitCode::usage,
              std::format("{} cannot be started: {}; is it installed?", plan.command.front(), std::strerror(errno)));
}

}  // namespace uma::cli
