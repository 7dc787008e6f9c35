#include "engine/router/session_commands.h"

#include <algorithm>
#include <format>
#include <utility>
#include <vector>

#include "core/metadata.h"
#include "engine/router/adapter_choice.h"
#include "engine/session/portable_session.h"
#include "engine/session/record_edits.h"
#include "engine/session/record_input.h"
#include "wire/own/cache_diagnostics.h"

namespace uma::engine {
namespace {

// The record of a new session, before its first input.
kv::SessionRecord first_record(SessionId id, TenantId tenant, const CreateSessionRequest& request, const ServedModel& served,
                               std::int64_t now_s) {
  kv::SessionRecord record;
  record.id = std::move(id);
  record.tenant = std::move(tenant);
  record.name = request.name;
  record.model = served.name;
  record.mode = request.mode;
  if (record.mode == SessionMode::automatic && !served.model->facts().chat_template.empty()) record.mode = SessionMode::chat;
  if (record.mode == SessionMode::automatic && !request.system.empty()) record.mode = SessionMode::text;
  record.is_public = request.is_public;
  record.is_ephemeral = request.is_ephemeral;
  record.ttl_s = request.ttl_s;
  record.on_full = request.on_full;
  record.n_keep = request.n_keep;
  record.created_s = now_s;
  record.last_used_s = now_s;
  record.metadata = request.metadata;
  const bool begins_empty = request.messages.empty() && request.takes_default_system;
  const std::string& system = request.system.empty() && begins_empty ? served.defaults.system : request.system;
  if (record.mode == SessionMode::chat && !system.empty()) record.pending_messages = {{"system", system}};
  return record;
}

// The record with its turns 0 to `turn`, without pending input. Errors: E_PROTO_003 if it does not have this turn.
Expected<kv::SessionRecord> with_turns_to(const kv::SessionRecord& record, std::int32_t turn, std::int64_t now_s) {
  const std::int32_t dropped = record.turns_dropped;
  const std::int32_t turns = dropped + static_cast<std::int32_t>(record.turns.size());
  if (turn >= 0 && turn < dropped) {
    return fail(ErrorCode::proto_field,
                std::format("field \"turn\" is {}, but turns 0 to {} were dropped when the context was full: the session "
                            "has turns {} to {}",
                            turn, dropped - 1, dropped, turns - 1));
  }
  if (turn < 0 || turn >= turns) {
    return fail(ErrorCode::proto_field,
                std::format("field \"turn\" is {}, the session has turns {} to {}", turn, dropped, turns - 1));
  }
  return rewound(record, static_cast<std::size_t>(turn - dropped) + 1, now_s);
}

// The part of the record that a fork behind `turn` has (ForkRequest::turn). Errors: E_PROTO_003.
Expected<kv::SessionRecord> beginning_of(const kv::SessionRecord& record, std::optional<std::int32_t> turn,
                                         std::int64_t now_s) {
  if (!turn) return record;
  if (*turn != ForkRequest::kSystemOnly) return with_turns_to(record, *turn, now_s);
  if (record.mode != SessionMode::text) return with_system_only(record, now_s);
  return fail(ErrorCode::proto_field,
              "field \"turn\" is -1, but the session has mode text, which has no system message: create a new session");
}

// Checks that changes have not made too many pairs.
Expected<Unit> check_metadata(const std::string& metadata) {
  if (metadata_pairs(metadata)) return Unit{};
  return std::unexpected(Error{
      ErrorCode::proto_field,
      std::format("field \"metadata\": the session would have more than {} pairs: remove some with null", kMetadataPairsMax),
      "metadata"});
}

}  // namespace

Error unknown_response(const std::string& response) {
  return {ErrorCode::session_unknown,
          std::format("no response \"{}\": it was never created, was not stored, or was deleted", response)};
}

// --- Making and changing sessions

Task<Expected<SessionInfo>> SessionCommands::create(TenantId tenant, CreateSessionRequest request) {
  auto lease = co_await parts_.models.lease_chat(request.model);
  if (!lease) co_return lease.error();
  const ServedModel& served = **lease;
  const std::size_t bytes_max = parts_.limits.max_prompt_bytes;
  if (request.system.size() > bytes_max) {
    co_return Error{ErrorCode::limit_prompt,
                    std::format("field \"system\" has {} bytes, the limit is {}", request.system.size(), bytes_max)};
  }
  // The system text of a conversation is tokenized with its first message.
  const bool is_chat = request.mode == SessionMode::chat;
  if (auto may = is_chat ? check_may_fit(served, {}, request.system) : Unit{}; !may) co_return may.error();
  if (request.n_keep >= served.shape().sequence_cells_max) {
    co_return Error{ErrorCode::proto_field, std::format("field \"n_keep\" is {}, the context is {} tokens", request.n_keep,
                                                        served.shape().sequence_cells_max)};
  }
  if (!named_adapter(source_, served.name, request.model).empty()) {
    co_return Error{ErrorCode::proto_field,
                    "field \"model\" names an adapter, which a session does not keep: choose it for each reply, with \"lora\""};
  }
  kv::SessionRecord record = first_record(parts_.sessions.new_id(), tenant, request, served, parts_.clock.unix_s());
  Input input{.text = {}, .messages = std::move(request.messages)};
  // In a text session the system text is the beginning of the text.
  if (record.mode != SessionMode::chat) input.text = std::move(request.system);
  input.parses_special = request.parses_special;
  if (!input.empty()) {
    const std::size_t bytes = input.bytes();
    if (bytes > bytes_max) {
      co_return Error{ErrorCode::limit_prompt,
                      std::format("the session begins with {} bytes, limits.max_prompt_bytes is {}", bytes, bytes_max)};
    }
    if (auto may = check_may_fit(served, input); !may) co_return may.error();
    auto begun = co_await parts_.work.run(parts_.tasks, tenant, bytes,
                                          [lease = lease->share(), record = std::move(record), input = std::move(input)] {
                                            return append_to_record(*lease->chat, record, input);
                                          });
    if (!begun) co_return begun.error();
    record = std::move(*begun);
    if (auto fits = check_fits(served, 0, record.pending.size()); !fits) co_return fits.error();
    if (auto may = check_source(served, record); !may) co_return may.error();
    if (record.mode == SessionMode::text) {
      record.head_tokens = static_cast<std::int32_t>(record.pending.size());
      if (record.on_full == OnFull::shift) record.n_keep = std::max(record.n_keep, record.head_tokens);
    }
  }
  co_return co_await add(std::move(record), parts_.access.least_loaded_lane(served));
}

Expected<Unit> SessionCommands::check_name(const TenantId& tenant, const std::string& name) const {
  if (name.empty() || parts_.sessions.find(tenant, name) == nullptr) return Unit{};
  return std::unexpected(
      Error{ErrorCode::session_name_taken, std::format("field \"name\": a session \"{}\" exists already", name), "name"});
}

Task<Expected<SessionInfo>> SessionCommands::add(kv::SessionRecord record, std::size_t lane) {
  if (auto may = parts_.sessions.check_quota(record.tenant, stored_of(record)); !may) co_return may.error();
  if (auto may = check_name(record.tenant, record.name); !may) co_return may.error();
  const SessionLock lock = parts_.sessions.add(std::move(record), lane);
  if (auto done = co_await parts_.sessions.commit(*lock, lock->record); !done) co_return done.error();
  co_return parts_.access.info_of(*lock);
}

Task<Expected<SessionInfo>> SessionCommands::commit(SessionLock lock, kv::SessionRecord next) {
  if (auto done = co_await parts_.sessions.commit(*lock, std::move(next)); !done) co_return done.error();
  co_return parts_.access.info_of(*lock);
}

Task<Expected<SessionInfo>> SessionCommands::append(TenantId tenant, AppendRequest request) {
  auto lease = co_await parts_.access.lease_model(tenant, request.session);
  if (!lease) co_return lease.error();
  // A busy session is refused before images are read.
  if (const Session* found = parts_.sessions.find(tenant, request.session); found != nullptr && found->is_running()) {
    co_return busy_session(request.session);
  }
  ImageHold images;
  (void)leave_out_unseen((*lease)->image_encoder.get(), request.input);
  if (!request.input.images.empty()) {
    auto held = co_await parts_.images.read(**lease, request.input, {.tenant = tenant, .keeps = true, .share = request.share});
    if (!held) co_return held.error();
    images = std::move(*held);
  }
  auto lock = co_await parts_.access.lock_unless_running(tenant, request.session);
  if (!lock) co_return lock.error();
  Session& session = **lock;
  if (auto known = check_model(**lease, *session.record); !known) co_return known.error();
  const std::size_t bytes = request.input.bytes();
  if (bytes > parts_.limits.max_prompt_bytes) {
    co_return Error{ErrorCode::limit_prompt, std::format("prompt is too long: {} bytes > {} maximum (limits.max_prompt_bytes)",
                                                         bytes, parts_.limits.max_prompt_bytes)};
  }
  if (auto may = check_may_fit(**lease, request.input); !may) co_return may.error();
  parts_.sessions.touch(session);
  auto next = co_await parts_.work.run(parts_.tasks, tenant, bytes,
                                       [lease = lease->share(), record = session.record, input = std::move(request.input)] {
                                         return append_to_record(*lease->chat, *record, input);
                                       });
  if (!next) co_return next.error();
  if (auto may = parts_.access.check_next(**lease, *session.record, *next); !may) co_return may.error();
  next->last_used_s = parts_.clock.unix_s();
  session.is_rewritten = session.is_rewritten || is_rewritten(*session.record, *next);
  co_return co_await commit(std::move(*lock), std::move(*next));
}

Task<Expected<SessionInfo>> SessionCommands::fork(TenantId tenant, ForkRequest request) {
  auto lock = co_await parts_.sessions.lock(tenant, request.session);
  if (!lock) co_return lock.error();
  const std::size_t lane = (*lock)->lane;
  auto beginning = beginning_of(*(*lock)->record, request.turn, parts_.clock.unix_s());
  if (!beginning) co_return beginning.error();
  lock->release();
  kv::SessionRecord copy = forked(*beginning, parts_.sessions.new_id(), std::move(request.name), parts_.clock.unix_s());
  copy.metadata = changed_metadata(copy.metadata, request.metadata);
  if (auto may = check_metadata(copy.metadata); !may) co_return may.error();
  co_return co_await add(std::move(copy), lane);
}

Task<Expected<SessionInfo>> SessionCommands::rewind(TenantId tenant, std::string name, std::int32_t turn) {
  auto lock = co_await parts_.access.lock_unless_running(tenant, name);
  if (!lock) co_return lock.error();
  Session& session = **lock;
  auto next = with_turns_to(*session.record, turn, parts_.clock.unix_s());
  if (!next) co_return next.error();
  parts_.sessions.touch(session);
  co_return co_await commit(std::move(*lock), std::move(*next));
}

Task<Expected<SessionInfo>> SessionCommands::touch(TenantId tenant, std::string name) {
  if (Session* found = parts_.sessions.find(tenant, name)) {
    parts_.sessions.touch(*found);
    // The client announces that it will use the session soon.
    const Tier tier = parts_.access.info_of(*found).tier;
    if (tier == Tier::cold || tier == Tier::shared) parts_.store.prefetch(found->summary.id);
  }
  auto lock = co_await parts_.sessions.lock(tenant, name);
  if (!lock) co_return lock.error();
  // The running turn will be committed, and the time with it.
  if ((*lock)->is_running()) co_return parts_.access.info_of(**lock);
  kv::SessionRecord next = *(*lock)->record;
  next.last_used_s = parts_.clock.unix_s();
  co_return co_await commit(std::move(*lock), std::move(next));
}

Task<Expected<SessionInfo>> SessionCommands::update(TenantId tenant, UpdateSessionRequest request) {
  auto lock = co_await parts_.sessions.lock(tenant, request.session);
  if (lock && (*lock)->is_new) {
    // Its reply decides whether the session stays.
    lock->release();
    lock = co_await parts_.sessions.lock_idle(tenant, request.session);
  }
  if (!lock) co_return lock.error();
  kv::SessionRecord next = *(*lock)->record;
  next.metadata = changed_metadata(request.replaces_metadata ? "" : next.metadata, request.metadata);
  if (auto may = check_metadata(next.metadata); !may) co_return may.error();
  if (request.name && *request.name != next.name) {
    if (auto may = check_name(tenant, *request.name); !may) co_return may.error();
    next.name = std::move(*request.name);
  }
  co_return co_await commit(std::move(*lock), std::move(next));
}

Task<Expected<SessionDetail>> SessionCommands::remove_last_message(TenantId tenant, std::string name, MessagePosition place) {
  auto lease = co_await parts_.access.lease_model(tenant, name);
  if (!lease) co_return lease.error();
  auto lock = co_await parts_.sessions.lock_idle(tenant, name);
  if (!lock) co_return lock.error();
  Session& session = **lock;
  const kv::SessionRecord& record = *session.record;
  if (auto known = check_model(**lease, record); !known) co_return known.error();
  if (last_message_position(record) != place) {
    co_return Error{ErrorCode::proto_field, "only the last message of a conversation can be removed"};
  }
  parts_.sessions.touch(session);
  auto next = co_await parts_.work.run(parts_.tasks, tenant, kv::stored_bytes(record),
                                       [lease = lease->share(), whole = session.record, now_s = parts_.clock.unix_s()] {
                                         const auto without_turn = rewound(*whole, whole->turns.size() - 1, now_s);
                                         return without_last_message(*lease->chat, *whole, without_turn);
                                       });
  if (!next) co_return next.error();
  next->last_used_s = parts_.clock.unix_s();
  if (auto done = co_await parts_.sessions.commit(session, std::move(*next)); !done) co_return done.error();
  co_return co_await detail_apart(parts_.access.info_of(session), session.record, lease->share(), nullptr);
}

// --- Reading sessions

Task<Expected<SessionDetail>> SessionCommands::get(TenantId tenant, std::string name, RequestShare share) {
  if (auto learnt = co_await parts_.sessions.learn(tenant, name); !learnt) co_return learnt.error();
  const Session* found = parts_.sessions.find(tenant, name);
  if (found == nullptr) co_return unknown_session(name);
  ModelLease lease;
  // The text of a text session is only in its tokens, which need the model.
  if (found->summary.mode != SessionMode::chat) {
    auto leased = co_await parts_.access.lease_model(tenant, name);
    if (!leased) co_return leased.error();
    lease = std::move(*leased);
  }
  auto lock = co_await parts_.sessions.lock(tenant, name);
  if (!lock) co_return lock.error();
  kv::RecordPtr record = (*lock)->record;
  SessionInfo info = parts_.access.info_of(**lock);
  lock->release();  // The copy may wait, and nobody is to wait for it.
  if (record->mode == SessionMode::chat)
    co_return co_await detail_apart(std::move(info), std::move(record), {}, std::move(share));
  if (lease.is_empty()) {
    co_return Error{
        ErrorCode::session_busy,
        std::format("session \"{}\" got its name while the request waited for a chat of that name: try again", name)};
  }
  if (auto known = check_model(*lease, *record); !known) co_return known.error();
  co_return co_await detail_apart(std::move(info), std::move(record), lease.share(), std::move(share));
}

// Copies a record's texts outside of the router's thread. `lease`: of the session's model, for the texts of text mode.
Task<Expected<SessionDetail>> SessionCommands::detail_apart(SessionInfo info, kv::RecordPtr record, ModelLease lease,
                                                            RequestShare share) {
  const std::size_t bytes = kv::stored_bytes(*record);
  // Many may be asked for at once, and each waits for its turn to be written.
  if (auto may = share ? share->grow(bytes) : Unit{}; !may) co_return may.error();
  const TenantId tenant = record->tenant;
  co_return co_await parts_.work.run(parts_.tasks, tenant, bytes,
                                     [info = std::move(info), record = std::move(record), lease = std::move(lease),
                                      share = std::move(share)]() mutable -> Expected<SessionDetail> {
                                       SessionDetail detail = detail_of(std::move(info), *record);
                                       detail.share = std::move(share);
                                       if (record->mode == SessionMode::chat) return detail;
                                       const llm::Vocab& vocab = lease->model->vocab();
                                       detail.text = text_of(vocab, record->chain);
                                       detail.pending_text = text_of(vocab, record->pending);
                                       return detail;
                                     });
}

Task<Expected<std::vector<TurnReceipt>>> SessionCommands::list_receipts(TenantId tenant, std::string name) {
  auto lock = co_await parts_.sessions.lock(std::move(tenant), std::move(name));
  if (!lock) co_return lock.error();
  const kv::SessionRecord& record = *(*lock)->record;
  std::vector<TurnReceipt> receipts;
  for (std::size_t i = 0; i < record.turns.size(); ++i) {
    const ReceiptPtr& receipt = record.turns[i].receipt;
    if (receipt != nullptr) receipts.push_back({record.turns_dropped + static_cast<std::int32_t>(i), receipt});
  }
  co_return receipts;
}

Task<Expected<Usage>> SessionCommands::find_receipt(TenantId tenant, std::string name) {
  const Session* session = parts_.sessions.find(tenant, name);
  const Usage* usage = parts_.prompts.find(tenant, session == nullptr ? wire::reply_name(name) : session->summary.id.value);
  if (usage == nullptr) {
    co_return Error{ErrorCode::session_unknown,
                    name.empty() ? "there was no reply since the start"
                                 : std::format("no reply \"{}\" is known: it is too old, or another tenant's", name)};
  }
  co_return *usage;
}

Task<Expected<SessionList>> SessionCommands::list(TenantId tenant, SessionListRequest request) {
  auto after = position_after(tenant, request);
  if (!after && after.error().code == ErrorCode::session_unknown) {
    if (auto learnt = co_await parts_.sessions.learn(tenant, request.after); !learnt) co_return learnt.error();
    after = position_after(tenant, request);
  }
  if (!after) co_return after.error();
  const SessionSearch search(request.query);
  SessionList list;
  std::size_t searched = 0;
  std::size_t searched_bytes = 0;
  std::size_t metadata_bytes = 0;
  std::optional<ListPosition> last = *after;
  bool is_full = false;
  const auto visit = [&](const Session& session) {
    if (!search.is_empty()) {
      is_full = searched == kPageSearchedMax || searched_bytes > kPageSearchedBytesMax;
      if (is_full) return false;
      ++searched;
      searched_bytes += session.summary.name.size() + session.summary.metadata.size();
    }
    if (search.matches(session.summary)) {
      is_full = std::ssize(list.sessions) == request.limit || metadata_bytes > kPageMetadataBytesMax;
      if (is_full) return false;
      metadata_bytes += session.summary.metadata.size();
      list.sessions.push_back(parts_.access.listed_info_of(session));
    }
    last = position_of(session.summary, request.order);
    return true;
  };
  // In steps, between which others' requests have their turn.
  for (bool has_more = true; has_more && !is_full;) {
    std::size_t visited = 0;
    has_more = parts_.sessions.for_each_of(
        tenant, request.order, last, [&](const Session& session) { return visited++ < kSessionsPerStep && visit(session); });
    list.has_more = has_more;
    if (has_more && !is_full) (void)co_await parts_.tasks.yield();
  }
  if (list.has_more && last) list.next = position_text(*last);
  co_return list;
}

// The position behind which the list begins; nullopt: from the beginning.
Expected<std::optional<ListPosition>> SessionCommands::position_after(const TenantId& tenant,
                                                                      const SessionListRequest& request) const {
  if (request.after.empty()) return std::nullopt;
  // An id takes precedence over an equal name.
  const Session* after = parts_.sessions.find(SessionId{request.after});
  if (after == nullptr || after->summary.tenant != tenant) after = parts_.sessions.find(tenant, request.after);
  if (after != nullptr) return position_of(after->summary, request.order);
  auto position = parse_position(request.after);
  if (!position) return std::unexpected(unknown_session(request.after));
  return position;
}

// --- Ending sessions

Task<Expected<Unit>> SessionCommands::end(TenantId tenant, std::string name) {
  bool has_ended = false;  // A session of that name has, which this daemon does not know to have been stored.
  while (true) {
    const auto learnt = co_await parts_.sessions.learn(tenant, name);
    const bool is_unknown =
        learnt ? parts_.sessions.find(tenant, name) == nullptr : learnt.error().code == ErrorCode::session_unknown;
    if (is_unknown) co_return has_ended ? Expected<Unit>() : std::unexpected(unknown_session(name));
    if (!learnt) co_return learnt.error();
    Session* session = parts_.sessions.find(tenant, name);
    const bool has_name = session->summary.name == name || session->summary.id.value == name;
    if (session->is_locked && !has_name) {
      // It is being renamed to this, which may fail: then the name is another session's, or nobody's.
      const auto renamed = co_await parts_.sessions.lock(tenant, name);
      if (!renamed && renamed.error().code != ErrorCode::session_unknown) co_return renamed.error();
      continue;
    }
    std::vector<RequestId> requests;
    parts_.in_flight.for_each([&](const InFlight& request) {
      if (request.session == session->summary.id) requests.push_back(request.id);
    });
    for (const RequestId id : requests) (void)parts_.in_flight.cancel(id);
    // A session that a request had begun may have ended with that request.
    session = parts_.sessions.find(tenant, name);
    if (session != nullptr) {
      auto done = co_await end_idle(*session);
      if (done || done.error().code != ErrorCode::session_unknown) co_return done;
    }
    has_ended = true;
  }
}

// Ends the session as soon as it is idle.
Task<Expected<Unit>> SessionCommands::end_idle(Session& session) {
  co_return co_await parts_.tasks.ask<Unit>([&](Promise<Unit> reply) { parts_.sessions.end(session, std::move(reply)); });
}

// --- Responses

Task<Expected<ResponseDetail>> SessionCommands::get_response(TenantId tenant, std::string session, std::string response,
                                                             RequestShare share) {
  const auto learnt = co_await parts_.sessions.learn(tenant, session);
  if (!learnt && learnt.error().code != ErrorCode::session_unknown) co_return learnt.error();
  if (parts_.sessions.find(tenant, session) == nullptr) co_return unknown_response(response);
  auto lock = co_await parts_.sessions.lock(tenant, session);
  if (!lock) co_return lock.error();
  const kv::RecordPtr record = (*lock)->record;
  ResponsePtr kept = find_response(*record, response);
  if (kept == nullptr) co_return unknown_response(response);
  const auto bytes = static_cast<std::size_t>((*lock)->summary.bytes_stored);
  SessionInfo info = parts_.access.info_of(**lock);
  lock->release();
  if (auto may = share ? share->grow(bytes) : Unit{}; !may) co_return may.error();
  co_return co_await parts_.work.run(
      parts_.tasks, std::move(tenant), bytes,
      [info = std::move(info), record, kept = std::move(kept), share = std::move(share),
       now_s = parts_.clock.unix_s()]() mutable -> Expected<ResponseDetail> {
        const kv::SessionRecord until = rewound(*record, turns_through(*record, *kept), now_s);
        // A reply that was continued without input has the receipt of its continuation.
        ReceiptPtr receipt = until.turns.back().receipt;
        if (receipt != nullptr && (receipt->usage.prompt_tokens != kept->prompt_tokens ||
                                   receipt->usage.completion_tokens != kept->completion_tokens)) {
          receipt = nullptr;
        }
        SessionDetail detail = detail_of(std::move(info), until);
        detail.share = std::move(share);
        return ResponseDetail{.session = std::move(detail), .response = std::move(kept), .receipt = std::move(receipt)};
      });
}

Task<Expected<ResponseDetail>> SessionCommands::cancel_response(TenantId tenant, std::string session, std::string response) {
  Session* found = parts_.sessions.find(tenant, session);
  if (found != nullptr && found->is_running() && found->run->response == response) {
    (void)parts_.in_flight.cancel(found->run->request);
    if (auto idle = co_await parts_.sessions.until_idle(*found); !idle) co_return idle.error();
  }
  co_return co_await get_response(std::move(tenant), std::move(session), std::move(response));
}

Task<Expected<Unit>> SessionCommands::forget_response(TenantId tenant, std::string session, std::string response) {
  const auto learnt = co_await parts_.sessions.learn(tenant, session);
  if (!learnt && learnt.error().code != ErrorCode::session_unknown) co_return learnt.error();
  if (parts_.sessions.find(tenant, session) == nullptr) co_return unknown_response(response);
  auto lock = co_await parts_.sessions.lock(tenant, session);
  if (!lock) co_return lock.error();
  if (find_response(*(*lock)->record, response) == nullptr) co_return unknown_response(response);
  if ((*lock)->is_running()) {
    lock->release();
    lock = co_await parts_.sessions.lock_idle(tenant, session);
    if (!lock) co_return lock.error();
    if (find_response(*(*lock)->record, response) == nullptr) co_return unknown_response(response);
  }
  const kv::SessionRecord& record = *(*lock)->record;
  if (record.is_of_responses && record.responses.size() == 1) {
    // Under the lock, since a request that waits for it could continue the response otherwise, in a session that then ends.
    co_return co_await parts_.tasks.ask<Unit>([&](Promise<Unit> reply) {
      parts_.sessions.end(**lock, std::move(reply));
      lock->release();
    });
  }
  auto changed = co_await commit(std::move(*lock), without_response(record, response, parts_.clock.unix_s()));
  if (!changed) co_return changed.error();
  co_return Unit{};
}

}  // namespace uma::engine
