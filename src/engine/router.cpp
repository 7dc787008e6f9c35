#include "engine/router.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thrown.h"
#include "capability/message_images.h"
#include "engine/image_fetcher.h"
#include "engine/record_edits.h"
#include "engine/record_input.h"
#include "llm/image_tokens.h"

namespace uma::engine {
namespace {

constexpr std::int32_t kDefaultMaxTokens = 512;
constexpr std::size_t kWaitingForReplyMax = 64;  // of one session

Error busy_session(const std::string& session) {
  return {ErrorCode::session_busy, std::format("session \"{}\" is generating: wait for its eos, or cancel it", session)};
}

Error unknown_response(const std::string& response) {
  return {ErrorCode::session_unknown,
          std::format("no response \"{}\": it was never made or not stored, or it is gone by now", response)};
}

Error unknown_session_of(const GenerateRequest& request) {
  const bool continues = request.response && !request.response->previous.empty();
  return continues ? unknown_response(request.response->previous) : unknown_session(request.session);
}

}  // namespace

Router::Router(const RouterOptions& options, WorkerSource& source, kv::Catalog& catalog, kv::StateStore& store,
               Preparer& preparer, const Clock& clock)
    : options_(options),
      source_(source),
      store_(store),
      preparer_(preparer),
      clock_(clock),
      exports_(std::make_shared<ByteBudget>(options_.limits.transfer_bytes_max)),
      models_(source, clock),
      random_(options_.seed),
      sessions_({.limits = options_.limits,
                 .random = options_.ids ? options_.ids : [this] { return random_.next_u64(); },
                 .record_bytes_max = options_.record_bytes_max,
                 .post = [this](Command command) { post(std::move(command)); },
                 .on_committed = [this](const kv::SessionRecord& record) { note_images(record.id, kv::image_extras(record)); },
                 .on_ended =
                     [this](const Session& session) {
                       note_images(session.summary.id, {});
                       if (Lane* lane = lane_of(session)) lane->post(ForgetCommand{session.summary.id});
                       store_.forget(session.summary.id);
                     }},
                catalog, clock) {
  for (const auto& [id, extras] : catalog.load_image_extras()) note_images(id, extras);
}

Router::~Router() {
  // Replies and locks among the commands answer and unlock now, while the rest of the router is still there.
  inbox_.close();
  taken_.clear();
  inbox_.drain(taken_);
  taken_.clear();
}

std::unordered_set<SessionId> Router::session_ids() const {
  std::unordered_set<SessionId> ids;
  sessions_.for_each([&](const Session& session) { ids.insert(session.summary.id); });
  return ids;
}

bool Router::step() {
  inbox_.drain(taken_);
  const bool any = !taken_.empty();
  for (Command& command : taken_) run_noting(command);
  taken_.clear();
  run_noting([this] {
    if (clock_.now() >= next_expiry_) expire();
  });
  run_noting([this] { sessions_.expire(); });
  return any;
}

bool Router::wait() {
  return inbox_.wait_drain(taken_, std::min(next_expiry_, sessions_.next_expiry()));
}

// --- Models
// -----------------------------------------------------------------------------------------------------------------------

// The model of a session, whatever its name means today.
void Router::with_model_of(const TenantId& tenant, const std::string& session, ServedModels::Then then, Wanted wanted) {
  const Session* found = sessions_.find(tenant, session);
  if (found == nullptr) return then(std::unexpected(unknown_session(session)));
  const std::string& model = found->summary.model;
  if (auto known = source_.resolve(model); !known || *known != model) {
    return then(fail(ErrorCode::model_unknown,
                     std::format("session \"{}\" is of model \"{}\", which this daemon does not serve: it goes on when its own "
                                 "model is served",
                                 session, model)));
  }
  models_.with_chat(model, std::move(then), wanted);
}

void Router::load_model(const std::string& name, Reply<Unit> reply) {
  models_.with(name, [reply = std::move(reply)](Expected<ModelUse> use) mutable {
    reply(use ? Expected<Unit>(Unit{}) : std::unexpected(use.error()));
  });
}

void Router::on_loaded(const std::string& name, ServedModel loaded) {
  std::size_t next = 0;
  sessions_.for_each([&](Session& session) {
    if (session.summary.model == name && !loaded.lanes.empty()) session.lane = next++ % loaded.lanes.size();
  });
  models_.add(name, std::move(loaded));
}

bool Router::keep_lanes(const std::string& name, std::size_t count) {
  if (!models_.keep_lanes(name, count)) return false;
  sessions_.for_each([&](Session& session) {
    if (session.summary.model == name) session.lane %= count;
  });
  return true;
}

void Router::on_load_queued(const std::string& name, std::uint64_t bytes) {
  models_.set_bytes_wanted(name, bytes);
  for (auto& [id, open] : requests_) {
    if (open.model != name || !open.use.is_empty()) continue;
    open.deadline = bytes > 0 ? deadline_of(open) : kNever;
    next_expiry_ = std::min(next_expiry_, open.deadline);
  }
}

void Router::on_load_progress(const std::string& name, double progress) {
  const ProgressEvent event{
      .stage = ProgressStage::loading, .done = std::llround(progress * 100), .total = 100, .position = 0, .eta_ms = 0};
  for (const auto& [id, open] : requests_) {
    // A lost progress report is no reason to end a request.
    if (!open.wants_progress || open.model != name || open.lane != nullptr) continue;
    for (const auto& sink : open.sinks) run_noting([&] { (void)sink->deliver(event); });
  }
}

// Null: its model is not loaded.
Lane* Router::lane_of(const Session& session) const {
  const ServedModel* served = models_.find(session.summary.model);
  return served == nullptr || served->lanes.empty() ? nullptr : served->lanes[session.lane];
}

// --- Sessions
// -------------------------------------------------------------------------------------------------------------------

// Whether the model is the session's. Its name may stand for another file by now: then the tokens tell.
Expected<Unit> Router::check_record(const ServedModel& served, const kv::SessionRecord& record) {
  const auto is_known = [size = served.model->vocab().size(), sees = served.vision != nullptr](Token token) {
    return (token >= 0 && token < size) || (sees && llm::is_image_token(token));
  };
  if (std::ranges::all_of(record.chain, is_known) && std::ranges::all_of(record.pending, is_known)) return Unit{};
  return fail(ErrorCode::model_unknown,
              std::format("session \"{}\" is of another model \"{}\" than the one that is served now: it goes on when its own "
                          "model is served",
                          record.name.empty() ? record.id.value : record.name, record.model));
}

// The one with the fewest requests; of those alike, with the fewest idle sessions in its slots.
std::size_t Router::least_loaded_lane(const ServedModel& served) const {
  const auto load = [this](const Lane* lane) {
    const auto open = lanes_open_.find(lane);
    return std::pair(open == lanes_open_.end() ? 0 : open->second, lane->stats().hot_sessions.value());
  };
  return static_cast<std::size_t>(std::ranges::min_element(served.lanes, {}, load) - served.lanes.begin());
}

// Commits the next record of a session, replies with what it has become and unlocks it.
void Router::commit_and_reply(SessionLock lock, kv::SessionRecord next, Reply<SessionInfo> reply) {
  const SessionId id = next.id;
  sessions_.commit(std::make_shared<const kv::SessionRecord>(std::move(next)), sessions_.find(id)->record,
                   [this, id, lock = std::move(lock), reply = std::move(reply)](Expected<Unit> done) mutable {
                     reply(done ? Expected<SessionInfo>(info_of(*sessions_.find(id))) : std::unexpected(done.error()));
                     lock.release();
                   });
}

// Likewise, with all that was said in it.
void Router::commit_and_reply(SessionLock lock, kv::SessionRecord next, Reply<SessionDetail> reply) {
  const SessionId id = next.id;
  sessions_.commit(std::make_shared<const kv::SessionRecord>(std::move(next)), sessions_.find(id)->record,
                   [this, id, lock = std::move(lock), reply = std::move(reply)](Expected<Unit> done) mutable {
                     const Session& changed = *sessions_.find(id);
                     reply(done ? Expected<SessionDetail>(detail_of(changed, *changed.record)) : std::unexpected(done.error()));
                     lock.release();
                   });
}

// Ends requests past their timeout that no lane has yet (lanes watch over their own).
void Router::expire() {
  const TimePoint now = clock_.now();
  next_expiry_ = kNever;
  std::vector<RequestId> late;
  std::vector<RequestId> waited;
  for (const auto& [id, open] : requests_) {
    if (open.lane) continue;
    if (open.timeout <= now) {
      late.push_back(id);
    } else if (open.deadline <= now) {
      waited.push_back(id);
    } else {
      next_expiry_ = std::min({next_expiry_, open.timeout, open.deadline});
    }
  }
  for (const RequestId id : waited) {
    const Open& open = requests_.at(id);
    if (!open.use.is_empty()) {
      refuse(id,
             {ErrorCode::limit_wait, "other replies of the same conversation took until the request's deadline: try again"});
      continue;
    }
    refuse(id, {ErrorCode::limit_wait,
                std::format("model \"{}\" waited for {} of memory until the request's deadline: the models in use take it",
                            open.model, readable_bytes(models_.bytes_wanted(open.model)))});
  }
  for (const RequestId id : late) {
    end_request(id, EosEvent{.reason = FinishReason::timeout, .usage = {}, .text = {}, .error = std::nullopt});
  }
}

SessionInfo Router::info_of(const Session& session) const {
  const kv::SessionSummary& summary = session.summary;
  SessionInfo info;
  info.id = summary.id;
  info.name = summary.name;
  info.model = summary.model;
  info.mode = summary.mode == SessionMode::automatic ? SessionMode::text : summary.mode;
  info.tokens = summary.tokens_count;
  info.pending_tokens = summary.pending_tokens_count;
  info.pending_messages = summary.pending_messages_count;
  info.turns = summary.turns_dropped + summary.turns_count;
  info.dropped_turns = summary.turns_dropped;
  info.on_full = summary.on_full;
  info.n_keep = summary.n_keep;
  info.busy = session.running != RequestId{};
  const kv::SessionStates states = store_.states_of(summary.id);
  const Lane* lane = lane_of(session);
  const bool is_hot = lane != nullptr && lane->holds(summary.id);
  info.tier = is_hot ? Tier::hot : states.tier;
  info.hot_bytes = is_hot ? lane->bytes_of(summary.id) : 0;
  info.warm_bytes = states.warm_bytes;
  info.cold_bytes = states.cold_bytes;
  if (lane != nullptr) info.worker = static_cast<std::int32_t>(session.lane);
  info.created_s = summary.created_s;
  info.last_used_s = summary.last_used_s;
  return info;
}

// Puts a new session into the table and the catalog.
void Router::add_session(kv::SessionRecord made, std::size_t lane, SessionId forked_from, Reply<SessionInfo> reply) {
  if (auto within = sessions_.check_quota(made.tenant, 1, tokens_count(made)); !within)
    return reply(std::unexpected(within.error()));
  if (!made.name.empty() && sessions_.find(made.tenant, made.name) != nullptr) {
    return reply(fail(ErrorCode::proto_field, std::format("field \"name\": a session \"{}\" exists already", made.name)));
  }
  auto record = std::make_shared<const kv::SessionRecord>(std::move(made));
  const SessionId id = record->id;
  Session& session = sessions_.add(record, lane, std::move(forked_from));
  SessionLock lock = sessions_.lock(session);
  sessions_.touch(session);
  try {
    sessions_.commit(std::move(record), nullptr,
                     [this, id, lock = std::move(lock), reply = std::move(reply)](Expected<Unit> done) mutable {
                       if (!done) {
                         lock.forget();
                         sessions_.erase(id);
                         return reply(std::unexpected(done.error()));
                       }
                       reply(info_of(*sessions_.find(id)));
                       lock.release();
                     });
  } catch (...) {
    sessions_.erase(id);  // nothing else has it
    throw;
  }
}

void Router::create_session(TenantId tenant, CreateSessionRequest request, Reply<SessionInfo> reply) {
  const std::string name = request.model;
  models_.with_chat(name, [this, tenant = std::move(tenant), request = std::move(request),
                           reply = std::move(reply)](Expected<ModelUse> use) mutable {
    if (!use) return reply(std::unexpected(use.error()));
    const ServedModel& served = **use;
    if (request.system.size() > options_.limits.max_prompt_bytes) {
      return reply(fail(ErrorCode::limit_prompt, std::format("field \"system\" has {} bytes, the limit is {}",
                                                             request.system.size(), options_.limits.max_prompt_bytes)));
    }
    kv::SessionRecord record;
    record.id = sessions_.new_id();
    record.tenant = std::move(tenant);
    record.name = std::move(request.name);
    record.model = served.name;
    record.mode = request.mode;
    if (record.mode == SessionMode::automatic && !served.model->facts().chat_template.empty()) record.mode = SessionMode::chat;
    if (record.mode == SessionMode::automatic && !request.system.empty()) record.mode = SessionMode::text;
    record.is_public = request.is_public;
    record.is_ephemeral = request.is_ephemeral;
    record.ttl_s = request.ttl_s;
    if (request.n_keep >= served.shape().sequence_cells_max) {
      return reply(fail(ErrorCode::proto_field, std::format("field \"n_keep\" is {}, the context is {} tokens", request.n_keep,
                                                            served.shape().sequence_cells_max)));
    }
    record.on_full = request.on_full;
    record.n_keep = request.n_keep;
    record.created_s = clock_.unix_s();
    record.last_used_s = record.created_s;
    record.metadata = std::move(request.metadata);
    const bool is_chat = record.mode == SessionMode::chat;
    if (is_chat && !request.system.empty()) record.pending_messages = {{"system", std::move(request.system)}};
    // In a text session the system text is simply how the text begins.
    Input input{.text = is_chat ? std::string() : std::move(request.system), .messages = std::move(request.messages)};
    if (input.empty()) return add_session(std::move(record), least_loaded_lane(served), {}, std::move(reply));
    if (input.bytes() > options_.limits.max_prompt_bytes) {
      return reply(fail(ErrorCode::limit_prompt, std::format("the session begins with {} bytes, limits.max_prompt_bytes is {}",
                                                             input.bytes(), options_.limits.max_prompt_bytes)));
    }
    const TenantId owner = record.tenant;
    const std::size_t bytes = input.bytes();
    preparer_.post(owner, bytes,
                   [this, use = std::move(*use), record = std::move(record), input = std::move(input),
                    reply = std::move(reply)]() mutable {
                     auto begun = contain([&] { return append_to_record(*use->chat, record, input); });
                     post([this, use = std::move(use), begun = std::move(begun), reply = std::move(reply)]() mutable {
                       if (!begun) return reply(std::unexpected(begun.error()));
                       if (auto fits = check_fits(*use, 0, begun->pending.size()); !fits)
                         return reply(std::unexpected(fits.error()));
                       if (begun->on_full == OnFull::shift && begun->mode == SessionMode::text) {
                         begun->n_keep = std::max(begun->n_keep, static_cast<std::int32_t>(begun->pending.size()));
                       }
                       add_session(std::move(*begun), least_loaded_lane(*use), {}, std::move(reply));
                     });
                   });
  });
}

void Router::append_input(TenantId tenant, AppendRequest request, Reply<SessionInfo> reply) {
  const std::string name = request.session;
  with_model_of(tenant, name,
                [this, tenant, request = std::move(request), reply = std::move(reply)](Expected<ModelUse> use) mutable {
                  if (!use) return reply(std::unexpected(use.error()));
                  const Session* used = sessions_.find(tenant, request.session);
                  if (used != nullptr && used->running != RequestId{})
                    return reply(std::unexpected(busy_session(request.session)));
                  if (!request.input.images.empty())
                    return read_images(std::move(*use), std::move(tenant), std::move(request), std::move(reply));
                  const std::string session_name = request.session;
                  sessions_.with(tenant, session_name,
                                 [this, use = std::move(*use), request = std::move(request),
                                  reply = std::move(reply)](Expected<Session*> found) mutable {
                                   if (!found) return reply(std::unexpected(found.error()));
                                   const Session& session = **found;
                                   if (session.running != RequestId{})
                                     return reply(std::unexpected(busy_session(request.session)));
                                   if (auto known = check_record(*use, *session.record); !known)
                                     return reply(std::unexpected(known.error()));
                                   append_locked(std::move(use), session.summary.id, std::move(request.input), std::nullopt,
                                                 std::move(reply));
                                 });
                });
}

// Prepares the input, checks that it fits, commits. The reply comes before commands that waited. Without `chat` the session
// stays with the tools that it has.
void Router::append_locked(ModelUse use, const SessionId& id, Input input, std::optional<ChatOptions> chat,
                           Reply<SessionInfo> reply) {
  if (input.bytes() > options_.limits.max_prompt_bytes) {
    return reply(fail(ErrorCode::limit_prompt, std::format("the input has {} bytes, limits.max_prompt_bytes is {}",
                                                           input.bytes(), options_.limits.max_prompt_bytes)));
  }
  Session* session = sessions_.find(id);
  SessionLock lock = sessions_.lock(*session);
  sessions_.touch(*session);
  const std::size_t bytes = input.bytes() + (chat ? chat->tools.size() : 0);
  preparer_.post(session->summary.tenant, bytes,
                 [this, use = std::move(use), id, lock = std::move(lock), record = session->record, input = std::move(input),
                  chat = std::move(chat), reply = std::move(reply)]() mutable {
                   // Within: the reply is answered on the router's thread.
                   auto appended =
                       contain([&] { return append_to_record(*use->chat, *record, input, chat ? &*chat : nullptr); });
                   post([this, use = std::move(use), id, lock = std::move(lock), appended = std::move(appended),
                         reply = std::move(reply)]() mutable {
                     const Session* target = sessions_.find(id);
                     const auto finish_with_error = [&](Error error) {
                       reply(std::unexpected(std::move(error)));
                       lock.release();
                     };
                     if (!appended) return finish_with_error(appended.error());
                     const std::size_t known = tokens_count(*target->record);
                     const std::size_t total = tokens_count(*appended);
                     const std::size_t added = total > known ? total - known : 0;
                     if (auto fits = check_record_fits(*use, *appended, added); !fits) return finish_with_error(fits.error());
                     if (auto within = sessions_.check_quota(appended->tenant, 0, added); !within)
                       return finish_with_error(within.error());
                     appended->last_used_s = clock_.unix_s();
                     commit_and_reply(std::move(lock), std::move(*appended), std::move(reply));
                   });
                 });
}

void Router::end_session(const TenantId& tenant, const std::string& session, Reply<Unit> reply) {
  Session* found = sessions_.find(tenant, session);
  if (found == nullptr) return reply(std::unexpected(unknown_session(session)));
  std::vector<RequestId> open;
  for (const auto& [id, request] : requests_) {
    if (request.session == found->summary.id) open.push_back(id);
  }
  for (const RequestId id : open) cancel(id, [](const Expected<bool>&) {});
  sessions_.end(*found, std::move(reply));
}

void Router::fork_session(const TenantId& tenant, const std::string& session, std::string name, Reply<SessionInfo> reply) {
  sessions_.with(tenant, session, [this, name = std::move(name), reply = std::move(reply)](Expected<Session*> found) mutable {
    if (!found) return reply(std::unexpected(found.error()));
    const Session& parent = **found;
    add_session(forked(*parent.record, sessions_.new_id(), std::move(name), clock_.unix_s()), parent.lane, parent.summary.id,
                std::move(reply));
  });
}

void Router::rewind_session(const TenantId& tenant, const std::string& session, std::int32_t turn, Reply<SessionInfo> reply) {
  const Session* used = sessions_.find(tenant, session);
  if (used != nullptr && used->running != RequestId{}) return reply(std::unexpected(busy_session(session)));
  sessions_.with(tenant, session, [this, session, turn, reply = std::move(reply)](Expected<Session*> found) mutable {
    if (!found) return reply(std::unexpected(found.error()));
    Session& target = **found;
    if (target.running != RequestId{}) return reply(std::unexpected(busy_session(session)));
    const std::int32_t dropped = target.summary.turns_dropped;
    const std::int32_t turns = dropped + target.summary.turns_count;
    if (turn >= 0 && turn < dropped) {
      return reply(
          fail(ErrorCode::proto_field,
               std::format("field \"turn\" is {}, but turns 0 to {} were dropped when the context was full: the session "
                           "has turns {} to {}",
                           turn, dropped - 1, dropped, turns - 1)));
    }
    if (turn < 0 || turn >= turns) {
      return reply(fail(ErrorCode::proto_field,
                        std::format("field \"turn\" is {}, the session has turns {} to {}", turn, dropped, turns - 1)));
    }
    SessionLock lock = sessions_.lock(target);
    sessions_.touch(target);
    commit_and_reply(std::move(lock), rewound(*target.record, static_cast<std::size_t>(turn - dropped) + 1, clock_.unix_s()),
                     std::move(reply));
  });
}

void Router::touch_session(const TenantId& tenant, const std::string& session, Reply<SessionInfo> reply) {
  if (Session* used = sessions_.find(tenant, session)) {
    sessions_.touch(*used);
    // It is about to be used.
    if (info_of(*used).tier == Tier::cold) store_.prefetch(used->summary.id);
  }
  sessions_.with(tenant, session, [this, reply = std::move(reply)](Expected<Session*> found) mutable {
    if (!found) return reply(std::unexpected(found.error()));
    Session& touched = **found;
    // The turn that runs will be committed, and with it the time.
    if (touched.running != RequestId{}) return reply(info_of(touched));
    SessionLock lock = sessions_.lock(touched);
    kv::SessionRecord next = *touched.record;
    next.last_used_s = clock_.unix_s();
    commit_and_reply(std::move(lock), std::move(next), std::move(reply));
  });
}

void Router::get_session(const TenantId& tenant, const std::string& session, Reply<SessionDetail> reply) {
  const Session* listed = sessions_.find(tenant, session);
  if (listed == nullptr || listed->summary.mode == SessionMode::chat) {
    return tell_session(ModelUse(), tenant, session, std::move(reply));
  }
  // Its text is in its tokens, which only their model knows.
  with_model_of(tenant, session, [this, tenant, session, reply = std::move(reply)](Expected<ModelUse> use) mutable {
    if (!use) return reply(std::unexpected(use.error()));
    tell_session(std::move(*use), tenant, session, std::move(reply));
  });
}

// `use`: of its model, for a text session.
void Router::tell_session(ModelUse use, const TenantId& tenant, const std::string& session, Reply<SessionDetail> reply) {
  sessions_.with(tenant, session, [this, use = std::move(use), reply = std::move(reply)](Expected<Session*> found) mutable {
    if (!found) return reply(std::unexpected(found.error()));
    const kv::SessionRecord& record = *(*found)->record;
    SessionDetail detail = detail_of(**found, record);
    if (record.mode != SessionMode::chat) {
      if (auto known = check_record(*use, record); !known) return reply(std::unexpected(known.error()));
      detail.text = text_of(use->model->vocab(), record.chain);
    }
    reply(std::move(detail));
  });
}

SessionDetail Router::detail_of(const Session& session, const kv::SessionRecord& record) const {
  SessionDetail detail;
  detail.info = info_of(session);
  detail.messages = record.messages;
  detail.pending_messages = record.pending_messages;
  for (const kv::Turn& turn : record.turns) detail.turns_begin.push_back(turn.messages_begin);
  detail.has_instructions = record.has_instructions;
  detail.metadata = record.metadata;
  return detail;
}

void Router::set_metadata(const TenantId& tenant, const std::string& session, std::string metadata,
                          Reply<SessionDetail> reply) {
  sessions_.with(
      tenant, session,
      [this, tenant, session, metadata = std::move(metadata), reply = std::move(reply)](Expected<Session*> found) mutable {
        if (!found) return reply(std::unexpected(found.error()));
        Session& target = **found;
        if (target.running != RequestId{}) {
          // The turn that runs will be committed in the place of the record as it is now.
          if (auto may_wait = check_waiting(target.summary.id); !may_wait) return reply(std::unexpected(may_wait.error()));
          waiting_for_reply_[target.summary.id].emplace_back(
              RequestId{}, [this, tenant, session, metadata = std::move(metadata), reply = std::move(reply)]() mutable {
                set_metadata(tenant, session, std::move(metadata), std::move(reply));
              });
          return;
        }
        SessionLock lock = sessions_.lock(target);
        kv::SessionRecord next = *target.record;
        next.metadata = std::move(metadata);
        commit_and_reply(std::move(lock), std::move(next), std::move(reply));
      });
}

void Router::remove_last_message(TenantId tenant, std::string session, MessagePosition place, Reply<SessionDetail> reply) {
  with_model_of(tenant, session, [this, tenant, session, place, reply = std::move(reply)](Expected<ModelUse> use) mutable {
    if (!use) return reply(std::unexpected(use.error()));
    sessions_.with(
        tenant, session,
        [this, tenant, session, place, use = std::move(*use), reply = std::move(reply)](Expected<Session*> found) mutable {
          if (!found) return reply(std::unexpected(found.error()));
          Session& target = **found;
          if (target.running != RequestId{}) {
            if (auto may_wait = check_waiting(target.summary.id); !may_wait) return reply(std::unexpected(may_wait.error()));
            waiting_for_reply_[target.summary.id].emplace_back(
                RequestId{}, [this, tenant, session, place, reply = std::move(reply)]() mutable {
                  remove_last_message(std::move(tenant), std::move(session), place, std::move(reply));
                });
            return;
          }
          if (auto known = check_record(*use, *target.record); !known) return reply(std::unexpected(known.error()));
          if (last_message_position(*target.record) != place) {
            return reply(fail(ErrorCode::proto_field, "only the message that a conversation ends with can be taken out"));
          }
          remove_last_message_of(target, std::move(use), std::move(reply));
        });
  });
}

void Router::remove_last_message_of(Session& session, ModelUse use, Reply<SessionDetail> reply) {
  SessionLock lock = sessions_.lock(session);
  sessions_.touch(session);
  const kv::SessionRecord& record = *session.record;
  preparer_.post(
      record.tenant, text_bytes(record),
      [this, use = std::move(use), lock = std::move(lock), record = session.record,
       without_turn = rewound(record, record.turns.size() - 1, clock_.unix_s()), reply = std::move(reply)]() mutable {
        auto next = contain([&] { return without_last_message(*use->chat, *record, without_turn); });
        post([this, use = std::move(use), lock = std::move(lock), next = std::move(next), reply = std::move(reply)]() mutable {
          if (!next) {
            reply(std::unexpected(next.error()));
            return lock.release();
          }
          next->last_used_s = clock_.unix_s();
          commit_and_reply(std::move(lock), std::move(*next), std::move(reply));
        });
      });
}

void Router::get_response(const TenantId& tenant, const std::string& session, const std::string& response,
                          Reply<ResponseDetail> reply) {
  if (sessions_.find(tenant, session) == nullptr) return reply(std::unexpected(unknown_response(response)));
  sessions_.with(tenant, session, [this, response, reply = std::move(reply)](Expected<Session*> found) mutable {
    if (!found) return reply(std::unexpected(found.error()));
    const kv::SessionRecord& record = *(*found)->record;
    ResponsePtr kept = find_response(record, response);
    if (kept == nullptr) return reply(std::unexpected(unknown_response(response)));
    SessionDetail detail = detail_of(**found, rewound(record, turns_through(record, *kept), clock_.unix_s()));
    reply(ResponseDetail{.session = std::move(detail), .response = std::move(kept)});
  });
}

void Router::cancel_response(const TenantId& tenant, const std::string& session, const std::string& response,
                             Reply<ResponseDetail> reply) {
  const Session* found = sessions_.find(tenant, session);
  if (found == nullptr || found->draft == nullptr || found->draft->response.id != response) {
    return get_response(tenant, session, response, std::move(reply));
  }
  if (auto may_wait = check_waiting(found->summary.id); !may_wait) return reply(std::unexpected(may_wait.error()));
  cancel(found->running, [](const Expected<bool>&) {});
  waiting_for_reply_[found->summary.id].emplace_back(RequestId{},
                                                     [this, tenant, session, response, reply = std::move(reply)]() mutable {
                                                       get_response(tenant, session, response, std::move(reply));
                                                     });
}

void Router::forget_response(const TenantId& tenant, const std::string& session, const std::string& response,
                             Reply<Unit> reply) {
  if (sessions_.find(tenant, session) == nullptr) return reply(std::unexpected(unknown_response(response)));
  sessions_.with(tenant, session,
                 [this, tenant, session, response, reply = std::move(reply)](Expected<Session*> found) mutable {
                   if (!found) return reply(std::unexpected(found.error()));
                   Session& target = **found;
                   if (find_response(*target.record, response) == nullptr)
                     return reply(std::unexpected(unknown_response(response)));
                   if (target.running != RequestId{}) {
                     if (auto may_wait = check_waiting(target.summary.id); !may_wait)
                       return reply(std::unexpected(may_wait.error()));
                     waiting_for_reply_[target.summary.id].emplace_back(
                         RequestId{}, [this, tenant, session, response, reply = std::move(reply)]() mutable {
                           forget_response(tenant, session, response, std::move(reply));
                         });
                     return;
                   }
                   if (target.record->is_of_responses && target.record->responses.size() == 1) {
                     return sessions_.end(target, std::move(reply));
                   }
                   kv::SessionRecord next = without_response(*target.record, response, clock_.unix_s());
                   commit_and_reply(sessions_.lock(target), std::move(next),
                                    Reply<SessionInfo>([reply = std::move(reply)](Expected<SessionInfo> done) mutable {
                                      reply(done ? Expected<Unit>(Unit{}) : std::unexpected(done.error()));
                                    }));
                 });
}

void Router::list_sessions(const TenantId& tenant, const SessionListRequest& request, Reply<SessionList> reply) {
  // An id goes before a name that is spelled alike.
  const Session* after = sessions_.find(SessionId{request.after});
  if (after == nullptr || after->summary.tenant != tenant) after = sessions_.find(tenant, request.after);
  if (after == nullptr && !request.after.empty()) return reply(std::unexpected(unknown_session(request.after)));
  SessionList list;
  list.has_more = sessions_.for_each_of(tenant, after, [&](const Session& session) {
    if (std::ssize(list.sessions) == request.limit) return false;
    list.sessions.push_back(info_of(session));
    return true;
  });
  reply(std::move(list));
}

void Router::export_session(const TenantId& tenant, const std::string& session, bool with_kv, Reply<ExportedSession> reply) {
  // What its tokens are and say only their model knows.
  with_model_of(tenant, session, [this, tenant, session, with_kv, reply = std::move(reply)](Expected<ModelUse> use) mutable {
    if (!use) return reply(std::unexpected(use.error()));
    sessions_.with(
        tenant, session, [this, use = std::move(*use), with_kv, reply = std::move(reply)](Expected<Session*> found) mutable {
          if (!found) return reply(std::unexpected(found.error()));
          const Session& exported = **found;
          if (auto known = check_record(*use, *exported.record); !known) return reply(std::unexpected(known.error()));
          ExportedSession made{.info = info_of(exported), .file = {}};
          if (!with_kv) return export_conversation(std::move(use), exported.record, std::move(made), std::move(reply));
          Lane& lane = *use->lanes[exported.lane];
          auto then = [this, use = std::move(use), record = exported.record, made = std::move(made),
                       reply = std::move(reply)]() mutable {
            export_kv(std::move(use), std::move(record), std::move(made), std::move(reply));
          };
          // What is in a slot goes to the store first, as it does when the slot is needed.
          if (!lane.holds(exported.summary.id)) return then();
          lane.post(SaveCommand{exported.summary.id, [this, then = std::move(then)]() mutable { post(std::move(then)); }});
        });
  });
}

// The file begins with the conversation, and its images and its KV follow, if it has any, and if `made` has some.
void Router::export_conversation(ModelUse use, kv::RecordPtr record, ExportedSession made, Reply<ExportedSession> reply) {
  const kv::SessionRecord& exported = *record;
  preparer_.post(
      exported.tenant, text_bytes(exported),
      [this, use = std::move(use), record = std::move(record), made = std::move(made), reply = std::move(reply)]() mutable {
        Bytes conversation = export_record(*use->model, *record);
        auto join = [this, conversation = std::move(conversation), made = std::move(made),
                     reply = std::move(reply)](Expected<PortableFile> images) mutable {
          post([conversation = std::move(conversation), images = std::move(images), made = std::move(made),
                reply = std::move(reply)]() mutable {
            if (!images) return reply(std::unexpected(images.error()));
            if (conversation.size() > kConversationBytesMax) {
              return reply(
                  fail(ErrorCode::limit_prompt, std::format("the session takes {} bytes as a file, at most {} are possible",
                                                            conversation.size(), kConversationBytesMax)));
            }
            made.file = joined(file_of(std::move(conversation)), joined(std::move(*images), std::move(made.file)));
            reply(std::move(made));
          });
        };
        const std::shared_ptr<Vision> vision = use->vision;
        if (vision == nullptr) return join(PortableFile{});
        const TenantId tenant = record->tenant;
        vision->post(tenant, [this, vision, use = std::move(use), record = std::move(record),
                              join = std::move(join)]() mutable { join(export_images(*vision, *record, exports_)); });
      });
}

// The session's stored state joins the file, if there is one of the beginning of these tokens.
void Router::export_kv(ModelUse use, kv::RecordPtr record, ExportedSession made, Reply<ExportedSession> reply) {
  std::vector<Token> chain = record->chain;
  chain.insert(chain.end(), record->pending.begin(), record->pending.end());
  const kv::Asker asker{.family = use->lanes.front()->family(),
                        .tenant = record->tenant,
                        .session = record->id,
                        .forked_from = {},
                        .takes_others = false};
  const auto match = store_.find(asker, chain);
  if (!match || match->tokens_count < match->tokens_stored) {
    return export_conversation(std::move(use), std::move(record), std::move(made), std::move(reply));
  }
  ByteBudget::Share share(exports_);
  if (match->bytes > exports_->bytes_max()) {
    return reply(fail(ErrorCode::limit_prompt,
                      std::format("the KV of the session takes {} bytes, limits.transfer_bytes_max is {}: export it without",
                                  match->bytes, exports_->bytes_max())));
  }
  if (!share.grow(match->bytes)) {
    return reply(fail(ErrorCode::limit_wait,
                      std::format("exports that are read take {} of {} bytes, limits.transfer_bytes_max: try again later",
                                  exports_->bytes_used(), exports_->bytes_max())));
  }
  // On the store's thread until the post: nobody waits while the image gets its checksum.
  store_.fetch(match->id, [this, use = std::move(use), record = std::move(record), made = std::move(made),
                           reply = std::move(reply), share = std::move(share)](Expected<kv::ImagePtr> image) mutable {
    if (image) {
      made.file = export_state(std::move(*image), std::move(share));
      made.kv_bytes = made.file.size();
    }
    post([this, use = std::move(use), record = std::move(record), made = std::move(made), reply = std::move(reply)]() mutable {
      export_conversation(std::move(use), std::move(record), std::move(made), std::move(reply));
    });
  });
}

void Router::import_session(TenantId tenant, ImportRequest request, Reply<ImportedSession> reply) {
  const std::string model = request.model;
  models_.with_chat(model, [this, tenant = std::move(tenant), request = std::move(request),
                            reply = std::move(reply)](Expected<ModelUse> used) mutable {
    if (!used) return reply(std::unexpected(used.error()));
    const PortableFile file = request.file;
    const std::shared_ptr<Vision> vision = (*used)->vision;
    const std::size_t bytes = file.size();
    preparer_.post(
        tenant, bytes,
        [this, vision, tenant, file, use = std::move(*used), request = std::move(request), reply = std::move(reply)]() mutable {
          import_images(
              vision, tenant, file,
              [this, tenant, use = std::move(use), request = std::move(request), reply = std::move(reply)](
                  ImportedImages images, const Expected<Unit>& outcome) mutable {
                std::vector<std::string> ids = images.ids;
                Reply<ImportedSession> last = until_imported(std::move(images), std::move(reply));
                if (outcome) {
                  return import_with(std::move(use), tenant, std::move(request), std::move(ids), std::move(last));
                }
                post([last = std::move(last), error = outcome.error()]() mutable { last(std::unexpected(std::move(error))); });
              });
        });
  });
}

// On whichever thread has kept the last image of the file.
void Router::import_with(ModelUse use, const TenantId& tenant, ImportRequest request, std::vector<std::string> images,
                         Reply<ImportedSession> reply) {
  const std::size_t bytes = request.file.size();
  preparer_.post(tenant, bytes,
                 [this, use = std::move(use), tenant, request = std::move(request), images = std::move(images),
                  reply = std::move(reply)]() mutable {
                   auto imported =
                       import_record(*use->chat, request.file, options_.limits.max_prompt_bytes, use->vision.get(), images);
                   import_record_made(std::move(use), tenant, std::move(request), std::move(imported), std::move(reply));
                 });
}

// The reply, until which the images that came are kept.
Reply<ImportedSession> Router::until_imported(ImportedImages images, Reply<ImportedSession> reply) {
  return [this, images = std::move(images), reply = std::move(reply)](Expected<ImportedSession> made) mutable {
    reply(std::move(made));
    images.uses.clear();
    give_up_images(std::move(images.ids));
  };
}

// The KV, if the file has some and it is taken, is read on the store's thread.
void Router::import_record_made(ModelUse use, const TenantId& tenant, ImportRequest request, Expected<ImportedRecord> imported,
                                Reply<ImportedSession> reply) {
  if (!imported || !imported->has_state || !request.takes_kv || !use->shape().checks_states) {
    const std::string_view reason = request.takes_kv ? "that of such models cannot be checked" : "over HTTP none is taken";
    return post([this, use = std::move(use), tenant, name = std::move(request.name), imported = std::move(imported),
                 reply = std::move(reply), reason]() mutable {
      if (!imported) return reply(std::unexpected(imported.error()));
      std::optional<Expected<kv::StateImage>> image;
      if (imported->has_state) {
        image = fail(ErrorCode::runtime_decode, std::format("the KV of the session file is left out: {}", reason));
      }
      add_imported(use, tenant, std::move(name), std::move(*imported), std::move(image), std::move(reply));
    });
  }
  store_.run_later([this, use = std::move(use), tenant, request = std::move(request), imported = std::move(*imported),
                    reply = std::move(reply)]() mutable {
    auto image =
        import_state(*use->model, use->shape(), use->lanes.front()->state_identity(), imported.record, request.file, store_);
    request.file = {};
    post([this, use = std::move(use), tenant, name = std::move(request.name), imported = std::move(imported),
          image = std::move(image), reply = std::move(reply)]() mutable {
      if (!image && image.error().code == ErrorCode::proto_field) return reply(std::unexpected(image.error()));
      add_imported(use, tenant, std::move(name), std::move(imported), std::move(image), std::move(reply));
    });
  });
}

// `image`: the KV that the file had, or why it is of no use here; empty: it had none.
void Router::add_imported(const ModelUse& use, TenantId tenant, std::string name, ImportedRecord imported,
                          std::optional<Expected<kv::StateImage>> image, Reply<ImportedSession> reply) {
  kv::SessionRecord& record = imported.record;
  if (auto fits = check_fits(*use, record.chain.size(), record.pending.size()); !fits) {
    return reply(std::unexpected(fits.error()));
  }
  if (record.n_keep >= use->shape().sequence_cells_max) {
    return reply(fail(ErrorCode::limit_context, std::format("the session keeps {} tokens, the context is {}", record.n_keep,
                                                            use->shape().sequence_cells_max)));
  }
  record.id = sessions_.new_id();
  record.tenant = std::move(tenant);
  if (!name.empty()) record.name = std::move(name);
  record.model = use->name;
  record.last_used_s = clock_.unix_s();
  record.has_foreign_kv = image && *image;
  add_session(std::move(record), least_loaded_lane(*use), {},
              [this, kept = imported.are_tokens_kept, image = std::move(image),
               reply = std::move(reply)](Expected<SessionInfo> added) mutable {
                if (!added) return reply(std::unexpected(added.error()));
                ImportedSession made{.info = std::move(*added), .are_tokens_kept = kept};
                if (image) {
                  made.kv = keep_imported(made.info.id, std::move(*image));
                  made.info = info_of(*sessions_.find(made.info.id));
                }
                reply(std::move(made));
              });
}

// The state of a session that has just been imported goes to the store, for it alone: its numbers are whatever somebody wrote.
ImportedKv Router::keep_imported(const SessionId& id, Expected<kv::StateImage> image) {
  if (!image) {
    log_info("session {}: {}", id.value, image.error().message);
    return ImportedKv::refused;
  }
  store_.put({.tenant = sessions_.find(id)->summary.tenant, .session = id, .is_public = false, .is_private = true},
             std::move(*image));
  if (store_.states_of(id).tier != Tier::none) return ImportedKv::kept;
  log_info("session {}: its KV is left out: there is no room for it", id.value);
  return ImportedKv::refused;
}

// --- Images
// ---------------------------------------------------------------------------------------------------------------------

// The session has the images of these messages now, and no others.
void Router::note_images(const SessionId& session, const std::vector<std::string>& extras) {
  if (extras.empty() && !images_->has_any(session)) return;
  std::unordered_set<std::string> ids;
  for (const std::string& extra : extras) {
    for (std::string& id : capability::image_ids(extra)) ids.insert(std::move(id));
  }
  give_up_images(images_->set(session, std::move(ids)));
}

// The reply, until which the images are kept.
template <class T>
Reply<T> Router::using_images(TakenImages images, Reply<T> reply) {
  return [this, images = std::move(images), reply = std::move(reply)](Expected<T> value) mutable {
    reply(std::move(value));
    give_up_images(std::move(images));
  };
}

// A request that has taken them has ended.
void Router::give_up_images(TakenImages taken) {
  std::vector<std::string> ids;
  for (const ImagePtr& image : taken.images) ids.push_back(image->id);
  taken = {};
  give_up_images(std::move(ids));
}

// Those that no session has need not be kept any more.
void Router::give_up_images(std::vector<std::string> ids) {
  std::erase_if(ids, [this](const std::string& id) { return images_->is_used(id); });
  if (ids.empty() || !options_.on_images_free) return;
  options_.on_images_free(std::move(ids), [images = images_](const std::string& id) { return images->is_used(id); });
}

// Whether the model reads images, and there is room for so many bytes of them to wait.
Expected<Unit> Router::check_images(const ServedModel& served, std::size_t bytes) const {
  if (served.vision == nullptr) {
    return fail(ErrorCode::model_capability,
                std::format("\"{}\" reads no images: start umad with --mmproj and its projector", served.name));
  }
  bytes += static_cast<std::size_t>(served.vision->stats().waiting_bytes.value());
  if (bytes > options_.limits.queue_bytes_max) {
    return fail(ErrorCode::limit_wait,
                std::format("images that wait hold {} bytes, limits.queue_bytes_max is {}: try again later", bytes,
                            options_.limits.queue_bytes_max));
  }
  return Unit{};
}

void Router::embed_images(const TenantId& tenant, EmbedImagesRequest request, Reply<ImageEmbeddings> reply) {
  if (draining_) return reply(fail(ErrorCode::limit_wait, "the daemon is shutting down and takes no new requests"));
  const TimePoint received = clock_.now();
  const std::string name = request.model;
  models_.with_chat(
      name, [this, tenant, received, request = std::move(request), reply = std::move(reply)](Expected<ModelUse> use) mutable {
        if (!use) return reply(std::unexpected(use.error()));
        const std::int64_t deadline_ms = request.deadline_ms.value_or(options_.limits.deadline_ms);
        const TimePoint deadline =
            deadline_ms > 0 ? std::max(received, (*use)->loaded_at) + std::chrono::milliseconds(deadline_ms) : kNever;
        if (auto sees = check_images(**use, 0); !sees) return reply(std::unexpected(sees.error()));
        std::vector<std::string> urls = urls_of(request.images);
        if (options_.fetcher == nullptr || urls.empty()) {
          return embed_images(tenant, std::move(*use), std::move(request), deadline, std::move(reply));
        }
        const std::stop_token end = request.end;
        options_.fetcher->fetch(tenant, std::move(urls), deadline, end,
                                [this, tenant, use = std::move(*use), request = std::move(request), deadline,
                                 reply = std::move(reply)](Fetched fetched) mutable {
                                  post([this, tenant, use = std::move(use), request = std::move(request), deadline,
                                        reply = std::move(reply), fetched = std::move(fetched)]() mutable {
                                    const auto put = put_fetched(request.images, std::move(fetched));
                                    if (!put) return reply(std::unexpected(put.error()));
                                    embed_images(tenant, std::move(use), std::move(request), deadline, std::move(reply));
                                  });
                                });
      });
}

void Router::embed_images(const TenantId& tenant, ModelUse use, EmbedImagesRequest request, TimePoint deadline,
                          Reply<ImageEmbeddings> reply) {
  std::size_t bytes = 0;
  for (const ImageSource& image : request.images) bytes += image.text.size();
  if (auto fits = check_images(*use, bytes); !fits) return reply(std::unexpected(fits.error()));
  const std::shared_ptr<Vision> vision = use->vision;
  vision->embed(
      tenant, std::move(request), deadline,
      [use = std::move(use), reply = std::move(reply)](Expected<ImageEmbeddings> made) mutable { reply(std::move(made)); });
}

// Reads the images of the request's messages, away from whoever needs no images.
void Router::read_images(RequestId id, const TenantId& tenant, GenerateRequest request) {
  const ServedModel& served = *requests_.at(id).use;
  const bool is_of_session = !request.session.empty() || request.response;
  std::size_t bytes = 0;
  for (const InputImage& image : request.input.images) bytes += image.source.text.size();
  if (auto fits = check_images(served, bytes); !fits) return refuse(id, fits.error());
  if (std::vector<std::string> urls = urls_of(request.input.images); options_.fetcher != nullptr && !urls.empty()) {
    const Open& open = requests_.at(id);
    options_.fetcher->fetch(
        tenant, std::move(urls), deadline_of(open), open.end.get_token(),
        of(id, [this, id, tenant, request = std::move(request)](Fetched fetched) mutable {
          post(of(id, [this, id, tenant, request = std::move(request), fetched = std::move(fetched)]() mutable {
            const auto found = requests_.find(id);
            if (found == requests_.end()) return;  // cancelled meanwhile
            const auto put = put_fetched(request.input.images, std::move(fetched));
            if (!put) return refuse(id, put.error());
            const auto& share = found->second.share;
            auto held = share ? share->grow(memory_of(request.input)) : Unit{};
            if (!held) return refuse(id, held.error());
            read_images(id, tenant, std::move(request));
          }));
        }));
    return;
  }
  const std::stop_token end = requests_.at(id).end.get_token();
  Input input = std::exchange(request.input, {});
  served.vision->take_all(
      tenant, std::move(input), is_of_session, end,
      of(id, [this, id, tenant, request = std::move(request)](Input with_images, TakenImages images,
                                                              const Expected<Unit>& outcome) mutable {
        request.input = std::move(with_images);
        post(of(id, [this, id, tenant, request = std::move(request), images = std::move(images), outcome]() mutable {
          const auto found = requests_.find(id);
          if (found == requests_.end()) return give_up_images(std::move(images));
          found->second.images = std::move(images);
          if (!outcome) return refuse(id, outcome.error());
          begin_generation(id, tenant, std::move(request));
        }));
      }));
}

// Likewise, then appends the input.
void Router::read_images(ModelUse use, TenantId tenant, AppendRequest request, Reply<SessionInfo> reply) {
  std::size_t bytes = 0;
  for (const InputImage& image : request.input.images) bytes += image.source.text.size();
  if (auto fits = check_images(*use, bytes); !fits) return reply(std::unexpected(fits.error()));
  if (std::vector<std::string> urls = urls_of(request.input.images); options_.fetcher != nullptr && !urls.empty()) {
    options_.fetcher->fetch(tenant, std::move(urls), kNever, {},
                            [this, use = std::move(use), tenant = std::move(tenant), request = std::move(request),
                             reply = std::move(reply)](Fetched fetched) mutable {
                              post([this, use = std::move(use), tenant = std::move(tenant), request = std::move(request),
                                    reply = std::move(reply), fetched = std::move(fetched)]() mutable {
                                const auto put = put_fetched(request.input.images, std::move(fetched));
                                if (!put) return reply(std::unexpected(put.error()));
                                read_images(std::move(use), std::move(tenant), std::move(request), std::move(reply));
                              });
                            });
    return;
  }
  const std::shared_ptr<Vision> vision = use->vision;
  Input input = std::exchange(request.input, {});
  vision->take_all(tenant, std::move(input), true, {},
                   [this, tenant, use = std::move(use), request = std::move(request), reply = std::move(reply)](
                       Input with_images, TakenImages images, const Expected<Unit>& outcome) mutable {
                     request.input = std::move(with_images);
                     post([this, tenant, use = std::move(use), request = std::move(request), images = std::move(images),
                           outcome, reply = std::move(reply)]() mutable {
                       Reply<SessionInfo> last = using_images(std::move(images), std::move(reply));
                       if (!outcome) return last(std::unexpected(outcome.error()));
                       append_input(tenant, std::move(request), std::move(last));
                     });
                   });
}

// The images among these tokens, which are of the record.
Expected<std::vector<ImageRun>> Router::images_of(const ServedModel& served, const kv::SessionRecord& record,
                                                  std::span<const Token> tokens) {
  if (served.vision == nullptr || std::ranges::none_of(tokens, llm::is_image_token)) return {};
  std::vector<std::string> ids;
  for (const auto* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      for (capability::MessageImage& image : capability::images_of(message)) ids.push_back(std::move(image.id));
    }
  }
  return find_image_runs(tokens, ids, served.vision->identity());
}

// --- Generations
// ----------------------------------------------------------------------------------------------------------------

void Router::refuse(std::span<const std::shared_ptr<EventSink>> sinks, const Error& error) {
  requests_refused_.add();
  for (const auto& sink : sinks) (void)sink->deliver(FailureEvent{error});
}

void Router::refuse(RequestId id, Error error) {
  requests_refused_.add();
  end_request(id, FailureEvent{std::move(error)});
}

// A step of the request has thrown. What a lane has ends there.
void Router::abandon(RequestId id, const Error& error) {
  if (const auto texts = texts_requests_.find(id); texts != texts_requests_.end() && texts->second.lane == nullptr) {
    return refuse_texts(id, error);
  }
  const auto found = requests_.find(id);
  if (found == requests_.end() || (found->second.lane != nullptr && !found->second.has_result)) return;
  const SessionId session = found->second.session;
  if (found->second.lane == nullptr) {
    refuse(id, error);
  } else {
    end_request(id, EosEvent{.reason = FinishReason::error, .usage = {}, .text = {}, .error = error});
  }
  if (Session* left = sessions_.find(session); left != nullptr && left->running == RequestId{}) {
    left->draft.reset();
    if (left->is_new) {
      sessions_.erase(session);
    } else {
      sessions_.end_when_idle(*left);
    }
    run_waiting_for_replies(session);
  }
}

// No longer waits for a lane: it has one, or has ended.
void Router::set_sent(RequestId id) {
  unsent_.erase(id);
  waiting_since_us_.set(unsent_.empty() ? 0 : to_us(unsent_.begin()->second));
}

void Router::note_open() {
  requests_open_.set(generations_open_ + std::ssize(texts_requests_));
}

void Router::end_request(RequestId id, const Event& terminal) {
  const auto found = requests_.find(id);
  UMA_CHECK(found != requests_.end());
  const std::vector<std::shared_ptr<EventSink>> sinks = std::move(found->second.sinks);
  generations_open_ -= std::ssize(sinks);
  const SessionId session = found->second.session;
  const std::string model = std::move(found->second.model);
  if (const auto open = lanes_open_.find(found->second.lane); open != lanes_open_.end() && --open->second == 0) {
    lanes_open_.erase(open);
  }
  if (!found->second.use.is_empty()) {
    models_.note_use(model);
  } else if (!model.empty()) {
    models_.stop_waiting(model, id);
  }
  (void)found->second.end.request_stop();
  TakenImages images = std::move(found->second.images);
  requests_.erase(found);
  run_noting([&] { give_up_images(std::move(images)); });
  if (const auto waiting = waiting_for_reply_.find(session); waiting != waiting_for_reply_.end()) {
    std::erase_if(waiting->second, [id](const WaitingForReply& each) { return each.request == id; });
    if (waiting->second.empty()) waiting_for_reply_.erase(waiting);
  }
  set_sent(id);
  if (Session* owner = sessions_.find(session); owner != nullptr && owner->running == id) {
    sessions_.end_run(*owner);
  }
  note_open();
  for (const auto& sink : sinks) run_noting([&] { (void)sink->deliver(terminal); });  // terminal events are always taken
}

// So many tokens are kept for the request, and what its replies must follow.
Expected<Unit> Router::hold(const Open& open, std::size_t tokens) {
  const std::size_t bytes = tokens * sizeof(Token) + (open.grammars ? open.grammars->bytes() : 0);
  return open.share ? open.share->grow(bytes) : Unit{};
}

// The generations of one prompt, which is prepared, go on as requests of their own. Their ids, the request's first.
std::vector<RequestId> Router::split(RequestId id) {
  std::vector<RequestId> ids{id};
  Open& first = requests_.at(id);
  for (std::size_t i = 1; i < first.sinks.size(); ++i) {
    const RequestId each{id.value + i};
    Open& open = requests_[each];
    open.sinks.push_back(first.sinks[i]);
    open.model = first.model;
    open.flow = first.flow;
    open.received = first.received;
    open.timeout = first.timeout;
    open.deadline_ms = first.deadline_ms;
    open.wants_progress = first.wants_progress;
    open.grammars = first.grammars;
    open.images = first.images;
    open.share = first.share;
    open.use = first.use.again();
    ids.push_back(each);
  }
  first.sinks.resize(1);
  return ids;
}

Expected<Unit> Router::admit(const GenerateRequest& request, std::int64_t generations) const {
  if (draining_) return fail(ErrorCode::limit_wait, "the daemon is shutting down and takes no new requests");
  const std::size_t prompt_bytes = request.input.bytes() + request.options.chat.tools.size();
  if (prompt_bytes > options_.limits.max_prompt_bytes) {
    return fail(ErrorCode::limit_prompt, std::format("the prompt has {} bytes, limits.max_prompt_bytes is {}", prompt_bytes,
                                                     options_.limits.max_prompt_bytes));
  }
  // What waits is what the slots cannot hold; the request itself is in requests_ already. Counted here and not in the lanes, so
  // that a burst is judged alike however far its requests have come.
  std::int64_t waiting = generations_open_ - generations;
  for (const ServedModel* served : models_.loaded()) {
    for (const Lane* lane : served->lanes) waiting -= lane->shape().sequences;
  }
  const auto waiting_max = static_cast<std::int64_t>(options_.limits.queue_max);
  if (waiting_max > 0 && waiting >= waiting_max) {
    return fail(ErrorCode::limit_wait,
                std::format("{} requests wait already, limits.queue_max is {}: try again later", waiting, waiting_max));
  }
  return Unit{};
}

// A session of `known` tokens plus `added` new ones must leave room for one token of reply.
Expected<Unit> Router::check_fits(const ServedModel& served, std::size_t known, std::size_t added) {
  const auto context = static_cast<std::size_t>(served.shape().sequence_cells_max);
  if (added + 1 > context) {
    return fail(ErrorCode::limit_prompt,
                std::format("the context is {} tokens, the prompt has {}: shorten it or start umad with a larger --n-ctx{}",
                            context, added, served.shape().is_unified ? "" : " or fewer --slots"));
  }
  if (known + added + 1 > context) {
    return fail(
        ErrorCode::limit_context,
        std::format("the context is {} tokens, the session has {} and the input {}: rewind the session or start a new one",
                    context, known, added));
  }
  return Unit{};
}

// The record, to which `added` tokens have just come, must fit when all is dropped that may be.
Expected<Unit> Router::check_record_fits(const ServedModel& served, const kv::SessionRecord& record, std::size_t added) {
  const std::size_t total = record.chain.size() + record.pending.size();
  const auto shortest = shortest_length(droppable_of(record), static_cast<std::int32_t>(total));
  const std::size_t stays = static_cast<std::size_t>(shortest) - added;
  auto fits = check_fits(served, stays, added);
  if (!fits && fits.error().code == ErrorCode::limit_context && record.on_full == OnFull::shift) {
    fits.error().message =
        std::format("the context is {} tokens, {} of the session stay whatever is dropped, and the input has {}: shorten it",
                    served.shape().sequence_cells_max, stays, added);
  }
  return fits;
}

void Router::generate(RequestId id, const TenantId& tenant, GenerateRequest request,
                      std::vector<std::shared_ptr<EventSink>> sinks) {
  UMA_CHECK(!sinks.empty() && (sinks.size() == 1 || (request.session.empty() && !request.response)));
  Open& open = requests_[id];
  open.sinks = std::move(sinks);
  open.share = request.share;
  generations_open_ += std::ssize(open.sinks);
  open.flow = {tenant.value, request.client};
  open.received = clock_.now();
  open.wants_progress = request.options.progress;
  open.deadline_ms = request.options.deadline_ms;
  if (request.options.timeout_ms > 0) open.timeout = open.received + std::chrono::milliseconds(request.options.timeout_ms);
  next_expiry_ = std::min(next_expiry_, open.timeout);
  note_open();
  unsent_.emplace(id, open.received);
  waiting_since_us_.set(to_us(unsent_.begin()->second));
  if (auto admitted = admit(request, std::ssize(open.sinks)); !admitted) return refuse(id, admitted.error());
  const std::string session_name = request.session;
  const std::string model_name = request.model;
  const auto known = source_.resolve(model_name);
  const Session* session = session_name.empty() ? nullptr : sessions_.find(tenant, session_name);
  if (!session_name.empty()) {
    if (session == nullptr) return refuse(id, unknown_session_of(request));
    if (!model_name.empty() && !known) return refuse(id, known.error());
    if (!model_name.empty() && *known != session->summary.model) {
      return refuse(id, {ErrorCode::proto_field, std::format("field \"model\" is \"{}\", but the session is of model \"{}\"",
                                                             model_name, session->summary.model)});
    }
    open.model = session->summary.model;
  } else if (known) {
    open.model = *known;
  }
  if (models_.bytes_wanted(open.model) > 0) {
    open.deadline = deadline_of(open);
    next_expiry_ = std::min(next_expiry_, open.deadline);
  }
  const Wanted wanted{.request = id, .is_background = request.options.request_class == RequestClass::background};
  ServedModels::Then then = of(id, [this, id, tenant, request = std::move(request)](Expected<ModelUse> use) mutable {
    begin_with_model(id, tenant, std::move(request), std::move(use));
  });
  if (session != nullptr) {
    with_model_of(tenant, session_name, std::move(then), wanted);
  } else {
    models_.with_chat(model_name, std::move(then), wanted);
  }
}

void Router::begin_with_model(RequestId id, const TenantId& tenant, GenerateRequest request, Expected<ModelUse> use) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;  // cancelled while the model was loading
  if (!use) return refuse(id, use.error());
  Open& open = found->second;
  open.use = std::move(*use);
  const llm::Model& model = *open.use->model;
  for (const auto& [token, bias] : request.options.sampling.logit_bias) {
    if (token >= 0 && token < model.vocab().size()) continue;
    return refuse(id, {ErrorCode::proto_field,
                       std::format("field \"logit_bias\": token {} is not in the vocabulary, which has 0 to {}", token,
                                   model.vocab().size() - 1),
                       "logit_bias"});
  }
  if (!request.input.images.empty()) return read_images(id, tenant, std::move(request));
  begin_generation(id, tenant, std::move(request));
}

void Router::begin_generation(RequestId id, const TenantId& tenant, GenerateRequest request) {
  if (request.response) {
    generate_response(id, tenant, std::move(request));
  } else if (request.session.empty()) {
    generate_one_shot(id, std::move(request));
  } else {
    generate_in_session(id, tenant, std::move(request));
  }
}

void Router::generate_one_shot(RequestId id, GenerateRequest request) {
  const Open& open = requests_.at(id);
  const std::size_t bytes = memory_of(request);
  preparer_.post({open.flow.tenant}, bytes,
                 of(id, [this, id, use = open.use.again(), end = open.end.get_token(), now_s = clock_.unix_s(),
                         request = std::move(request)]() mutable {
                   if (end.stop_requested()) return;
                   kv::SessionRecord empty;
                   empty.created_s = now_s;
                   auto grammars = use->grammars->compile(*use->chat, request.options);
                   auto record = append_to_record(*use->chat, empty, request.input, &request.options.chat);
                   post(of(id, [this, id, grammars = std::move(grammars), record = std::move(record),
                                request = std::move(request)]() mutable {
                     if (!requests_.contains(id)) return;  // cancelled meanwhile
                     auto started = grammars ? Expected<Unit>(Unit{}) : std::unexpected(grammars.error());
                     if (started && !record) started = std::unexpected(record.error());
                     if (started) started = start_one_shot(id, std::move(*grammars), *record, request);
                     if (!started) refuse(id, started.error());
                   }));
                 }));
}

// Starts the generations of a prompt that is prepared.
Expected<Unit> Router::start_one_shot(RequestId id, ReplyGrammars grammars, const kv::SessionRecord& record,
                                      const GenerateRequest& request) {
  const std::vector<Token>& prompt = record.pending;
  Open& open = requests_.at(id);
  const ServedModel& served = *open.use;
  open.grammars = std::move(grammars);
  if (auto fits = check_fits(served, 0, prompt.size()); !fits) return fits;
  if (prompt.empty()) return fail(ErrorCode::proto_field, "field \"prompt\" has no tokens for this model");
  auto images = images_of(served, record, prompt);
  if (!images) return std::unexpected(images.error());
  if (auto held = hold(open, prompt.size() * open.sinks.size()); !held) return held;
  GenerateOptions options = request.options;
  const bool is_chat = !request.input.messages.empty();
  if (is_chat) {
    for (std::string& stop : capability::chat_stop_strings(*served.model)) options.stop.push_back(std::move(stop));
  }
  const ModelUse use = open.use.again();  // the requests may end here
  for (const RequestId each : split(id)) {
    of(each, [&] {
      Task task = make_task(each, requests_.at(each), options, prompt);
      task.images = *images;
      if (is_chat) read_reply(served, task, options.chat);
      if (options.sampling.seed) ++*options.sampling.seed;
      send(std::move(task), *served.lanes[least_loaded_lane(served)]);
    })();
  }
  return Unit{};
}

void Router::generate_in_session(RequestId id, const TenantId& tenant, GenerateRequest request) {
  if (const Session* used = sessions_.find(tenant, request.session)) {
    if (used->running != RequestId{}) return refuse(id, busy_session(request.session));
    requests_.at(id).session = used->summary.id;
  }
  const std::string name = request.session;
  sessions_.with(tenant, name, of(id, [this, id, request = std::move(request)](Expected<Session*> found) {
                   if (!requests_.contains(id)) return;  // cancelled meanwhile
                   if (!found) return refuse(id, found.error());
                   generate_in(**found, id, request);
                 }));
}

void Router::generate_in(Session& session, RequestId id, const GenerateRequest& request) {
  if (session.running != RequestId{}) return refuse(id, busy_session(request.session));
  const Open& open = requests_.at(id);
  if (auto known = check_record(*open.use, *session.record); !known) return refuse(id, known.error());
  const SessionId session_id = session.summary.id;
  // Grammars are compiled first, so that a request with an invalid one leaves the session unchanged.
  if (needs_grammars(request.options) && !open.grammars) return compile_and_generate_in(session, id, request);
  if (request.regenerate) {
    const kv::SessionRecord& record = *session.record;
    if (record.turns.empty()) return refuse(id, {ErrorCode::proto_field, "the session has no reply to regenerate"});
    if (!record.pending.empty()) {
      return refuse(id, {ErrorCode::proto_field, "the session has new input: generate on it, or rewind the session first"});
    }
    preparer_.post(record.tenant, text_bytes(record),
                   of(id, [this, id, lock = sessions_.lock(session), request, chat = open.use->chat, last = session.record,
                           without = rewound(record, record.turns.size() - 1, clock_.unix_s())]() mutable {
                     auto reopened = reopen_last_turn(*chat, *last, without, request.options.chat);
                     post(of(id, [this, id, lock = std::move(lock), request, reopened = std::move(reopened)]() mutable {
                       if (!reopened || !requests_.contains(id)) {
                         if (requests_.contains(id)) refuse(id, reopened.error());
                         return lock.release();
                       }
                       commit_and_start(id, std::move(lock), std::move(*reopened), request);
                     }));
                   }));
    return;
  }
  const ChatOptions& chat = request.options.chat;
  const kv::SessionRecord& record = *session.record;
  const bool is_written_anew =
      !record.pending_messages.empty() && (chat.tools != record.tools || chat.template_arguments != record.template_arguments);
  if (request.input.empty() && !chat.tools.empty() && record.pending_messages.empty()) {
    return refuse(id, {ErrorCode::proto_field, "field \"tools\" belongs to input of a chat: the session has none to answer"});
  }
  if (request.input.empty() && !is_written_anew) return start_session_task(id, session, request);
  append_locked(open.use.again(), session_id, request.input, chat,
                of(id, [this, id, session_id, request](const Expected<SessionInfo>& appended) {
                  if (!requests_.contains(id)) return;  // cancelled meanwhile: the input stays appended, as pending
                  if (!appended) return refuse(id, appended.error());
                  start_session_task(id, *sessions_.find(session_id), request);
                }));
}

// The session is locked meanwhile, and the request then goes before what has come to the session since.
void Router::compile_and_generate_in(Session& session, RequestId id, const GenerateRequest& request) {
  const Open& opened = requests_.at(id);
  preparer_.post(
      session.summary.tenant, memory_of(request),
      of(id, [this, id, session_id = session.summary.id, lock = sessions_.lock(session), use = opened.use.again(),
              end = opened.end.get_token(), request]() mutable {
        auto compiled = end.stop_requested() ? Expected<ReplyGrammars>() : use->grammars->compile(*use->chat, request.options);
        post(of(id, [this, id, session_id, lock = std::move(lock), request, grammars = std::move(compiled)]() mutable {
          const auto open = requests_.find(id);  // none: cancelled meanwhile
          if (open != requests_.end() && !grammars) {
            refuse(id, grammars.error());
          } else if (open != requests_.end()) {
            open->second.grammars = std::move(*grammars);
            sessions_.put_first(session_id, of(id, [this, id, request](Expected<Session*> found) {
                                  if (!requests_.contains(id)) return;  // cancelled meanwhile
                                  if (!found) return refuse(id, found.error());
                                  generate_in(**found, id, request);
                                }));
          }
          lock.release();
        }));
      }));
}

// Commits the record of the session, then generates on it.
void Router::commit_and_start(RequestId id, SessionLock lock, kv::SessionRecord record, const GenerateRequest& request) {
  const SessionId session_id = record.id;
  const kv::RecordPtr before = sessions_.find(session_id)->record;
  auto next = std::make_shared<const kv::SessionRecord>(std::move(record));
  sessions_.commit(std::move(next), before,
                   of(id, [this, id, session_id, lock = std::move(lock), request](const Expected<Unit>& done) mutable {
                     if (requests_.contains(id)) {
                       if (done) {
                         start_session_task(id, *sessions_.find(session_id), request);
                       } else {
                         refuse(id, done.error());
                       }
                     }
                     lock.release();
                   }));
}

void Router::start_session_task(RequestId id, Session& session, const GenerateRequest& request) {
  if (auto started = try_start_session_task(id, session, request); !started) refuse(id, started.error());
}

Expected<Unit> Router::try_start_session_task(RequestId id, Session& session, const GenerateRequest& request) {
  const kv::SessionRecord& record = session.draft ? *session.draft->record : *session.record;
  if (record.chain.empty() && record.pending.empty()) {
    return fail(ErrorCode::proto_field, "the session is empty: append input before generating");
  }
  const ServedModel& served = *requests_.at(id).use;
  if (auto fits = check_record_fits(served, record, record.pending.size()); !fits) return fits;
  if (auto within = sessions_.check_quota(record.tenant, 0, 1); !within) return within;
  std::vector<Token> tokens = record.chain;
  tokens.insert(tokens.end(), record.pending.begin(), record.pending.end());
  auto images = images_of(served, record, tokens);
  if (!images) return std::unexpected(images.error());
  if (auto held = hold(requests_.at(id), tokens.size()); !held) return held;
  sessions_.begin_run(session, id);
  GenerateOptions options = request.options;
  if (record.mode == SessionMode::chat) {
    for (std::string& stop : capability::chat_stop_strings(*served.model)) options.stop.push_back(std::move(stop));
  }
  Task task = make_task(id, requests_.at(id), options, std::move(tokens), droppable_of(record));
  task.images = std::move(*images);
  // A reply that goes on is not read from its beginning: it is content.
  if (record.mode == SessionMode::chat && !record.pending.empty()) read_reply(served, task, request.options.chat);
  task.session = record.id;
  task.forked_from = session.forked_from;
  task.is_public = record.is_public && !record.has_foreign_kv;
  task.is_private = record.has_foreign_kv;
  task.is_ephemeral = record.is_ephemeral;
  // What is stored can go on anywhere.
  if (!served.lanes[session.lane]->holds(record.id)) session.lane = least_loaded_lane(served);
  if (session.draft) {
    // The instructions are no part of what was said in the turn.
    const bool begins_with_instructions = record.has_instructions && record.messages.empty();
    const auto said = std::ssize(record.pending_messages) - (begins_with_instructions ? 1 : 0);
    (void)task.sink->deliver(ResponseBegunEvent{.session = record.id,
                                                .turn = record.turns_dropped + static_cast<std::int32_t>(record.turns.size()),
                                                .number = static_cast<std::int32_t>(said)});
  }
  send(std::move(task), *served.lanes[session.lane]);
  return Unit{};
}

// --- Responses
// --------------------------------------------------------------------------------------------------------------------

// Unlike other input of a session, that of a response is committed with its reply: in between it is a draft.

void Router::generate_response(RequestId id, const TenantId& tenant, GenerateRequest request) {
  if (request.session.empty()) {
    kv::SessionRecord record;
    record.id = sessions_.new_id();
    record.tenant = tenant;
    const ServedModel& served = *requests_.at(id).use;
    record.model = served.name;
    record.mode = SessionMode::chat;
    record.is_of_responses = true;
    record.is_ephemeral = !request.response->is_kept;
    record.ttl_s = request.response->ttl_s;
    record.created_s = clock_.unix_s();
    record.last_used_s = record.created_s;
    auto begin = std::make_shared<const kv::SessionRecord>(std::move(record));
    Origin origin{.record = begin, .lane = least_loaded_lane(served), .forked_from = {}};
    return prepare_response(id, std::move(begin), std::move(origin), std::move(request));
  }
  const std::string name = request.session;
  sessions_.with(tenant, name, of(id, [this, id, tenant, request = std::move(request)](Expected<Session*> found) mutable {
                   if (!requests_.contains(id)) return;  // cancelled meanwhile
                   if (!found) {
                     return refuse(
                         id, found.error().code == ErrorCode::session_unknown ? unknown_session_of(request) : found.error());
                   }
                   continue_with_response(id, tenant, **found, std::move(request));
                 }));
}

void Router::continue_with_response(RequestId id, const TenantId& tenant, Session& session, GenerateRequest request) {
  const kv::SessionRecord& record = *session.record;
  Open& open = requests_.at(id);
  if (auto known = check_record(*open.use, record); !known) return refuse(id, known.error());
  const std::string& previous = request.response->previous;
  if (previous.empty()) {
    open.session = session.summary.id;
    if (session.running == RequestId{}) return prepare_response(id, session.record, std::nullopt, std::move(request));
    if (auto may_wait = check_waiting(session.summary.id); !may_wait) return refuse(id, may_wait.error());
    open.deadline = deadline_of(open);
    next_expiry_ = std::min(next_expiry_, open.deadline);
    waiting_for_reply_[session.summary.id].emplace_back(id, of(id, [this, id, tenant, request = std::move(request)]() mutable {
                                                          if (requests_.contains(id))
                                                            generate_response(id, tenant, std::move(request));
                                                        }));
    return;
  }
  const ResponsePtr continued = find_response(record, previous);
  if (continued == nullptr) return refuse(id, unknown_response(previous));
  const std::size_t turns = turns_through(record, *continued);
  const bool goes_on_here = record.is_of_responses && turns == record.turns.size() && record.pending_messages.empty() &&
                            session.running == RequestId{} && request.response->is_kept;
  if (goes_on_here) {
    open.session = session.summary.id;
    return prepare_response(id, session.record, std::nullopt, std::move(request));
  }
  kv::SessionRecord copy = forked_for_responses(record, turns, sessions_.new_id(), clock_.unix_s());
  copy.ttl_s = request.response->ttl_s;
  copy.is_ephemeral = !request.response->is_kept;
  auto begin = std::make_shared<const kv::SessionRecord>(std::move(copy));
  Origin origin{.record = begin, .lane = session.lane, .forked_from = session.summary.id};
  prepare_response(id, std::move(begin), std::move(origin), std::move(request));
}

// Prepares the input of a response on `record`, which is a session's own, or that of a new one at `origin`; then starts it.
void Router::prepare_response(RequestId id, kv::RecordPtr record, std::optional<Origin> origin, GenerateRequest request) {
  std::optional<SessionLock> lock;
  if (!origin) lock = sessions_.lock(*sessions_.find(record->id));
  const Open& open = requests_.at(id);
  const std::size_t bytes = memory_of(request) + text_bytes(*record);
  preparer_.post(
      {open.flow.tenant}, bytes,
      of(id, [this, id, lock = std::move(lock), use = open.use.again(), end = open.end.get_token(), record = std::move(record),
              origin = std::move(origin), request = std::move(request)]() mutable {
        const bool is_wanted = !end.stop_requested();
        auto grammars =
            is_wanted ? use->grammars->compile(*use->chat, request.options, "text.format.schema") : Expected<ReplyGrammars>();
        auto next = is_wanted ? begin_response(*use->chat, *record, request.input, *request.response, request.options.chat)
                              : Expected<kv::SessionRecord>();
        post(of(id, [this, id, lock = std::move(lock), record = std::move(record), origin = std::move(origin),
                     grammars = std::move(grammars), next = std::move(next), request = std::move(request)]() mutable {
          const auto found = requests_.find(id);  // none: cancelled meanwhile
          if (found != requests_.end() && !grammars) {
            refuse(id, grammars.error());
          } else if (found != requests_.end()) {
            found->second.grammars = std::move(*grammars);
            const auto started = next ? start_response(id, record, std::move(*next), std::move(origin), request)
                                      : Expected<Unit>(std::unexpected(next.error()));
            if (!started) refuse(id, started.error());
          }
          if (lock) lock->release();
        }));
      }));
}

Expected<Unit> Router::start_response(RequestId id, const kv::RecordPtr& record, kv::SessionRecord next,
                                      std::optional<Origin> origin, const GenerateRequest& request) {
  const std::size_t known = tokens_count(*record);
  const std::size_t total = tokens_count(next);
  const std::size_t added = total > known ? total - known : 0;
  if (auto fits = check_record_fits(*requests_.at(id).use, next, added); !fits) return fits;
  if (!origin && record->is_of_responses && next.turns.size() < record->turns.size()) {
    // The turns cannot be found in the chain any more, but the responses that they are can still be asked for.
    const Session& session = *sessions_.find(record->id);
    kv::SessionRecord copy = forked_for_responses(*record, record->turns.size(), sessions_.new_id(), clock_.unix_s());
    next.id = copy.id;
    next.created_s = copy.created_s;
    origin = Origin{
        .record = std::make_shared<const kv::SessionRecord>(std::move(copy)), .lane = session.lane, .forked_from = record->id};
  }
  if (auto within = sessions_.check_quota(next.tenant, origin ? 1 : 0, origin ? total : added); !within) return within;
  if (origin) {
    const kv::RecordPtr begin = origin->record;
    sessions_.add(begin, origin->lane, std::move(origin->forked_from)).is_new = true;
    note_images(begin->id, kv::image_extras(*begin));
    requests_.at(id).session = next.id;
  }
  const SessionId session_id = next.id;
  Session& session = *sessions_.find(session_id);
  session.draft =
      std::make_unique<ResponseDraft>(ResponseDraft{.record = std::make_shared<const kv::SessionRecord>(std::move(next)),
                                                    .response = *request.response,
                                                    .created_s = clock_.unix_s()});
  auto started = try_start_session_task(id, session, request);
  if (!started) {
    session.draft.reset();
    if (session.is_new) sessions_.erase(session_id);
  }
  return started;
}

void Router::run_waiting_for_replies(const SessionId& id) {
  const auto found = waiting_for_reply_.find(id);
  if (found == waiting_for_reply_.end()) return;
  std::vector<WaitingForReply> waiting = std::move(found->second);
  waiting_for_reply_.erase(found);
  for (WaitingForReply& each : waiting) run_noting(each.then);
}

// Whether one more may wait for the reply that is being made in the session.
Expected<Unit> Router::check_waiting(const SessionId& id) const {
  const auto found = waiting_for_reply_.find(id);
  if (found == waiting_for_reply_.end() || found->second.size() < kWaitingForReplyMax) return Unit{};
  return fail(ErrorCode::limit_wait, std::format("{} requests wait for the reply that is being made in the conversation, which "
                                                 "are all that may: try again when it has ended",
                                                 kWaitingForReplyMax));
}

TimePoint Router::deadline_of(const Open& open) const {
  const std::int64_t deadline_ms = open.deadline_ms.value_or(options_.limits.deadline_ms);
  if (deadline_ms <= 0) return kNever;
  // Loading the model is not counted as waiting.
  const TimePoint begin = open.use.is_empty() ? open.received : std::max(open.received, open.use->loaded_at);
  return begin + std::chrono::milliseconds(deadline_ms);
}

Task Router::make_task(RequestId id, const Open& open, const GenerateOptions& options, std::vector<Token> tokens,
                       Droppable droppable) {
  Task task;
  task.id = id;
  const std::int32_t shortest = shortest_length(droppable, static_cast<std::int32_t>(tokens.size()));
  const std::int32_t room = open.use->shape().sequence_cells_max - shortest;
  task.tokens_max = std::min({options.max_tokens.value_or(kDefaultMaxTokens), options_.limits.max_tokens, room});
  task.tokens = std::move(tokens);
  task.droppable = std::move(droppable);
  task.sampling = options.sampling;
  task.seed = options.sampling.seed.value_or(random_.next_u64() >> 11);  // 53 bits: exact in every client's JSON numbers
  task.reply.stop = options.stop;
  if (open.grammars) {
    task.grammar = open.grammars->whole;
    task.reply.call_grammar = open.grammars->calls;
  }
  task.reply.logprobs = options.logprobs;
  task.reply.stream = options.stream;
  task.flow = open.flow;
  task.target_ttft_ms = options.target_ttft_ms;
  task.target_tbt_ms = options.target_tbt_ms;
  task.is_background = options.request_class == RequestClass::background;
  task.wants_progress = options.progress;
  task.received = open.received;
  task.deadline = deadline_of(open);
  task.timeout = open.timeout;
  task.sink = open.sinks.front();
  task.share = open.share;
  return task;
}

// How the reply to a chat is told.
void Router::read_reply(const ServedModel& served, Task& task, ChatOptions chat) {
  // All of it follows the client's own grammar: nothing is thought first.
  if (task.grammar && chat.tool_choice == ToolChoice::automatic) chat.splits_reasoning = false;
  task.reply.format = served.chat->reply_format(chat, task.tokens);
  if (!chat.tools.empty()) task.reply.call_seed = random_.next_u64();
}

void Router::send(Task task, Lane& lane) {
  Open& open = requests_.at(task.id);
  const auto has_queue = [](const Lane* each) { return each->stats().queue_depth.value() > 0; };
  if (std::ranges::all_of(open.use->lanes, has_queue)) source_.note_queue(open.use->name);
  const RequestId id = task.id;
  lane.stats().queue_depth.add(1);
  lane.post(StartCommand{std::move(task)});
  open.lane = &lane;
  ++lanes_open_[&lane];
  set_sent(id);
}

void Router::cancel(RequestId id, Reply<bool> reply) {
  if (const auto texts = texts_requests_.find(id); texts != texts_requests_.end()) {
    if (texts->second.lane != nullptr) {
      texts->second.lane->cancel(id);
    } else {
      end_texts(id, fail(ErrorCode::limit_wait, "the request was cancelled"));
    }
    return reply(true);
  }
  const auto found = requests_.find(id);
  if (found == requests_.end()) return reply(false);
  if (found->second.lane != nullptr) {
    found->second.lane->post(CancelCommand{id});
  } else {
    end_request(id, EosEvent{.reason = FinishReason::cancelled, .usage = {}, .text = {}, .error = std::nullopt});
  }
  reply(true);
}

void Router::cancel_session(const TenantId& tenant, const std::string& session, Reply<bool> reply) {
  const Session* found = sessions_.find(tenant, session);
  if (found == nullptr) return reply(false);
  const auto request =
      std::ranges::find_if(requests_, [&](const auto& entry) { return entry.second.session == found->summary.id; });
  if (request == requests_.end()) return reply(false);
  cancel(request->first, std::move(reply));
}

void Router::cancel_all() {
  while (!requests_.empty()) {
    end_request(requests_.begin()->first,
                EosEvent{.reason = FinishReason::cancelled, .usage = {}, .text = {}, .error = std::nullopt});
  }
  while (!texts_requests_.empty()) {
    end_texts(texts_requests_.begin()->first, fail(ErrorCode::limit_wait, "the daemon stops: the request was cancelled"));
  }
  models_.refuse_waiting({ErrorCode::limit_wait, "the daemon stops before the model is loaded"});
  while (!waiting_for_reply_.empty()) run_waiting_for_replies(SessionId(waiting_for_reply_.begin()->first));
  sessions_.refuse_ends({ErrorCode::limit_wait, "the daemon stops before the session has ended: end it again"});
}

// The record with the turn that has ended, and the response that it is.
kv::SessionRecord Router::finished_record(const kv::SessionRecord& record, const TaskResult& result,
                                          const ResponseDraft* draft) const {
  kv::SessionRecord next = with_turn(record,
                                     {.generated = result.generated,
                                      .dropped_turns = result.dropped_turns,
                                      .reply = result.reply,
                                      .reply_extra = result.reply_extra},
                                     clock_.unix_s());
  if (draft == nullptr) {
    next.is_of_responses = false;  // from now on it is somebody's conversation
  } else if (draft->response.is_kept) {
    const EosEvent& eos = std::get<EosEvent>(result.terminal);
    next.responses.push_back(std::make_shared<const ResponseRecord>(
        ResponseRecord{.turn = next.turns_dropped + static_cast<std::int32_t>(next.turns.size()) - 1,
                       .id = draft->response.id,
                       .request = draft->response.request,
                       .created_s = draft->created_s,
                       .reason = eos.reason,
                       .prompt_tokens = eos.usage.prompt_tokens,
                       .reused_tokens = eos.usage.reused_tokens,
                       .completion_tokens = eos.usage.completion_tokens,
                       .reasoning_tokens = eos.usage.reasoning_tokens}));
  }
  return next;
}

void Router::on_result(TaskResult result) {
  UMA_CHECK(requests_.contains(result.id));
  requests_.at(result.id).has_result = true;
  Session* session = result.session.empty() ? nullptr : sessions_.find(result.session);
  const std::unique_ptr<ResponseDraft> draft = session == nullptr ? nullptr : std::move(session->draft);
  const bool is_new = session != nullptr && session->is_new;
  const auto* eos = std::get_if<EosEvent>(&result.terminal);
  // A turn that the model ended at once is a turn; one that never came to its first token leaves its input pending.
  const bool is_turn = eos != nullptr && (!result.generated.empty() || eos->reason == FinishReason::stop);
  const SessionId id = result.session;
  if (session == nullptr || !is_turn || (is_new && !draft->response.is_kept)) {
    end_request(result.id, result.terminal);
    if (session == nullptr) return;
    if (is_new) {
      sessions_.erase(id);
    } else {
      sessions_.end_when_idle(*session);
    }
    return run_waiting_for_replies(id);
  }

  sessions_.touch(*session);
  SessionLock lock = sessions_.lock(*session);
  auto next = std::make_shared<const kv::SessionRecord>(
      finished_record(draft ? *draft->record : *session->record, result, draft.get()));
  const RequestId request = result.id;
  sessions_.commit(std::move(next), is_new ? nullptr : session->record,
                   of(request, [this, id, lock = std::move(lock), is_new, is_response = draft != nullptr,
                                result = std::move(result)](Expected<Unit> done) mutable {
                     if (!done) {
                       EosEvent eos_event = std::get<EosEvent>(std::move(result.terminal));
                       eos_event.reason = FinishReason::error;
                       const std::string_view rest = is_response ? "and is gone" : "its input is pending again";
                       eos_event.error = Error{
                           done.error().code, std::format("the reply could not be stored, {}: {}", rest, done.error().message)};
                       result.terminal = std::move(eos_event);
                     }
                     if (done) sessions_.find(id)->is_new = false;
                     end_request(result.id, result.terminal);
                     if (is_new && !done) {
                       lock.forget();
                       sessions_.erase(id);
                       return run_waiting_for_replies(id);
                     }
                     run_waiting_for_replies(id);
                     lock.release();
                   }));
}

void Router::check_invariants() const {
  sessions_.check_invariants();
  sessions_.for_each([this](const Session& session) {
    UMA_CHECK(session.running == RequestId{} || requests_.contains(session.running));
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
  for (const auto& [id, waiting] : waiting_for_reply_) {
    UMA_CHECK(!waiting.empty() && sessions_.find(id)->running != RequestId{});
    for (const WaitingForReply& each : waiting) UMA_CHECK(each.request == RequestId{} || requests_.contains(each.request));
  }
}

}  // namespace uma::engine
