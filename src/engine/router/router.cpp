#include "engine/router/router.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/thrown.h"

namespace uma::engine {

Router::Router(const RouterOptions& options, ModelLoader& source, kv::Catalog& catalog, kv::StateStore& store, WorkPool& work,
               const Clock& clock)
    : options_(options),
      store_(store),
      clock_(clock),
      random_(options_.seed),
      tasks_([inbox = inbox_](Command command) { inbox->push(std::move(command)); }, clock),
      models_(source, tasks_, clock),
      session_table_(session_options(), catalog, tasks_, clock),
      in_flight_(options_.limits, tasks_, models_, clock, requests_refused_),
      images_(options_.fetcher, options_.on_images_free, options_.limits, tasks_, work),
      access_(source, store, models_, session_table_, in_flight_),
      exchange_(store, tasks_, access_, clock),
      prefixes_(store, tasks_, models_, clock, options_.shares_prefixes),
      parts_{.limits = options_.limits,
             .clock = clock,
             .store = store,
             .work = work,
             .tasks = tasks_,
             .models = models_,
             .sessions = session_table_,
             .in_flight = in_flight_,
             .images = images_,
             .access = access_,
             .exchange = exchange_,
             .prefixes = prefixes_,
             .prompts = prompts_},
      generations_(parts_, source, random_, requests_refused_),
      embeddings_(parts_, source, requests_refused_),
      pictures_(parts_, source, random_, requests_refused_, options_.decode_picture),
      sessions_(parts_, source),
      transfer_(parts_, sessions_),
      texts_(parts_) {
  for (const auto& [id, extras] : catalog.load_image_extras()) images_.release().set(id, extras);
  catalog.call_on_news([this, inbox = inbox_] { inbox->push([this] { session_table_.hear_news(); }); });
}

SessionTableOptions Router::session_options() {
  SessionTableOptions options{
      .limits = options_.limits,
      .random = options_.ids ? options_.ids : [this] { return random_.next_u64(); },
      .record_bytes_max = options_.record_bytes_max,
      .on_committed = [this](const kv::SessionRecord& record) { images_.release().set(record.id, kv::image_extras(record)); },
      .on_ended =
          [this](const Session& session) {
            if (is_destroyed_) return;
            images_.release().set(session.summary.id, {});
            if (Lane* lane = access_.lane_of(session)) lane->post(ForgetCommand{session.summary.id});
            exchange_.forget(session.summary.id);
            prompts_.forget(session.summary.tenant, session.summary.id);
            store_.forget(session.summary.id);
            // Otherwise another daemon has ended it.
            if (session.lease != 0) store_.remove_shared(session.summary.tenant, session.summary.id);
          }};
  if (!options_.shares_states) return options;
  options.on_taken = [this](const Session& session) {
    store_.take_back(session.summary.id);
    exchange_.on_taken(session);
  };
  options.on_given_up = [this](const Session& session) {
    exchange_.forget(session.summary.id);
    store_.let_go(session.summary.id);
  };
  options.publish = [this](const Session& session, bool is_wanted, Promise<Unit> reply) {
    exchange_.publish(session, is_wanted, std::move(reply));
  };
  return options;
}

Router::~Router() {
  // Tasks and commands are destroyed before the tables that they use.
  is_destroyed_ = true;
  inbox_->close();
  session_table_.refuse_waiting({ErrorCode::limit_wait, "the daemon has stopped"});
  tasks_.end_all();
  taken_.clear();
  inbox_->drain(taken_);
  taken_.clear();
}

std::unordered_set<SessionId> Router::session_ids() const {
  std::unordered_set<SessionId> ids;
  session_table_.for_each([&](const Session& session) { ids.insert(session.summary.id); });
  return ids;
}

std::unordered_set<SessionId> Router::owned_session_ids() const {
  std::unordered_set<SessionId> ids;
  session_table_.for_each([&](const Session& session) {
    if (session.lease != 0) ids.insert(session.summary.id);
  });
  return ids;
}

bool Router::step() {
  inbox_->drain(taken_);
  const bool any = !taken_.empty();
  for (Command& command : taken_) run_noting(command);
  taken_.clear();
  tasks_.timers().run_due();
  if (on_all_ended_ && in_flight_.is_empty()) run_noting(std::exchange(on_all_ended_, nullptr));
  run_noting([this] { publish_activity(); });
  return any;
}

// In every step, because the next one may be far away.
void Router::publish_activity() {
  if (!activity_demand_.is_wanted(clock_.now())) return;
  RouterActivity activity{.waiting = in_flight_.first_unsent(kWaitingShownMax),
                          .waiting_count = in_flight_.unsent_count(),
                          .tenants = {},
                          .model_uses = {}};
  for (const auto& [tenant, count] : in_flight_.unsent_of_tenants())
    add_activity(activity.tenants, tenant, {.queue_depth = count});
  for (const ModelUsage& usage : models_.usage()) {
    if (usage.is_loaded) activity.model_uses.emplace(usage.name, usage.uses);
  }
  activity_.publish(std::make_shared<const RouterActivity>(std::move(activity)));
}

std::shared_ptr<const RouterActivity> Router::activity() {
  constexpr Duration kWantedFor = std::chrono::seconds(15);
  const TimePoint now = clock_.now();
  const bool was_wanted = activity_demand_.is_wanted(now);
  activity_demand_.want_until(now + kWantedFor);
  if (!was_wanted) post([] {});  // For a step that publishes.
  return activity_.latest();
}

bool Router::wait() {
  return inbox_->wait_drain(taken_, tasks_.timers().next());
}

bool Router::cancel_session(const TenantId& tenant, const std::string& session) {
  const Session* found = session_table_.find(tenant, session);
  if (found == nullptr) return false;
  // The reply in progress, before requests that wait for it.
  if (found->is_running()) return in_flight_.cancel(found->run->request);
  const InFlight* request = in_flight_.find_of(found->summary.id);
  return request != nullptr && in_flight_.cancel(request->id);
}

void Router::refuse(std::span<const std::shared_ptr<EventSink>> sinks, const Error& error) {
  requests_refused_.add();
  for (const auto& sink : sinks) (void)sink->deliver(FailureEvent{error});
}

// --- Models

Task<Expected<Unit>> Router::load_model(std::string name) {
  const auto lease = co_await models_.lease(std::move(name));
  if (!lease) co_return lease.error();
  co_return Unit{};
}

void Router::on_loaded(const std::string& name, ServedModel loaded) {
  std::size_t next = 0;
  session_table_.for_each([&](Session& session) {
    if (session.summary.model == name && !loaded.lanes.empty()) session.lane = next++ % loaded.lanes.size();
  });
  models_.add(name, std::move(loaded));
}

bool Router::shrink_lanes(const std::string& name, std::size_t count) {
  if (!models_.shrink_lanes(name, count)) return false;
  session_table_.for_each([&](Session& session) {
    if (session.summary.model == name) session.lane %= count;
  });
  return true;
}

void Router::on_load_queued(const std::string& name, std::uint64_t bytes) {
  models_.set_bytes_wanted(name, bytes);
  in_flight_.on_load_queued(name, bytes);
}

void Router::on_load_progress(const std::string& name, double progress) {
  in_flight_.on_load_progress(name, std::llround(progress * 100));
}

// --- Ends

void Router::end_all(Command done) {
  in_flight_.abort_all();
  models_.refuse_waiting({ErrorCode::limit_wait, "the daemon stops before the model is loaded"});
  session_table_.refuse_waiting({ErrorCode::limit_wait, "the daemon stops before the session has ended: end it again"});
  on_all_ended_ = std::move(done);
}

void Router::check_invariants() {
  session_table_.check_invariants();
  session_table_.for_each([this](const Session& session) {
    UMA_CHECK(!session.is_running() || in_flight_.contains(session.run->request));
    if (session.record == nullptr) return;
    const kv::SessionRecord& record = *session.record;
    std::int32_t before = 0;
    for (const kv::Turn& turn : record.turns) {
      UMA_CHECK(turn.tokens_begin >= before && turn.reply_begin >= turn.tokens_begin);
      before = turn.reply_begin;
    }
    UMA_CHECK(static_cast<std::size_t>(before) <= record.chain.size());
    UMA_CHECK(record.turns_dropped == 0 || record.on_full == OnFull::shift);
    std::int32_t last = record.turns_dropped - 1;
    for (const ResponsePtr& response : record.responses) {
      UMA_CHECK(response->turn > last);
      last = response->turn;
    }
    UMA_CHECK(last < record.turns_dropped + static_cast<std::int32_t>(record.turns.size()));
  });
}

}  // namespace uma::engine
