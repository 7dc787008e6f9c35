// uma-bench: applies one load to a running server. Exit codes: 0 all requests succeeded, 1 usage, 2 the server failed or is
// missing, 3 it broke the protocol.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <expected>
#include <fstream>
#include <functional>
#include <memory>
#include <print>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "uma-bench/agent.h"
#include "uma-bench/report.h"
#include "uma-bench/run.h"
#include "uma-bench/scenarios.h"
#include "uma-bench/trace_file.h"

namespace {

using namespace uma::bench;

struct Options {
  std::string socket;
  std::string http;
  std::string model;
  std::string csv;
  std::string trace;
  std::size_t trace_limit = 100;
  bool json = false;
  bool warm_up = true;
  pid_t server_pid = 0;
  RunOptions run;
  BurstOptions burst;
  StormOptions storm;
  MixedOptions mixed;
  ChatOptions chat;
  AgentOptions agent;
  bool pauses = false;  // Option of chat and agent.
  LongContextOptions long_ctx;
  IpcOverheadOptions ipc_overhead;
  TraceOptions trace_options;
};

void add_common_flags(CLI::App& app, Options& options) {
  app.add_option("--socket", options.socket, "Unix socket of umad");
  app.add_option("--http", options.http, "HOST:PORT of an OpenAI server")->check([](const std::string& value) {
    return value.contains(':') ? std::string() : "expected HOST:PORT";
  });
  app.add_option("--model", options.model, "model id to request; left out: the server's default");
  app.add_option("--seed", options.run.seed, "random seed of the prompts")->capture_default_str();
  app.add_option("--server-pid", options.server_pid, "measure this process's CPU time")->check(CLI::PositiveNumber);
  app.add_option("--timeout-s", options.run.timeout_s, "limit of the whole run in seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--csv", options.csv, "write a row per token (long_ctx, ipc_overhead: per point) to this file");
  app.add_flag("--json", options.json, "print one JSON object instead of the table");
  app.add_flag("!--no-warm-up", options.warm_up, "do not send a short request first");
}

// Flags for counts accept positive values only.
template <class T>
void add_count(CLI::App& app, const char* flag, T& value, const char* text) {
  app.add_option(flag, value, text)->check(CLI::Range(T{1}, T{1'000'000}))->capture_default_str();
}

void add_scenarios(CLI::App& app, Options& options) {
  CLI::App& burst = *app.add_subcommand("burst", "all streams start together");
  add_count(burst, "--streams", options.burst.streams, "streams");
  add_count(burst, "--prompt-words", options.burst.prompt_words, "words of each prompt");
  add_count(burst, "--tokens", options.burst.tokens, "new tokens of each stream");

  CLI::App& storm = *app.add_subcommand("storm", "long prompts arrive while streams decode");
  add_count(storm, "--streams", options.storm.streams, "decoding streams");
  add_count(storm, "--prompt-words", options.storm.prompt_words, "words of their prompts");
  add_count(storm, "--tokens", options.storm.tokens, "new tokens of each decoding stream");
  add_count(storm, "--quiet-tokens", options.storm.quiet_tokens, "tokens of each stream before the storm");
  add_count(storm, "--long-prompts", options.storm.long_prompts, "long prompts");
  add_count(storm, "--long-words", options.storm.long_words, "words of each long prompt");
  add_count(storm, "--long-tokens", options.storm.long_tokens, "new tokens after each long prompt");

  CLI::App& mixed = *app.add_subcommand("mixed", "short interactive prompts beside one long summary");
  add_count(mixed, "--short-prompts", options.mixed.short_prompts, "interactive prompts");
  add_count(mixed, "--short-words", options.mixed.short_words, "words of each interactive prompt");
  add_count(mixed, "--short-tokens", options.mixed.short_tokens, "new tokens of each interactive prompt");
  add_count(mixed, "--long-words", options.mixed.long_words, "words of the document");
  add_count(mixed, "--long-tokens", options.mixed.long_tokens, "new tokens of the summary");
  add_count(mixed, "--delay-ms", options.mixed.delay_ms, "milliseconds between arrivals");

  CLI::App& chat = *app.add_subcommand("chat", "users talk in turns: sessions on the socket, full histories over HTTP");
  add_count(chat, "--users", options.chat.users, "users");
  add_count(chat, "--turns", options.chat.turns, "turns of each user");
  add_count(chat, "--first-words", options.chat.first_words, "words of the first turn");
  add_count(chat, "--words", options.chat.words, "words of each later turn");
  add_count(chat, "--tokens", options.chat.tokens, "new tokens of each turn");
  chat.add_flag("--pause", options.pauses, "before everybody's last turn print `paused` and wait for a line of standard input");

  CLI::App& agent = *app.add_subcommand("agent", "coding agents with tools, side requests, and a chat beside them (HTTP only)");
  add_count(agent, "--agents", options.agent.agents, "agents");
  add_count(agent, "--turns", options.agent.turns, "turns of each agent");
  add_count(agent, "--task-turns", options.agent.task_turns,
            "turns between two texts of an agent's user; the others answer tools");
  agent.add_option("--scale", options.agent.scale, "factor for the lengths below")
      ->check(CLI::Range(0.001, 10.0))
      ->capture_default_str();
  add_count(agent, "--system-words", options.agent.system_words, "words of the system prompt");
  add_count(agent, "--tools", options.agent.tools, "tools");
  add_count(agent, "--tool-words", options.agent.tool_words, "words of a tool's description");
  add_count(agent, "--result-words-min", options.agent.result_words_min, "words of the shortest tool result");
  add_count(agent, "--result-words-max", options.agent.result_words_max, "words of the longest tool result");
  add_count(agent, "--tokens", options.agent.tokens, "new tokens of each turn of an agent");
  agent
      .add_option("--chat-every-s", options.agent.chat_every_s,
                  "seconds between the turns of the chat; 0: each begins when the last one has ended")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  agent.add_flag("--restore-space", options.agent.restore_space,
                 "put back the space at the beginning of a reply that llama-server removes (models of make_model)");
  agent.add_flag("--pause", options.pauses, "after half of the turns print `paused` and wait for a line of standard input");

  CLI::App& long_ctx = *app.add_subcommand("long_ctx", "decoding speed at the end of long contexts");
  long_ctx.add_option("--ctx", options.long_ctx.contexts, "context lengths")->delimiter(',')->check(CLI::Range(128, 1'000'000));
  add_count(long_ctx, "--tokens", options.long_ctx.tokens, "new tokens at each length");

  CLI::App& ipc = *app.add_subcommand("ipc_overhead", "short requests, alternating between the given servers");
  add_count(ipc, "--rounds", options.ipc_overhead.rounds, "requests");
  add_count(ipc, "--prompt-words", options.ipc_overhead.prompt_words, "words of each prompt");
  add_count(ipc, "--tokens", options.ipc_overhead.tokens, "new tokens of each request");

  CLI::App& trace = *app.add_subcommand("trace", "replay a recorded load");
  trace.add_option("FILE", options.trace, "trace (CSV or JSONL, see bench/README.md)")->required();
  trace.add_option("--speedup", options.trace_options.speedup, "replay this many times as fast")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_count(trace, "--limit", options.trace_limit, "requests to replay");
  add_count(trace, "--prompt-words", options.trace_options.prompt_words_max, "cut longer prompts to this");
  add_count(trace, "--tokens", options.trace_options.tokens_max, "cut longer answers to this");
}

// Prints `paused` and waits until a line of standard input has ended.
void wait_for_line() {
  std::println("paused");
  std::fflush(stdout);
  for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
}

Outcome run_scenario(const std::string& name, Run& run, const Options& options, std::span<const TraceRequest> trace) {
  if (name == "burst") return run_burst(run, options.burst);
  if (name == "storm") return run_storm(run, options.storm);
  if (name == "mixed") return run_mixed(run, options.mixed);
  if (name == "chat") return run_chat(run, options.chat);
  if (name == "agent") {
    return run_agent(run, options.agent, options.pauses ? wait_for_line : std::function<void()>());
  }
  if (name == "long_ctx") return run_long_ctx(run, options.long_ctx);
  return run_trace(run, options.trace_options, trace);
}

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return static_cast<bool>(file);
}

int usage(std::string_view message) {
  std::println(stderr, "uma-bench: {}", message);
  return 1;
}

std::vector<Endpoint> endpoints_of(const Options& options) {
  std::vector<Endpoint> endpoints;
  if (!options.socket.empty()) endpoints.push_back({.is_http = false, .address = options.socket, .model = options.model});
  if (!options.http.empty()) endpoints.push_back({.is_http = true, .address = options.http, .model = options.model});
  return endpoints;
}

// The mistake in the options; empty: none.
std::string_view impossible_option(const Options& options, std::string_view scenario, std::size_t endpoints) {
  if (endpoints == 0 || (endpoints > 1 && scenario != "ipc_overhead")) {
    return "give one server: --socket PATH or --http HOST:PORT (ipc_overhead compares both)";
  }
  if (scenario == "agent" && options.http.empty()) return "agent needs --http HOST:PORT, because agents use OpenAI's API";
  if (options.agent.turns < 2) return "--turns of agent must be 2 or more, because the second half follows a pause";
  if (options.agent.result_words_min > options.agent.result_words_max) {
    return "--result-words-min must not be above --result-words-max";
  }
  if (options.storm.quiet_tokens >= options.storm.tokens) {
    return "--quiet-tokens must be below --tokens, because long prompts arrive while streams decode";
  }
  if (std::ranges::any_of(options.long_ctx.contexts, [&](int context) { return context < options.long_ctx.tokens + 2; })) {
    return "--ctx must be larger than --tokens, because each context begins with a prompt";
  }
  return {};
}

std::expected<std::vector<TraceRequest>, std::string> read_trace_file(const std::string& path, std::size_t limit) {
  std::ifstream file(path);
  if (!file) return std::unexpected("cannot read " + path);
  auto requests = read_trace(file, limit);
  if (!requests) return std::unexpected(path + ": " + requests.error());
  return requests;
}

// Prints the outcomes and writes the rows. Returns the exit code.
int report(const Options& options, const std::string& scenario, std::span<const Endpoint> endpoints,
           std::span<const Outcome> outcomes) {
  int code = 0;
  std::string csv;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    std::print("{}", options.json ? format_json(scenario, endpoints[i].name(), outcome) + "\n"
                                  : format_table(scenario, endpoints[i].name(), outcome));
    code = std::max(code, exit_code(outcome));
    csv += csv.empty() ? outcome.csv : outcome.csv.substr(outcome.csv.find('\n') + 1);
  }
  if (!options.csv.empty() && !write_file(options.csv, csv)) {
    std::println(stderr, "uma-bench: cannot write {}", options.csv);
    return 2;
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Load generator for umad's Unix socket and for OpenAI servers.");
  app.require_subcommand(1)->fallthrough();
  add_common_flags(app, options);
  add_scenarios(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }
  const std::string scenario = app.get_subcommands().front()->get_name();

  const std::vector<Endpoint> endpoints = endpoints_of(options);
  if (const std::string_view wrong = impossible_option(options, scenario, endpoints.size()); !wrong.empty())
    return usage(wrong);
  if (options.pauses) options.chat.before_last_turn = wait_for_line;
  std::vector<TraceRequest> trace;
  if (scenario == "trace") {
    auto requests = read_trace_file(options.trace, options.trace_limit);
    if (!requests) return usage(requests.error());
    trace = *std::move(requests);
  }
  if (options.server_pid != 0) {
    options.run.server_pid = options.server_pid;
  }

  std::vector<std::unique_ptr<Run>> runs;
  std::vector<Run*> listeners;
  for (const Endpoint& endpoint : endpoints) {
    options.run.endpoint = endpoint;
    runs.push_back(std::make_unique<Run>(options.run));
    ++options.run.seed;  // A new seed, so that the next server has no prefix hits.
    listeners.push_back(runs.back().get());
    if (options.warm_up) {
      if (const auto warm = runs.back()->warm_up(); !warm) {
        std::println(stderr, "uma-bench: {}", warm.error().message);
        return exit_code(warm.error().kind);
      }
    }
  }
  std::vector<Outcome> outcomes;
  if (scenario == "ipc_overhead") {
    outcomes = run_ipc_overhead(listeners, options.ipc_overhead);
  } else {
    outcomes.push_back(run_scenario(scenario, *listeners.front(), options, trace));
  }
  return report(options, scenario, endpoints, outcomes);
}
