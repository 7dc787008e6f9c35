// Generations, from their admission to their terminal event: one-shot requests, replies in sessions, and responses. All take
// one path (docs/decisions/0048): lease the model, read images, find the session, prepare the input, run in a lane, commit.
// Owned by the router's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/random.h"
#include "chat/chat.h"
#include "core/error.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/work/task.h"
#include "engine/lane/lane.h"
#include "engine/model/grammar_cache.h"
#include "engine/model/model_loader.h"
#include "engine/router/reply_place.h"
#include "engine/router/router_parts.h"
#include "engine/session/context_shift.h"
#include "image/image_runs.h"
#include "llm/adapters.h"

namespace uma::engine {

class HeldSink;

class Generations {
 public:
  // The references outlive this object. `random` makes the seeds of generations that have none.
  Generations(const RouterParts& parts, ModelLoader& source, Random& random, Counter& refused)
      : parts_(parts), places_(parts), source_(source), random_(random), refused_(refused) {}

  // Accepts the request and starts it. Each sink gets one reply. Several sinks need a request without session and response.
  void start(RequestId id, const TenantId& tenant, GenerateRequest call, std::vector<std::shared_ptr<EventSink>> sinks);
  // The number of tokens of the request's prompt. Errors: those of the request before it enters a lane, except for its length.
  [[nodiscard]] Task<Expected<std::int32_t>> count_tokens(TenantId tenant, GenerateRequest call, std::stop_token end);
  // A lane reports the end of a generation.
  void on_result(GenerationResult result);

 private:
  using ImagesPtr = std::shared_ptr<const ImageHold>;  // Shared by the replies to one prompt.
  using CallPtr = std::shared_ptr<GenerateRequest>;    // Shared with jobs of the work pool, which may run longer than the task.
  struct Prepared {
    ReplyGrammars grammars;
    kv::RecordPtr record;                        // With the input pending.
    std::optional<chat::BegunReply> begun = {};  // Nullopt: the reply begins where the prompt ends.
    PromptOutline outline = {};                  // chat::ChatTokens::outline
  };

  // The data that note() needs of a job that is in its lane.
  struct WatchedJob {
    std::vector<Token> prompt;
    SessionId session;
    bool is_private = false;
  };

  [[nodiscard]] Task<> run(InFlight& request, Task<Expected<Unit>> body);
  [[nodiscard]] Task<Expected<Unit>> generate(InFlight& request, TenantId tenant, GenerateRequest call);
  [[nodiscard]] Expected<Unit> admit(const GenerateRequest& call, std::int64_t replies) const;
  [[nodiscard]] Expected<llm::AdapterSet> adapters_of(const ServedModel& served, const GenerateRequest& call) const;
  [[nodiscard]] Expected<std::string> model_of(const TenantId& tenant, const GenerateRequest& call) const;

  [[nodiscard]] Task<Expected<Unit>> generate_one_shot(InFlight& request, CallPtr call, ImagesPtr images);
  [[nodiscard]] Task<Expected<Unit>> reply_one_shot(InFlight& request, GenerationJob job, Lane& lane, ImagesPtr images,
                                                    std::optional<PromptHead> head = {});
  [[nodiscard]] Task<Expected<Unit>> generate_in_session(InFlight& request, TenantId tenant, CallPtr whole);
  [[nodiscard]] Task<Expected<Prepared>> prepare(InFlight& request, const kv::RecordPtr& record, const CallPtr& whole);
  // Compares the prompt with earlier ones. `record` has its messages.
  void watch(InFlight& request, const kv::SessionRecord& record, const PromptOutline& outline, const GenerateRequest& call,
             const GenerationJob& job) const;
  // Completes the receipt, and remembers the prompt.
  void note(InFlight& request, const WatchedJob& job, const GenerationResult& result, Usage& usage) const;
  [[nodiscard]] Expected<Unit> check_start(const ServedModel& served, const ReplyPlace& place, const kv::SessionRecord& next,
                                           std::size_t response_bytes) const;
  [[nodiscard]] Expected<GenerationJob> session_job(InFlight& request, const Prepared& prepared, const GenerateRequest& call);
  [[nodiscard]] Task<Expected<Unit>> save_input(SessionLock lock, kv::RecordPtr next, RequestId id,
                                                std::shared_ptr<HeldSink> reply);
  [[nodiscard]] Task<Expected<Unit>> commit_turn(Session& session, const kv::SessionRecord& record,
                                                 const GenerationResult& result, const std::optional<ResponseRequest>& response,
                                                 std::int64_t created_s);

  [[nodiscard]] GenerationJob make_job(const InFlight& request, const ReplyGrammars& grammars, const GenerateOptions& options,
                                       std::vector<Token> tokens, Droppable droppable = {});
  void read_reply(const ServedModel& served, GenerationJob& job, const ChatOptions& chat, const ReplyGrammars& grammars,
                  const std::optional<chat::BegunReply>& begun = {});
  [[nodiscard]] Task<GenerationResult> run_in_lane(InFlight& request, GenerationJob job, Lane& lane,
                                                   std::optional<PromptHead> head = {});
  void end(InFlight& request, const Event& terminal);

  static constexpr std::size_t kWrittenBytesMax = std::size_t{4} << 20;  // Limit of one tenant: about a million tokens.

  const RouterParts parts_;
  ReplyPlaces places_;
  ModelLoader& source_;
  Random& random_;
  Counter& refused_;
  // Replies to requests whose conversation the client keeps.
  const std::shared_ptr<chat::WrittenReplies> written_ = std::make_shared<chat::WrittenReplies>(kWrittenBytesMax);
};

}  // namespace uma::engine
