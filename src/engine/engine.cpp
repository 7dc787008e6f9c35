#include "engine/engine.h"

#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <future>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/move_only_function.h"
#include "base/system/memory_info.h"
#include "base/system/thread_name.h"
#include "base/thrown.h"
#include "engine/metrics_collector.h"
#include "engine/run_loop.h"
#include "llm/text_embedding.h"

namespace uma::engine {
namespace {

// Approximate bytes of a waiting generation besides its request: its sink, sampler and parser.
constexpr std::size_t kGenerationBytes = 16'384;
constexpr int kPatientNiceness = 10;  // They get about a tenth of a busy core.
constexpr int kTextThreads = 4;  // They share the cores by the system's turns, so that a long job delays no other thread's.

// The loop of a thread of the work pool.
struct WorkThread {
  WorkPool& pool;
  WorkPool::Threads which;

  bool step() { return pool.step(which); }
  bool wait() { return pool.wait(which); }
};

// Finds the part of the router that has the method.
template <class Part, class Method>
Part& part_with(Router& router, Method Part::* /*method*/) {
  if constexpr (std::is_same_v<Part, SessionCommands>) {
    return router.sessions();
  } else if constexpr (std::is_same_v<Part, SessionTransfer>) {
    return router.transfer();
  } else if constexpr (std::is_same_v<Part, Generations>) {
    return router.generations();
  } else if constexpr (std::is_same_v<Part, TextConversions>) {
    return router.texts();
  } else {
    return router.embeddings();
  }
}

}  // namespace

Engine::Engine(EngineOptions options, std::unique_ptr<ModelLoader> source, std::unique_ptr<kv::Catalog> catalog,
               std::unique_ptr<kv::ColdStore> cold, const Clock& clock, std::unique_ptr<kv::SharedStates> shared)
    : options_(std::move(options)),
      clock_(clock),
      started_at_(clock.now()),
      source_(std::move(source)),
      catalog_(std::move(catalog)),
      shared_(std::move(shared)),
      store_(with_engine(options_.store), std::move(cold), clock, shared_.get()),
      memory_(std::make_shared<TenantBudget>(options_.limits.queue_bytes_max, "requests in flight", "limits.queue_bytes_max")),
      work_(kTextThreads, thread_cpu_time),
      router_(
          {.limits = options_.limits,
           .seed = secure_u64(),
           .ids = secure_u64,
           .fetcher = options_.fetcher,
           .on_images_free =
               [this](std::vector<std::string> ids, std::function<bool(const std::string& id)> is_used) {
                 if (const auto& kept = options_.image_encoder.kept) {
                   store_.run_later([kept, ids = std::move(ids), is_used = std::move(is_used)] { kept->remove(ids, is_used); });
                 }
               },
           .decode_picture = options_.image_encoder.decode,
           .shares_states = shared_ != nullptr,
           .shares_prefixes = shared_ != nullptr && !options_.is_reproducible},
          *source_, *catalog_, store_, work_, clock),
      workers_(
          options_, store_, clock,
          [this](GenerationResult result) {
            router_.post([this, result = std::move(result)]() mutable { router_.generations().on_result(std::move(result)); });
          },
          [this] { router_.post([this] { router_.on_lost(); }); }) {
  // The images of a shared catalog are named by its records only, and those are not read at the start.
  if (options_.image_encoder.kept && !catalog_->is_shared()) options_.image_encoder.kept->remove_others(router_.image_ids());
}

// Adds a question to the store's options: whether lanes compute at the moment.
kv::StoreOptions Engine::with_engine(kv::StoreOptions options) const {
  options.is_busy = [this] { return workers_.has_streams(); };
  return options;
}

Engine::~Engine() {
  stop();
}

void Engine::start_work_threads(WorkPool::Threads which, int count) {
  for (int i = 0; i < count; ++i) {
    work_threads_.emplace_back([this, which] {
      set_thread_name("uma-work");
      if (which == WorkPool::Threads::patient) yield_to_others(kPatientNiceness);
      WorkThread thread{.pool = work_, .which = which};
      run_loop(thread);
    });
  }
}

void Engine::start() {
  started_ = true;
  auto sessions = router_.session_ids();  // Before the router's thread starts, which may get requests at once.
  source_->start(*this);
  router_thread_ = std::thread([this] {
    set_thread_name("uma-router");
    run_loop(router_);
  });
  start_work_threads(WorkPool::Threads::texts, kTextThreads);
  start_work_threads(WorkPool::Threads::files, WorkPool::kFilesMax);
  start_work_threads(WorkPool::Threads::patient, WorkPool::kPatientMax);
  catalog_thread_ = std::thread([this] {
    set_thread_name("uma-catalog");
    run_loop(*catalog_);
  });
  if (shared_) {
    shared_read_thread_.start([this] {
      set_thread_name("uma-shared-in");
      run_loop(shared_->reader);
    });
    shared_write_thread_.start([this] {
      set_thread_name("uma-shared-out");
      run_loop(shared_->writer);
    });
  }
  store_thread_ = std::thread([this, sessions = std::move(sessions)] { run_store(sessions); });
  load_model(options_.preload, [this](const Expected<Unit>& loaded) {
    if (!loaded) {
      if (options_.on_loaded) options_.on_loaded(std::unexpected(loaded.error()));
      return;
    }
    const std::string model = source_->resolve(options_.preload).value();
    workers_.when_warm(model, [this, info = workers_.info(model)] {
      has_warmed_up_.store(true);
      if (options_.on_loaded) options_.on_loaded(info);
    });
  });
}

// --- Models

// The library reports progress after every tensor; requests get one report for each percent.
void Engine::on_load_progress(const std::string& model, double progress) {
  const double before = workers_.set_load_progress(model, progress);
  if (progress < before || std::floor(progress * 100) > std::floor(before * 100)) {
    router_.post([this, model, progress] { router_.on_load_progress(model, progress); });
  }
}

void Engine::on_load_queued(const std::string& model, std::uint64_t bytes) {
  router_.post([this, model, bytes] { router_.on_load_queued(model, bytes); });
}

void Engine::on_loaded(const std::string& model, Expected<LoadedWorkers> loaded) {
  if (!loaded) {
    workers_.set_failed(model, loaded.error().message);
    return router_.post([this, model, error = loaded.error()] { router_.on_load_failed(model, error); });
  }
  if (!loaded->embeddings.empty()) {
    std::shared_ptr<image::ImageEncoder> encoder;
    if (loaded->projector) encoder = workers_.make_image_encoder(model, std::move(loaded->projector));
    const llm::EmbeddingShape shape = loaded->embeddings.front()->shape();
    auto embedder = std::make_shared<const llm::TextEmbedder>(loaded->model, shape, std::exchange(loaded->tasks, {}),
                                                              input_format(loaded->model, shape, encoder, loaded->defaults));
    auto lanes = workers_.make_embed_workers(model, std::move(*loaded), shape);
    return router_.post(
        [this, model, embedder = std::move(embedder), lanes = std::move(lanes), encoder = std::move(encoder)]() mutable {
          router_.on_loaded(model, text_model(std::move(embedder), std::move(lanes), std::move(encoder)));
        });
  }
  if (loaded->picture) {
    auto weights = loaded->picture_model;
    PictureLane& lane = workers_.make_picture_worker(model, std::move(*loaded));
    return router_.post([this, model, weights = std::move(weights), &lane]() mutable {
      router_.on_loaded(model, picture_model(std::move(weights), lane));
    });
  }
  store_is_open_.wait();  // So that the first requests find the states on disk.
  std::shared_ptr<const llm::Model> weights = loaded->model;
  std::shared_ptr<image::ImageEncoder> encoder;
  if (loaded->projector) encoder = workers_.make_image_encoder(model, std::move(loaded->projector));
  ModelDefaults defaults = loaded->defaults;
  std::vector<Lane*> lanes = workers_.make_workers(model, std::move(*loaded));
  router_.post([this, model, weights = std::move(weights), lanes = std::move(lanes), encoder = std::move(encoder),
                defaults = std::move(defaults)]() mutable {
    router_.on_loaded(model, chat_model(std::move(weights), std::move(lanes), std::move(encoder), std::move(defaults)));
  });
}

void Engine::add_workers(const std::string& model, LoadedWorkers more) {
  router_.post([this, model, added = workers_.add_workers(model, std::move(more))] {
    router_.add_lanes(model, added.lanes, added.embed_lanes);
  });
}

bool Engine::shrink_workers(const std::string& model, std::size_t count) {
  if (!ask_router<bool>([&] { return router_.shrink_lanes(model, count); })) return false;
  workers_.shrink_workers(model, count);
  return true;
}

bool Engine::retire(const std::string& model) {
  if (!ask_router<bool>([this, &model] { return router_.retire(model); })) return false;
  workers_.retire(model);
  router_.post([this, model] { router_.on_retired(model); });
  return true;
}

void Engine::hold_background(const std::string& model, bool holds) {
  router_.post([this, model, holds] { router_.hold_background(model, holds); });
}

std::vector<ModelUsage> Engine::usage() {
  return ask_router<std::vector<ModelUsage>>([this] { return router_.usage(); });
}

template <class T>
T Engine::ask_router(MoveOnlyFunction<T()> question) {
  std::promise<T> answer;
  router_.post([&] {
    try {
      answer.set_value(question());
    } catch (...) {
      answer.set_exception(std::current_exception());
    }
  });
  return answer.get_future().get();
}

// --- Threads

void Engine::run_store(const std::unordered_set<SessionId>& sessions) {
  constexpr Duration kSaveLimit = std::chrono::seconds(20);
  set_thread_name("uma-store");
  store_.open(sessions);
  store_opened_.set_value();
  run_loop(store_);
  const auto publish_all = [this] {
    store_.publish_all(ask_router<std::unordered_set<SessionId>>([this] { return router_.owned_session_ids(); }));
  };
  if (shared_) run_noting(publish_all);
  store_.save_all(clock_.now() + kSaveLimit);
}

void Engine::drain() {
  router_.post([this] { router_.drain(); });
}

void Engine::stop() {
  if (!started_) return;
  started_ = false;
  if (options_.fetcher != nullptr) options_.fetcher->stop();
  source_->stop();
  workers_.stop();
  store_.close();
  store_thread_.join();
  if (shared_) {
    // Before the catalog gives the sessions free, which it does however long the store takes.
    const Duration call_limit = options_.shared_call_limit;
    shared_->writer.close(clock_.now() + options_.publish_limit);
    shared_->reader.close();
    const bool has_written = shared_write_thread_.join_for(options_.publish_limit + call_limit);
    is_left_hanging_ = !shared_read_thread_.join_for(call_limit) || !has_written;
  }
  work_.close();
  for (std::thread& thread : work_threads_) thread.join();
  // Commits the results of the lanes before the catalog closes.
  std::promise<void> has_ended_all;
  router_.post([&] { router_.end_all([&] { has_ended_all.set_value(); }); });
  has_ended_all.get_future().wait();
  catalog_->close();
  catalog_thread_.join();
  router_.close();
  router_thread_.join();
}

// --- Service: each call is one command to the router

// Charges the decoded request to its tenant until the share ends.
Expected<RequestShare> Engine::hold(const TenantId& tenant, std::size_t bytes) {
  RequestShare share = memory_->open(tenant);
  if (auto held = share->grow(bytes); !held) return std::unexpected(held.error());
  return share;
}

// Returns the request's share. Without free memory it refuses the request and returns nothing.
template <class T, class RequestT>
std::optional<RequestShare> Engine::hold_or_refuse(const TenantId& tenant, const RequestT& request, Promise<T>& reply) {
  auto share = hold(tenant, memory_of(request));
  if (share) return std::move(*share);
  router_.post([this, reply = std::move(reply), error = std::move(share.error())]() mutable {
    router_.refuse(reply, std::move(error));
  });
  return std::nullopt;
}

// Returns the reply, with the request's share bound to it.
template <class T>
Promise<T> Engine::holding(RequestShare share, Promise<T> reply) {
  return Promise<T>(
      [share = std::move(share), reply = std::move(reply)](Expected<T> value) mutable { reply(std::move(value)); });
}

RequestId Engine::generate(TenantId tenant, GenerateRequest request, std::vector<std::shared_ptr<EventSink>> sinks) {
  const RequestId id{last_request_.fetch_add(sinks.size()) + 1};
  auto share = hold(tenant, memory_of(request) + sinks.size() * kGenerationBytes);
  if (!share) {
    router_.post([this, sinks = std::move(sinks), error = std::move(share.error())] { router_.refuse(sinks, error); });
    return id;
  }
  request.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), sinks = std::move(sinks)]() mutable {
    router_.generations().start(id, tenant, std::move(request), std::move(sinks));
  });
  return id;
}

RequestId Engine::embed(TenantId tenant, EmbedRequest request, Promise<EmbedResult> reply) {
  const RequestId id{last_request_.fetch_add(1) + 1};
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return id;
  request.options.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), reply = std::move(reply)]() mutable {
    router_.embeddings().embed(id, tenant, std::move(request), std::move(reply));
  });
  return id;
}

RequestId Engine::rerank(TenantId tenant, RerankRequest request, Promise<RerankResult> reply) {
  const RequestId id{last_request_.fetch_add(1) + 1};
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return id;
  request.options.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), reply = std::move(reply)]() mutable {
    router_.embeddings().rerank(id, tenant, std::move(request), std::move(reply));
  });
  return id;
}

RequestId Engine::draw(TenantId tenant, PictureRequest request, std::shared_ptr<PictureSink> sink,
                       Promise<PictureReceipt> reply) {
  const RequestId id{last_request_.fetch_add(1) + 1};
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return id;
  request.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), sink = std::move(sink),
                reply = std::move(reply)]() mutable {
    router_.pictures().draw(id, tenant, std::move(request), std::move(sink), std::move(reply));
  });
  return id;
}

// Starts the task on the router's thread, where it also replies.
template <class T>
void Engine::answer(Promise<T> reply, Task<Expected<T>> task) {
  router_.post([this, reply = std::move(reply), task = std::move(task)]() mutable {
    router_.tasks().answer(std::move(reply), std::move(task));
  });
}

// Replies with the result of a task, which a method of one of the router's parts starts.
template <auto kMethod, class T, class... Args>
void Engine::ask(Promise<T> reply, Args... args) {
  answer(std::move(reply), std::invoke(kMethod, part_with(router_, kMethod), std::move(args)...));
}

// Replies as ask() does, with the request charged to its tenant until the reply.
template <auto kMethod, class T, class RequestT, class... Args>
void Engine::ask_holding(TenantId tenant, RequestT request, Promise<T> reply, Args... args) {
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return;
  if constexpr (requires { request.share; }) request.share = *share;
  ask<kMethod>(holding(std::move(*share), std::move(reply)), std::move(tenant), std::move(request), std::move(args)...);
}

void Engine::count_tokens(TenantId tenant, GenerateRequest request, std::stop_token end, Promise<std::int32_t> reply) {
  ask_holding<&Generations::count_tokens>(std::move(tenant), std::move(request), std::move(reply), std::move(end));
}

void Engine::tokenize(TenantId tenant, TokenizeRequest request, Promise<TokenizedText> reply) {
  ask_holding<&TextConversions::tokenize>(std::move(tenant), std::move(request), std::move(reply));
}

void Engine::detokenize(TenantId tenant, DetokenizeRequest request, Promise<ConvertedText> reply) {
  ask_holding<&TextConversions::detokenize>(std::move(tenant), std::move(request), std::move(reply));
}

void Engine::format_chat(TenantId tenant, GenerateRequest request, Promise<ConvertedText> reply) {
  ask_holding<&TextConversions::format_chat>(std::move(tenant), std::move(request), std::move(reply));
}

void Engine::cancel(RequestId id, Promise<bool> reply) {
  router_.post([this, id, reply = std::move(reply)]() mutable { reply(router_.cancel(id)); });
}

void Engine::cancel_session(TenantId tenant, std::string session, Promise<bool> reply) {
  router_.post([this, tenant = std::move(tenant), session = std::move(session), reply = std::move(reply)]() mutable {
    reply(router_.cancel_session(tenant, session));
  });
}

void Engine::create_session(TenantId tenant, CreateSessionRequest request, Promise<SessionInfo> reply) {
  ask_holding<&SessionCommands::create>(std::move(tenant), std::move(request), std::move(reply));
}

void Engine::append_input(TenantId tenant, AppendRequest request, Promise<SessionInfo> reply) {
  ask_holding<&SessionCommands::append>(std::move(tenant), std::move(request), std::move(reply));
}

void Engine::end_session(TenantId tenant, std::string session, Promise<Unit> reply) {
  ask<&SessionCommands::end>(std::move(reply), std::move(tenant), std::move(session));
}

void Engine::fork_session(TenantId tenant, ForkRequest request, Promise<SessionInfo> reply) {
  ask<&SessionCommands::fork>(std::move(reply), std::move(tenant), std::move(request));
}

void Engine::rewind_session(TenantId tenant, std::string session, std::int32_t turn, Promise<SessionInfo> reply) {
  ask<&SessionCommands::rewind>(std::move(reply), std::move(tenant), std::move(session), turn);
}

void Engine::touch_session(TenantId tenant, std::string session, Promise<SessionInfo> reply) {
  ask<&SessionCommands::touch>(std::move(reply), std::move(tenant), std::move(session));
}

void Engine::get_session(TenantId tenant, std::string session, Promise<SessionDetail> reply) {
  RequestShare share = open_share(tenant);
  ask<&SessionCommands::get>(std::move(reply), std::move(tenant), std::move(session), std::move(share));
}

void Engine::update_session(TenantId tenant, UpdateSessionRequest request, Promise<SessionInfo> reply) {
  ask<&SessionCommands::update>(std::move(reply), std::move(tenant), std::move(request));
}

void Engine::remove_last_message(TenantId tenant, std::string session, MessagePosition place, Promise<SessionDetail> reply) {
  ask<&SessionCommands::remove_last_message>(std::move(reply), std::move(tenant), std::move(session), place);
}

void Engine::get_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) {
  RequestShare share = open_share(tenant);
  ask<&SessionCommands::get_response>(std::move(reply), std::move(tenant), std::move(session), std::move(response),
                                      std::move(share));
}

void Engine::cancel_response(TenantId tenant, std::string session, std::string response, Promise<ResponseDetail> reply) {
  ask<&SessionCommands::cancel_response>(std::move(reply), std::move(tenant), std::move(session), std::move(response));
}

void Engine::forget_response(TenantId tenant, std::string session, std::string response, Promise<Unit> reply) {
  ask<&SessionCommands::forget_response>(std::move(reply), std::move(tenant), std::move(session), std::move(response));
}

void Engine::export_session(TenantId tenant, std::string session, bool with_kv, Promise<ExportedSession> reply) {
  ask<&SessionTransfer::export_session>(std::move(reply), std::move(tenant), std::move(session), with_kv);
}

void Engine::import_session(TenantId tenant, ImportRequest request, Promise<ImportedSession> reply) {
  ask<&SessionTransfer::import_session>(std::move(reply), std::move(tenant), std::move(request));
}

RequestId Engine::embed_images(TenantId tenant, EmbedImagesRequest request, Promise<ImageEmbeddings> reply) {
  const RequestId id{last_request_.fetch_add(1) + 1};
  auto share = hold_or_refuse(tenant, request, reply);
  if (!share) return id;
  request.options.share = std::move(*share);
  router_.post([this, id, tenant = std::move(tenant), request = std::move(request), reply = std::move(reply)]() mutable {
    router_.embeddings().embed_images(id, tenant, std::move(request), std::move(reply));
  });
  return id;
}

void Engine::list_receipts(TenantId tenant, std::string session, Promise<std::vector<TurnReceipt>> reply) {
  ask<&SessionCommands::list_receipts>(std::move(reply), std::move(tenant), std::move(session));
}

void Engine::find_receipt(TenantId tenant, std::string name, Promise<Usage> reply) {
  ask<&SessionCommands::find_receipt>(std::move(reply), std::move(tenant), std::move(name));
}

void Engine::list_sessions(TenantId tenant, SessionListRequest request, Promise<SessionList> reply) {
  ask<&SessionCommands::list>(std::move(reply), std::move(tenant), std::move(request));
}

struct Engine::ImageReading {
  std::shared_ptr<image::KeptImages> kept;  // Shared with the jobs.
  TenantId tenant;
  std::vector<std::string> ids;
  std::stop_token end;
  Promise<ImageFiles> reply;
  std::vector<std::size_t> left{};  // Indices of the files to read, the last one first.
  ImageFiles made{};
};

void Engine::read_images(TenantId tenant, std::vector<std::string> ids, std::size_t bytes_max, std::stop_token end,
                         Promise<ImageFiles> reply) {
  const std::shared_ptr<image::KeptImages> kept = options_.image_encoder.kept;
  if (!kept) return reply(ImageFiles{.files = std::vector<Bytes>(ids.size())});
  auto reading = std::make_shared<ImageReading>(kept, std::move(tenant), ids, std::move(end), std::move(reply));
  // Images that other daemons have got come first.
  kept->bring(std::move(ids), bytes_max, [this, bytes_max, reading = std::move(reading)]() mutable {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < reading->ids.size(); ++i) {
      const auto size = reading->kept->size_of(reading->ids[i]);
      if (!size || *size > bytes_max - bytes) continue;
      bytes += *size;
      reading->left.push_back(i);
    }
    std::ranges::reverse(reading->left);
    reading->made.files.resize(reading->ids.size());
    if (reading->left.empty()) return reading->reply(std::move(reading->made));
    reading->made.share = memory_->open(reading->tenant);
    // The URL of a file has four thirds of its size, and so has the JSON with the URL, for which the file makes room.
    if (const auto held = reading->made.share->grow(bytes * 8 / 3); !held) return reading->reply(std::unexpected(held.error()));
    read_next_image(std::move(reading));
  });
}

// Each file is a job of its own, so that other tenants' come between.
void Engine::read_next_image(std::shared_ptr<ImageReading> reading) {
  const TenantId tenant = reading->tenant;
  work_.post_file(tenant, [this, reading = std::move(reading)]() mutable {
    if (reading->end.stop_requested()) return reading->reply(fail(ErrorCode::limit_wait, "the request has ended"));
    const std::size_t index = reading->left.back();
    reading->left.pop_back();
    if (auto file = reading->kept->read_here(reading->ids[index])) reading->made.files[index] = std::move(*file);
    if (reading->left.empty()) return reading->reply(std::move(reading->made));
    read_next_image(std::move(reading));
  });
}

void Engine::load_model(std::string model, Promise<Unit> reply) {
  answer(std::move(reply), router_.load_model(std::move(model)));
}

void Engine::unload_model(std::string model, Promise<Unit> reply) {
  auto known = source_->resolve(model);
  if (!known)
    return router_.post([reply = std::move(reply), error = known.error()]() mutable { reply(std::unexpected(error)); });
  source_->unload(*known, [this, reply = std::move(reply)](Expected<Unit> done) mutable {
    router_.post([reply = std::move(reply), done = std::move(done)]() mutable { reply(std::move(done)); });
  });
}

// --- Answers that need no other thread

std::vector<ModelInfo> Engine::models() const {
  std::vector<ModelInfo> infos = source_->list();
  workers_.complete(infos);
  return infos;
}

bool Engine::is_ready() const {
  const auto model = source_->resolve(options_.preload);
  return has_warmed_up_.load() && model && !workers_.has_failed(*model);
}

MetricsSnapshot Engine::metrics() const {
  MetricsSnapshot daemon;
  if (const auto known = source_->resolve(options_.preload)) daemon.model = *known;
  source_->add_metrics(daemon);
  daemon.crashes = options_.crashes;
  daemon.uptime_s = to_ms(clock_.now() - started_at_) / 1000;
  daemon.catalog_reachable = catalog_->is_reachable() ? 1 : 0;
  daemon.sessions = router_.sessions_count();
  daemon.session_bytes = router_.session_bytes();
  daemon.requests_open = router_.requests_open();
  daemon.request_bytes = memory_->bytes_used();
  daemon.kept_image_bytes = options_.image_encoder.kept ? options_.image_encoder.kept->bytes() : 0;
  daemon.exceptions_total = thrown_count();
  daemon.requests_total = last_request_.load();
  daemon.requests_failed_total = router_.requests_refused();
  daemon.prompt_memory_bytes = router_.prompts().bytes();
  for (std::size_t i = 0; i < daemon.cache_misses.size(); ++i) daemon.cache_misses[i] = router_.prompts().misses(i);
  daemon.rss_bytes = resident_bytes();
  MetricsCollector collector(std::move(daemon), router_.waiting_since_us());
  workers_.add_metrics(collector);
  collector.add(store_.stats());
  if (shared_) collector.add(shared_->stats);
  return collector.finish(clock_.now());
}

ActivitySnapshot Engine::activity() {
  ActivitySnapshot activity;
  workers_.add_activity(activity);
  if (activity.workers.empty()) activity.contract_ms = options_.target_tbt_ms > 0 ? options_.target_tbt_ms : options_.tick_ms;
  const auto router = router_.activity();
  if (!router) return activity;
  activity.waiting = router->waiting;
  activity.waiting_count = router->waiting_count;
  activity.model_uses = router->model_uses;
  for (const auto& [tenant, more] : router->tenants) add_activity(activity.tenants, tenant, more);
  return activity;
}

}  // namespace uma::engine
