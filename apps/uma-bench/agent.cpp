#include "uma-bench/agent.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <format>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace uma::bench {

namespace {

namespace asio = boost::asio;

enum class Part : std::uint8_t { agent, title, summary, chat };

constexpr std::string_view name_of(Part part) {
  constexpr std::string_view kNames[]{"agent", "title", "summary", "chat"};
  return kNames[static_cast<std::size_t>(part)];
}

// A request that was answered.
struct Answered {
  Part part;
  int user;  // Number of the agent; of the chat: of its conversation.
  int turn;
  bool in_second_half;
  int new_tokens;  // The least that the server had to compute of the prompt.
  StreamRecord record;

  [[nodiscard]] int computed_tokens() const { return record.prompt_tokens - record.reused_tokens; }
};

class Replay {
 public:
  Replay(Run& run, const AgentOptions& options)
      : run_(run),
        options_(options),
        random_(run.seed()),
        texts_(make_agent_texts(options, run.prompts(), random_)),
        chat_client_(run.add_chat_client()) {
    for (int number = 0; number < options.agents; ++number) {
      Agent& agent = agents_.emplace_back(number, run.add_chat_client(), ChatConversation(texts_.tools, options.restore_space));
      agent.conversation.add_message("system", texts_.system);
    }
  }

  Outcome play(const std::function<void()>& before_second_half) {
    const int half = options_.turns / 2;
    run_.spawn(chat_alone());
    run_.wait_all();
    play_half(0, half);
    for (Agent& agent : agents_) agent.client.disconnect();
    chat_client_.disconnect();
    if (before_second_half) before_second_half();
    in_second_half_ = true;
    play_half(half, options_.turns);
    return make_report();
  }

 private:
  struct Agent {
    int number;
    ChatClient& client;
    ChatConversation conversation;
    bool has_failed = false;
  };

  void play_half(int begin, int end) {
    const double began_ms = run_.now_ms();
    working_ = options_.agents;
    // The second agent starts when the first one has its first token, so that the prompt that both share is computed by then.
    // After the restart all go on at once.
    if (begin == 0) {
      run_.spawn(work(agents_.front(), begin, end));
    } else {
      for (Agent& agent : agents_) run_.spawn(work(agent, begin, end));
    }
    run_.spawn(chat());
    run_.wait_all();
    wall_s_.push_back((last_end_ms_ - began_ms) / 1000);
  }

  void start_other_agents(int end) {
    if (std::exchange(others_started_, true)) return;
    for (Agent& agent : agents_) {
      if (agent.number > 0) run_.spawn(work(agent, 0, end));
    }
  }

  asio::awaitable<void> work(Agent& agent, int begin, int end) {
    const std::vector<AgentTurn>& turns = texts_.turns[static_cast<std::size_t>(agent.number)];
    for (int number = begin; number < end && !agent.has_failed; ++number) {
      const AgentTurn& turn = turns[static_cast<std::size_t>(number)];
      if (turn.begins_task) {
        agent.conversation.add_message("user", turn.text);
      } else {
        agent.conversation.add_tool_result(turn.call.id, turn.text);
      }
      start_side_requests(agent.number, number, turn);
      Job job{.session_id = agent.number, .tokens = scaled(options_.tokens, options_.scale)};
      if (number == 0) job.on_token = [this, end] { start_other_agents(end); };
      StreamRecord record = co_await agent.client.complete(job, agent.conversation);
      if (number == 0) start_other_agents(end);  // If there was no token.
      agent.has_failed = record.failure.has_value();
      const AgentTurn* next = number + 1 < options_.turns ? &turns[static_cast<std::size_t>(number) + 1] : nullptr;
      agent.conversation.add_reply(record.reply, next != nullptr && !next->begins_task ? &next->call : nullptr);
      int new_tokens = agent.conversation.take_new_tokens(record);
      // The other agents share all but their first task with the first one.
      if (number == 0 && agent.number > 0) new_tokens = scaled(options_.task_words, options_.scale);
      keep(Part::agent, agent.number, number, new_tokens, std::move(record));
    }
    --working_;
  }

  void start_side_requests(int agent, int number, const AgentTurn& turn) {
    if (number == 0) {
      run_.spawn(ask_beside({Part::title, agent, number}, texts_.title_system, turn.text, options_.title_tokens,
                            scaled(options_.task_words, options_.scale)));
    } else if (!turn.summarized.empty()) {
      run_.spawn(ask_beside({Part::summary, agent, number}, texts_.summary_system, turn.summarized, options_.summary_tokens,
                            scaled(options_.summary_words, options_.scale)));
    }
  }

  struct Beside {
    Part part;
    int agent;
    int turn;
  };

  asio::awaitable<void> ask_beside(Beside which, const std::string& system, const std::string& text, int tokens,
                                   int own_words) {
    ChatConversation conversation({}, options_.restore_space);
    conversation.add_message("system", system);
    conversation.add_message("user", text);
    // The instructions of the first request of a kind are those of all others.
    const bool is_first = std::ranges::find(asked_, which.part) == asked_.end();
    asked_.push_back(which.part);
    const Job job{.session_id = options_.agents + which.agent, .tokens = scaled(tokens, options_.scale)};
    ChatClient& client = run_.add_chat_client();
    StreamRecord record = co_await client.complete(job, conversation);
    client.disconnect();
    const int new_tokens = is_first ? conversation.take_new_tokens(record) : own_words;
    keep(which.part, which.agent, which.turn, new_tokens, std::move(record));
  }

  asio::awaitable<void> chat_alone() {
    co_await ask_chat();
    quiet_end_ms_ = run_.now_ms();
  }

  // The chat goes on as long as an agent works. Turns at fixed times make servers of different speed generate the same number
  // of tokens for it.
  asio::awaitable<void> chat() {
    const std::chrono::duration<double, std::milli> interval(options_.chat_every_s * 1000);
    asio::steady_timer timer(co_await asio::this_coro::executor);
    while (working_ > 0 && !chat_has_failed_) {
      timer.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(interval));
      co_await ask_chat();
      co_await timer.async_wait(asio::use_awaitable);
    }
  }

  asio::awaitable<void> ask_chat() {
    if (chat_turn_ % options_.chat_turns == 0) chat_conversation_ = ChatConversation({}, options_.restore_space);
    chat_conversation_.add_message("user", run_.prompts().make_unique(static_cast<std::size_t>(options_.chat_words)));
    const Job job{.session_id = 2 * options_.agents, .tokens = options_.chat_tokens};
    StreamRecord record = co_await chat_client_.complete(job, chat_conversation_);
    chat_has_failed_ = record.failure.has_value();
    chat_conversation_.add_reply(record.reply, nullptr);
    const int new_tokens = chat_conversation_.take_new_tokens(record);
    keep(Part::chat, chat_turn_ / options_.chat_turns, chat_turn_ % options_.chat_turns, new_tokens, std::move(record));
    ++chat_turn_;
  }

  void keep(Part part, int user, int turn, int new_tokens, StreamRecord record) {
    if (part != Part::chat) last_end_ms_ = run_.now_ms();
    run_.record(record);
    answered_.push_back({part, user, turn, in_second_half_, new_tokens, std::move(record)});
  }

  Outcome make_report() const;
  void add_half(Figures& figures, bool second) const;
  void add_chat(Figures& figures) const;
  std::string rows() const;

  Run& run_;
  const AgentOptions options_;
  Random random_;
  const AgentTexts texts_;
  std::list<Agent> agents_;
  ChatClient& chat_client_;
  ChatConversation chat_conversation_;
  int chat_turn_ = 0;
  bool chat_has_failed_ = false;
  double quiet_end_ms_ = 0;  // The chat was alone until then.
  bool in_second_half_ = false;
  bool others_started_ = false;
  int working_ = 0;  // Agents that have turns left in this half.
  std::vector<Part> asked_;
  double last_end_ms_ = 0;
  std::vector<double> wall_s_;  // Wall seconds of each half.
  std::vector<Answered> answered_;
};

// Tokens computed and the least possible, of all requests that `counts` accepts.
template <class CountsT>
std::pair<double, double> sum_tokens(const std::vector<Answered>& answered, CountsT counts) {
  double computed = 0, least = 0;
  for (const Answered& each : answered) {
    if (!counts(each)) continue;
    computed += each.computed_tokens();
    least += each.new_tokens;
  }
  return {computed, least};
}

double ratio(const std::pair<double, double>& tokens) {
  return tokens.second > 0 ? tokens.first / tokens.second : kNotMeasured;
}

void Replay::add_half(Figures& figures, bool second) const {
  const std::string prefix = second ? "second_half" : "first_half";
  const auto of_half = [&](const Answered& each) { return each.in_second_half == second; };
  const auto of_agents = [&](const Answered& each) { return of_half(each) && each.part == Part::agent; };
  std::vector<double> turn_ms, ttft_ms;
  for (const Answered& each : answered_) {
    if (!of_agents(each) || each.record.token_ms.empty()) continue;
    turn_ms.push_back(each.record.end_ms - each.record.start_ms);
    ttft_ms.push_back(each.record.ttft_ms());
  }
  const auto agents = sum_tokens(answered_, of_agents);
  figures.push_back({prefix + "_wall_s", wall_s_[second ? 1 : 0]});
  figures.push_back({prefix + "_agents_computed_tokens", agents.first});
  figures.push_back({prefix + "_agents_least_tokens", agents.second});
  figures.push_back({prefix + "_agents_computed_ratio", ratio(agents)});
  figures.push_back({prefix + "_computed_ratio", ratio(sum_tokens(answered_, of_half))});
  figures.push_back({prefix + "_turn_p50_ms", percentile(turn_ms, 0.5)});
  figures.push_back({prefix + "_turn_p95_ms", percentile(turn_ms, 0.95)});
  figures.push_back({prefix + "_turn_max_ms", percentile(turn_ms, 1)});
  figures.push_back({prefix + "_ttft_p50_ms", percentile(ttft_ms, 0.5)});
  figures.push_back({prefix + "_ttft_p95_ms", percentile(ttft_ms, 0.95)});
  figures.push_back({prefix + "_ttft_max_ms", percentile(ttft_ms, 1)});
}

void Replay::add_chat(Figures& figures) const {
  std::vector<double> quiet, busy, ttft;
  int tokens = 0;
  for (const Answered& each : answered_) {
    if (each.part != Part::chat || each.record.token_ms.empty()) continue;
    const bool is_quiet = each.record.start_ms < quiet_end_ms_;
    if (!is_quiet) tokens += each.record.completion_tokens;
    const std::vector<double> gaps = token_gaps(each.record);
    (is_quiet ? quiet : busy).insert((is_quiet ? quiet : busy).end(), gaps.begin(), gaps.end());
    if (!is_quiet) ttft.push_back(each.record.ttft_ms());
  }
  add_distribution(figures, "chat_quiet", quiet);
  add_distribution(figures, "chat_busy", busy);
  figures.push_back({"chat_tokens", static_cast<double>(tokens)});
  figures.push_back({"chat_ttft_p50_ms", percentile(ttft, 0.5)});
  figures.push_back({"chat_ttft_max_ms", percentile(ttft, 1)});
}

Outcome Replay::make_report() const {
  Outcome outcome{.figures = summarize(run_.records(), run_.totals()), .failures = {}, .csv = rows()};
  for (const StreamRecord& record : run_.records()) {
    if (record.failure) outcome.failures.push_back(*record.failure);
  }
  double first_prompt = kNotMeasured, last_prompt = kNotMeasured;
  for (const Answered& each : answered_) {
    if (each.part != Part::agent || each.user != 0) continue;
    if (each.turn == 0) first_prompt = each.record.prompt_tokens;
    last_prompt = each.record.prompt_tokens;
  }
  outcome.figures.push_back({"agent_first_prompt_tokens", first_prompt});
  outcome.figures.push_back({"agent_last_prompt_tokens", last_prompt});
  outcome.figures.push_back({"agents_wall_s", wall_s_[0] + wall_s_[1]});
  add_half(outcome.figures, false);
  add_half(outcome.figures, true);
  std::vector<double> resumed_ms, resumed_ttft_ms;
  for (const Answered& each : answered_) {
    if (each.part != Part::agent || each.turn != options_.turns / 2 || each.record.token_ms.empty()) continue;
    resumed_ms.push_back(each.record.end_ms - each.record.start_ms);
    resumed_ttft_ms.push_back(each.record.ttft_ms());
  }
  outcome.figures.push_back({"resumed_turn_max_ms", percentile(resumed_ms, 1)});
  outcome.figures.push_back({"resumed_ttft_max_ms", percentile(resumed_ttft_ms, 1)});
  const auto side = [](const Answered& each) { return each.part == Part::title || each.part == Part::summary; };
  const auto chat = [](const Answered& each) { return each.part == Part::chat; };
  outcome.figures.push_back({"side_computed_ratio", ratio(sum_tokens(answered_, side))});
  outcome.figures.push_back({"chat_computed_ratio", ratio(sum_tokens(answered_, chat))});
  add_chat(outcome.figures);
  return outcome;
}

std::string Replay::rows() const {
  std::string csv = "part,user,turn,half,start_ms,ttft_ms,end_ms,prompt_tokens,computed_tokens,least_tokens,new_tokens\n";
  for (const Answered& each : answered_) {
    const StreamRecord& record = each.record;
    csv += std::format("{},{},{},{},{:.3f},{:.3f},{:.3f},{},{},{},{}\n", name_of(each.part), each.user, each.turn,
                       each.in_second_half ? 2 : 1, record.start_ms, record.ttft_ms(), record.end_ms, record.prompt_tokens,
                       each.computed_tokens(), each.new_tokens, record.completion_tokens);
  }
  return csv;
}

}  // namespace

Outcome run_agent(Run& run, const AgentOptions& options, const std::function<void()>& before_second_half) {
  return Replay(run, options).play(before_second_half);
}

}  // namespace uma::bench
