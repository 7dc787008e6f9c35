// The images and clips of one model: reads their sources, makes tokens for a chain, rows for a context, and vectors. They are
// read on the threads of the WorkPool. Encoding runs on its own thread ("uma-vision"), one image after the other, with tenants
// in turn. Recently encoded images are cached in memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/embedding.h"
#include "core/error.h"
#include "core/image.h"
#include "core/request.h"
#include "core/service.h"
#include "core/work/job_queue.h"
#include "core/work/work_pool.h"
#include "image/decode_picture.h"
#include "image/decode_sound.h"
#include "image/image_header.h"
#include "image/kept_images.h"
#include "llm/media/projector.h"

namespace uma::image {

struct Image {
  std::string id;  // See image/image_id.h.
  Bytes file;
  std::vector<Token> tokens;             // Marks and image tokens (llm/image_tokens.h) in a chain.
  std::vector<std::int32_t> pieces_end;  // End of each piece, in rows.
  llm::ImageGrid grid{};
  bool is_causal = true;  // False: the rows of a piece attend to each other.
};
using ImagePtr = std::shared_ptr<const Image>;  // Shared by the requests with this image.

// The rows that a projector computed for an image.
struct EncodedImage {
  std::vector<float> rows;
  std::int32_t row_width = 0;
  std::vector<std::int32_t> pieces_end;  // End of each piece, in rows.
  bool is_causal = true;                 // False: the rows of a piece attend to each other.
  llm::ImageGrid grid{};

  // Whether one call must compute all rows of a piece.
  [[nodiscard]] bool is_whole() const { return !is_causal || !grid.places.empty(); }
  [[nodiscard]] std::size_t bytes() const { return rows.size() * sizeof(float); }
};
using EncodedPtr = std::shared_ptr<const EncodedImage>;  // Shared by the cache and the requests that compute it.

// The images of a request.
struct TakenImages {
  std::vector<ImagePtr> images;
  std::vector<KeptImages::Use> uses;  // Hold the files of kept images.
  std::int32_t unreadable = 0;        // Images in results of tools in whose place a line of text was written.
};

struct ImageEncoderOptions {
  std::vector<std::string> allowed_dirs;  // Allowed folders for images given by a path.
  std::uint64_t cache_bytes_max = 128ul << 20;
  std::int64_t pixels_max = kImagePixelsMax;  // Larger images are refused.
  DecodePicture decode = decode_picture_here;
  DecodeSound decode_sound = decode_sound_here;
  // Images of sessions, shared by the encoders of all models; null: images cannot be kept.
  std::shared_ptr<KeptImages> kept = nullptr;
};

struct ImageEncoderStats {
  Counter images_encoded_total;
  Counter cache_hits_total;
  Gauge cache_bytes;
  Gauge waiting_bytes;  // Bytes of images that arrived with requests and are not read yet.
  Gauge last_step_us;   // When an encoding last made progress, by the clock; 0: never.
  LatencyHistogram encode;
};

class ImageEncoder : public std::enable_shared_from_this<ImageEncoder> {
 public:
  ImageEncoder(std::unique_ptr<llm::Projector> projector, ImageEncoderOptions options, const Clock& clock,
               std::shared_ptr<ImageEncoderStats> stats = std::make_shared<ImageEncoderStats>());
  ~ImageEncoder();

  // --- Any thread.
  void post(TenantId tenant, JobQueue::Job job) { jobs_.post(std::move(tenant), std::move(job)); }
  // Queued jobs still run, but no image is encoded any more.
  void close();
  // Whether it encodes files of this kind.
  [[nodiscard]] bool reads(Media media) const {
    const llm::ProjectorFacts& facts = projector_->facts();
    return (media != Media::audio && facts.reads_images) || (media != Media::image && facts.reads_audio);
  }
  // Identifies the projector in image tokens.
  [[nodiscard]] const std::string& identity() const { return projector_->facts().identity; }
  // Reads, checks and decodes an image. Blocks on the disk. Errors: E_PROTO_003; E_LIMIT_003 after `end` was requested.
  [[nodiscard]] Expected<ImagePtr> take(const ImageSource& source, const std::stop_token& end = {});
  // Finds an image of a current request, or a kept image, which is decoded again. Blocks on the disk. Errors: E_IO_001, and
  // E_LIMIT_003 as take().
  [[nodiscard]] Expected<ImagePtr> find(const std::string& id, const std::stop_token& end = {});
  // The file of a kept image. Blocks on the disk. Errors: E_IO_001.
  [[nodiscard]] Expected<Bytes> read_kept(const std::string& id) const;
  // Keeps the image's file beyond the request. Errors: as KeptImages::keep().
  [[nodiscard]] Expected<KeptImages::Use> keep(const TenantId& tenant, const Image& image) const;
  // Writes all kept images to the disk; blocks. Errors: E_IO_001.
  [[nodiscard]] Expected<Unit> sync_kept() const;
  // Takes the images of an input and writes them into its messages (image/message_images.h). `keeps`: the images belong to a
  // session, and are on the disk when `done` is called, on a thread of `work`, which outlives the encoder. Each image is a job;
  // none starts after the request has ended. Errors: as take() and keep(), with the field; `images` then has the images before
  // the failed one.
  // An image in the result of a tool that cannot be read does not end the request: a line of text stands in its place.
  using Taken = MoveOnlyFunction<void(Input input, TakenImages images, Expected<Unit> outcome)>;
  void take_all(WorkPool& work, TenantId tenant, Input input, bool keeps, std::stop_token end, Taken done);
  // Replies with one vector per image, the mean of its rows scaled to length 1, or with the first error. `end` is requested
  // when nobody waits any more. Errors: as take(); E_LIMIT_003 after the deadline.
  void embed(WorkPool& work, TenantId tenant, std::vector<ImageSource> images, std::stop_token end, TimePoint deadline,
             Promise<ImageEmbeddings> reply);
  [[nodiscard]] ImageEncoderStats& stats() { return *kept_stats_; }
  [[nodiscard]] const ImageEncoderStats& stats() const { return *kept_stats_; }

  // --- Owner thread. Runs one queued job. False: there was none.
  bool step() { return jobs_.step(); }
  // Waits for work; false once closed and empty.
  bool wait() { return jobs_.wait(); }
  // Encodes an image, or returns it from the cache, which has an entry for each tenant: nobody learns what another one has.
  // Errors: as find(); E_RUNTIME_001; E_LIMIT_003 after `end` was requested.
  [[nodiscard]] Expected<EncodedPtr> encode(const TenantId& tenant, const std::string& id, const std::stop_token& end = {});

 private:
  struct Embedding;
  struct Taking;
  using CacheKey = std::pair<TenantId, std::string>;  // With the content (image/image_id.h).
  struct Cached {
    CacheKey key;
    EncodedPtr image;
  };

  // `id` is that of the image if it is known, else empty.
  [[nodiscard]] Expected<ImagePtr> add(Bytes file, const std::string& id, const std::stop_token& end);
  [[nodiscard]] Expected<std::vector<float>> rows_of(const Image& image, const std::stop_token& end);
  void post_next(std::shared_ptr<Taking> taking);
  void take_next(std::shared_ptr<Taking> taking);
  void post_next(const std::shared_ptr<Embedding>& embedding);
  void embed_next(const std::shared_ptr<Embedding>& embedding);
  void embed_taken(const std::shared_ptr<Embedding>& embedding, const Image& image);
  void embed_failed_at(Embedding& embedding, const Error& error);
  void embed_failed(Embedding& embedding, Error error);

  const ImageEncoderOptions options_;
  const Clock& clock_;
  const std::unique_ptr<llm::Projector> projector_;  // encode() is called on the owner thread only.

  // Owned by the thread that calls step().
  std::list<Cached> cache_;  // The most recently used one is the last.
  std::map<CacheKey, std::list<Cached>::iterator> cached_;

  // Shared.
  JobQueue jobs_;
  std::atomic<bool> closed_{false};
  const std::shared_ptr<ImageEncoderStats> kept_stats_;  // Shared with the owner of the counters, which outlive this model.
  ImageEncoderStats& stats_ = *kept_stats_;
  Mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<const Image>> known_ GUARDED_BY(mutex_);  // Images of current requests.
};

}  // namespace uma::image
