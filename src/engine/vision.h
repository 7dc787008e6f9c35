// The images of one model: from where a client says they are to tokens of a chain, rows for a context, and vectors. Encoding
// runs on a thread of its own ("uma-vision"), one image after the other, tenants in turn; what was encoded of late is kept in
// memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/image.h"
#include "core/request.h"
#include "core/service.h"
#include "engine/job_queue.h"
#include "engine/kept_images.h"
#include "llm/projector.h"

namespace uma::engine {

struct Image {
  std::string id;  // SHA-256 of the file, in hexadecimal digits
  Bytes file;
  std::vector<Token> tokens;             // that stand for it in a chain: marks, and image tokens (llm/image_tokens.h)
  std::vector<std::int32_t> pieces_end;  // of each piece, in rows
};
using ImagePtr = std::shared_ptr<const Image>;  // shared: by the requests that have it

// What a projector made of an image.
struct EncodedImage {
  std::vector<float> rows;
  std::int32_t row_width = 0;
  std::vector<std::int32_t> pieces_end;  // of each piece, in rows
  bool is_causal = true;                 // false: the rows of a piece are computed in one call

  [[nodiscard]] std::size_t bytes() const { return rows.size() * sizeof(float); }
};
using EncodedPtr = std::shared_ptr<const EncodedImage>;  // shared: by the cache and the requests that compute it

// Those of a request.
struct TakenImages {
  std::vector<ImagePtr> images;
  std::vector<KeptImages::Use> uses;  // of those that are kept
};

struct VisionOptions {
  std::vector<std::string> allowed_dirs;  // of images that are named by a path
  std::uint64_t cache_bytes_max = 128ul << 20;
  ImageUrlRules urls{};                        // of images that are named by a URL
  std::shared_ptr<KeptImages> kept = nullptr;  // those of sessions; shared by all models' visions; null: none are kept
};

struct VisionStats {
  Counter images_encoded_total;
  Counter cache_hits_total;
  Gauge cache_bytes;
  Gauge waiting_bytes;  // of images that came with requests and were not read yet
  LatencyHistogram encode;
};

class Vision {
 public:
  Vision(std::unique_ptr<llm::Projector> projector, VisionOptions options, const Clock& clock,
         std::shared_ptr<VisionStats> stats = std::make_shared<VisionStats>());
  ~Vision();

  // --- Any thread.
  void post(TenantId tenant, JobQueue::Job job) { jobs_.post(std::move(tenant), std::move(job)); }
  // What waits is still run, but nothing is encoded any more.
  void close();
  // Of what image tokens are made.
  [[nodiscard]] const std::string& identity() const { return projector_->facts().identity; }
  // Reads, checks and decodes an image. Blocks on the disk. Errors: E_PROTO_003.
  [[nodiscard]] Expected<ImagePtr> take(const ImageSource& source);
  // One that a request has, or that is kept. Blocks on the disk. Errors: E_IO_001.
  [[nodiscard]] Expected<ImagePtr> find(const std::string& id);
  // Keeps it for later lives. Errors: KeptImages::keep().
  [[nodiscard]] Expected<KeptImages::Use> keep(const TenantId& tenant, const Image& image) const;
  // What was kept is on the disk when this returns. Errors: E_IO_001.
  [[nodiscard]] Expected<Unit> sync_kept() const;
  // Takes the images of an input and writes them into its messages (capability/message_images.h). `keeps`: they are of a
  // session, and are on the disk when `done` is called, from step(). Each is a job of its own; none is begun after the end.
  // Errors: as take() and keep(), with the field; beside one there are the images before it.
  using Taken = std::move_only_function<void(Input input, TakenImages images, Expected<Unit> outcome)>;
  void take_all(TenantId tenant, Input input, bool keeps, std::stop_token end, Taken done);
  // Replies with a vector for each image, or with what is wrong with one: the mean of its rows, of length 1. Errors: as take();
  // E_LIMIT_003 past the deadline.
  void embed(TenantId tenant, EmbedImagesRequest request, TimePoint deadline, Reply<ImageEmbeddings> reply);
  [[nodiscard]] VisionStats& stats() { return *kept_stats_; }
  [[nodiscard]] const VisionStats& stats() const { return *kept_stats_; }

  // --- Owner thread.
  // Runs one job, if any waits. True when there was one.
  bool step() { return jobs_.step(); }
  // From a job, whose next part it is (JobQueue).
  void add(TenantId tenant, JobQueue::Job job) { jobs_.add(std::move(tenant), std::move(job)); }
  // Waits for work; false once closed and empty.
  bool wait() { return jobs_.wait(); }
  // From memory, or anew. Errors: as find(); E_RUNTIME_001.
  [[nodiscard]] Expected<EncodedPtr> encode(const std::string& id);

 private:
  struct Embedding;
  struct Taking;
  struct Cached {
    std::string id;
    EncodedPtr image;
  };

  [[nodiscard]] Expected<ImagePtr> add(Bytes file);
  void take_next(std::shared_ptr<Taking> taking);
  void embed_next(std::shared_ptr<Embedding> embedding);

  const VisionOptions options_;
  const Clock& clock_;
  const std::unique_ptr<llm::Projector> projector_;  // encode(): the owner thread's

  // Owned by the thread that calls step().
  std::list<Cached> cache_;  // the last used one at the end
  std::unordered_map<std::string, std::list<Cached>::iterator> cached_;

  // Shared.
  JobQueue jobs_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<VisionStats> kept_stats_;  // shared with who counts on when the model is loaded again
  VisionStats& stats_ = *kept_stats_;
  Mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const Image>> known_ GUARDED_BY(mutex_);  // that somebody has
};

}  // namespace uma::engine
