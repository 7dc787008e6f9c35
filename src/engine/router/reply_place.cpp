#include "engine/router/reply_place.h"

#include <algorithm>
#include <format>
#include <memory>
#include <utility>

#include "engine/router/session_commands.h"
#include "engine/session/record_edits.h"

namespace uma::engine {
namespace {

bool has_turns(const kv::SessionRecord& record) {
  return !record.turns.empty() || record.turns_dropped > 0;
}

// Checks that a session with this record can make the requested reply. Errors: E_PROTO_003.
Expected<Unit> check_call(const kv::SessionRecord& record, const GenerateRequest& call) {
  if (call.regenerate && record.turns.empty()) return fail(ErrorCode::proto_field, "the session has no reply to regenerate");
  if (call.regenerate && !record.pending.empty()) {
    return fail(ErrorCode::proto_field, "the session has pending input: generate a reply to it, or rewind the session first");
  }
  if (!call.regenerate && call.input.empty() && !call.options.chat.tools.empty() && record.pending_messages.empty()) {
    return fail(ErrorCode::proto_field,
                "field \"tools\" needs chat input, and the session has no pending messages: send \"messages\" too");
  }
  return Unit{};
}

// Checks that a response can continue the conversation of this record. Errors: E_PROTO_003.
Expected<Unit> check_response(const kv::SessionRecord& record, const GenerateRequest& call) {
  if (call.regenerate) return check_call(record, call);
  const auto waits = [](const ChatMessage& message) { return message.role != "system"; };
  if (!call.input.empty() || std::ranges::any_of(record.pending_messages, waits)) return Unit{};
  return std::unexpected(
      Error{ErrorCode::proto_field, "field \"input\" is required: no input of the conversation waits for a reply", "input"});
}

}  // namespace

bool has_turns(const kv::SessionSummary& summary) {
  return summary.turns_count > 0 || summary.turns_dropped > 0;
}

Error other_model(const std::string& asked, const std::string& own) {
  return {
      ErrorCode::proto_field,
      std::format("field \"model\" is \"{}\", but the session uses model \"{}\": leave the field out, or continue a response "
                  "of it with previous_response_id",
                  asked, own),
      "model"};
}

Error unknown_session_of(const GenerateRequest& call) {
  const bool continues = call.response && !call.response->previous.empty();
  return continues ? unknown_response(call.response->previous) : unknown_session(call.session);
}

Task<Expected<ReplyPlace>> ReplyPlaces::find(InFlight& request, const TenantId& tenant, const GenerateRequest& call) {
  return call.response ? find_for_response(request, tenant, call) : find_in_session(request, tenant, call);
}

Task<Expected<ReplyPlace>> ReplyPlaces::find_in_session(InFlight& request, const TenantId& tenant,
                                                        const GenerateRequest& call) {
  if (const Session* found = parts_.sessions.find(tenant, call.session); found != nullptr && !found->is_running()) {
    request.session = found->summary.id;
  }
  auto lock = co_await parts_.access.lock_unless_running(tenant, call.session);
  if (!lock) co_return lock.error();
  Session& session = **lock;
  request.session = session.summary.id;  // The name may be another session's by now.
  if (auto known = check_model(*request.lease, *session.record); !known) co_return known.error();
  if (auto may = check_call(*session.record, call); !may) co_return may.error();
  parts_.sessions.touch(session);
  co_return ReplyPlace{.lock = std::move(*lock), .record = session.record};
}

// Finds the session of a response, which begins a session, continues a conversation after the replies in progress, or continues
// another response: in the session of that response if it is the last turn there, else in a fork.
Task<Expected<ReplyPlace>> ReplyPlaces::find_for_response(InFlight& request, const TenantId& tenant,
                                                          const GenerateRequest& call) {
  const ResponseRequest& response = *call.response;
  if (call.session.empty()) co_return create(tenant, *request.lease, response);
  const bool is_conversation = response.previous.empty();
  if (const Session* found = parts_.sessions.find(tenant, call.session); found != nullptr && is_conversation) {
    request.session = found->summary.id;
    if (found->is_running()) parts_.in_flight.set_deadline(request);
  }
  auto locking = is_conversation ? parts_.sessions.lock_idle(tenant, call.session) : parts_.sessions.lock(tenant, call.session);
  auto lock = co_await std::move(locking);
  request.deadline = kNever;
  if (!lock) co_return lock.error().code == ErrorCode::session_unknown ? unknown_session_of(call) : lock.error();
  Session& session = **lock;
  const kv::SessionRecord& record = *session.record;
  const bool is_of_other = record.model != request.lease->name;
  if (auto known = is_of_other ? Expected<Unit>() : check_model(*request.lease, record); !known) co_return known.error();
  if (is_conversation) {
    if (auto may = check_response(record, call); !may) co_return may.error();
    // It may have got a turn while this request waited.
    if (is_of_other && has_turns(record)) co_return other_model(call.model, record.model);
  } else {
    const ResponsePtr continued = find_response(record, response.previous);
    if (continued == nullptr) co_return unknown_response(response.previous);
    const std::size_t turns = turns_through(record, *continued);
    if (is_of_other) {
      ReplyPlace place = fork(session, record, turns, response);
      place.record = std::make_shared<const kv::SessionRecord>(for_other_model(*place.record, request.lease->name));
      place.lane = parts_.access.least_loaded_lane(*request.lease);
      co_return std::move(place);
    }
    const bool goes_on_here = record.is_of_responses && turns == record.turns.size() && record.pending_messages.empty() &&
                              !session.is_running() && response.is_kept;
    if (!goes_on_here) co_return fork(session, record, turns, response);
    request.session = session.summary.id;
  }
  parts_.sessions.touch(session);
  auto here =
      is_of_other ? std::make_shared<const kv::SessionRecord>(for_other_model(record, request.lease->name)) : session.record;
  co_return ReplyPlace{.lock = std::move(*lock), .record = std::move(here)};
}

ReplyPlace ReplyPlaces::create(const TenantId& tenant, const ServedModel& served, const ResponseRequest& response) {
  kv::SessionRecord record;
  record.id = parts_.sessions.new_id();
  record.tenant = tenant;
  record.model = served.name;
  record.mode = SessionMode::chat;
  record.is_of_responses = true;
  record.is_ephemeral = !response.is_kept;
  record.ttl_s = response.ttl_s;
  record.created_s = parts_.clock.unix_s();
  record.last_used_s = record.created_s;
  return {.lock = {},
          .record = std::make_shared<const kv::SessionRecord>(std::move(record)),
          .lane = parts_.access.least_loaded_lane(served)};
}

ReplyPlace ReplyPlaces::fork(const Session& session, const kv::SessionRecord& record, std::size_t turns,
                             const ResponseRequest& response) {
  kv::SessionRecord copy = forked_for_responses(record, turns, parts_.sessions.new_id(), parts_.clock.unix_s());
  copy.ttl_s = response.ttl_s;
  copy.is_ephemeral = !response.is_kept;
  return {.lock = {}, .record = std::make_shared<const kv::SessionRecord>(std::move(copy)), .lane = session.lane};
}

}  // namespace uma::engine
