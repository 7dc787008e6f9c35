// What every door speaks: the one interface between `server` and `engine`.
// Thread rule: all calls may come from any thread, return at once and never wait for a decode. Replies and events come from
// engine threads. Invariants: (1) every reply is called exactly once. (2) Every generate gets exactly one terminal event.
// (3) An acknowledged change of a session is in the catalog.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "core/embedding.h"
#include "core/error.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/image.h"
#include "core/metrics_snapshot.h"
#include "core/reply.h"
#include "core/request.h"
#include "core/session_info.h"

namespace uma {

class Service {
 public:
  virtual ~Service() = default;

  // What a request of the tenant holds in memory at a door is counted there.
  virtual RequestShare open_share(TenantId tenant) = 0;

  // Starts generations of one prompt; the events of each go to its sink. They differ in their seeds, which go up from the
  // request's, if it has one. Returns the id of the first one, for cancel(); the others have those that follow. REQUIRES: at
  // least one sink; in a session no more.
  virtual RequestId generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) = 0;
  // Vectors of texts, and scores of documents for a query. The id is for cancel().
  virtual RequestId embed(TenantId tenant, EmbedRequest request, Reply<EmbedResult> reply) = 0;
  virtual RequestId rerank(TenantId tenant, RerankRequest request, Reply<RerankResult> reply) = 0;
  // Ends a generation early: Eos with reason `cancelled`, the session keeps its tokens so far; what embeds or reranks replies
  // with E_LIMIT_003. Until their prompt is prepared all generations of one prompt end with the first one, and the others are
  // unknown. Replies false when it is unknown or already finished.
  virtual void cancel(RequestId id, Reply<bool> reply) = 0;
  virtual void cancel_session(TenantId tenant, std::string session, Reply<bool> reply) = 0;

  virtual void create_session(TenantId tenant, CreateSessionRequest request, Reply<SessionInfo> reply) = 0;
  // Replies with the session, whose pending_tokens count what was appended since the last reply.
  virtual void append_input(TenantId tenant, AppendRequest request, Reply<SessionInfo> reply) = 0;
  // Cancels what runs, then forgets the session: tokens, KV, name.
  virtual void end_session(TenantId tenant, std::string session, Reply<Unit> reply) = 0;
  // A new session with the same tokens; `name` may be empty.
  virtual void fork_session(TenantId tenant, std::string session, std::string name, Reply<SessionInfo> reply) = 0;
  // Keeps turns 0 to `turn` (a turn is one input and its reply) and drops the rest.
  virtual void rewind_session(TenantId tenant, std::string session, std::int32_t turn, Reply<SessionInfo> reply) = 0;
  // Marks the session as used now, so that its TTL starts again.
  virtual void touch_session(TenantId tenant, std::string session, Reply<SessionInfo> reply) = 0;
  virtual void get_session(TenantId tenant, std::string session, Reply<SessionDetail> reply) = 0;
  // Errors: E_SESSION_001 where `after` is none.
  virtual void list_sessions(TenantId tenant, SessionListRequest request, Reply<SessionList> reply) = 0;
  // What is kept with the session in the place of CreateSessionRequest::metadata.
  virtual void set_metadata(TenantId tenant, std::string session, std::string metadata, Reply<SessionDetail> reply) = 0;
  // Takes out the message that a conversation ends with, once no reply is being made in the session: one that waits, or else
  // the last reply, whose input then waits again. Errors: E_PROTO_003 where it ends with another one.
  virtual void remove_last_message(TenantId tenant, std::string session, MessagePosition place, Reply<SessionDetail> reply) = 0;

  // `response` is the id of one that the session has (ResponseRequest::id).
  virtual void get_response(TenantId tenant, std::string session, std::string response, Reply<ResponseDetail> reply) = 0;
  // Ends it early, if it is being made, and replies with what is kept of it then; one that has ended stays as it is.
  virtual void cancel_response(TenantId tenant, std::string session, std::string response, Reply<ResponseDetail> reply) = 0;
  // Forgets it, once no reply is being made in the session. In a conversation what was said stays; else it goes as soon as no
  // other response continues it there.
  virtual void forget_response(TenantId tenant, std::string session, std::string response, Reply<Unit> reply) = 0;

  // The session as a file, as it was last committed. `with_kv`: and what is computed of it, if that is stored or in a slot
  // where nobody generates.
  virtual void export_session(TenantId tenant, std::string session, bool with_kv, Reply<ExportedSession> reply) = 0;
  // A new session from such a file; nothing where any of it is wrong.
  virtual void import_session(TenantId tenant, ImportRequest request, Reply<ImportedSession> reply) = 0;

  // A vector for each image.
  virtual void embed_images(TenantId tenant, EmbedImagesRequest request, Reply<ImageEmbeddings> reply) = 0;
  // The files of images that a session of the caller's has, by their SHA-256. Empty: it is gone, or those before it have so
  // much that it would be more than `bytes_max`.
  virtual void read_images(std::vector<std::string> ids, std::size_t bytes_max, Reply<std::vector<Bytes>> reply) = 0;

  // Loads a model before anybody needs it; empty: the default one. Replies when it is there, or why not.
  virtual void load_model(std::string model, Reply<Unit> reply) = 0;
  // Frees a loaded model's memory, if nobody uses it; its sessions stay. Errors: E_SESSION_002 while it is in use.
  virtual void unload_model(std::string model, Reply<Unit> reply) = 0;

  // The following answer from values that are kept up to date, without asking another thread.
  // The name of the model that is meant by `name`, which may be an alias; empty: the default one. Errors: E_MODEL_001.
  virtual Expected<std::string> resolve_model(const std::string& name) const = 0;
  virtual std::vector<ModelInfo> models() const = 0;
  virtual MetricsSnapshot metrics() const = 0;
};

}  // namespace uma
