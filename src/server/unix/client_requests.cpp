#include "server/unix/client_requests.h"

#include <algorithm>
#include <atomic>
#include <format>
#include <utility>
#include <variant>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "base/trace.h"
#include "core/limits.h"
#include "server/answer_bytes.h"
#include "server/server_state.h"
#include "wire/openai/picture_codec.h"
#include "wire/own/event_codec.h"
#include "wire/own/request_codec.h"

namespace uma::server {
namespace {

constexpr std::size_t kImportStep = 1ul << 20;  // PortableWriter reserves memory in such parts.

}  // namespace

// Encodes the last frames of a client's requests. Shared by replies and sinks, which may outlive the client. Any thread.
class ClientRequests::AnswerEncoder {
 public:
  AnswerEncoder(Service& service, TenantId tenant, std::shared_ptr<Outbox> outbox)
      : service_(service), tenant_(std::move(tenant)), outbox_(std::move(outbox)) {}

  // Passes the frame that encode() returns to `deliver`. What takes long is encoded apart, since it delays the threads that
  // answer, which all tenants share. `share` counts it meanwhile. Once the client is gone nothing is encoded.
  template <class EncodeT>
  void run(std::size_t bytes, RequestShare share, EncodeT encode, Promise<std::string> deliver) const {
    if (bytes < kApartBytes) return deliver(contain(encode));
    service_.run_apart(
        tenant_, bytes,
        [outbox = outbox_, share = std::move(share), encode = std::move(encode), deliver = std::move(deliver)]() mutable {
          if (outbox->is_sealed()) return;
          Expected<std::string> frame = contain([&] {
            EncodeT work = std::move(encode);  // Its value is not held beside the frame longer than needed.
            return work();
          });
          share.reset();  // The outbox counts the frame.
          deliver(std::move(frame));
        });
  }
  // A share that counts so much of an answer. Errors: E_LIMIT_003.
  [[nodiscard]] Expected<RequestShare> hold(std::size_t bytes) const {
    if (bytes < kApartBytes) return nullptr;
    RequestShare share = service_.open_share(tenant_);
    if (const auto held = share->grow(bytes); !held) return std::unexpected(held.error());
    return share;
  }
  [[nodiscard]] const std::shared_ptr<Outbox>& outbox() const { return outbox_; }

 private:
  Service& service_;
  const TenantId tenant_;
  const std::shared_ptr<Outbox> outbox_;
};

// The output of one generation. Engine threads share ownership, so a sink may outlive the connection; it then appends to a
// sealed outbox.
class ClientRequests::StreamSink final : public EventSink {
 public:
  StreamSink(AnswerEncoder encoder, const std::string& id, bool stream)
      : encoder_(std::move(encoder)), id_(id), head_(id), stream_(stream) {}

  bool deliver(const Event& event) override {
    const auto write = [&](std::string& out) { wire::append_event(out, head_, event, stream_); };
    if (!is_terminal(event)) return encoder_.outbox()->append_unless_full(write);
    const auto* eos = std::get_if<EosEvent>(&event);
    if (eos != nullptr && answer_bytes(*eos) >= kApartBytes) {
      end_apart(*eos);
    } else {
      encoder_.outbox()->append_last(id_, write);
    }
    return true;
  }

 private:
  // An end is delivered in any case, so it is encoded even where there is no memory to hold it.
  void end_apart(const EosEvent& eos) {
    if (encoder_.outbox()->is_sealed()) return;
    auto encode = [head = head_, stream = stream_, eos = Event(eos)]() -> Expected<std::string> {
      std::string frame;
      wire::append_event(frame, head, eos, stream);
      return frame;
    };
    Promise<std::string> deliver([outbox = encoder_.outbox(), id = id_, head = head_](Expected<std::string> frame) {
      if (frame) return outbox->append_last_answer(id, std::move(*frame));
      outbox->append_last(id, [&](std::string& out) { wire::append_error(out, head, frame.error()); });
    });
    const std::size_t bytes = answer_bytes(eos);
    encoder_.run(bytes, encoder_.hold(bytes).value_or(nullptr), std::move(encode), std::move(deliver));
  }

  const AnswerEncoder encoder_;
  const std::string id_;
  const wire::FrameHead head_;
  const bool stream_;
};

// The pictures of one request.
class ClientRequests::PictureFrames final : public PictureSink {
 public:
  PictureFrames(std::shared_ptr<Outbox> outbox, const std::string& id) : outbox_(std::move(outbox)), head_(id) {}

  bool deliver(const PictureEvent& event) override {
    std::string frames;  // Written before the outbox is locked, which delivers the tokens of other requests.
    wire::append_picture_event(frames, head_, event);
    return outbox_->append_long_unless_full(std::move(frames));
  }

 private:
  const std::shared_ptr<Outbox> outbox_;
  const wire::FrameHead head_;
};

// Generates the frames of an exported file, a few at a time.
class ClientRequests::ExportFrames {
 public:
  ExportFrames(const std::string& id, ExportedSession session) : head_(id), session_(std::move(session)) {}

  bool operator()(std::string& out) {
    constexpr std::size_t kPartBytes = 48ul << 10;  // 64 KiB as base64, which leaves space for a stream beside it.
    const auto& parts = session_.file.parts;
    if (part_ == parts.size()) {
      wire::append_exported(out, head_, session_);
      return false;
    }
    const auto left = parts[part_].subspan(offset_);
    const auto next = left.first(std::min(kPartBytes, left.size()));
    wire::append_data(out, head_, next);
    offset_ += next.size();
    if (offset_ == parts[part_].size()) {
      ++part_;
      offset_ = 0;
    }
    return true;
  }

 private:
  const wire::FrameHead head_;
  const ExportedSession session_;
  std::size_t part_ = 0;
  std::size_t offset_ = 0;
};

// The output of one download.
class ClientRequests::PullFrames final : public PullSink {
 public:
  PullFrames(std::shared_ptr<Outbox> outbox, const std::string& id) : outbox_(std::move(outbox)), id_(id), head_(id) {}

  bool update(const PullProgress& progress) override {
    if (is_cancelled_.load()) return false;
    // A client that reads slowly misses some.
    (void)outbox_->append_unless_full([&](std::string& out) { wire::append_pull_progress(out, head_, progress); });
    return true;
  }
  void end(Expected<std::string> model) override {
    outbox_->append_last(id_, [&](std::string& out) {
      if (model) return wire::append_pulled(out, head_, *model);
      wire::append_error(out, head_, model.error());
    });
  }
  void cancel() { is_cancelled_.store(true); }

 private:
  const std::shared_ptr<Outbox> outbox_;
  const std::string id_;
  const wire::FrameHead head_;
  std::atomic<bool> is_cancelled_{false};
};

ClientRequests::ClientRequests(Service& service, ModelLibrary* library, bool is_administrator, TenantId tenant,
                               std::shared_ptr<Outbox> outbox, Imports imports, Live live)
    : service_(service),
      library_(library),
      is_administrator_(is_administrator),
      tenant_(std::move(tenant)),
      client_(next_client_number()),
      outbox_(std::move(outbox)),
      imports_(std::move(imports)),
      live_(std::move(live)) {}

void ClientRequests::start(std::expected<wire::Request, wire::RejectedRequest> request, bool draining) {
  if (!request) {
    answer_error(request.error().id, request.error().error);
    return;
  }
  const std::string& id = request->id;
  if (in_flight_.contains(id)) {
    answer_error(id,
                 {ErrorCode::proto_id_in_flight, "a request with this id is still running on this connection: use another id"});
    return;
  }
  // At the limit a client can still end its requests.
  const bool may_exceed =
      std::holds_alternative<wire::CancelRequest>(request->body) || std::holds_alternative<wire::PingRequest>(request->body);
  if (in_flight_.size() >= kRequestsInFlightMax * (may_exceed ? 2 : 1)) {
    answer_error(id, {ErrorCode::limit_wait, std::format("{} requests are in flight on this connection, and the limit is {}",
                                                         in_flight_.size(), kRequestsInFlightMax)});
    return;
  }
  const bool is_work =
      std::holds_alternative<GenerateRequest>(request->body) || std::holds_alternative<wire::EmbeddingCall>(request->body) ||
      std::holds_alternative<PictureRequest>(request->body) || std::holds_alternative<wire::RerankCall>(request->body) ||
      std::holds_alternative<EmbedImagesRequest>(request->body);
  if (draining && is_work) {
    answer_error(id, {ErrorCode::limit_wait, "the daemon is stopping and accepts no new generations"});
    return;
  }
  std::visit([&](auto& body) { run(id, std::move(body)); }, request->body);
}

void ClientRequests::finish(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) in_flight_.erase(id);
}

void ClientRequests::end_input() {
  const auto import = pending_import();
  if (import == in_flight_.end()) return;
  const std::string id = import->first;
  in_flight_.erase(import);
  answer_error(id, {ErrorCode::proto_field, "the session file is incomplete: its end did not arrive"});
}

void ClientRequests::cancel_all() {
  for (const auto& [id, request] : in_flight_) {
    if (request.generation) service_.cancel(*request.generation, [](Expected<bool>) {});
    if (request.pull) request.pull->cancel();
  }
  watch_.reset();
  in_flight_.clear();
}

void ClientRequests::answer_error(std::optional<std::string_view> id, const Error& error) {
  outbox_->append([&](std::string& out) { wire::append_error(out, wire::FrameHead(id), error); });
}

template <class T, class AppendT, class BytesT>
Promise<T> ClientRequests::reply_to(const std::string& id, AppendT append, BytesT bytes_of) {
  in_flight_.emplace(id, InFlight{});
  return [encoder = AnswerEncoder(service_, tenant_, outbox_), id, append = std::move(append),
          bytes_of = std::move(bytes_of)](Expected<T> result) mutable {
    if (encoder.outbox()->is_sealed()) return;
    Promise<std::string> deliver([outbox = encoder.outbox(), id](Expected<std::string> frame) {
      const Expected<Unit> told =
          std::move(frame).and_then([&](std::string whole) { return outbox->append_answer(id, std::move(whole)); });
      if (!told) {
        outbox->append_last(id, [&](std::string& out) { wire::append_error(out, wire::FrameHead(id), told.error()); });
      }
    });
    if (!result) return deliver(std::unexpected(std::move(result.error())));
    const std::size_t bytes = bytes_of(*result);
    Expected<RequestShare> share = encoder.hold(bytes);
    if (!share) return deliver(std::unexpected(std::move(share.error())));
    // Encoded before the outbox is locked, so that a large session does not delay tokens of other requests on this connection.
    auto encode = [id, append = std::move(append), value = std::move(*result)]() -> Expected<std::string> {
      std::string frame;
      append(frame, wire::FrameHead(id), value);
      return frame;
    };
    encoder.run(bytes, std::move(*share), std::move(encode), std::move(deliver));
  };
}

template <class T, class AppendT>
Promise<T> ClientRequests::reply_to(const std::string& id, AppendT append) {
  return reply_to<T>(id, std::move(append), [](const T& value) -> std::size_t {
    if constexpr (requires { answer_bytes(value); }) {
      return answer_bytes(value);
    } else {
      return 0;  // It does not grow.
    }
  });
}

void ClientRequests::run(const std::string& id, GenerateRequest request) {
  auto sink = std::make_shared<StreamSink>(AnswerEncoder(service_, tenant_, outbox_), id, request.options.stream);
  // Registered before the call, because events may arrive, and end, during it.
  InFlight& in_flight = in_flight_[id];
  request.client = client_;
  in_flight.generation = service_.generate(tenant_, std::move(request), {std::move(sink)});
}

void ClientRequests::run(const std::string& id, EmbedImagesRequest request) {
  request.options.client = client_;
  auto reply = reply_to<ImageEmbeddings>(id, wire::append_embeddings);
  in_flight_.at(id).generation = service_.embed_images(tenant_, std::move(request), std::move(reply));
}

void ClientRequests::run(const std::string& id, PictureRequest request) {
  request.client = client_;
  auto reply = reply_to<PictureReceipt>(id, wire::append_picture_eos);
  in_flight_.at(id).generation =
      service_.draw(tenant_, std::move(request), std::make_shared<PictureFrames>(outbox_, id), std::move(reply));
}

void ClientRequests::run(const std::string& id, CreateSessionRequest request) {
  service_.create_session(tenant_, std::move(request), reply_to<SessionInfo>(id, wire::append_session));
}

void ClientRequests::run(const std::string& id, AppendRequest request) {
  service_.append_input(tenant_, std::move(request), reply_to<SessionInfo>(id, wire::append_session_ack));
}

void ClientRequests::run(const std::string& id, wire::CancelRequest request) {
  if (!request.session.empty()) {
    service_.cancel_session(tenant_, std::move(request.session), reply_to<bool>(id, wire::append_cancel_ack));
    return;
  }
  const auto target = in_flight_.find(request.target);
  if (target != in_flight_.end() && target->second.pull) {
    target->second.pull->cancel();
    outbox_->append([&](std::string& out) { wire::append_cancel_ack(out, wire::FrameHead(id), true); });
    return;
  }
  if (watch_ && watch_->id == request.target) {
    watch_.reset();
    outbox_->append_last(request.target,
                         [&](std::string& out) { wire::append_watch_end(out, wire::FrameHead(request.target)); });
    outbox_->append([&](std::string& out) { wire::append_cancel_ack(out, wire::FrameHead(id), true); });
    return;
  }
  if (target == in_flight_.end() || !target->second.generation) {
    outbox_->append([&](std::string& out) { wire::append_cancel_ack(out, wire::FrameHead(id), false); });
    return;
  }
  const RequestId generation = *target->second.generation;
  service_.cancel(generation, reply_to<bool>(id, wire::append_cancel_ack));
}

void ClientRequests::run(const std::string& id, wire::EndSessionRequest request) {
  const auto append = [](std::string& out, const wire::FrameHead& head, Unit) { wire::append_ack(out, head); };
  service_.end_session(tenant_, std::move(request.session), reply_to<Unit>(id, append));
}

void ClientRequests::run(const std::string& id, ForkRequest request) {
  service_.fork_session(tenant_, std::move(request), reply_to<SessionInfo>(id, wire::append_session));
}

void ClientRequests::run(const std::string& id, UpdateSessionRequest request) {
  service_.update_session(tenant_, std::move(request), reply_to<SessionInfo>(id, wire::append_session_ack));
}

void ClientRequests::run(const std::string& id, wire::RewindSessionRequest request) {
  service_.rewind_session(tenant_, std::move(request.session), request.turn,
                          reply_to<SessionInfo>(id, wire::append_session_ack));
}

void ClientRequests::run(const std::string& id, wire::TouchRequest request) {
  service_.touch_session(tenant_, std::move(request.session), reply_to<SessionInfo>(id, wire::append_session_ack));
}

void ClientRequests::run(const std::string& id, wire::GetSessionRequest request) {
  service_.get_session(tenant_, std::move(request.session), reply_to<SessionDetail>(id, wire::append_session_detail));
}

void ClientRequests::run(const std::string& id, SessionListRequest request) {
  service_.list_sessions(tenant_, std::move(request), reply_to<SessionList>(id, wire::append_sessions));
}

void ClientRequests::run(const std::string& id, wire::ExportSessionRequest request) {
  in_flight_.emplace(id, InFlight{});
  service_.export_session(
      tenant_, std::move(request.session), request.with_kv,
      [outbox = outbox_, id, share = service_.open_share(tenant_)](Expected<ExportedSession> exported) {
        // KV in a file is counted where the file is made.
        const auto held = exported.and_then(
            [&](const ExportedSession& made) { return share->grow(std::min(made.file.size(), kConversationBytesMax)); });
        if (held) {
          outbox->append_drawn(id, [share, frames = std::make_unique<ExportFrames>(id, std::move(*exported))](
                                       std::string& out) { return (*frames)(out); });
          return;
        }
        outbox->append_last(id, [&](std::string& out) { wire::append_error(out, wire::FrameHead(id), held.error()); });
      });
}

void ClientRequests::run(const std::string& id, wire::ImportSessionRequest request) {
  if (awaits_file()) {
    return answer_error(
        id, {ErrorCode::limit_wait, "another import is in progress on this connection: send its file to the end first"});
  }
  // The file's own limit; `share` counts it with the others.
  const auto limit = std::make_shared<ByteBudget>(imports_.file_bytes_max);
  in_flight_[id].import.emplace(std::move(request.name), PortableWriter(limit), imports_.memory->open(tenant_));
}

void ClientRequests::run(const std::string& id, wire::ImportDataRequest request) {
  const auto target = in_flight_.find(request.target);
  if (target == in_flight_.end() || !target->second.import) {
    return answer_error(
        id, {ErrorCode::proto_field, "field \"target\" is not the id of an import_session in progress on this connection"});
  }
  PortableWriter& file = target->second.import->file;
  const std::size_t bytes = file.size() + request.data.size();
  Expected<Unit> appended;
  if (bytes <= imports_.file_bytes_max) {  // The file refuses more.
    const std::size_t steps = (bytes + kImportStep - 1) / kImportStep;
    appended = target->second.import->share->resize(std::min(steps * kImportStep, imports_.file_bytes_max));
  }
  if (appended) appended = file.append(request.data);
  if (!appended) {
    in_flight_.erase(target);
    answer_error(request.target, appended.error());
    return answer_error(id, appended.error());
  }
  outbox_->append([&](std::string& out) { wire::append_received_ack(out, wire::FrameHead(id), file.size()); });
  if (!request.is_last) return;
  ImportRequest import{.name = std::move(target->second.import->name), .file = std::move(file).finish()};
  using Owned = std::pair<std::shared_ptr<const void>, RequestShare>;
  import.file.owner = std::make_shared<const Owned>(std::move(import.file.owner), std::move(target->second.import->share));
  target->second.import.reset();
  service_.import_session(tenant_, std::move(import), reply_to<ImportedSession>(request.target, wire::append_imported));
}

void ClientRequests::run(const std::string& id, wire::EmbeddingCall call) {
  call.embed.options.client = client_;
  auto reply = reply_to<EmbedResult>(
      id, [encoding = call.encoding](std::string& out, const wire::FrameHead& head, const EmbedResult& result) {
        wire::append_embedding(out, head, result, encoding);
      });
  in_flight_.at(id).generation = service_.embed(tenant_, std::move(call.embed), std::move(reply));
}

void ClientRequests::run(const std::string& id, wire::RerankCall call) {
  call.rerank.options.client = client_;
  RerankRequest request = call.rerank;
  const auto asked = std::make_shared<const wire::RerankCall>(std::move(call));
  auto reply = reply_to<RerankResult>(
      id,
      [asked](std::string& out, const wire::FrameHead& head, const RerankResult& result) {
        wire::append_rerank(out, head, result, *asked);
      },
      [asked](const RerankResult& result) { return answer_bytes(*asked, result.scores.size()); });
  in_flight_.at(id).generation = service_.rerank(tenant_, std::move(request), std::move(reply));
}

void ClientRequests::run(const std::string& id, wire::LoadModelRequest request) {
  const auto append = [](std::string& out, const wire::FrameHead& head, Unit) { wire::append_ack(out, head); };
  service_.load_model(std::move(request.model), reply_to<Unit>(id, append));
}

void ClientRequests::run(const std::string& id, wire::UnloadModelRequest request) {
  if (!is_administrator_) return answer_error(id, {ErrorCode::auth, "only the user whom umad runs as may unload models"});
  const auto append = [](std::string& out, const wire::FrameHead& head, Unit) { wire::append_ack(out, head); };
  service_.unload_model(std::move(request.model), reply_to<Unit>(id, append));
}

void ClientRequests::run(const std::string& id, wire::PullModelRequest request) {
  if (!is_administrator_ || library_ == nullptr) {
    return answer_error(id, {ErrorCode::auth, "only the user whom umad runs as may pull models: run uma-cli pull instead"});
  }
  const auto frames = std::make_shared<PullFrames>(outbox_, id);
  in_flight_[id].pull = frames;
  library_->pull(std::move(request.source), frames);
}

void ClientRequests::run(const std::string& id, wire::ModelsRequest) {
  const std::vector<ModelInfo> models = service_.models();
  outbox_->append([&](std::string& out) { wire::append_models(out, wire::FrameHead(id), models); });
}

void ClientRequests::run(const std::string& id, wire::MetricsRequest) {
  const MetricsSnapshot metrics = service_.metrics();
  outbox_->append([&](std::string& out) { wire::append_metrics(out, wire::FrameHead(id), metrics); });
}

void ClientRequests::run(const std::string& id, wire::GetReceiptRequest request) {
  service_.find_receipt(tenant_, std::move(request.reply), reply_to<Usage>(id, wire::append_receipt));
}

void ClientRequests::run(const std::string& id, wire::TraceRequest request) {
  if (!is_administrator_) return answer_error(id, {ErrorCode::auth, "only the user whom umad runs as may read its trace"});
  // Written before the outbox is locked, which delivers the tokens of other requests on this connection.
  std::string frame;
  wire::append_trace(frame, wire::FrameHead(id), read_trace(SteadyClock().now() - request.span, wire::kTraceSpansMax));
  outbox_->append([&](std::string& out) { out += frame; });
}

void ClientRequests::run(const std::string& id, wire::WatchRequest request) {
  if (watch_) return answer_error(id, {ErrorCode::limit_wait, "this connection watches already: cancel that watch first"});
  if (live_.feed == nullptr) return answer_error(id, {ErrorCode::limit_wait, "this daemon does not offer to be watched"});
  auto watcher = live_.feed->watch({.is_administrator = is_administrator_, .tenant = tenant_.value}, request, live_.wake);
  if (!watcher) return answer_error(id, watcher.error());
  in_flight_.emplace(id, InFlight{});
  watch_.emplace(id, std::move(*watcher));
  live_.wake();  // For the history.
}

void ClientRequests::append_live(std::string& out) {
  if (!watch_) return;
  const LiveWatcher::News news = watch_->watcher->take();
  const wire::FrameHead head(watch_->id);
  if (!news.history.empty()) wire::append_history(out, head, news.history);
  if (!news.snapshot.empty()) wire::append_snapshot(out, head, news.snapshot);
  if (!news.is_end) return;
  wire::append_watch_end(out, head);
  in_flight_.erase(watch_->id);
  watch_.reset();
}

void ClientRequests::run(const std::string& id, wire::PingRequest) {
  const auto url = live_.http_url == nullptr ? nullptr : live_.http_url->latest();
  outbox_->append([&](std::string& out) { wire::append_pong(out, wire::FrameHead(id), url ? *url : ""); });
}

}  // namespace uma::server
