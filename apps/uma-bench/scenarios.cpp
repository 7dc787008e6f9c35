#include "uma-bench/scenarios.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <optional>

namespace uma::bench {

namespace {

namespace asio = boost::asio;

std::string token_rows(const std::vector<StreamRecord>& records) {
  std::string csv = "session_id,token_idx,ts_ms,is_interactive\n";
  for (const StreamRecord& record : records) {
    for (std::size_t i = 0; i < record.token_ms.size(); ++i) {
      csv += std::format("{},{},{:.3f},{}\n", record.session_id, i, record.token_ms[i], record.interactive ? 1 : 0);
    }
  }
  return csv;
}

Outcome make_outcome(const Run& run, const Totals& totals) {
  Outcome outcome{.figures = summarize(run.records(), totals), .failures = {}, .csv = token_rows(run.records())};
  for (const StreamRecord& record : run.records()) {
    if (record.failure) {
      outcome.failures.push_back(*record.failure);
    }
  }
  return outcome;
}

Outcome make_outcome(const Run& run) {
  return make_outcome(run, run.totals());
}

std::vector<double> ttfts(const std::vector<StreamRecord>& records, bool interactive) {
  std::vector<double> values;
  for (const StreamRecord& record : records) {
    if (record.interactive == interactive && !record.token_ms.empty()) {
      values.push_back(record.ttft_ms());
    }
  }
  return values;
}

std::vector<double> gaps_of(const std::vector<StreamRecord>& records, bool interactive, double from_ms, double to_ms) {
  std::vector<double> values;
  for (const StreamRecord& record : records) {
    if (record.interactive == interactive) {
      const std::vector<double> gaps = token_gaps(record, from_ms, to_ms);
      values.insert(values.end(), gaps.begin(), gaps.end());
    }
  }
  return values;
}

}  // namespace

Outcome run_burst(Run& run, const BurstOptions& options) {
  for (int stream = 0; stream < options.streams; ++stream) {
    run.start({.session_id = stream,
               .prompt = run.prompts().make_unique(static_cast<std::size_t>(options.prompt_words)),
               .tokens = options.tokens});
  }
  run.wait_all();
  return make_outcome(run);
}

Outcome run_storm(Run& run, const StormOptions& options) {
  std::optional<double> storm_ms;
  int ready_streams = 0;
  const auto begin_storm = [&] {
    storm_ms = run.now_ms();
    for (int i = 0; i < options.long_prompts; ++i) {
      run.start({.session_id = options.streams + i,
                 .interactive = false,
                 .prompt = run.prompts().make_unique(static_cast<std::size_t>(options.long_words)),
                 .tokens = options.long_tokens});
    }
  };
  for (int stream = 0; stream < options.streams; ++stream) {
    run.start({.session_id = stream,
               .prompt = run.prompts().make_unique(static_cast<std::size_t>(options.prompt_words)),
               .tokens = options.tokens,
               .on_token = [&, received = 0]() mutable {
                 if (++received == options.quiet_tokens && ++ready_streams == options.streams) {
                   begin_storm();
                 }
               }});
  }
  run.wait_all();

  Outcome outcome = make_outcome(run);
  if (!storm_ms) {
    outcome.failures.push_back({Failure::Kind::server, "a stream ended during its quiet phase, so the storm never began"});
    return outcome;
  }
  constexpr double kForever = std::numeric_limits<double>::infinity();
  double all_done_ms = 0;
  for (const StreamRecord& record : run.records()) {
    all_done_ms = std::max(all_done_ms, record.end_ms - *storm_ms);
  }
  const std::vector<double> long_ttft = ttfts(run.records(), false);
  add_distribution(outcome.figures, "quiet", gaps_of(run.records(), true, -1, *storm_ms));
  add_distribution(outcome.figures, "busy", gaps_of(run.records(), true, *storm_ms, kForever));
  outcome.figures.push_back({"long_ttft_p50_ms", percentile(long_ttft, 0.5)});
  outcome.figures.push_back({"long_ttft_max_ms", percentile(long_ttft, 1)});
  outcome.figures.push_back({"all_done_ms", all_done_ms});
  return outcome;
}

Outcome run_mixed(Run& run, const MixedOptions& options) {
  run.start({.session_id = 0,
             .interactive = false,
             .background = true,
             .prompt = run.prompts().make_unique(static_cast<std::size_t>(options.long_words)),
             .tokens = options.long_tokens});
  for (int i = 1; i <= options.short_prompts; ++i) {
    run.start_after(options.delay_ms * i, {.session_id = i,
                                           .prompt = run.prompts().make_unique(static_cast<std::size_t>(options.short_words)),
                                           .tokens = options.short_tokens});
  }
  run.wait_all();

  Outcome outcome = make_outcome(run);
  constexpr double kForever = std::numeric_limits<double>::infinity();
  const std::vector<double> short_ttft = ttfts(run.records(), true);
  outcome.figures.push_back({"short_ttft_p50_ms", percentile(short_ttft, 0.5)});
  outcome.figures.push_back({"short_ttft_max_ms", percentile(short_ttft, 1)});
  add_distribution(outcome.figures, "short_inter_token", gaps_of(run.records(), true, -1, kForever));
  outcome.figures.push_back({"long_ttft_ms", percentile(ttfts(run.records(), false), 1)});
  return outcome;
}

Outcome run_chat(Run& run, const ChatOptions& options) {
  struct User {
    int number;
    Client* client;
    std::vector<std::string> inputs;  // Made before anything starts, so that they do not depend on the order of service.
    bool has_failed = false;
  };
  std::vector<double> first_ttft, later_ttft, last_ttft;
  const auto talk = [&](User& user, int begin, int end) -> asio::awaitable<void> {
    for (int turn = begin; turn < end && !user.has_failed; ++turn) {
      StreamRecord record = co_await user.client->converse({.session_id = user.number,
                                                            .prompt = std::move(user.inputs[static_cast<std::size_t>(turn)]),
                                                            .tokens = options.tokens});
      user.has_failed = record.failure.has_value();
      if (!record.token_ms.empty()) {
        (turn == 0 ? first_ttft : later_ttft).push_back(record.ttft_ms());
        if (turn == options.turns - 1) last_ttft.push_back(record.ttft_ms());
      }
      run.record(std::move(record));
    }
    if (end == options.turns) co_await user.client->end_conversation();
  };
  std::vector<User> users;
  for (int number = 0; number < options.users; ++number) {
    users.push_back({.number = number, .client = &run.add_client(), .inputs = {}});
    for (int turn = 0; turn < options.turns; ++turn) {
      users.back().inputs.push_back(
          run.prompts().make_unique(static_cast<std::size_t>(turn == 0 ? options.first_words : options.words)));
    }
  }
  const int turns_before = options.before_last_turn ? options.turns - 1 : options.turns;
  for (User& user : users) run.spawn(talk(user, 0, turns_before));
  run.wait_all();
  double last_turn_wall_s = kNotMeasured;
  if (options.before_last_turn) {
    for (User& user : users) user.client->disconnect();
    options.before_last_turn();
    const double began_ms = run.now_ms();
    for (User& user : users) run.spawn(talk(user, turns_before, options.turns));
    run.wait_all();
    last_turn_wall_s = (run.now_ms() - began_ms) / 1000;
  }

  Outcome outcome = make_outcome(run);
  outcome.figures.push_back({"first_turn_ttft_p50_ms", percentile(first_ttft, 0.5)});
  outcome.figures.push_back({"later_turns_ttft_p50_ms", percentile(later_ttft, 0.5)});
  outcome.figures.push_back({"later_turns_ttft_max_ms", percentile(later_ttft, 1)});
  outcome.figures.push_back({"last_turn_ttft_p50_ms", percentile(last_ttft, 0.5)});
  outcome.figures.push_back({"last_turn_wall_s", last_turn_wall_s});
  return outcome;
}

Outcome run_long_ctx(Run& run, const LongContextOptions& options) {
  constexpr int kBeginToken = 1;
  for (const int context : options.contexts) {
    run.start({.session_id = context,
               .prompt = run.prompts().make_unique(static_cast<std::size_t>(context - options.tokens - kBeginToken)),
               .tokens = options.tokens});
    run.wait_all();
  }
  Outcome outcome = make_outcome(run);
  outcome.csv = "ctx,tps\n";
  for (const StreamRecord& record : run.records()) {
    const double decode_s =
        record.token_ms.size() < 2 ? kNotMeasured : (record.token_ms.back() - record.token_ms.front()) / 1000;
    const double tokens_per_s = static_cast<double>(record.token_ms.size() - 1) / decode_s;
    outcome.figures.push_back({std::format("ctx_{}_tokens_per_s", record.session_id), tokens_per_s});
    outcome.figures.push_back({std::format("ctx_{}_ttft_ms", record.session_id), record.ttft_ms()});
    outcome.csv += std::format("{},{:.2f}\n", record.session_id, tokens_per_s);
  }
  return outcome;
}

std::vector<Outcome> run_ipc_overhead(std::span<Run* const> listeners, const IpcOverheadOptions& options) {
  // The results of one protocol, one value per round.
  struct Shown {
    Client* client = nullptr;
    Totals totals{};
    std::vector<double> ttft_ms;
    std::vector<double> wall_ms;
    std::vector<double> cpu_ms;
  };
  const auto ask = [&](Run& run, Client& client, int round) -> asio::awaitable<void> {
    run.record(co_await client.generate({.session_id = round,
                                         .prompt = run.prompts().make_unique(static_cast<std::size_t>(options.prompt_words)),
                                         .tokens = options.tokens}));
  };
  std::vector<Shown> shown(listeners.size());
  for (std::size_t i = 0; i < listeners.size(); ++i) shown[i].client = &listeners[i]->add_client();
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t turn = 0; turn < listeners.size(); ++turn) {
      const std::size_t i = (static_cast<std::size_t>(round) + turn) % listeners.size();
      Run& run = *listeners[i];
      const Totals before = run.totals();
      run.spawn(ask(run, *shown[i].client, round));
      run.wait_all();
      const Totals after = run.totals();
      shown[i].totals.wall_ms += after.wall_ms - before.wall_ms;
      shown[i].totals.cpu_s += after.cpu_s - before.cpu_s;
      shown[i].ttft_ms.push_back(run.records().back().ttft_ms());
      shown[i].wall_ms.push_back(after.wall_ms - before.wall_ms);
      shown[i].cpu_ms.push_back((after.cpu_s - before.cpu_s) * 1000);
    }
  }
  const auto ratio = [](const std::vector<double>& values, const std::vector<double>& of_first) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (const double each = values[i] / of_first[i]; std::isfinite(each)) ratios.push_back(each);
    }
    return percentile(ratios, 0.5);
  };
  std::vector<Outcome> outcomes;
  for (std::size_t i = 0; i < listeners.size(); ++i) {
    const double cpu_percent = 100 * shown[i].totals.cpu_s / (shown[i].totals.wall_ms / 1000);
    Outcome outcome = make_outcome(*listeners[i], shown[i].totals);
    outcome.figures.push_back({"request_p50_ms", percentile(shown[i].wall_ms, 0.5)});
    outcome.figures.push_back({"server_cpu_percent", cpu_percent});
    if (i > 0) {
      outcome.figures.push_back({"ttft_ratio_p50", ratio(shown[i].ttft_ms, shown[0].ttft_ms)});
      outcome.figures.push_back({"request_ratio_p50", ratio(shown[i].wall_ms, shown[0].wall_ms)});
      outcome.figures.push_back({"server_cpu_ratio_p50", ratio(shown[i].cpu_ms, shown[0].cpu_ms)});
    }
    outcome.csv = std::format("path,ttft_ms,cpu_pct\n{},{:.3f},{:.1f}\n", listeners[i]->endpoint().name(),
                              percentile(ttfts(listeners[i]->records(), true), 0.5), cpu_percent);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

Outcome run_trace(Run& run, const TraceOptions& options, std::span<const TraceRequest> requests) {
  const auto capped = [](int value, int max) { return max > 0 ? std::min(value, max) : value; };
  int session_id = 0;
  for (const TraceRequest& request : requests) {
    int words_left = capped(request.prompt_tokens, options.prompt_words_max);
    std::string prompt;
    for (const std::uint64_t block : request.blocks) {
      const int words = std::min(words_left, kTraceBlockTokens);
      prompt += (prompt.empty() ? "" : " ") + run.prompts().make_block(block, static_cast<std::size_t>(words));
      words_left -= words;
      if (words_left == 0) {
        break;
      }
    }
    if (words_left > 0) {
      prompt += (prompt.empty() ? "" : " ") + run.prompts().make_unique(static_cast<std::size_t>(words_left));
    }
    run.start_after(request.at_ms / options.speedup, {.session_id = session_id++,
                                                      .prompt = std::move(prompt),
                                                      .tokens = capped(request.generated_tokens, options.tokens_max)});
  }
  run.wait_all();
  return make_outcome(run);
}

}  // namespace uma::bench
