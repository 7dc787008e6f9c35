// The requests in flight of one client, from the bytes of a frame to a call of core::Service.
#pragma once

#include <algorithm>
#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/published.h"
#include "core/file/portable_file.h"
#include "core/ids.h"
#include "core/model_library.h"
#include "core/service.h"
#include "core/work/tenant_budget.h"
#include "server/live_feed.h"
#include "server/outbox.h"
#include "wire/own/request.h"

namespace uma::server {

// Limit per connection; further requests fail with limit_wait.
inline constexpr std::size_t kRequestsInFlightMax = 64;

// Io thread only. Answers come from engine threads and go to the outbox. Invariant: every frame gets exactly one last answer,
// at once or later, unless cancel_all() was called first.
class ClientRequests {
 public:
  // How a client watches the daemon.
  struct Live {
    LiveFeed* feed = nullptr;                          // Null: the daemon cannot be watched.
    std::function<void()> wake;                        // Wakes the connection, from any thread, so that it calls append_live().
    const Published<std::string>* http_url = nullptr;  // See UnixServerOptions.
  };
  // Memory of imported files.
  struct Imports {
    std::shared_ptr<TenantBudget> memory;  // Memory of all imports together; shared with the files that the engine still reads.
    std::size_t file_bytes_max = 0;        // Limit for one file.
  };

  // `library` is null if models cannot be pulled. `is_administrator`: whether the client may pull and unload models.
  ClientRequests(Service& service, ModelLibrary* library, bool is_administrator, TenantId tenant,
                 std::shared_ptr<Outbox> outbox, Imports imports, Live live);

  // Starts a request, or answers with an error. While `draining`, new generations are refused.
  void start(std::expected<wire::Request, wire::RejectedRequest> request, bool draining);
  // Forgets the requests with these ids, whose last answers were taken from the outbox (Outbox::take).
  void finish(const std::vector<std::string>& ids);
  // Appends the frames of a watch that are due, if the client watches.
  void append_live(std::string& out);
  // The client has ended its input: an import whose file is incomplete ends with an error.
  void end_input();
  // The client is gone: cancels every generation and download. Sessions stay.
  void cancel_all();

  [[nodiscard]] bool empty() const { return in_flight_.empty(); }
  // Whether a request is in flight that the daemon's shutdown waits for: any but a watch.
  [[nodiscard]] bool has_work() const { return in_flight_.size() > (watch_ ? 1u : 0u); }
  // Whether the rest of an imported file is missing.
  [[nodiscard]] bool awaits_file() const { return pending_import() != in_flight_.end(); }

 private:
  class AnswerEncoder;
  class StreamSink;
  class PictureFrames;
  class ExportFrames;
  class PullFrames;
  struct Import {
    std::string name;
    PortableWriter file;
    RequestShare share;  // Counts the file.
  };
  struct InFlight {
    std::optional<RequestId> generation;  // Id of a request that can be cancelled; nullopt: a command.
    std::optional<Import> import;         // An import whose file is still arriving; at most one.
    std::shared_ptr<PullFrames> pull;     // A download, shared with the thread that follows it; null: another request.
  };

  using InFlights = std::unordered_map<std::string, InFlight>;
  [[nodiscard]] InFlights::const_iterator pending_import() const {
    return std::ranges::find_if(in_flight_, [](const auto& entry) { return entry.second.import.has_value(); });
  }

  // One function per type of request; `id` is the client's id.
  void run(const std::string& id, GenerateRequest request);
  void run(const std::string& id, EmbedImagesRequest request);
  void run(const std::string& id, PictureRequest request);
  void run(const std::string& id, CreateSessionRequest request);
  void run(const std::string& id, AppendRequest request);
  void run(const std::string& id, wire::CancelRequest request);
  void run(const std::string& id, wire::EndSessionRequest request);
  void run(const std::string& id, ForkRequest request);
  void run(const std::string& id, UpdateSessionRequest request);
  void run(const std::string& id, wire::RewindSessionRequest request);
  void run(const std::string& id, wire::TouchRequest request);
  void run(const std::string& id, wire::GetSessionRequest request);
  void run(const std::string& id, SessionListRequest request);
  void run(const std::string& id, wire::ExportSessionRequest request);
  void run(const std::string& id, wire::ImportSessionRequest request);
  void run(const std::string& id, wire::ImportDataRequest request);
  void run(const std::string& id, wire::EmbeddingCall call);
  void run(const std::string& id, wire::RerankCall call);
  void run(const std::string& id, wire::LoadModelRequest request);
  void run(const std::string& id, wire::UnloadModelRequest request);
  void run(const std::string& id, wire::PullModelRequest request);
  void run(const std::string& id, wire::ModelsRequest request);
  void run(const std::string& id, wire::MetricsRequest request);
  void run(const std::string& id, wire::TraceRequest request);
  void run(const std::string& id, wire::GetReceiptRequest request);
  void run(const std::string& id, wire::PingRequest request);
  void run(const std::string& id, wire::WatchRequest request);

  // A Reply for the engine that appends its value as the last frame of `id` by calling append(out, head, value). A long frame,
  // by bytes_of(value), is encoded apart.
  template <class T, class AppendT, class BytesT>
  Promise<T> reply_to(const std::string& id, AppendT append, BytesT bytes_of);
  template <class T, class AppendT>
  Promise<T> reply_to(const std::string& id, AppendT append);
  void answer_error(std::optional<std::string_view> id, const Error& error);

  Service& service_;
  ModelLibrary* const library_;
  const bool is_administrator_;
  const TenantId tenant_;
  const std::uint64_t client_;  // Unique number of the connection.
  const std::shared_ptr<Outbox> outbox_;
  const Imports imports_;
  const Live live_;
  struct Watch {
    std::string id;
    std::unique_ptr<LiveWatcher> watcher;
  };
  InFlights in_flight_;         // By the client's id.
  std::optional<Watch> watch_;  // Also in flight; at most one.
};

}  // namespace uma::server
