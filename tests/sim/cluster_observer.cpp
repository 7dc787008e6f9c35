// The observer of ClusterSim: the versions of each session, and what must fit them.
#include <algorithm>
#include <format>
#include <utility>

#include "cluster_parts.h"

namespace uma::sim {
namespace {

constexpr Duration kWaitMax = seconds(240);  // For the end of a request.

bool starts_with(const auto& whole, const auto& part) {
  return whole.size() >= part.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

// --- The observer

void ClusterSim::on_change(const SessionChange& change) {
  if (change.after && change.before && change.after->owner != 0 && change.after->owner != change.before->owner)
    ++outcome_.moves;
  if (!change.has_content) {
    if (change.after && change.before && change.after->owner != change.before->owner) {
      note(std::format("        database: session {} belongs to {}, fence {}", name_of(change.id),
                       change.after->owner == 0 ? "nobody" : std::format("run {}", change.after->owner), change.after->fence));
    }
    return;
  }
  note(std::format(
      "        database: run {} has {} session {}, fence {}{}", change.run,
      !change.before ? "made"
      : change.after ? "changed"
                     : "ended",
      name_of(change.id), change.fence,
      change.after ? std::format(", {} messages, \"{}\"", messages_of(*change.after->record).size(), change.after->record->name)
                   : ""));
  check_commit(change);
  history_[change.id].push_back({timeline_.now(), change.after ? change.after->record : nullptr, false});
}

void ClusterSim::check_commit(const SessionChange& change) {
  const std::string session = name_of(change.id);
  auto& runs = runs_of_fences_[change.id];
  if (!runs.try_emplace(change.fence, change.run).second)
    fail(std::format("two commits in session {} under fence {}: of run {} and run {}", session, change.fence,
                     runs.at(change.fence), change.run));
  const Version* last = present(change.id);
  const kv::SessionRecord* before = last == nullptr ? nullptr : last->record.get();
  if ((before == nullptr) != !change.before) return fail(std::format("session {} came back", session));
  if (before != nullptr && change.before->owner != change.run)
    fail(std::format("run {} has changed session {}, which run {} owns", change.run, session, change.before->owner));
  if (!change.after) return;
  const kv::SessionRecord& after = *change.after->record;
  for (const ChatMessage& message : after.messages) {
    if (message.role == "user" && count_of(after, message.content) != 1)
      fail(std::format("{} is in session {} more than once", message.content, session));
  }
  for (const ChatMessage& message : after.pending_messages) {
    if (count_of(after, message.content) != 1)
      fail(std::format("{} is in session {} more than once", message.content, session));
    if (refused_.contains(message.content)) fail(std::format("{} was refused, and is stored now", message.content));
  }
  if (before == nullptr) return;
  if (change.made_from == nullptr || !(*change.made_from == *before))
    return fail(std::format("session {} was changed from another version than the present one", session));
  if (!starts_with(after.chain, before->chain) || !starts_with(messages_of(after), messages_of(*before)))
    fail(std::format("a change of session {} has lost something", session));
  check_reply(change, *before, after);
}

void ClusterSim::check_reply(const SessionChange& change, const kv::SessionRecord& before, const kv::SessionRecord& after) {
  if (after.turns.size() == before.turns.size()) return;
  const auto begin = static_cast<std::size_t>(after.turns.back().reply_begin);
  const std::vector<Token> prompt(after.chain.begin(), after.chain.begin() + static_cast<std::ptrdiff_t>(begin));
  const std::vector<Token> reply(after.chain.begin() + static_cast<std::ptrdiff_t>(begin), after.chain.end());
  const std::vector<Token> expected = fake_continuation(model_options_, prompt, static_cast<std::int32_t>(reply.size()));
  if (!starts_with(reply, expected) || reply.size() > expected.size() + 1)
    fail(std::format("a reply in session {} is not the model's", name_of(change.id)));
}

const ClusterSim::Version* ClusterSim::present(const SessionId& id) const {
  const auto found = history_.find(id);
  if (found == history_.end()) return nullptr;
  for (auto version = found->second.rbegin(); version != found->second.rend(); ++version) {
    if (!version->is_lost) return &*version;
  }
  return nullptr;
}

// When an answer may be from.
TimePoint ClusterSim::seen_from(const Request& request) const {
  TimePoint from = request.invoked - slack_ - jumps_;
  const Machine& machine = *request.machine;
  if (request.invoked <= machine.stale_until && machine.stale_from != TimePoint{})
    from = std::min(from, machine.stale_from - slack_);
  return may_lose_commits_ ? TimePoint{} : from;
}

// Whether one of the versions since the request fits; nullptr: there was none.
bool ClusterSim::was_version(const Request& request, const std::function<bool(const Version*)>& fits,
                             const SessionId& id) const {
  const TimePoint from = seen_from(request);
  const auto found = history_.find(id);
  if (found == history_.end() || found->second.front().from > from) {
    if (fits(nullptr)) return true;
  }
  if (found == history_.end()) return false;
  const std::vector<Version>& versions = found->second;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const bool was_replaced = i + 1 < versions.size() && versions[i + 1].from < from;
    if (!was_replaced && fits(&versions[i])) return true;
  }
  return false;
}

void ClusterSim::check_stored(const Request& request, std::string_view what) {
  const SessionId& session = request.goal.session;
  const auto has = [&](const Version* version) {
    return version != nullptr && version->record != nullptr && count_of(*version->record, request.goal.element) == 1;
  };
  const Version* version = present(session);
  if (has(version)) return;
  const auto found = history_.find(session);
  const bool was_there =
      found != history_.end() && std::ranges::any_of(found->second, [&](const Version& each) { return has(&each); });
  const bool has_ended = version != nullptr && version->record == nullptr;
  if (was_there && (has_ended || may_lose_commits_)) return;
  fail(std::format("request {}: {}: {} in session {}", request.id, what, request.goal.element, name_of(session)));
}

// The reply to the input is in the session.
void ClusterSim::check_turn(const Request& request) {
  const auto found = history_.find(request.goal.session);
  const auto has = [&](const Version& version) {
    if (version.record == nullptr) return false;
    const auto& messages = version.record->messages;
    const auto input = std::ranges::find(messages, request.goal.element, &ChatMessage::content);
    return input != messages.end() && input + 1 != messages.end() && (input + 1)->role == "assistant";
  };
  const bool is_there = found != history_.end() && std::ranges::any_of(found->second, has);
  if (!is_there)
    fail(std::format("request {}: the finished turn of {} is not in session {}", request.id, request.goal.element,
                     name_of(request.goal.session)));
}

// Somebody is told that a session does not exist.
void ClusterSim::check_unknown(const Request& request) {
  const Goal& goal = request.goal;
  const TimePoint from = seen_from(request);
  if (!is_by_name(request)) {
    const bool fits = was_version(
        request, [](const Version* version) { return version == nullptr || version->record == nullptr; }, goal.session);
    if (!fits) fail(std::format("request {}: session {} exists", request.id, name_of(goal.session)));
    return;
  }
  // Was there a time at which no session had the name?
  std::vector<TimePoint> times{from};
  for (const auto& [id, versions] : history_) {
    for (const Version& version : versions) {
      if (version.from > from) times.push_back(version.from);
    }
  }
  const auto is_free_at = [&](TimePoint time) {
    return std::ranges::none_of(history_, [&](const auto& each) {
      const Version* then = nullptr;
      for (const Version& version : each.second) {
        if (version.from <= time) then = &version;
      }
      return then != nullptr && then->record != nullptr && then->record->name == goal.name;
    });
  };
  if (!std::ranges::any_of(times, is_free_at) && !may_lose_commits_)
    fail(std::format("request {}: a session has the name \"{}\"", request.id, goal.name));
}

// Reads and ends are by name if there is one.
bool ClusterSim::is_by_name(const Request& request) {
  return (request.action == Action::read || request.action == Action::end) && !request.goal.name.empty();
}

// A session that had the name at some time since the request has ended since, or nobody had the name.
void ClusterSim::check_ended_by_name(const Request& request) {
  const TimePoint from = seen_from(request);
  for (const auto& [id, versions] : history_) {
    bool had_name = false;
    for (std::size_t i = 0; i < versions.size(); ++i) {
      const Version& version = versions[i];
      if (version.record == nullptr && version.from >= from && had_name) return;
      const bool was_replaced = i + 1 < versions.size() && versions[i + 1].from < from;
      had_name |= !was_replaced && version.record != nullptr && version.record->name == request.goal.name;
    }
  }
  check_unknown(request);
}

void ClusterSim::check_waiting() {
  if (is_over_) return;
  for (const RequestPtr& request : std::vector(open_)) {
    if (timeline_.now() - request->invoked > kWaitMax) {
      fail(std::format("request {} of client {} at {} waits since {:.3f} s", request->id, request->client->number,
                       request->machine->name, to_ms(request->invoked - began_) / 1000));
    }
  }
  timeline_.at(timeline_.now() + seconds(5), [this] { check_waiting(); });
}

// --- The end

// Waits until the clients have done what they wanted, then lets each machine continue each session.
void ClusterSim::check_rest() {
  if (is_over_) return;
  const bool is_quiet = std::ranges::all_of(clients_, [](const auto& client) { return client->is_done; });
  const bool has_audited = clients_.back()->is_auditor;
  if (is_quiet && has_audited) {
    timeline_.at(timeline_.now() + seconds(4), [this] { check_end(); });
    return;
  }
  if (is_quiet) audit();
  timeline_.at(timeline_.now() + milliseconds(100), [this] { check_rest(); });
}

void ClusterSim::audit() {
  note("every machine continues every session");
  Client& auditor = *clients_.emplace_back(std::make_unique<Client>());
  auditor.number = static_cast<int>(clients_.size());
  auditor.is_auditor = true;
  for (const SessionId& session : pool_) {
    for (const auto& machine : machines_) {
      for (const Action action : {Action::generate, Action::read}) {
        Goal goal;
        goal.action = action;
        goal.session = session;
        goal.machine = machine.get();
        auditor.plan.push_back(std::move(goal));
      }
    }
  }
  think(auditor);
}

// Everybody lists what there is, and the database has what was acknowledged.
void ClusterSim::check_end() {
  if (is_over_) return;
  if (!open_.empty()) fail("a request has no end");
  for (const auto& [id, versions] : history_) {
    const Version* last = present(id);
    const auto stored = database_.sessions().find(id);
    const bool is_there = last != nullptr && last->record != nullptr;
    if (is_there != (stored != database_.sessions().end()))
      fail(std::format("session {} is not as the last commit left it", name_of(id)));
    if (is_there && stored != database_.sessions().end() && !(*stored->second.record == *last->record))
      fail(std::format("session {} is not as the last commit left it", name_of(id)));
  }
  for (const auto& machine : machines_) {
    if (machine->state != Machine::State::up) {
      fail(std::format("{} is not up", machine->name));
      continue;
    }
    std::map<SessionId, std::string> listed;
    machine->router->tasks().answer(Promise<SessionList>([&](const Expected<SessionList>& list) {
                                      for (const SessionInfo& info : list.value().sessions) listed[info.id] = info.name;
                                    }),
                                    machine->router->sessions().list(kTeam, {}));
    for (const auto& [id, stored] : database_.sessions()) {
      const auto found = listed.find(id);
      if (found == listed.end()) {
        fail(std::format("{} does not list session {}", machine->name, name_of(id)));
      } else if (found->second != stored.record->name) {
        fail(std::format("{} lists session {} as \"{}\", its name is \"{}\"", machine->name, name_of(id), found->second,
                         stored.record->name));
      }
    }
    for (const auto& [id, name] : listed) {
      if (!database_.sessions().contains(id))
        fail(std::format("{} lists session {}, which has ended", machine->name, name_of(id)));
    }
  }
  outcome_.seconds = to_ms(timeline_.now() - began_) / 1000;
  is_over_ = true;
}

}  // namespace uma::sim
