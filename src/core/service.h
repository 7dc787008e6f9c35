// The only interface between `server` and `engine`. Thread rule: calls may come from any thread, return at once and never wait
// for a decode. Replies and events come from engine threads. Invariants: (1) Every reply is called exactly once. (2) Every
// generation gets exactly one terminal event. (3) An acknowledged change of a session is in the catalog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/move_only_function.h"
#include "core/activity.h"
#include "core/embedding.h"
#include "core/error.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/image.h"
#include "core/metrics_snapshot.h"
#include "core/picture.h"
#include "core/request.h"
#include "core/session_info.h"
#include "core/text_conversion.h"
#include "core/work/promise.h"

namespace uma {

class Service {
 public:
  virtual ~Service() = default;

  // A counter for the memory that one request of the tenant holds in the server.
  virtual RequestShare open_share(TenantId tenant) = 0;
  // Runs work that takes as long as its `bytes` where it delays no other tenant (WorkPool). After the end it is dropped.
  virtual void run_apart(TenantId tenant, std::size_t bytes, MoveOnlyFunction<void()> work) = 0;

  // Starts generations of one prompt, one per sink. Their seeds differ and count up from the request's seed, if it has one.
  // Returns the id of the first generation for cancel(); the ids of the others follow it. Requires: at least one sink; in a
  // session exactly one.
  virtual RequestId generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) = 0;
  // Computes vectors of texts, or scores of documents for a query. Returns an id for cancel().
  virtual RequestId embed(TenantId tenant, EmbedRequest request, Promise<EmbedResult> reply) = 0;
  virtual RequestId rerank(TenantId tenant, RerankRequest request, Promise<RerankResult> reply) = 0;
  // Draws pictures; the sink gets them, and the steps, before the reply. Returns an id for cancel().
  virtual RequestId draw(TenantId tenant, PictureRequest request, std::shared_ptr<PictureSink> sink,
                         Promise<PictureReceipt> reply) = 0;
  // Replies with the number of tokens of the request's prompt, with its tools and images. Requires: neither a session nor a
  // response. `end` is requested when nobody waits any more.
  virtual void count_tokens(TenantId tenant, GenerateRequest request, std::stop_token end, Promise<std::int32_t> reply) = 0;
  virtual void tokenize(TenantId tenant, TokenizeRequest request, Promise<TokenizedText> reply) = 0;
  // Replies with the text of the tokens, with the names of control tokens.
  virtual void detokenize(TenantId tenant, DetokenizeRequest request, Promise<ConvertedText> reply) = 0;
  // Replies with the request's prompt as a text. Requires: messages without images, and neither a session nor a response.
  virtual void format_chat(TenantId tenant, GenerateRequest request, Promise<ConvertedText> reply) = 0;
  // Cancels a generation: Eos with reason `cancelled`, and the session keeps its tokens so far. An embedding or rerank request
  // replies with E_LIMIT_003, a request for pictures with reason `cancelled`. Until their prompt is prepared, all generations
  // of a prompt end with the first one, and the other ids are unknown. Replies false for an unknown or finished request.
  virtual void cancel(RequestId id, Promise<bool> reply) = 0;
  virtual void cancel_session(TenantId tenant, std::string session, Promise<bool> reply) = 0;

  virtual void create_session(TenantId tenant, CreateSessionRequest request, Promise<SessionInfo> reply) = 0;
  // Replies with the session, whose pending_tokens count the input since the last reply.
  virtual void append_input(TenantId tenant, AppendRequest request, Promise<SessionInfo> reply) = 0;
  // Cancels the session's requests, then deletes it: tokens, KV, name.
  virtual void end_session(TenantId tenant, std::string session, Promise<Unit> reply) = 0;
  // Creates a session with the same tokens, or the first turns of them, in one step.
  virtual void fork_session(TenantId tenant, ForkRequest request, Promise<SessionInfo> reply) = 0;
  // Keeps turns 0 to `turn` and drops the later ones.
  virtual void rewind_session(TenantId tenant, std::string session, std::int32_t turn, Promise<SessionInfo> reply) = 0;
  // Marks the session as used now, which restarts its time to live.
  virtual void touch_session(TenantId tenant, std::string session, Promise<SessionInfo> reply) = 0;
  virtual void get_session(TenantId tenant, std::string session, Promise<SessionDetail> reply) = 0;
  // Replies with the receipts of the turns that have one, in order.
  virtual void list_receipts(TenantId tenant, std::string session, Promise<std::vector<TurnReceipt>> reply) = 0;
  // Replies with the usage of a recent reply, by the id that its API gave it, of the last reply of a session, by the session's
  // id or name, or of the tenant's last reply, if `name` is empty. Errors: E_SESSION_001 if it is not known (any more).
  virtual void find_receipt(TenantId tenant, std::string name, Promise<Usage> reply) = 0;
  // Errors: E_SESSION_001 if `after` is not a session.
  virtual void list_sessions(TenantId tenant, SessionListRequest request, Promise<SessionList> reply) = 0;
  // Changes the name and the metadata, also while a reply is in progress. Errors: E_PROTO_003 if another session has the name,
  // or if the metadata gets too many pairs.
  virtual void update_session(TenantId tenant, UpdateSessionRequest request, Promise<SessionInfo> reply) = 0;
  // Removes the last message of a conversation after its reply in progress has ended: a pending message, or the last reply,
  // whose input is then pending again. Errors: E_PROTO_003 if another message is the last one.
  virtual void remove_last_message(TenantId tenant, std::string session, MessagePosition place,
                                   Promise<SessionDetail> reply) = 0;

  // `response` is a ResponseRequest::id of the session.
  virtual void get_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) = 0;
  // Cancels the response if it is in progress, and replies with its stored state. A response that has ended is unchanged.
  virtual void cancel_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) = 0;
  // Deletes the response after the session's reply in progress has ended. In a conversation the messages stay; otherwise they
  // are deleted once no other response continues them.
  virtual void forget_response(TenantId tenant, std::string session, std::string response, Promise<Unit> reply) = 0;

  // Exports the session as it was last committed. `with_kv` adds its KV if that is stored, or in a slot that is not generating.
  virtual void export_session(TenantId tenant, std::string session, bool with_kv, Promise<ExportedSession> reply) = 0;
  // Creates a session from an exported file; has no effect if any part is invalid.
  virtual void import_session(TenantId tenant, ImportRequest request, Promise<ImportedSession> reply) = 0;

  // Computes a vector for each image, of the kind ModelInfo::image_vectors. Returns the id for cancel(), as embed().
  virtual RequestId embed_images(TenantId tenant, EmbedImagesRequest request, Promise<ImageEmbeddings> reply) = 0;
  // Reads image files of the caller's sessions, by SHA-256, where that delays no other tenant. An empty result means that the
  // file is gone, or that it would exceed `bytes_max` together with the files before it. `end` is requested when nobody waits
  // any more. Errors: E_LIMIT_003 if there is no room for the files and their JSON.
  virtual void read_images(TenantId tenant, std::vector<std::string> ids, std::size_t bytes_max, std::stop_token end,
                           Promise<ImageFiles> reply) = 0;

  // Loads a model in advance; empty: the default model. Replies when it is loaded, or with the error.
  virtual void load_model(std::string model, Promise<Unit> reply) = 0;
  // Frees the memory of an idle model; its sessions stay. Errors: E_SESSION_002 while it is in use.
  virtual void unload_model(std::string model, Promise<Unit> reply) = 0;

  // The following functions return values that are kept up to date, without asking another thread. Returns the model's name for
  // a name or alias; empty: the default model. Errors: E_MODEL_001.
  virtual Expected<std::string> resolve_model(const std::string& name) const = 0;
  // Like resolve_model(), for programs that were not written for this daemon: an unknown name may mean a model with this
  // capability (docs/decisions/0050).
  virtual Expected<std::string> choose_model(const std::string& name, Capability capability) const = 0;
  virtual std::vector<ModelInfo> models() const = 0;
  // Whether the default model answers: it was loaded and warmed up at the start, and its last load has not failed. One that was
  // unloaded since is loaded again for the next request.
  virtual bool is_ready() const = 0;
  virtual MetricsSnapshot metrics() const = 0;
  // The activity of requests now. It is kept up to date for some seconds after a call: after a pause, the first value may be
  // old.
  virtual ActivitySnapshot activity() = 0;
};

}  // namespace uma
