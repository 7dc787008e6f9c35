#include "engine/router/session_access.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <utility>

#include "engine/session/context_shift.h"
#include "engine/session/record_edits.h"
#include "llm/media/image_tokens.h"

namespace uma::engine {

Error busy_session(const std::string& session) {
  return {ErrorCode::session_busy, std::format("session \"{}\" is generating: wait for its eos, or cancel it", session)};
}

namespace {

// Coding agents recognise this text, each by another part of it, and shorten their history. At least one token is left for the
// reply.
std::string too_long(std::size_t tokens, std::size_t context) {
  return std::format(
      "prompt is too long: {} tokens > {} maximum. This model's maximum context length is {} tokens; the request exceeds the "
      "available context size",
      tokens, context - 1, context);
}

// Advice for a conversation with more tokens than the context's: it depends on what limits them.
std::string remedy(const ServedModel& served) {
  const llm::ContextShape& shape = served.shape();
  const std::int64_t trained = shape.rope_tokens > 0 ? shape.rope_tokens : served.model->facts().train_tokens;
  if (trained > 0 && shape.sequence_cells_max >= trained) {
    return std::format("Shorten the prompt: the model {} {} tokens",
                       shape.rope_tokens > 0 ? "with its rope settings supports" : "was trained for", trained);
  }
  if (shape.sequence_cells_max >= shape.cells) {
    return std::format("Shorten the prompt, or give umad more than {} KV cells: --kv-cells and --n-ctx, if the memory suffices",
                       shape.cells);
  }
  return "Shorten the prompt, or start umad with a larger --n-ctx";
}

}  // namespace

Expected<Unit> check_may_fit(const ServedModel& served, const Input& input, std::string_view system) {
  const auto context = static_cast<std::size_t>(served.shape().sequence_cells_max);
  if (input.messages.size() >= context) {
    return fail(ErrorCode::limit_prompt, too_long(input.messages.size(), context) + ", counted as one for each message");
  }
  std::size_t bytes = system.size() + input.text.size() + (input.infill ? input.infill->bytes() : 0);
  for (const ChatMessage& message : input.messages) bytes += message.content.size();
  if (bytes < context) return Unit{};  // No token is shorter than a byte.
  const std::size_t least = bytes / served.model->vocab().token_bytes_max(input.parses_special);
  if (least < context) return Unit{};
  return fail(ErrorCode::limit_prompt, too_long(least, context) + ", counted as the fewest that its bytes can be");
}

Expected<Unit> check_fits(const ServedModel& served, std::size_t known, std::size_t added) {
  const auto context = static_cast<std::size_t>(served.shape().sequence_cells_max);
  if (added + 1 > context) {
    return fail(ErrorCode::limit_prompt, std::format("{}. {}", too_long(added, context), remedy(served)));
  }
  if (known + added + 1 > context) {
    return fail(ErrorCode::limit_context,
                std::format("{}: the session has {} tokens and the input {}. Rewind the session or start a new one",
                            too_long(known + added, context), known, added));
  }
  return Unit{};
}

Expected<Unit> check_record_fits(const ServedModel& served, const kv::SessionRecord& record, std::size_t added) {
  const std::size_t total = record.chain.size() + record.pending.size();
  const auto shortest = shortest_length(droppable_of(record), static_cast<std::int32_t>(total));
  const std::size_t stays = static_cast<std::size_t>(shortest) - added;
  auto fits = check_fits(served, stays, added);
  if (!fits && fits.error().code == ErrorCode::limit_context && record.on_full == OnFull::shift) {
    fits.error().message =
        std::format("{}: the session must keep {} tokens when old turns are dropped, and the input has {}. Shorten it",
                    too_long(stays + added, static_cast<std::size_t>(served.shape().sequence_cells_max)), stays, added);
  }
  return fits;
}

std::size_t source_bytes_max(const ServedModel& served) {
  constexpr std::size_t kBeside = 64 << 10;  // A template may leave out so much, even in a small context.
  const auto context = static_cast<std::size_t>(served.shape().sequence_cells_max);
  const std::size_t token_bytes = served.model->vocab().token_bytes_max(true);
  return token_bytes > (SIZE_MAX - kBeside) / context ? SIZE_MAX : context * token_bytes + kBeside;
}

Expected<Unit> check_source(const ServedModel& served, const kv::SessionRecord& record) {
  const std::size_t bytes = kv::source_bytes(record);
  const std::size_t bytes_max = source_bytes_max(served);
  if (bytes <= bytes_max) return Unit{};
  return fail(ErrorCode::limit_prompt,
              std::format("the session would have {} bytes of messages, tools and template arguments, and its context is worth "
                          "{} at most: shorten it, or begin another session",
                          bytes, bytes_max));
}

Expected<Unit> check_model(const ServedModel& served, const kv::SessionRecord& record) {
  const std::string& shown = record.name.empty() ? record.id.value : record.name;
  if (record.model != served.name) {
    return fail(ErrorCode::session_busy,
                std::format("session \"{}\" uses model \"{}\", and got its name while the request waited for another session "
                            "of that name: try again",
                            shown, record.model));
  }
  const auto is_known = [size = served.model->vocab().size(), sees = served.image_encoder != nullptr](Token token) {
    return (token >= 0 && token < size) || (sees && llm::is_image_token(token));
  };
  if (std::ranges::all_of(record.chain, is_known) && std::ranges::all_of(record.pending, is_known)) return Unit{};
  return fail(
      ErrorCode::model_unknown,
      std::format(
          "session \"{}\" was made with another file of model \"{}\" than the daemon serves now: serve the earlier file to "
          "continue it",
          shown, record.model));
}

Task<Expected<ModelLease>> SessionAccess::lease_model(TenantId tenant, std::string session, bool is_background) {
  if (auto learnt = co_await sessions_.learn(tenant, session); !learnt) co_return learnt.error();
  const Session* found = sessions_.find(tenant, session);
  if (found == nullptr) co_return unknown_session(session);
  co_return co_await lease_model_of(session, found->summary.model, is_background);
}

Task<Expected<ModelLease>> SessionAccess::lease_model_of(std::string session, std::string model, bool is_background) {
  if (auto known = source_.resolve(model); !known || *known != model) {
    co_return Error{
        ErrorCode::model_unknown,
        std::format("session \"{}\" uses model \"{}\", which this daemon does not serve: serve that model to continue the "
                    "session",
                    session, model)};
  }
  co_return co_await models_.lease_chat(model, is_background);
}

Task<Expected<SessionLock>> SessionAccess::lock_unless_running(TenantId tenant, std::string session) {
  const Session* found = sessions_.find(tenant, session);
  if (found != nullptr && found->is_running()) co_return busy_session(session);
  auto lock = co_await sessions_.lock(std::move(tenant), session);
  if (lock && (*lock)->is_running()) co_return busy_session(session);
  co_return std::move(lock);
}

Expected<Unit> SessionAccess::check_next(const ServedModel& served, const kv::SessionRecord& record,
                                         const kv::SessionRecord& next) const {
  const std::size_t known = tokens_count(record);
  const std::size_t total = tokens_count(next);
  const std::size_t added = total > known ? total - known : 0;
  if (auto fits = check_record_fits(served, next, added); !fits) return fits;
  if (auto may = check_source(served, next); !may) return may;
  return sessions_.check_quota(next.tenant, growth(record, next));
}

Lane* SessionAccess::lane_of(const Session& session) const {
  const ServedModel* served = models_.find(session.summary.model);
  return served == nullptr || served->lanes.empty() ? nullptr : served->lanes[session.lane];
}

std::size_t SessionAccess::least_loaded_lane(const ServedModel& served) const {
  const auto load = [this](const Lane* lane) {
    return std::pair(in_flight_.count_in(lane), lane->stats().hot_sessions.value());
  };
  return static_cast<std::size_t>(std::ranges::min_element(served.lanes, {}, load) - served.lanes.begin());
}

SessionInfo SessionAccess::info_of(const Session& session) const {
  SessionInfo info = listed_info_of(session);
  if (session.record != nullptr) info.metadata = session.record->metadata;
  return info;
}

SessionInfo SessionAccess::listed_info_of(const Session& session) const {
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
  info.busy = session.is_running();
  if (info.busy) info.response = session.run->response;
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
  info.parent = summary.parent;
  info.fork_turn = summary.fork_turn;
  info.metadata = summary.metadata;
  return info;
}

SessionDetail detail_of(SessionInfo info, const kv::SessionRecord& record) {
  SessionDetail detail;
  detail.info = std::move(info);
  detail.messages = record.messages;
  detail.pending_messages = record.pending_messages;
  for (const kv::Turn& turn : record.turns) detail.turns_begin.push_back(turn.messages_begin);
  detail.has_instructions = record.has_instructions;
  return detail;
}

}  // namespace uma::engine
