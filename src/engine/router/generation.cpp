#include "engine/router/generation.h"

#include <algorithm>
#include <format>
#include <functional>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thrown.h"
#include "engine/router/adapter_choice.h"
#include "engine/router/held_sink.h"
#include "engine/router/session_commands.h"
#include "engine/router/settle_request.h"
#include "engine/session/record_edits.h"
#include "engine/session/record_input.h"
#include "image/message_images.h"
#include "llm/media/image_tokens.h"
#include "llm/sampling/repetition_penalties.h"

namespace uma::engine {
namespace {

bool is_chat(const kv::SessionRecord& record) {
  return record.mode == SessionMode::chat;
}

// The images among these tokens of the record.
Expected<std::vector<image::ImageRun>> images_of(const ServedModel& served, const kv::SessionRecord& record,
                                                 std::span<const Token> tokens) {
  if (served.image_encoder == nullptr || std::ranges::none_of(tokens, llm::is_image_token)) return {};
  std::vector<std::string> ids;
  for (const auto* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      for (image::MessageImage& image : image::images_of(message)) ids.push_back(std::move(image.id));
    }
  }
  return image::find_image_runs(tokens, ids, served.image_encoder->identity());
}

// Charges the request for its grammars and, for each reply, for the tokens of the prompt and what the sampler records of them;
// and for the tokens that are compared with the next prompts.
Expected<Unit> charge(const InFlight& request, const ReplyGrammars& grammars, std::size_t tokens,
                      const SamplingParams& sampling) {
  if (!request.share) return Unit{};
  const std::size_t each = tokens * sizeof(Token) + llm::RepetitionPenalties::bytes_of(sampling, tokens);
  return request.share->grow(request.sinks.size() * each + tokens * sizeof(Token) + grammars.bytes());
}

// Whether the pending messages must be written again, with other tools or template arguments.
bool is_written_anew(const kv::SessionRecord& record, const GenerateRequest& call) {
  const ChatOptions& chat = call.options.chat;
  return !call.regenerate && !record.pending_messages.empty() &&
         (chat.tools != record.tools || chat.template_arguments != record.template_arguments);
}

// Whether the reply is committed as a turn. An empty reply that the model has ended is a turn; a reply that ended before its
// first token for another reason leaves its input pending.
bool is_turn(const GenerationResult& result) {
  const auto* eos = std::get_if<EosEvent>(&result.terminal);
  return eos != nullptr && (!result.generated.empty() || eos->reason == FinishReason::stop);
}

// Sets the reason of the end: the client refused the held events, though the lane may have ended the reply for another reason.
void set_slow_consumer(Event& terminal) {
  auto* eos = std::get_if<EosEvent>(&terminal);
  if (eos != nullptr && eos->reason != FinishReason::error) eos->reason = FinishReason::slow_consumer;
}

// The record in the session of `other`. Responses stay with the original, because a response's id belongs to one session.
kv::RecordPtr with_id_of(const kv::SessionRecord& other, const kv::SessionRecord& record) {
  kv::SessionRecord moved = record;
  moved.id = other.id;
  moved.name = other.name;
  moved.responses.clear();
  moved.created_s = other.created_s;
  moved.parent = other.parent;
  moved.fork_turn = other.fork_turn;
  return std::make_shared<const kv::SessionRecord>(std::move(moved));
}

// The position of the reply to the pending input. Instructions are not part of the turn.
ResponseBegunEvent response_begun(const kv::SessionRecord& record) {
  const bool begins_with_instructions = record.has_instructions && record.messages.empty();
  const auto number = std::ssize(record.pending_messages) - (begins_with_instructions ? 1 : 0);
  return {.session = record.id,
          .turn = record.turns_dropped + static_cast<std::int32_t>(record.turns.size()),
          .number = static_cast<std::int32_t>(number)};
}

// The usage that is kept with the turn, as the catalog returns it.
Usage stored_usage(Usage usage) {
  usage.schema_left_out.clear();
  usage.cache_miss = {};
  usage.agent = {};
  return usage;
}

// The terminal event of a reply that could not be stored.
EosEvent not_stored(const GenerationResult& result, const Error& error, std::string_view what) {
  EosEvent eos;
  if (const auto* ended = std::get_if<EosEvent>(&result.terminal)) eos = *ended;
  eos.reason = FinishReason::error;
  eos.error = Error{error.code, std::format("{}: {}", what, error.message)};
  return eos;
}

// The run of a session; it ends with the scope.
class RunGuard {
 public:
  RunGuard(SessionTable& sessions, Session& session, RequestId id, std::string response)
      : sessions_(sessions), session_(&session) {
    sessions.begin_run(session, id, std::move(response));
  }
  RunGuard(const RunGuard&) = delete;
  ~RunGuard() { end(); }
  void end() {
    if (Session* session = std::exchange(session_, nullptr)) run_noting([&] { sessions_.end_run(*session); });
  }

 private:
  SessionTable& sessions_;
  Session* session_;
};

}  // namespace

// --- Every generation

void Generations::start(RequestId id, const TenantId& tenant, GenerateRequest call,
                        std::vector<std::shared_ptr<EventSink>> sinks) {
  UMA_CHECK(!sinks.empty() && (sinks.size() == 1 || (call.session.empty() && !call.response)));
  const TimePoint now = parts_.clock.now();
  const std::int64_t timeout_ms = call.options.timeout_ms;
  InFlight& request = parts_.in_flight.begin({
      .id = id,
      .flow = {tenant.value, call.agent.is_known() && !call.agent.is_shared ? call.agent.client() : call.client},
      .agent = std::move(call.agent),
      .received = now,
      .timeout = timeout_ms > 0 ? now + std::chrono::milliseconds(timeout_ms) : kNever,
      .deadline_ms = call.options.deadline_ms,
      .sinks = std::move(sinks),
      .wants_progress = call.options.progress,
      .is_background = call.options.request_class == RequestClass::background,
      .share = call.share,
      .end = {},
      .lease = {},
      .on_abort = {},
  });
  parts_.in_flight.start(request, run(request, generate(request, tenant, std::move(call))));
}

void Generations::on_result(GenerationResult result) {
  InFlight* request = parts_.in_flight.find(result.id);
  UMA_CHECK(request != nullptr);
  request->has_result = true;
  if (request->on_result) std::exchange(request->on_result, std::nullopt).value()(std::move(result));
}

// Runs `body`, which ends the request. If `body` fails or throws, the request ends with an error.
Task<> Generations::run(InFlight& request, Task<Expected<Unit>> body) {
  Expected<Unit> done;
  bool has_thrown = false;
  try {
    done = co_await std::move(body);
  } catch (...) {
    done = std::unexpected(thrown_error(parts_.tasks.place()));
    has_thrown = static_cast<bool>(request.cancel_in_lane);  // The client may have tokens already.
  }
  if (done) co_return;
  if (request.cancel_in_lane && !request.has_result) {
    // The task has thrown, but its lane still generates.
    request.cancel_in_lane();
    (void)co_await parts_.tasks.ask<GenerationResult>(
        [&](Promise<GenerationResult> reply) { request.on_result = std::move(reply); });
  }
  refused_.add();
  end(request, has_thrown ? Event(EosEvent{.reason = FinishReason::error, .usage = {}, .text = {}, .error = done.error()})
                          : Event(FailureEvent{done.error()}));
}

// The request leaves every table before the client gets its terminal event.
void Generations::end(InFlight& request, const Event& terminal) {
  const std::vector<std::shared_ptr<EventSink>> sinks = request.sinks;
  parts_.in_flight.end(request);
  // Sinks accept terminal events in any case.
  for (const auto& sink : sinks) run_noting([&] { (void)sink->deliver(terminal); });
}

Task<Expected<Unit>> Generations::generate(InFlight& request, TenantId tenant, GenerateRequest call) {
  if (auto admitted = admit(call, std::ssize(request.sinks)); !admitted) co_return admitted.error();
  if (!call.session.empty()) {
    const auto learnt = co_await parts_.sessions.learn(tenant, call.session);
    // A session that is unknown is reported below.
    if (!learnt && learnt.error().code != ErrorCode::session_unknown) co_return learnt.error();
  }
  auto model = model_of(tenant, call);
  if (!model) co_return model.error();
  request.model = std::move(*model);
  if (parts_.models.bytes_wanted(request.model) > 0) parts_.in_flight.set_deadline(request);
  const bool is_background = call.options.request_class == RequestClass::background;
  const Session* continued = call.session.empty() ? nullptr : parts_.sessions.find(tenant, call.session);
  auto leasing = continued != nullptr && continued->summary.model == request.model
                     ? parts_.access.lease_model_of(call.session, request.model, is_background)
                     : parts_.models.lease_chat(call.model, is_background);
  auto lease = co_await std::move(leasing);
  if (!lease) co_return lease.error();
  request.lease = std::move(*lease);
  request.deadline = kNever;
  auto settled =
      co_await settle(parts_.work, parts_.tasks, tenant, request.lease.share(), std::move(call), request.end.get_token());
  if (!settled) co_return settled.error();
  // Shared with jobs of the work pool, which may run longer than this task.
  const auto whole = std::make_shared<GenerateRequest>(std::move(*settled));
  request.deadline_ms = whole->options.deadline_ms;
  auto adapters = adapters_of(*request.lease, *whole);
  if (!adapters) co_return adapters.error();
  request.adapters = std::move(*adapters);

  const std::string_view instructions =
      whole->response && whole->response->instructions ? std::string_view(*whole->response->instructions) : std::string_view();
  if (auto may = check_may_fit(*request.lease, whole->input, instructions); !may) co_return may.error();

  const bool is_of_session = !whole->session.empty() || whole->response;
  auto images = std::make_shared<ImageHold>();
  request.unseen_images = leave_out_unseen(request.lease->image_encoder.get(), whole->input);
  if (!whole->input.images.empty()) {
    auto held = co_await parts_.images.read(*request.lease, whole->input,
                                            {.tenant = tenant,
                                             .keeps = is_of_session,
                                             .deadline = parts_.in_flight.deadline_of(request),
                                             .end = request.end.get_token(),
                                             .share = request.share});
    if (!held) co_return held.error();
    *images = std::move(*held);
    request.unseen_images += images->unreadable();
  }
  if (!is_of_session) co_return co_await generate_one_shot(request, whole, std::move(images));
  co_return co_await generate_in_session(request, std::move(tenant), whole);
}

Expected<Unit> Generations::admit(const GenerateRequest& call, std::int64_t replies) const {
  const ChatOptions& chat = call.options.chat;
  const std::size_t prompt_bytes = call.input.bytes() + chat.tools.size() + chat.template_arguments.size();
  if (prompt_bytes > parts_.limits.max_prompt_bytes) {
    return fail(ErrorCode::limit_prompt, std::format("prompt is too long: {} bytes > {} maximum (limits.max_prompt_bytes)",
                                                     prompt_bytes, parts_.limits.max_prompt_bytes));
  }
  // Requests beyond the number of slots are waiting. The request itself is in the table already. They are counted here and not
  // in the lanes, so that all requests of a burst are judged alike, wherever they are.
  std::int64_t waiting = parts_.in_flight.generations() - replies;
  for (const ServedModel* served : parts_.models.loaded()) {
    for (const Lane* lane : served->lanes) waiting -= lane->shape().sequences;
  }
  return parts_.in_flight.admit(waiting);
}

// The name of the model that the request needs; empty if the name is unknown, which the lease will report.
Expected<std::string> Generations::model_of(const TenantId& tenant, const GenerateRequest& call) const {
  const auto known = source_.resolve(call.model);
  if (call.session.empty()) return known.value_or("");
  const Session* session = parts_.sessions.find(tenant, call.session);
  if (session == nullptr) return std::unexpected(unknown_session_of(call));
  if (!call.model.empty() && !known) return known;
  const kv::SessionSummary& summary = session->summary;
  if (call.model.empty() || *known == summary.model) return summary.model;
  // A reply of another model is computed from the messages (ReplyPlaces::find_for_response).
  const bool is_begun_anew = call.response && (!call.response->previous.empty() || !has_turns(summary));
  return is_begun_anew ? known : std::unexpected(other_model(call.model, summary.model));
}

// The adapters that the request chooses. The card may have got one after the model was loaded.
Expected<llm::AdapterSet> Generations::adapters_of(const ServedModel& served, const GenerateRequest& call) const {
  return choose_adapters(call.options, named_adapter(source_, served.name, call.model), served.name, served.model->facts());
}

// --- Counting

Task<Expected<std::int32_t>> Generations::count_tokens(TenantId tenant, GenerateRequest call, std::stop_token end) {
  UMA_CHECK(call.session.empty() && !call.response);
  if (auto admitted = admit(call, 0); !admitted) co_return admitted.error();
  const TimePoint received = parts_.clock.now();
  auto lease = co_await parts_.models.lease_chat(call.model);
  if (!lease) co_return lease.error();
  auto settled = co_await settle(parts_.work, parts_.tasks, tenant, lease->share(), std::move(call), end);
  if (!settled) co_return settled.error();
  call = std::move(*settled);
  ImageHold images;
  (void)leave_out_unseen((*lease)->image_encoder.get(), call.input);
  if (!call.input.images.empty()) {
    const std::int64_t deadline_ms = call.options.deadline_ms.value_or(parts_.limits.deadline_ms);
    auto held = co_await parts_.images.read(
        **lease, call.input,
        {.tenant = tenant, .deadline = deadline_after(received, deadline_ms, &**lease), .end = end, .share = call.share});
    if (!held) co_return held.error();
    images = std::move(*held);
  }
  kv::SessionRecord empty;
  empty.created_s = parts_.clock.unix_s();
  const std::size_t bytes = memory_of(call);
  co_return co_await parts_.work.run(
      parts_.tasks, TenantId{tenant}, bytes,
      [lease = lease->share(), empty = std::move(empty), input = std::move(call.input), chat = std::move(call.options.chat),
       replies = chat::OwnReplies{.all = written_, .tenant = tenant}]() -> Expected<std::int32_t> {
        const auto written = append_to_record(*lease->chat, empty, input, &chat, replies);
        if (!written) return std::unexpected(written.error());
        return static_cast<std::int32_t>(written->pending.size());
      },
      std::move(end));
}

// --- One-shot requests

Task<Expected<Unit>> Generations::generate_one_shot(InFlight& request, CallPtr call, ImagesPtr images) {
  request.is_kept_by_client = true;
  const ServedModel& served = *request.lease;
  kv::SessionRecord empty;
  empty.created_s = parts_.clock.unix_s();
  const bool has_messages = !call->input.messages.empty();
  GenerateOptions& options = call->options;
  const auto prepared = co_await prepare(request, std::make_shared<const kv::SessionRecord>(std::move(empty)), call);
  if (!prepared) co_return prepared.error();
  const std::vector<Token>& prompt = prepared->record->pending;
  if (auto fits = check_fits(served, 0, prompt.size()); !fits) co_return fits.error();
  if (prompt.empty()) co_return Error{ErrorCode::proto_field, "field \"prompt\" has no tokens for this model"};
  auto runs = images_of(served, *prepared->record, prompt);
  if (!runs) co_return runs.error();
  if (auto may = charge(request, prepared->grammars, prompt.size(), options.sampling); !may) co_return may.error();
  auto head = co_await parts_.prefixes.look_up(prepared->record, TenantId{request.flow.tenant}, served, request.adapters);
  const auto next_job = [&](const InFlight& each) {
    GenerationJob job = make_job(each, prepared->grammars, options, prompt);
    job.images = *runs;
    if (has_messages) read_reply(served, job, options.chat, prepared->grammars, prepared->begun);
    if (options.sampling.seed) ++*options.sampling.seed;
    return job;
  };
  GenerationJob first = next_job(request);
  watch(request, *prepared->record, prepared->outline, *call, first);
  const std::vector<RequestId> ids = parts_.in_flight.split(request);
  for (std::size_t i = 1; i < ids.size(); ++i) {
    InFlight& each = *parts_.in_flight.find(ids[i]);
    const auto started = contain([&]() -> Expected<Unit> {
      Lane& lane = *served.lanes[parts_.access.least_loaded_lane(served)];
      parts_.in_flight.start(each, run(each, reply_one_shot(each, next_job(each), lane, images)));
      return Unit{};
    });
    if (!started) parts_.in_flight.abort(each, {.reason = FinishReason::error, .error = started.error()});
  }
  Lane& lane = *served.lanes[parts_.access.least_loaded_lane(served)];
  co_return co_await reply_one_shot(request, std::move(first), lane, std::move(images), std::move(head));
}

// `images` stay held until the reply has ended.
Task<Expected<Unit>> Generations::reply_one_shot(InFlight& request, GenerationJob job, Lane& lane, ImagesPtr /*images*/,
                                                 std::optional<PromptHead> head) {
  const GenerationResult result = co_await run_in_lane(request, std::move(job), lane, std::move(head));
  end(request, result.terminal);
  co_return Unit{};
}

// --- Replies in sessions

Task<Expected<Unit>> Generations::generate_in_session(InFlight& request, TenantId tenant, CallPtr whole) {
  GenerateRequest& call = *whole;
  request.is_kept_by_client = call.response && !call.response->is_kept;
  auto place = co_await places_.find(request, tenant, call);
  if (!place) co_return place.error();
  const auto prepared = co_await prepare(request, place->record, whole);
  if (!prepared) co_return prepared.error();
  // States that another daemon has stored are found by the lane like those of this one.
  for (const SessionId& session : {place->record->id, place->record->parent}) co_await parts_.exchange.wait_for(session);
  auto head = co_await parts_.prefixes.look_up(prepared->record, tenant, *request.lease, request.adapters);
  kv::RecordPtr next = prepared->record;
  const bool has_lost_turns = next->turns.size() < place->record->turns.size();
  if (call.response && has_lost_turns && !place->lock.is_empty() && place->record->is_of_responses) {
    // Dropped turns are not in the chain any more, nor is a turn that is answered again, but their responses can still be
    // requested. The reply is therefore made in a new session.
    *place = places_.fork(*place->lock, *place->record, place->record->turns.size(), *call.response);
    next = with_id_of(*place->record, *next);
  }
  const std::size_t response_bytes = call.response ? call.response->request.size() : 0;
  if (auto may = check_start(*request.lease, *place, *next, response_bytes); !may) co_return may.error();
  const bool is_new = place->lock.is_empty();
  if (is_new) {
    parts_.images.release().set(place->record->id, kv::image_extras(*place->record));
    place->lock = parts_.sessions.add(*place->record, place->lane);
    request.session = place->record->id;
  }
  Session& session = *place->lock;
  auto job = session_job(request, {.grammars = prepared->grammars, .record = next}, call);
  if (!job) co_return job.error();
  job->is_rewritten = std::exchange(session.is_rewritten, false) || is_rewritten(*place->record, *next);
  watch(request, *next, prepared->outline, call, *job);

  RunGuard run(parts_.sessions, session, request.id, call.response ? call.response->id : "");
  // A stored session can continue in any lane.
  const ServedModel& served = *request.lease;
  if (session.summary.model != next->model) {
    session.lane = 0;  // Every model has this one, and the session has KV in no lane.
  } else if (!served.lanes[session.lane]->holds(next->id)) {
    session.lane = parts_.access.least_loaded_lane(served);
  }
  const std::int64_t created_s = parts_.clock.unix_s();
  if (call.response) {
    ResponseBegunEvent begun = response_begun(*next);
    if (call.model.empty()) begun.model = next->model;
    (void)request.sinks.front()->deliver(begun);
  }
  // The input of a response is committed with its reply; other input while the reply is being made.
  std::optional<Started<Unit>> saving;
  HeldSinkScope held;
  if (!call.response && next != place->record) {
    held = HeldSinkScope(std::make_shared<HeldSink>(std::move(job->sink)));
    job->sink = held.sink();
    saving = parts_.tasks.begin(save_input(std::move(place->lock), next, request.id, held.sink()));
  } else {
    place->lock.release();
  }
  GenerationResult result = co_await run_in_lane(request, std::move(*job), *served.lanes[session.lane], std::move(head));
  const auto saved = saving ? co_await std::move(*saving) : Expected<Unit>();
  if (!saved) co_return saved.error();  // The client has got no event of the reply.
  if (held.sink() && !held.sink()->keeps_up()) set_slow_consumer(result.terminal);
  if (!is_turn(result) || (is_new && !call.response->is_kept)) {
    run.end();
    end(request, result.terminal);
    co_return Unit{};
  }
  auto lock = co_await parts_.sessions.lock(session);
  const auto done = lock ? co_await commit_turn(session, *next, result, call.response, created_s)
                         : Expected<Unit>(std::unexpected(lock.error()));
  run.end();
  if (!done) {
    const std::string_view rest = done.error().code == ErrorCode::outcome_unknown ? "the reply may not be stored"
                                  : call.response                                 ? "the reply could not be stored and is lost"
                                                  : "the reply could not be stored and its input is pending again";
    result.terminal = not_stored(result, done.error(), rest);
  }
  end(request, result.terminal);
  co_return Unit{};
}

// Compiles the grammars of the reply and makes the input pending, in one job, which takes the input. Grammars come first, so
// that a request with an invalid grammar changes nothing.
Task<Expected<Generations::Prepared>> Generations::prepare(InFlight& request, const kv::RecordPtr& record,
                                                           const CallPtr& whole) {
  GenerateRequest& call = *whole;
  const bool reads_all = call.response || call.regenerate || is_written_anew(*record, call);
  const bool is_unchanged = !reads_all && call.input.empty();
  if (is_unchanged && !needs_grammars(call.options)) co_return Prepared{.grammars = {}, .record = record};
  const std::size_t bytes = memory_of(call) + (reads_all ? kv::stored_bytes(*record) : 0);
  co_return co_await parts_.work.run(
      parts_.tasks, TenantId{request.flow.tenant}, bytes,
      [lease = request.lease.share(), record, is_unchanged, input = std::exchange(call.input, {}),
       call = std::shared_ptr<const GenerateRequest>(whole),
       replies = chat::OwnReplies{.all = written_, .tenant = {request.flow.tenant}},
       now_s = parts_.clock.unix_s()]() -> Expected<Prepared> {
        const chat::ChatFormat& format = *lease->chat;
        const GenerateOptions& options = call->options;
        const std::optional<ResponseRequest>& response = call->response;
        auto grammars = lease->grammars->compile(format.chosen(options.chat), options);
        if (!grammars) return std::unexpected(grammars.error());
        if (is_unchanged) return Prepared{.grammars = std::move(*grammars), .record = record};
        const ChatOptions& chat = options.chat;
        Expected<kv::SessionRecord> next;
        PromptOutline outline;
        if (call->regenerate) {
          next = reopen_last_turn(format, *record, rewound(*record, record->turns.size() - 1, now_s), chat, &outline);
        }
        if (next && response) {
          next = begin_response(format, call->regenerate ? *next : *record, input, *response, chat, replies, &outline);
        } else if (!call->regenerate) {
          next = append_to_record(format, *record, input, &chat, replies, &outline);
        }
        if (!next) return std::unexpected(next.error());
        std::optional<chat::BegunReply> begun;
        if (chat.continues_reply) {
          auto written = format.chosen(chat).write_begun(
              next->pending_messages,
              {.unix_s = next->created_s, .tools = chat.tools, .template_arguments = chat.template_arguments});
          if (!written) return std::unexpected(written.error());
          begun = std::move(*written);
          begun->prompt = {};  // The record has its tokens.
        }
        next->last_used_s = now_s;
        return Prepared{.grammars = std::move(*grammars),
                        .record = std::make_shared<const kv::SessionRecord>(std::move(*next)),
                        .begun = std::move(begun),
                        .outline = std::move(outline)};
      },
      request.end.get_token());
}

void Generations::watch(InFlight& request, const kv::SessionRecord& record, const PromptOutline& outline,
                        const GenerateRequest& call, const GenerationJob& job) const {
  if (call.options.prompt_logprobs) return;  // Nothing is reused for them.
  const ServedModel& served = *request.lease;
  const std::size_t messages =
      record.messages.size() + record.pending_messages.size() - (call.options.chat.continues_reply ? 1 : 0);
  request.watched = WatchedPrompt{.found = {},
                                  .id = call.comparison.id,
                                  .model = served.name + '\n' + request.adapters.identity,
                                  .settings = std::hash<std::string>()(call.options.chat.template_arguments),
                                  .reply_message = static_cast<std::int32_t>(messages)};
  WatchedPrompt& watched = *request.watched;
  watched.found = parts_.prompts.compare(TenantId{request.flow.tenant},
                                         {.model = watched.model,
                                          .loaded_at = served.loaded_at,
                                          .session = job.session,
                                          .is_private = job.is_private || job.is_ephemeral,
                                          .settings = watched.settings,
                                          .tokens = job.tokens,
                                          .vocab = served.model->vocab()},
                                         outline, call.comparison.with);
  const CacheMiss& miss = watched.found.miss;
  if (miss.repeats != kClockRepeats) return;
  log_warning("tenant {}, model {}: {}", request.flow.tenant, served.name, clock_warning(miss));
}

void Generations::note(InFlight& request, const WatchedJob& job, const GenerationResult& result, Usage& usage) const {
  if (!request.watched || usage.prompt_tokens == 0) return;
  const ServedModel& served = *request.lease;
  WatchedPrompt& watched = *request.watched;
  const bool has_dropped = result.dropped_turns > 0;  // Then its KV is not that of the prompt.
  if (!has_dropped) usage.cache_miss = final_miss(watched.found, usage, served.shape().can_truncate);
  parts_.prompts.count(usage.cache_miss);
  if (has_dropped) return;
  parts_.prompts.note(TenantId{request.flow.tenant},
                      {.model = watched.model,
                       .loaded_at = served.loaded_at,
                       .session = job.session,
                       .is_private = job.is_private,
                       .settings = watched.settings,
                       .tokens = job.prompt,
                       .vocab = served.model->vocab()},
                      std::move(watched.found.outline),
                      {.id = std::move(watched.id),
                       .generated = result.generated,
                       .reasoning_tokens = usage.reasoning_tokens,
                       .message = watched.reply_message,
                       .usage = usage});
}

// Checks that the session has tokens to generate from, and that a reply fits its context.
Expected<Unit> Generations::check_start(const ServedModel& served, const ReplyPlace& place, const kv::SessionRecord& next,
                                        std::size_t response_bytes) const {
  if (next.chain.empty() && next.pending.empty()) {
    return fail(ErrorCode::proto_field, "the session is empty: append input before generating");
  }
  if (place.record.get() != &next) {
    if (auto may = parts_.access.check_next(served, *place.record, next); !may) return may;
  }
  if (auto fits = check_record_fits(served, next, next.pending.size()); !fits) return fits;
  const bool is_new = place.lock.is_empty();
  // The reply adds a token at least.
  Stored added = is_new ? stored_of(next) : Stored{.tokens = 1, .bytes = sizeof(Token)};
  added.bytes += response_bytes;
  return parts_.sessions.check_quota(next.tenant, added);
}

Expected<GenerationJob> Generations::session_job(InFlight& request, const Prepared& prepared, const GenerateRequest& call) {
  const kv::SessionRecord& record = *prepared.record;
  const ServedModel& served = *request.lease;
  std::vector<Token> tokens = kv::all_tokens(record);
  auto images = images_of(served, record, tokens);
  if (!images) return std::unexpected(images.error());
  if (auto may = charge(request, prepared.grammars, tokens.size(), call.options.sampling); !may)
    return std::unexpected(may.error());
  GenerationJob job = make_job(request, prepared.grammars, call.options, std::move(tokens), droppable_of(record));
  job.images = std::move(*images);
  // A continued reply is plain content, because its beginning is not parsed.
  if (is_chat(record) && !record.pending.empty()) {
    read_reply(served, job, call.options.chat, prepared.grammars);
  } else if (is_chat(record)) {
    std::ranges::move(chat::chat_stop_strings(*served.model), std::back_inserter(job.reply.stop));
  }
  job.session = record.id;
  job.keeps_reply = true;
  job.forked_from = record.parent;
  job.is_public = record.is_public && !record.has_foreign_kv;
  job.is_private = record.has_foreign_kv;
  job.is_ephemeral = record.is_ephemeral;
  return job;
}

// Saves the input while the lane generates; only the client's events wait for the disk. If the input cannot be saved, the reply
// is cancelled.
Task<Expected<Unit>> Generations::save_input(SessionLock lock, kv::RecordPtr next, RequestId id,
                                             std::shared_ptr<HeldSink> reply) {
  Expected<Unit> saved;
  try {
    saved = co_await parts_.sessions.commit(*lock, std::move(next));
  } catch (...) {
    saved = std::unexpected(thrown_error(parts_.tasks.place()));
  }
  if (saved) {
    reply->release();
    co_return saved;
  }
  reply->close();
  // Its lane ends the request; one that is in no lane yet learns the result before it enters one.
  if (const InFlight* request = parts_.in_flight.find(id); request != nullptr && request->cancel_in_lane)
    request->cancel_in_lane();
  co_return saved;
}

Task<Expected<Unit>> Generations::commit_turn(Session& session, const kv::SessionRecord& record, const GenerationResult& result,
                                              const std::optional<ResponseRequest>& response, std::int64_t created_s) {
  const EosEvent& eos = std::get<EosEvent>(result.terminal);
  kv::SessionRecord next =
      with_turn(record,
                {.generated = result.generated,
                 .dropped_turns = result.dropped_turns,
                 .reply = result.reply,
                 .reply_extra = result.reply_extra,
                 .receipt = std::make_shared<const Receipt>(Receipt{.reason = eos.reason, .usage = stored_usage(eos.usage)})},
                parts_.clock.unix_s());
  // These may have been changed while the reply was being made.
  next.name = session.record->name;
  next.metadata = session.record->metadata;
  if (!response) next.is_of_responses = false;  // From now on the session is a conversation, too.
  if (response && response->is_kept) {
    next.responses.push_back(std::make_shared<const ResponseRecord>(
        ResponseRecord{.turn = next.turns_dropped + static_cast<std::int32_t>(next.turns.size()) - 1,
                       .id = response->id,
                       .request = response->request,
                       .created_s = created_s,
                       .reason = eos.reason,
                       .prompt_tokens = eos.usage.prompt_tokens,
                       .reused_tokens = eos.usage.reused_tokens,
                       .completion_tokens = eos.usage.completion_tokens,
                       .reasoning_tokens = eos.usage.reasoning_tokens}));
  }
  parts_.sessions.touch(session);
  co_return co_await parts_.sessions.commit(session, std::move(next));
}

// --- Lanes

GenerationJob Generations::make_job(const InFlight& request, const ReplyGrammars& grammars, const GenerateOptions& options,
                                    std::vector<Token> tokens, Droppable droppable) {
  GenerationJob job;
  job.id = request.id;
  const std::int32_t shortest = shortest_length(droppable, static_cast<std::int32_t>(tokens.size()));
  const std::int32_t cells_left = request.lease->shape().sequence_cells_max - shortest;
  job.tokens_max = cells_left;
  if (parts_.limits.max_tokens > 0) job.tokens_max = std::min(job.tokens_max, parts_.limits.max_tokens);
  if (options.max_tokens) job.tokens_max = std::min(job.tokens_max, *options.max_tokens);
  job.adapters = request.adapters;
  job.tokens = std::move(tokens);
  job.droppable = std::move(droppable);
  job.sampling = options.sampling;
  // 53 bits, which are exact in the JSON numbers of all clients
  job.seed = options.sampling.seed.value_or(random_.next_u64() >> 11);
  job.grammar = grammars.whole;
  job.schema_left_out = grammars.left_out;
  job.reply.call_grammar = grammars.calls;
  job.reply.stop = options.stop;
  job.reply.logprobs = options.logprobs;
  job.reply.stream = options.stream;
  job.flow = request.flow;
  job.agent = request.agent;
  job.target_ttft_ms = options.target_ttft_ms;
  job.target_tbt_ms = options.target_tbt_ms;
  job.is_background = options.request_class == RequestClass::background;
  job.wants_progress = options.progress;
  job.wants_prompt_logprobs = options.prompt_logprobs;
  job.received = request.received;
  job.deadline = parts_.in_flight.deadline_of(request);
  job.timeout = request.timeout;
  job.sink = request.sinks.front();
  job.share = request.share;
  return job;
}

// Sets the options with which the reply to a chat is parsed.
void Generations::read_reply(const ServedModel& served, GenerationJob& job, const ChatOptions& chat,
                             const ReplyGrammars& grammars, const std::optional<chat::BegunReply>& begun) {
  chat::ReplyOptions& reply = job.reply;
  const chat::ChatFormat& format = served.chat->chosen(chat);
  reply.format = format.reply_format(chat, job.tokens, grammars.tools);
  job.keeps_reply = true;
  reply.ends = chat::chat_stop_strings(*served.model);  // One of the stop strings that also ends a call.
  std::erase_if(reply.stop, [&](const std::string& stop) { return std::ranges::contains(reply.ends, stop); });
  if (begun) {
    reply.format.begun = begun->text;
    reply.format.begins_with_reasoning = begun->begins_with_reasoning;
    job.begun = begun->content;
  }
  reply.thinking = format.thinking_limit(chat);
  if (!chat.tools.empty()) reply.call_seed = random_.next_u64();
  if (!job.grammar || chat.tool_choice != ToolChoice::automatic) return;
  const bool may_think = chat.splits_reasoning && reply.thinking;
  const bool is_thinking = begun ? begun->is_thinking : reply.format.begins_with_reasoning;
  // Neither thoughts nor calls follow an answer that has begun.
  const bool has_begun = begun && !begun->is_thinking && !begun->content.empty();
  if (grammars.answer && !has_begun && (!grammars.has_thoughts || (may_think && is_thinking))) {
    // The client's grammar is one of the answer.
    reply.answer_grammar = grammars.answer;
    reply.format.has_answer = true;
    reply.format.begins_with_blanks = reply.format.begins_with_blanks || grammars.is_json;
    job.grammar = nullptr;
  }
  if (reply.answer_grammar && may_think) return;
  // Else the whole reply follows it, so there is no reasoning.
  reply.thinking.reset();
  reply.format.keeps_thoughts = true;
  reply.format.begins_with_reasoning = false;
}

// Runs the job in the lane and waits for its result, which comes in any case. `head` is that of its prompt.
Task<GenerationResult> Generations::run_in_lane(InFlight& request, GenerationJob job, Lane& lane,
                                                std::optional<PromptHead> head) {
  const auto has_queue = [](const Lane* each) { return each->stats().queue_depth.value() > 0; };
  if (std::ranges::all_of(request.lease->lanes, has_queue)) source_.report_backlog(request.lease->name);
  const std::vector<std::string> left_out = std::move(job.schema_left_out);
  // A continued reply comes back as one message with its beginning.
  const bool may_come_back = request.is_kept_by_client && job.reply.format.family != nullptr && job.begun.empty();
  chat::WrittenReply written =
      may_come_back ? chat::written_behind(request.lease->model->vocab(), job.tokens, {}) : chat::WrittenReply{};
  PromptReadyEvent ready{.prompt_tokens = static_cast<std::int32_t>(job.tokens.size()), .schema_left_out = left_out};
  if (request.watched) ready.cache_miss = request.watched->found.miss;
  (void)job.sink->deliver(ready);
  WatchedJob watched;
  if (request.watched)
    watched = {.prompt = job.tokens, .session = job.session, .is_private = job.is_private || job.is_ephemeral};
  auto result = co_await parts_.tasks.ask<GenerationResult>([&](Promise<GenerationResult> reply) {
    request.on_result = std::move(reply);
    lane.stats().queue_depth.add(1);
    lane.post(StartCommand{std::move(job)});
    parts_.in_flight.set_in_lane(request, lane);
  });
  UMA_CHECK(result);
  if (auto* eos = std::get_if<EosEvent>(&result->terminal)) {
    eos->usage.unseen_images = request.unseen_images;
    eos->usage.agent = request.agent;
    eos->usage.schema_left_out = left_out;
    note(request, watched, *result, eos->usage);
  }
  const auto* ended = std::get_if<EosEvent>(&result->terminal);
  const bool is_whole = ended != nullptr && (ended->reason == FinishReason::stop || ended->reason == FinishReason::tool_calls ||
                                             (ended->reason == FinishReason::length && !result->has_calls));
  if (may_come_back && is_whole && !result->generated.empty() && result->dropped_turns == 0 && ended->stop_string.empty()) {
    written.tokens.insert(written.tokens.end(), result->generated.begin(), result->generated.end());
    written_->note({request.flow.tenant}, {"assistant", result->reply, result->reply_extra}, std::move(written));
  }
  if (head && !result->generated.empty()) parts_.prefixes.note_computed(std::move(*head), &lane);
  co_return std::move(*result);
}

}  // namespace uma::engine
