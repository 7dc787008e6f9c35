// `uma-cli launch`: starts a coding agent with the settings by which it uses this daemon. Its own configuration files stay as
// they are: everything is passed in the environment and on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct LaunchOptions {
  std::string agent;  // One of launch_agents().
  std::string model;  // Empty: the daemon's default.
  std::string url;  // The address of the daemon's HTTP; empty: the daemon is asked, since another user may hold the usual port.
  std::string key;  // The API key; empty: none is needed.
  bool only_prints = false;
  std::vector<std::string> arguments;  // For the agent.
};

// The facts that the agent must know.
struct LaunchTarget {
  std::string url;
  std::string key;
  std::string model;
  std::int64_t window = 0;  // The most tokens of one conversation; 0: unknown.
};

struct LaunchPlan {
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> command;
};

[[nodiscard]] std::vector<std::string> launch_agents();
// Pure. Requires: a name of launch_agents().
[[nodiscard]] LaunchPlan plan_launch(std::string_view agent, const LaunchTarget& target);
// The plan as lines for a shell.
[[nodiscard]] std::string shell_text(const LaunchPlan& plan);
// The warning about a window that is too small for an agent's first request; empty: none.
[[nodiscard]] std::string window_warning(const LaunchTarget& target);

// Shows what the agent gets on standard error, and becomes the agent, whose output may be read by a program. With
// `only_prints`, prints it on standard output.
Result<void> run_launch(Client& client, const LaunchOptions& options, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
