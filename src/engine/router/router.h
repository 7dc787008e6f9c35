// The single consumer of the global queue. Its thread owns the tables of models, sessions and requests, and runs every request
// as a task, which waits for the work pool, the catalog, images and lanes. The result of a lane is committed before the client
// gets the terminal event. Tokens go from the lane directly to the listener.
//
// Invariants: (1) Every accepted request gets exactly one terminal event. (2) At most one reply of a session is being made. (3)
// A session belongs to one model, and is pinned to one lane of the model while the model is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "base/published.h"
#include "base/random.h"
#include "core/activity.h"
#include "core/event.h"
#include "core/image_fetcher.h"
#include "core/limits.h"
#include "core/service.h"
#include "core/work/task.h"
#include "core/work/work_pool.h"
#include "engine/lane/lane.h"
#include "engine/lane/run/embed_lane.h"
#include "engine/model/model_loader.h"
#include "engine/model/model_table.h"
#include "engine/router/embedding_request.h"
#include "engine/router/generation.h"
#include "engine/router/image_intake.h"
#include "engine/router/in_flight.h"
#include "engine/router/picture_request.h"
#include "engine/router/router_parts.h"
#include "engine/router/session_access.h"
#include "engine/router/session_commands.h"
#include "engine/router/session_transfer.h"
#include "engine/router/text_conversions.h"
#include "engine/session/session_table.h"
#include "kv/catalog/catalog.h"
#include "kv/state_store.h"

namespace uma::engine {

// The router's part of an ActivitySnapshot.
struct RouterActivity {
  std::vector<WaitingRequest> waiting;
  std::int64_t waiting_count = 0;
  TenantActivities tenants;  // Waiting requests by tenant, without work.
  std::map<std::string, std::int64_t> model_uses;
};

struct RouterOptions {
  Limits limits;
  std::uint64_t seed = 0;  // Makes the seeds of generations that have none.
  // Makes the ids of sessions; null: they come from the numbers that the seeds come from.
  std::function<std::uint64_t()> ids = nullptr;
  std::size_t record_bytes_max = 2u << 20;  // Memory for the records of idle sessions.
  ImageFetcher* fetcher = nullptr;          // Outlives the router; null: images are not fetched from URLs.
  OnImagesFree on_images_free = nullptr;
  image::DecodePicture decode_picture = image::decode_picture_here;  // For pictures that drawings begin with.
  bool shares_states = false;                                        // The store of states has a shared store.
  // That store is for system prompts, too. Not for lanes in reproducible mode, which take no KV of other conversations.
  bool shares_prefixes = false;
};

class Router {
 public:
  using Command = MoveOnlyFunction<void()>;

  // Begins with the sessions of the catalog. All references outlive the router.
  Router(const RouterOptions& options, ModelLoader& source, kv::Catalog& catalog, kv::StateStore& store, WorkPool& work,
         const Clock& clock);
  ~Router();

  // Before the first step: the sessions of the catalog, and the images that sessions use.
  [[nodiscard]] std::unordered_set<SessionId> session_ids() const;
  // The sessions that belong to this daemon, if others share the catalog.
  [[nodiscard]] std::unordered_set<SessionId> owned_session_ids() const;
  [[nodiscard]] std::unordered_set<std::string> image_ids() const { return images_.release().all(); }

  // --- Any thread.
  void post(Command command) { inbox_->push(std::move(command)); }
  void close() { inbox_->close(); }
  [[nodiscard]] std::int64_t requests_open() const { return in_flight_.count(); }
  // When the oldest request that is in no lane was received, by the clock, in µs; 0: there is no such request.
  [[nodiscard]] std::int64_t waiting_since_us() const { return in_flight_.waiting_since_us(); }
  [[nodiscard]] std::int64_t sessions_count() const { return session_table_.count(); }
  [[nodiscard]] std::int64_t session_bytes() const { return session_table_.bytes_stored(); }
  [[nodiscard]] std::uint64_t requests_refused() const { return requests_refused_.value(); }
  [[nodiscard]] const PromptMemory& prompts() const { return prompts_; }  // Its counters.
  // The activity that was published last; null: nothing yet. Asks for more, for a while: the value may be old if nobody asked
  // lately.
  [[nodiscard]] std::shared_ptr<const RouterActivity> activity();

  // --- Router thread.
  // Runs the commands in the queue and everything that is due. True: there was work.
  bool step();
  // Waits for a command or the next due time. False: the queue is closed and empty.
  bool wait();

  // The parts that handle clients' requests.
  [[nodiscard]] TaskRunner& tasks() { return tasks_; }
  [[nodiscard]] Generations& generations() { return generations_; }
  [[nodiscard]] EmbeddingRequests& embeddings() { return embeddings_; }
  [[nodiscard]] PictureRequests& pictures() { return pictures_; }
  [[nodiscard]] SessionCommands& sessions() { return sessions_; }
  [[nodiscard]] SessionTransfer& transfer() { return transfer_; }
  [[nodiscard]] TextConversions& texts() { return texts_; }
  // Cancels a request; cancel_session() cancels the request of a session. False: there is no such request.
  bool cancel(RequestId id) { return in_flight_.cancel(id); }
  bool cancel_session(const TenantId& tenant, const std::string& session);
  // Refuses a request before it is accepted, for lack of memory.
  void refuse(std::span<const std::shared_ptr<EventSink>> sinks, const Error& error);
  template <class T>
  void refuse(Promise<T>& reply, Error error) {
    requests_refused_.add();
    reply(std::unexpected(std::move(error)));
  }

  // Loads the model as a request for it would.
  [[nodiscard]] Task<Expected<Unit>> load_model(std::string name);
  // Each load of the source ends with one of these two calls, which answer the requests that wait for the model.
  void on_loaded(const std::string& name, ServedModel loaded);
  void on_load_failed(const std::string& name, const Error& error) { models_.set_failed(name, error); }
  // `progress` from 0 to 1.
  void on_load_progress(const std::string& name, double progress);
  // The load waits for `bytes` of memory; 0: it continues.
  void on_load_queued(const std::string& name, std::uint64_t bytes);
  // Forwarded to ModelTable.
  void add_lanes(const std::string& name, std::span<Lane* const> lanes, std::span<EmbedLane* const> embed_lanes) {
    models_.add_lanes(name, lanes, embed_lanes);
  }
  [[nodiscard]] bool shrink_lanes(const std::string& name, std::size_t count);
  [[nodiscard]] bool retire(const std::string& name) { return models_.retire(name); }
  void on_retired(const std::string& name) { models_.set_retired(name); }
  void on_lost() { models_.take_out_lost(); }
  void hold_background(const std::string& name, bool holds) { models_.hold_background(name, holds); }
  [[nodiscard]] std::vector<ModelUsage> usage() const { return models_.usage(); }

  // From now on new requests are refused.
  void drain() { in_flight_.drain(); }
  // Ends all requests without a result as cancelled, and calls `done` when no request is left. Requires: the lanes have ended.
  void end_all(Command done);

  // For the simulator: checks the invariants of all sessions.
  void check_invariants();

 private:
  [[nodiscard]] SessionTableOptions session_options();
  void publish_activity();

  const RouterOptions options_;
  kv::StateStore& store_;
  const Clock& clock_;
  // Shared with the threads that answer tasks.
  const std::shared_ptr<Mailbox<Command>> inbox_ = std::make_shared<Mailbox<Command>>();

  // Owned by the router's thread.
  Random random_;
  TaskRunner tasks_;
  ModelTable models_;
  SessionTable session_table_;
  InFlightTable in_flight_;
  ImageIntake images_;
  SessionAccess access_;
  StateExchange exchange_;
  PrefixExchange prefixes_;
  PromptMemory prompts_;
  Counter requests_refused_;
  const RouterParts parts_;
  Generations generations_;
  EmbeddingRequests embeddings_;
  PictureRequests pictures_;
  SessionCommands sessions_;
  SessionTransfer transfer_;
  TextConversions texts_;
  std::vector<Command> taken_;
  Command on_all_ended_;
  bool is_destroyed_ = false;

  // Shared.
  Published<RouterActivity> activity_;
  Demand activity_demand_;
};

}  // namespace uma::engine
