// The clients of ClusterSim: what they ask for, and what they do with the answers.
#include <algorithm>
#include <array>
#include <format>
#include <utility>

#include "cluster_parts.h"

namespace uma::sim {
namespace {

constexpr Duration kTriesMax = seconds(60);
constexpr std::size_t kSessionsMax = 8;

std::string_view name_of_action(auto action) {
  constexpr std::array<std::string_view, 7> kNames{"create", "append", "generate", "read", "fork", "rename", "end"};
  return kNames[static_cast<std::size_t>(action)];
}

}  // namespace

// --- A reply

class ClusterSim::Sink final : public EventSink {
 public:
  Sink(ClusterSim& sim, RequestPtr request) : sim_(sim), request_(std::move(request)) {}

  bool deliver(const Event& event) override {
    if (request_->is_abandoned) return true;
    if (request_->has_ended) sim_.fail(std::format("request {} got an event behind its end", request_->id));
    if (std::holds_alternative<TokenEvent>(event) && !std::exchange(request_->has_token, true)) {
      sim_.check_stored(*request_, "a token came before the input was stored");
    } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
      const bool is_turn = !eos->error && (request_->has_token || eos->reason == FinishReason::stop);
      if (is_turn) {
        ++sim_.outcome_.turns;
        sim_.check_turn(*request_);
      }
      if (eos->error) {
        const ErrorCode code = eos->error->code;
        if (code != ErrorCode::io_failed && code != ErrorCode::limit_wait && code != ErrorCode::outcome_unknown &&
            code != ErrorCode::session_busy && code != ErrorCode::session_unknown) {
          sim_.fail(std::format("request {}: the reply ended with {}", request_->id, eos->error->message));
        }
        if (code == ErrorCode::session_unknown) sim_.check_unknown(*request_);
      }
      // The input is stored, whatever became of the reply; but one that was cancelled may have ended before that.
      const bool may_be_stored = eos->reason == FinishReason::cancelled && !request_->has_token;
      sim_.end_request(request_, may_be_stored ? std::optional(ErrorCode::outcome_unknown) : std::nullopt);
    } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
      if (request_->has_token) sim_.fail(std::format("request {} failed behind a token", request_->id));
      sim_.end_request(request_, failure->error.code);
    }
    return true;
  }

 private:
  ClusterSim& sim_;
  const RequestPtr request_;
};

// --- Clients

void ClusterSim::think(Client& client) {
  timeline_.at(timeline_.now() + between(milliseconds(10), milliseconds(chance(0.1) ? 3000 : 500)), [this, &client] {
    if (is_over_ || client.is_done) return;
    choose(client);
  });
}

void ClusterSim::choose(Client& client) {
  client.goal.reset();
  if (client.is_auditor) {
    if (client.plan.empty()) {
      client.is_done = true;
      return;
    }
    client.goal = std::move(client.plan.front());
    client.plan.pop_front();
  } else if (!has_faults_) {
    client.is_done = true;
    return;
  } else {
    Goal goal;
    const auto kind = random_.next_below(20);
    if (pool_.empty() || (kind == 0 && pool_.size() < kSessionsMax)) {
      goal.action = Action::create;
    } else {
      goal.session = pool_[random_.next_below(pool_.size())];
      goal.action = kind < 6    ? Action::append
                    : kind < 12 ? Action::generate
                    : kind < 17 ? Action::read
                    : kind < 18 ? Action::fork
                    : kind < 19 ? Action::rename
                                : Action::end;
      if (goal.action == Action::fork && pool_.size() >= kSessionsMax) goal.action = Action::read;
      if (goal.action == Action::end && pool_.size() < 3) goal.action = Action::append;
    }
    const bool has_name = goal.action == Action::rename || random_.next_below(3) == 0;
    if (has_name) goal.name = std::format("name {}", random_.next_below(4));
    client.goal = std::move(goal);
  }
  client.goal->began = timeline_.now();
  if (client.goal->action == Action::append || client.goal->action == Action::generate)
    client.goal->element = std::format("[{}]", ++last_element_);
  attempt(client);
}

ClusterSim::Machine* ClusterSim::choose_machine(const Client& client) {
  if (client.goal->machine != nullptr) return client.goal->machine;
  const auto last = client.last_machines.find(client.goal->session);
  if (last != client.last_machines.end() && chance(0.6)) return last->second;
  return &any_machine();
}

void ClusterSim::attempt_later(Client& client, Duration low, Duration high) {
  if (is_over_) return;
  timeline_.at(timeline_.now() + between(low, high), [this, &client] {
    if (!is_over_) attempt(client);
  });
}

void ClusterSim::attempt(Client& client) {
  Goal& goal = *client.goal;
  if (timeline_.now() - goal.began > (client.is_auditor ? kRestMax : kTriesMax) && !goal.must_read)
    return give_up(client, "it has tried for long");
  Machine* machine = choose_machine(client);
  if (machine->state != Machine::State::up) return attempt_later(client, milliseconds(50), milliseconds(400));
  auto request = std::make_shared<Request>();
  request->id = ++last_request_;
  request->action = goal.must_read ? Action::read : goal.action;
  request->goal = goal;
  if (goal.must_read) request->goal.name.clear();
  request->client = &client;
  request->machine = machine;
  request->life = machine->life;
  request->invoked = timeline_.now();
  ++outcome_.requests;
  open_.push_back(request);
  client.last_machines[goal.session] = machine;
  note(std::format("client {} asks {}: {} {} {}{} (request {})", client.number, machine->name, name_of_action(request->action),
                   name_of(goal.session), goal.element, request->goal.name.empty() ? "" : " as \"" + request->goal.name + "\"",
                   request->id));
  timeline_.at(timeline_.now() + between(microseconds(50), milliseconds(2)), [this, request] { deliver(request); });
}

void ClusterSim::deliver(const RequestPtr& request) {
  if (request->is_abandoned || is_over_) return;
  Machine& machine = *request->machine;
  if (!machine.is_awake) {
    timeline_.at(timeline_.now() + milliseconds(200), [this, request] { deliver(request); });
    return;
  }
  // A daemon that stops takes no connection.
  if (machine.state != Machine::State::up) return end_request(request, ErrorCode::session_busy);
  start_request(machine, request);
  poke(machine, microseconds(500));
}

void ClusterSim::start_request(Machine& machine, const RequestPtr& request) {
  engine::Router& router = *machine.router;
  const Goal& goal = request->goal;
  const std::string& session = goal.session.value;
  const auto on_info = [this, request](const Expected<SessionInfo>& info) {
    if (request->is_abandoned) return;
    if (info && (request->action == Action::create || request->action == Action::fork)) request->goal.session = info->id;
    if (info && request->action == Action::fork && info->parent != request->client->goal->session)
      fail(std::format("request {}: the fork has another parent", request->id));
    end_request(request, info ? std::nullopt : std::optional(info.error().code));
  };
  switch (request->action) {
    case Action::create: {
      CreateSessionRequest call;
      call.mode = SessionMode::chat;
      call.name = goal.name;
      call.messages = {{"user", std::format("[new {}]", request->id)}};
      return router.tasks().answer(Promise<SessionInfo>(on_info), router.sessions().create(kTeam, std::move(call)));
    }
    case Action::append:
      return router.tasks().answer(
          Promise<SessionInfo>(on_info),
          router.sessions().append(kTeam, {.session = session, .input = {.text = {}, .messages = {{"user", goal.element}}}}));
    case Action::fork:
      return router.tasks().answer(Promise<SessionInfo>(on_info),
                                   router.sessions().fork(kTeam, {.session = session, .name = goal.name}));
    case Action::rename:
      return router.tasks().answer(Promise<SessionInfo>(on_info),
                                   router.sessions().update(kTeam, {.session = session, .name = goal.name}));
    case Action::end:
      return router.tasks().answer(Promise<Unit>([this, request](const Expected<Unit>& done) {
                                     if (request->is_abandoned) return;
                                     end_request(request, done ? std::nullopt : std::optional(done.error().code));
                                   }),
                                   router.sessions().end(kTeam, goal.name.empty() ? session : goal.name));
    case Action::read:
      return router.tasks().answer(Promise<SessionDetail>([this, request](const Expected<SessionDetail>& detail) {
                                     if (request->is_abandoned) return;
                                     if (!detail) return end_request(request, detail.error().code);
                                     on_read(request, *detail);
                                   }),
                                   router.sessions().get(kTeam, goal.name.empty() ? session : goal.name));
    case Action::generate: {
      GenerateRequest call;
      call.session = session;
      call.input.messages = {{"user", goal.element}};
      call.options.max_tokens = 1 + static_cast<std::int32_t>(random_.next_below(10));
      const RequestId id{request->id};
      router.generations().start(id, kTeam, std::move(call), {std::make_shared<Sink>(*this, request)});
      if (chance(0.08)) {
        timeline_.at(timeline_.now() + between(Duration{}, milliseconds(20)), [this, &machine, request, id] {
          if (!request->is_abandoned && !request->has_ended && machine.is_awake) (void)machine.router->cancel(id);
        });
      }
    }
  }
}

// The machine has answered.
void ClusterSim::end_request(const RequestPtr& request, std::optional<ErrorCode> error) {
  if (request->has_ended) return fail(std::format("request {} ended twice", request->id));
  request->has_ended = true;
  std::erase(open_, request);
  if (is_over_) return;
  Client& client = *request->client;
  if (error) {
    note(std::format("{} answers request {}: {}", request->machine->name, request->id, code_name(*error)));
    return on_refused(client, request, *error);
  }
  note(std::format("{} answers request {}: done", request->machine->name, request->id));
  on_done(client, request);
}

void ClusterSim::on_done(Client& client, const RequestPtr& request) {
  const Goal& goal = request->goal;
  const auto check_now = [&](const std::function<bool(const Version*)>& fits, std::string_view what) {
    if (!was_version(*request, fits, goal.session))
      fail(std::format("request {}: {} {}", request->id, what, name_of(goal.session)));
  };
  switch (request->action) {
    case Action::append:
    case Action::generate:
      ++outcome_.inputs;
      check_stored(*request, "an acknowledged input is not stored");
      break;
    case Action::create:
      check_now([](const Version* version) { return version != nullptr; }, "nobody has made");
      pool_.push_back(goal.session);
      break;
    case Action::fork: {
      ++outcome_.forks;
      const auto made = history_.find(goal.session);
      if (made == history_.end()) {
        fail(std::format("request {}: the fork was not stored", request->id));
        break;
      }
      const kv::SessionRecord& first = *made->second.front().record;
      const bool fits = was_version(
          *request,
          [&](const Version* version) {
            return version != nullptr && version->record != nullptr && messages_of(*version->record) == messages_of(first);
          },
          client.goal->session);
      if (!fits) fail(std::format("request {}: the fork is of no present version", request->id));
      if (pool_.size() < kSessionsMax) pool_.push_back(goal.session);
      break;
    }
    case Action::rename:
      ++outcome_.renames;
      check_now(
          [&](const Version* version) { return version != nullptr && version->record && version->record->name == goal.name; },
          "no version has the new name:");
      break;
    case Action::end:
      ++outcome_.ends;
      if (!goal.name.empty()) {
        check_ended_by_name(*request);
        break;
      }
      if (const Version* version = present(goal.session); version != nullptr && version->record != nullptr)
        fail(std::format("request {}: session {} has not ended", request->id, name_of(goal.session)));
      std::erase(pool_, goal.session);
      break;
    case Action::read:
      break;
  }
  think(client);
}

void ClusterSim::on_read(const RequestPtr& request, const SessionDetail& detail) {
  ++outcome_.reads;
  const Goal& goal = request->goal;
  const bool fits = was_version(
      *request,
      [&](const Version* version) {
        if (version == nullptr || version->record == nullptr) return false;
        const kv::SessionRecord& record = *version->record;
        return record.messages == detail.messages && record.pending_messages == detail.pending_messages &&
               record.name == detail.info.name && (goal.name.empty() || record.name == goal.name);
      },
      detail.info.id);
  if (!fits) {
    fail(std::format("request {}: session {} \"{}\" with {} messages and {} pending ones was no version at that time",
                     request->id, name_of(detail.info.id), detail.info.name, detail.messages.size(),
                     detail.pending_messages.size()));
  }
  if (request->has_ended) return fail(std::format("request {} ended twice", request->id));
  request->has_ended = true;
  std::erase(open_, request);
  if (is_over_) return;
  note(std::format("{} answers request {}: {} messages, {} pending", request->machine->name, request->id,
                   detail.messages.size(), detail.pending_messages.size()));
  Client& client = *request->client;
  Goal& own = *client.goal;
  if (!std::exchange(own.must_read, false)) return think(client);
  // It knows now whether its input is there.
  std::size_t count = 0;
  for (const auto* messages : {&detail.messages, &detail.pending_messages}) {
    count += static_cast<std::size_t>(std::ranges::count(*messages, own.element, &ChatMessage::content));
  }
  if (count == 0) {
    own.may_be_stored = false;
    return attempt(client);
  }
  ++outcome_.inputs;
  think(client);
}

void ClusterSim::on_refused(Client& client, const RequestPtr& request, ErrorCode code) {
  if (is_over_) return;
  ++outcome_.refused;
  Goal& goal = *client.goal;
  const bool has_input = goal.action == Action::append || goal.action == Action::generate;
  switch (code) {
    case ErrorCode::session_busy:
    case ErrorCode::io_failed:
      return attempt_later(client, milliseconds(20), milliseconds(800));
    case ErrorCode::limit_wait:
      // Of a reply; its input may be stored. Other changes are not.
      if (goal.action != Action::generate) return attempt_later(client, milliseconds(20), milliseconds(800));
      [[fallthrough]];
    case ErrorCode::outcome_unknown:
      ++outcome_.unknown;
      if (has_input && request->action != Action::read) goal.must_read = goal.may_be_stored = true;
      if (goal.action == Action::create || goal.action == Action::fork) return give_up(client, "it may be done");
      return attempt_later(client, milliseconds(20), milliseconds(800));
    case ErrorCode::session_unknown:
      check_unknown(*request);
      if (!is_by_name(*request)) std::erase(pool_, goal.session);
      return give_up(client, "the session has ended");
    case ErrorCode::session_name_taken:
      if (goal.action != Action::create && goal.action != Action::fork && goal.action != Action::rename)
        fail(std::format("request {}: a name is taken, but it has none", request->id));
      return give_up(client, "the name is taken");
    case ErrorCode::limit_context:
    case ErrorCode::limit_prompt:
      std::erase(pool_, goal.session);
      return give_up(client, "the session is full");
    default:
      fail(std::format("request {}: {} is no error that was expected", request->id, code_name(code)));
  }
}

void ClusterSim::give_up(Client& client, const std::string& why) {
  const Goal& goal = *client.goal;
  note(std::format("client {} gives up: {}", client.number, why));
  if (client.is_auditor && why != "the session is full" && why != "the session has ended")
    fail(std::format("client {} cannot continue session {}: {}", client.number, name_of(goal.session), why));
  if (!goal.element.empty() && !goal.may_be_stored) {
    refused_.insert(goal.element);
    const Version* version = present(goal.session);
    if (version != nullptr && version->record != nullptr && count_of(*version->record, goal.element) > 0)
      fail(std::format("the input {} was refused, and is stored", goal.element));
  }
  think(client);
}

}  // namespace uma::sim
