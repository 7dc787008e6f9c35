#include "image/image_encoder.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "image/decode_sound.h"
#include "image/image_id.h"
#include "image/image_source.h"
#include "image/message_images.h"
#include "llm/media/image_tokens.h"

namespace uma::image {
namespace {

constexpr TraceKind kEncodeSpan{.name = "encode image"};

// Ends an encoding whose result nobody waits for any more, and shows that the others go on.
class EndOnRequest final : public llm::CallMonitor {
 public:
  EndOnRequest(const std::stop_token& end, const std::atomic<bool>& closed, const Clock& clock, Gauge& last_step_us)
      : end_(end), closed_(closed), clock_(clock), last_step_us_(last_step_us) {}
  bool wants_end() override {
    last_step_us_.set(to_us(clock_.now()));
    return end_.stop_requested() || closed_.load();
  }

 private:
  const std::stop_token& end_;
  const std::atomic<bool>& closed_;
  const Clock& clock_;
  Gauge& last_step_us_;
};

// A picture whose tokens are made from its file has those of a version that did not turn it.
Turns turns_of(bool has_tokens_of_pixels) {
  return has_tokens_of_pixels ? Turns::yes : Turns::no;
}

// The mean of the rows, scaled to length 1.
std::vector<float> pooled(const EncodedImage& image) {
  const auto width = static_cast<std::size_t>(image.row_width);
  std::vector<double> sums(width, 0);
  for (std::size_t i = 0; i < image.rows.size(); ++i) sums[i % width] += static_cast<double>(image.rows[i]);
  double squares = 0;
  for (const double sum : sums) squares += sum * sum;
  const double length = squares > 0 ? std::sqrt(squares) : 1;
  std::vector<float> vector;
  vector.reserve(width);
  for (const double sum : sums) vector.push_back(static_cast<float>(sum / length));
  return vector;
}

}  // namespace

ImageEncoder::ImageEncoder(std::unique_ptr<llm::Projector> projector, ImageEncoderOptions options, const Clock& clock,
                           std::shared_ptr<ImageEncoderStats> stats)
    : options_(std::move(options)), clock_(clock), projector_(std::move(projector)), kept_stats_(std::move(stats)) {}

ImageEncoder::~ImageEncoder() {
  stats_.cache_bytes.set(0);
}

void ImageEncoder::close() {
  closed_.store(true);
  jobs_.close();
}

// --- Images

Expected<ImagePtr> ImageEncoder::add(Bytes file, const std::string& id, const std::stop_token& end) {
  const bool is_clip = is_audio(file);
  if (!reads(is_clip ? Media::audio : Media::image)) {
    return fail(ErrorCode::model_capability, std::format("the model's projector reads no {}", is_clip ? "audio" : "images"));
  }
  auto image = std::make_shared<Image>();
  image->id = id.empty() ? file_hash(file) : id;
  llm::Picture picture;
  llm::Clip clip;
  if (is_clip) {
    auto decoded = options_.decode_sound(file, projector_->facts().sample_rate, end);
    if (!decoded) return std::unexpected(decoded.error());
    clip = std::move(*decoded);
  } else {
    auto decoded = options_.decode(file, turns_of(id.empty() || shows_pixels(id)), end);
    if (!decoded) return std::unexpected(decoded.error());
    picture = std::move(*decoded);
    if (id.empty()) image->id += llm::pixels_hash(picture);
  }
  auto layout = projector_->layout(is_clip ? llm::ProjectorInput(&clip) : &picture);
  if (!layout) return std::unexpected(layout.error());
  image->file = std::move(file);
  image->tokens = std::move(layout->tokens);
  image->grid = std::move(layout->grid);
  image->is_causal = layout->is_causal;
  std::int32_t rows = 0;
  for (const std::int32_t piece : layout->pieces) image->pieces_end.push_back(rows += piece);
  std::int32_t row = 0;
  for (Token& token : image->tokens) {
    if (token == kNoToken) token = llm::image_token(content_of(image->id), identity(), row++);
  }
  const MutexLock lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  // Requests with the same image share it as long as one of these requests exists.
  std::weak_ptr<const Image>& known = known_[image->id];
  if (ImagePtr first = known.lock()) return first;
  known = image;
  return ImagePtr(std::move(image));
}

Expected<ImagePtr> ImageEncoder::take(const ImageSource& source, const std::stop_token& end) {
  auto file = read_image(source, options_.allowed_dirs, options_.pixels_max);
  if (!file) return std::unexpected(file.error());
  return add(std::move(*file), "", end);
}

Expected<ImagePtr> ImageEncoder::find(const std::string& id, const std::stop_token& end) {
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(id);
    if (ImagePtr image = found == known_.end() ? nullptr : found->second.lock()) return image;
  }
  auto file = read_kept(id);
  if (!file) return std::unexpected(file.error());
  return add(std::move(*file), id, end);
}

Expected<Bytes> ImageEncoder::read_kept(const std::string& id) const {
  if (options_.kept == nullptr) return fail(ErrorCode::io_failed, "the daemon has no folder for images of sessions");
  return options_.kept->read(file_of(id));
}

Expected<KeptImages::Use> ImageEncoder::keep(const TenantId& tenant, const Image& image) const {
  if (options_.kept == nullptr) return fail(ErrorCode::io_failed, "the daemon has no folder for images of sessions");
  return options_.kept->keep(tenant, file_of(image.id), image.file);
}

Expected<Unit> ImageEncoder::sync_kept() const {
  return options_.kept == nullptr ? Unit{} : options_.kept->sync();
}

struct ImageEncoder::Taking {
  WorkPool& work;
  TenantId tenant;
  Input input;
  bool keeps = false;
  std::stop_token end;
  Taken done;
  TakenImages taken{};
};

void ImageEncoder::take_all(WorkPool& work, TenantId tenant, Input input, bool keeps, std::stop_token end, Taken done) {
  for (const InputImage& image : input.images) stats_.waiting_bytes.add(static_cast<std::int64_t>(image.source.text.size()));
  post_next(std::make_shared<Taking>(work, std::move(tenant), std::move(input), keeps, std::move(end), std::move(done)));
}

// Each image is a job, so that other requests have their turn in between.
void ImageEncoder::post_next(std::shared_ptr<Taking> taking) {
  WorkPool& work = taking->work;
  const TenantId tenant = taking->tenant;
  const bool has_file = taking->taken.images.size() < taking->input.images.size();
  auto job = [self = shared_from_this(), taking = std::move(taking)]() mutable { self->take_next(std::move(taking)); };
  if (has_file) return work.post_file(tenant, std::move(job));
  work.post(tenant, 0, std::move(job));
}

void ImageEncoder::take_next(std::shared_ptr<Taking> taking) {
  auto& [work, tenant, input, keeps, end, done, taken] = *taking;
  const auto finish = [&](Expected<Unit> outcome) {
    for (const InputImage& image : input.images) stats_.waiting_bytes.add(-static_cast<std::int64_t>(image.source.text.size()));
    input.images.clear();
    done(std::move(input), std::move(taken), std::move(outcome));
  };
  const std::size_t index = taken.images.size();
  if (index == input.images.size()) {
    auto synced = keeps && index > 0 ? sync_kept() : Unit{};
    if (!synced) return finish(std::move(synced));
    std::vector<std::vector<MessageImage>> of_messages(input.messages.size());
    for (std::size_t i = 0; i < index; ++i) {
      of_messages[input.images[i].message].push_back({.at = input.images[i].at, .id = taken.images[i]->id});
    }
    for (std::size_t i = 0; i < of_messages.size(); ++i) {
      if (!of_messages[i].empty()) input.messages[i].extra = with_images(input.messages[i].extra, of_messages[i]);
    }
    return finish(Unit{});
  }
  if (end.stop_requested()) return finish(fail(ErrorCode::limit_wait, "the request has ended"));
  InputImage& given = input.images[index];
  auto image = contain([&] { return take(given.source, end); });
  auto use = image && keeps ? contain([&] { return keep(tenant, **image); }) : KeptImages::Use();
  const bool is_of_tool = given.source.media == Media::image && input.messages[given.message].role == "tool";
  if (!image && is_of_tool && image.error().code == ErrorCode::proto_field) {
    stats_.waiting_bytes.add(-static_cast<std::int64_t>(given.source.text.size()));
    put_line(input, index, std::format("(There is an image here, which cannot be read: {}.)", image.error().message));
    ++taken.unreadable;
    return post_next(std::move(taking));
  }
  if (!image || !use) {
    Error error = image ? use.error() : image.error();
    if (!given.field.empty()) error.message = std::format("field \"{}\": {}", given.field, error.message);
    error.field = given.field;
    return finish(std::unexpected(std::move(error)));
  }
  stats_.waiting_bytes.add(-static_cast<std::int64_t>(given.source.text.size()));
  std::string().swap(given.source.text);
  taken.images.push_back(std::move(*image));
  taken.uses.push_back(std::move(*use));
  post_next(std::move(taking));
}

// --- Encoding

Expected<std::vector<float>> ImageEncoder::rows_of(const Image& image, const std::stop_token& end) {
  EndOnRequest monitor(end, closed_, clock_, stats_.last_step_us);
  if (is_audio(image.file)) {
    const auto clip = options_.decode_sound(image.file, projector_->facts().sample_rate, end);
    if (!clip) return std::unexpected(clip.error());
    return projector_->encode(&*clip, &monitor);
  }
  const auto picture = options_.decode(image.file, turns_of(shows_pixels(image.id)), end);
  if (!picture) return std::unexpected(picture.error());
  return projector_->encode(&*picture, &monitor);
}

Expected<EncodedPtr> ImageEncoder::encode(const TenantId& tenant, const std::string& id, const std::stop_token& end) {
  const CacheKey key(tenant, content_of(id));
  if (const auto found = cached_.find(key); found != cached_.end()) {
    cache_.splice(cache_.end(), cache_, found->second);
    stats_.cache_hits_total.add();
    return found->second->image;
  }
  if (closed_.load()) return fail(ErrorCode::limit_wait, "the daemon is stopping and encodes no more images");
  if (end.stop_requested()) return fail(ErrorCode::limit_wait, "the request has ended");
  const auto image = find(id, end);
  if (!image) return std::unexpected(image.error());
  const TimePoint began = clock_.now();
  auto rows = rows_of(**image, end);
  if (!rows) return std::unexpected(rows.error());
  const llm::ProjectorFacts& facts = projector_->facts();
  auto encoded = std::make_shared<const EncodedImage>(EncodedImage{.rows = std::move(*rows),
                                                                   .row_width = facts.row_width,
                                                                   .pieces_end = (*image)->pieces_end,
                                                                   .is_causal = (*image)->is_causal,
                                                                   .grid = (*image)->grid});
  stats_.images_encoded_total.add();
  const TimePoint ended = clock_.now();
  stats_.encode.record_ms(to_ms(ended - began));
  stats_.last_step_us.set(to_us(ended));
  record_span(kEncodeSpan, began, ended);
  log_debug("image {}: {} rows encoded in {:.1f} ms", id, encoded->pieces_end.back(), to_ms(clock_.now() - began));

  cached_[key] = cache_.insert(cache_.end(), {key, encoded});
  stats_.cache_bytes.add(static_cast<std::int64_t>(encoded->bytes()));
  while (!cache_.empty() && stats_.cache_bytes.value() > static_cast<std::int64_t>(options_.cache_bytes_max)) {
    stats_.cache_bytes.add(-static_cast<std::int64_t>(cache_.front().image->bytes()));
    cached_.erase(cache_.front().key);
    cache_.pop_front();
  }
  return encoded;
}

// --- Vectors

struct ImageEncoder::Embedding {
  WorkPool& work;
  TenantId tenant;
  std::vector<ImageSource> images;
  std::stop_token end;
  TimePoint deadline;
  Promise<ImageEmbeddings> reply;
  ImageEmbeddings made{};
};

void ImageEncoder::embed(WorkPool& work, TenantId tenant, std::vector<ImageSource> images, std::stop_token end,
                         TimePoint deadline, Promise<ImageEmbeddings> reply) {
  for (const ImageSource& source : images) stats_.waiting_bytes.add(static_cast<std::int64_t>(source.text.size()));
  post_next(
      std::make_shared<Embedding>(work, std::move(tenant), std::move(images), std::move(end), deadline, std::move(reply)));
}

// Each image is a job of the pool and one of the encoder, so that other requests have their turn in between.
void ImageEncoder::post_next(const std::shared_ptr<Embedding>& embedding) {
  embedding->work.post_file(embedding->tenant, [self = shared_from_this(), embedding] { self->embed_next(embedding); });
}

void ImageEncoder::embed_next(const std::shared_ptr<Embedding>& embedding) {
  const std::size_t index = embedding->made.embeddings.size();
  if (embedding->end.stop_requested()) return embed_failed(*embedding, {ErrorCode::limit_wait, "the request has ended"});
  if (clock_.now() >= embedding->deadline) {
    return embed_failed(*embedding,
                        {ErrorCode::limit_wait,
                         std::format("{} of {} images were encoded by the request's deadline: try again later or set a longer "
                                     "deadline_ms",
                                     index, embedding->images.size())});
  }
  ImageSource& given = embedding->images[index];
  const ImageSource source{.kind = given.kind, .text = std::exchange(given.text, {})};
  stats_.waiting_bytes.add(-static_cast<std::int64_t>(source.text.size()));
  const auto image = contain([&] { return take(source, embedding->end); });
  if (!image) return embed_failed_at(*embedding, image.error());
  post(embedding->tenant, [this, embedding, image = *image] { embed_taken(embedding, *image); });
}

void ImageEncoder::embed_taken(const std::shared_ptr<Embedding>& embedding, const Image& image) {
  const auto encoded = contain([&] { return encode(embedding->tenant, image.id, embedding->end); });
  if (!encoded) return embed_failed_at(*embedding, encoded.error());
  auto& vectors = embedding->made.embeddings;
  vectors.push_back(pooled(**encoded));
  embedding->made.rows += (*encoded)->pieces_end.back();
  if (vectors.size() < embedding->images.size()) return post_next(embedding);
  embedding->reply(std::move(embedding->made));
}

void ImageEncoder::embed_failed_at(Embedding& embedding, const Error& error) {
  const bool is_only = embedding.images.size() == 1;
  embed_failed(
      embedding,
      {error.code, is_only ? error.message : std::format("images[{}]: {}", embedding.made.embeddings.size(), error.message)});
}

void ImageEncoder::embed_failed(Embedding& embedding, Error error) {
  for (const ImageSource& image : embedding.images) stats_.waiting_bytes.add(-static_cast<std::int64_t>(image.text.size()));
  embedding.reply(std::unexpected(std::move(error)));
}

}  // namespace uma::image
