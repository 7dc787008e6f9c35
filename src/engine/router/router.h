// The single consumer of the global queue. Its thread owns the tables of models, sessions and requests, and runs every request
// as a task: straight lines that wait for the preparer, the catalog, images and lanes. What lanes report is committed, and only
// then the client hears of it. Tokens go from the lane to the listener directly.
//
// Invariants: (1) Every request that was accepted gets exactly one terminal event. (2) At most one reply of a session is being
// made. (3) A session is of one model, and pinned to one lane of it while that is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/random.h"
#include "core/event.h"
#include "core/limits.h"
#include "core/service.h"
#include "core/task.h"
#include "engine/embed_lane.h"
#include "engine/lane.h"
#include "engine/preparer.h"
#include "engine/router/embedding_request.h"
#include "engine/router/generation.h"
#include "engine/router/image_intake.h"
#include "engine/router/in_flight.h"
#include "engine/router/router_parts.h"
#include "engine/router/session_access.h"
#include "engine/router/session_commands.h"
#include "engine/router/session_transfer.h"
#include "engine/served_models.h"
#include "engine/session_table.h"
#include "engine/worker_source.h"
#include "kv/catalog.h"
#include "kv/state_store.h"

namespace uma::engine {

struct RouterOptions {
  Limits limits;
  std::uint64_t seed = 0;                        // of generations that bring none
  std::function<std::uint64_t()> ids = nullptr;  // what ids of sessions are made of; null: the same numbers as for the seeds
  std::size_t record_bytes_max = 2u << 20;       // of memory for what was said in sessions that nobody uses at the moment
  ImageFetcher* fetcher = nullptr;               // outlives the router; null: no image is fetched from a URL
  OnImagesFree on_images_free = nullptr;
};

class Router {
 public:
  using Command = std::move_only_function<void()>;

  // Begins with the sessions that the catalog has kept. All references outlive the router.
  Router(const RouterOptions& options, WorkerSource& source, kv::Catalog& catalog, kv::StateStore& store, Preparer& preparer,
         const Clock& clock);
  ~Router();

  // Before the first step: the sessions that the catalog has kept, and the images that sessions have.
  [[nodiscard]] std::unordered_set<SessionId> session_ids() const;
  [[nodiscard]] std::unordered_set<std::string> image_ids() const { return images_.release().all(); }

  // --- Any thread.
  void post(Command command) { inbox_->push(std::move(command)); }
  void close() { inbox_->close(); }
  [[nodiscard]] std::int64_t requests_open() const { return in_flight_.count(); }
  // Receipt of the oldest request that no lane has, by the clock, in µs; 0: there is none.
  [[nodiscard]] std::int64_t waiting_since_us() const { return in_flight_.waiting_since_us(); }
  [[nodiscard]] std::int64_t sessions_count() const { return session_table_.count(); }
  [[nodiscard]] std::uint64_t requests_refused() const { return requests_refused_.value(); }

  // --- Router thread.
  // Runs what waits in the queue and what is due. True when there was something.
  bool step();
  // Waits for a command or the next thing that is due; false once closed and empty.
  bool wait();

  // What clients ask for.
  [[nodiscard]] TaskRunner& tasks() { return tasks_; }
  [[nodiscard]] Generations& generations() { return generations_; }
  [[nodiscard]] EmbeddingRequests& embeddings() { return embeddings_; }
  [[nodiscard]] SessionCommands& sessions() { return sessions_; }
  [[nodiscard]] SessionTransfer& transfer() { return transfer_; }
  // Cancels a request, or the one that a session has. False: there is none.
  bool cancel(RequestId id) { return in_flight_.cancel(id); }
  bool cancel_session(const TenantId& tenant, const std::string& session);
  // What there is no memory for never becomes a request.
  void refuse(std::span<const std::shared_ptr<EventSink>> sinks, const Error& error);
  template <class T>
  void refuse(Reply<T>& reply, Error error) {
    requests_refused_.add();
    reply(std::unexpected(std::move(error)));
  }

  // Loads the model, as a request for it would.
  [[nodiscard]] Task<Expected<Unit>> load_model(std::string name);
  // Who waits for a model that the source was asked for waits until one of these two is called.
  void on_loaded(const std::string& name, ServedModel loaded);
  void on_load_failed(const std::string& name, const Error& error) { models_.set_failed(name, error); }
  // `progress` from 0 to 1.
  void on_load_progress(const std::string& name, double progress);
  // The load waits for so many bytes of memory; 0: it goes on.
  void on_load_queued(const std::string& name, std::uint64_t bytes);
  // ServedModels
  void add_lanes(const std::string& name, std::span<Lane* const> lanes, std::span<EmbedLane* const> embed_lanes) {
    models_.add_lanes(name, lanes, embed_lanes);
  }
  [[nodiscard]] bool keep_lanes(const std::string& name, std::size_t count);
  [[nodiscard]] bool retire(const std::string& name) { return models_.retire(name); }
  void on_retired(const std::string& name) { models_.set_retired(name); }
  void hold_background(const std::string& name, bool holds) { models_.hold_background(name, holds); }
  [[nodiscard]] std::vector<ModelUsage> usage() const { return models_.usage(); }

  // From now on new requests are refused.
  void drain() { in_flight_.drain(); }
  // Ends every request without a result as cancelled, and calls `done` when no request is left. REQUIRES: the lanes have ended.
  void end_all(Command done);

  // For the simulator: every session's invariants hold.
  void check_invariants();

 private:
  [[nodiscard]] SessionTableOptions session_options();

  const RouterOptions options_;
  const Clock& clock_;
  kv::StateStore& store_;
  const std::shared_ptr<Mailbox<Command>> inbox_ = std::make_shared<Mailbox<Command>>();  // shared with who answers tasks

  // Owned by the router's thread.
  Random random_;
  TaskRunner tasks_;
  ServedModels models_;
  SessionTable session_table_;
  InFlightTable in_flight_;
  ImageIntake images_;
  SessionAccess access_;
  Counter requests_refused_;
  const RouterParts parts_;
  Generations generations_;
  EmbeddingRequests embeddings_;
  SessionCommands sessions_;
  SessionTransfer transfer_;
  std::vector<Command> taken_;
  Command on_all_ended_;
  bool is_destroyed_ = false;
};

}  // namespace uma::engine
