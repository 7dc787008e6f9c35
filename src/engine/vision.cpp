#include "engine/vision.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/log.h"
#include "base/sha256.h"
#include "base/unique_fd.h"
#include "capability/image_header.h"
#include "capability/image_source.h"
#include "capability/message_images.h"
#include "llm/image_tokens.h"

namespace uma::engine {
namespace {

std::unexpected<Error> io_error(std::string_view what, const std::string& path, int problem) {
  return fail(ErrorCode::io_short_write, std::format("{} {}: {}", what, path, std::strerror(problem)));
}

std::string hash_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return hash.hex();
}

// The mean of the rows, of length 1.
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

Expected<Unit> write_synced(const std::string& path, std::span<const std::byte> bytes) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return io_error("cannot write", path, errno);
  while (!bytes.empty()) {
    const ssize_t done = ::write(file.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return io_error("cannot write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  if (::fsync(file.get()) != 0) return io_error("cannot write", path, errno);
  return Unit{};
}

}  // namespace

Vision::Vision(std::unique_ptr<llm::Projector> projector, VisionOptions options, const Clock& clock,
               std::shared_ptr<VisionStats> stats)
    : options_(std::move(options)), clock_(clock), projector_(std::move(projector)), kept_stats_(std::move(stats)) {}

Vision::~Vision() {
  stats_.cache_bytes.set(0);
}

void Vision::close() {
  closed_.store(true);
  jobs_.close();
}

// --- Images
// ---------------------------------------------------------------------------------------------------------------------

Expected<ImagePtr> Vision::add(Bytes file) {
  auto layout = projector_->layout(file);
  if (!layout) return std::unexpected(layout.error());
  std::string id = hash_of(file);
  auto image = std::make_shared<Image>(std::move(id), std::move(file), std::move(layout->tokens), std::vector<std::int32_t>());
  std::int32_t end = 0;
  for (const std::int32_t piece : layout->pieces) image->pieces_end.push_back(end += piece);
  std::int32_t row = 0;
  for (Token& token : image->tokens) {
    if (token == kNoToken) token = llm::image_token(image->id, identity(), row++);
  }
  const MutexLock lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  known_[image->id] = image;
  return image;
}

Expected<ImagePtr> Vision::take(const ImageSource& source) {
  auto file = capability::read_image(source, options_.allowed_dirs);
  if (!file) return std::unexpected(file.error());
  return add(std::move(*file));
}

Expected<ImagePtr> Vision::find(const std::string& id) {
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(id);
    if (ImagePtr image = found == known_.end() ? nullptr : found->second.lock()) return image;
  }
  auto file = read_kept_image(options_.folder, id);
  if (!file) return std::unexpected(file.error());
  return add(std::move(*file));
}

Expected<Unit> Vision::keep(const Image& image) const {
  const std::string path = path_of(image.id);
  struct stat facts{};
  if (::stat(path.c_str(), &facts) == 0) return Unit{};  // it was synced before it had this name
  std::error_code problem;
  std::filesystem::create_directories(options_.folder, problem);
  // Another model's may write the same image.
  static std::atomic<std::uint64_t> parts{0};
  const std::string part = std::format("{}.{}.part", path, parts.fetch_add(1));
  auto written = write_synced(part, image.file);
  if (written && ::rename(part.c_str(), path.c_str()) != 0) written = io_error("cannot write", path, errno);
  const UniqueFd folder(::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (written && (!folder.is_open() || ::fsync(folder.get()) != 0)) written = io_error("cannot write", options_.folder, errno);
  if (!written) ::unlink(part.c_str());
  return written;
}

Expected<std::vector<ImagePtr>> take_images(Vision& vision, Input& input, bool keeps) {
  std::vector<ImagePtr> images;
  std::vector<std::vector<capability::MessageImage>> of_messages(input.messages.size());
  for (const InputImage& given : input.images) {
    const auto image = vision.take(given.source);
    const auto kept = image && keeps ? vision.keep(**image) : Expected<Unit>(Unit{});
    if (!image || !kept) {
      Error error = image ? kept.error() : image.error();
      if (!given.field.empty()) error.message = std::format("field \"{}\": {}", given.field, error.message);
      error.field = given.field;
      return std::unexpected(std::move(error));
    }
    of_messages[given.message].push_back({.at = given.at, .id = (*image)->id});
    images.push_back(*image);
  }
  for (std::size_t i = 0; i < of_messages.size(); ++i) {
    if (!of_messages[i].empty()) input.messages[i].extra = capability::images_extra(of_messages[i]);
  }
  input.images.clear();
  return images;
}

Expected<Bytes> read_kept_image(const std::string& folder, const std::string& id) {
  const ImageSource kept{.kind = ImageSource::Kind::path, .text = folder + "/" + id};
  const std::string folders[] = {folder};
  auto file = folder.empty() ? fail(ErrorCode::io_short_write, "no images are kept") : capability::read_image(kept, folders);
  if (file && hash_of(*file) == id) return file;
  return fail(ErrorCode::io_short_write, std::format("the image {} of the session cannot be read again: {}", id,
                                                     file ? "it is damaged" : file.error().message));
}

void remove_other_images(const std::string& folder, const std::unordered_set<std::string>& wanted) {
  std::error_code problem;
  std::size_t removed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    if (wanted.contains(entry.path().filename().string())) continue;
    removed += std::filesystem::remove(entry.path(), problem) ? 1 : 0;
  }
  if (removed > 0) log_info("images: removed {} that no session has any more", removed);
}

// --- Encoding
// -------------------------------------------------------------------------------------------------------------------

Expected<EncodedPtr> Vision::encode(const std::string& id) {
  if (const auto found = cached_.find(id); found != cached_.end()) {
    cache_.splice(cache_.end(), cache_, found->second);
    stats_.cache_hits_total.add();
    return found->second->image;
  }
  if (closed_.load()) return fail(ErrorCode::limit_wait, "the daemon stops, no image is encoded any more");
  const auto image = find(id);
  if (!image) return std::unexpected(image.error());
  const TimePoint began = clock_.now();
  auto rows = projector_->encode((*image)->file);
  if (!rows) return std::unexpected(rows.error());
  const llm::ProjectorFacts& facts = projector_->facts();
  auto encoded = std::make_shared<const EncodedImage>(EncodedImage{.rows = std::move(*rows),
                                                                   .row_width = facts.row_width,
                                                                   .pieces_end = (*image)->pieces_end,
                                                                   .is_causal = facts.is_causal});
  stats_.images_encoded_total.add();
  stats_.encode.record_ms(to_ms(clock_.now() - began));
  log_debug("image {}: {} rows encoded in {:.1f} ms", id, encoded->pieces_end.back(), to_ms(clock_.now() - began));

  cached_[id] = cache_.insert(cache_.end(), {id, encoded});
  stats_.cache_bytes.add(static_cast<std::int64_t>(encoded->bytes()));
  while (!cache_.empty() && stats_.cache_bytes.value() > static_cast<std::int64_t>(options_.cache_bytes_max)) {
    stats_.cache_bytes.add(-static_cast<std::int64_t>(cache_.front().image->bytes()));
    cached_.erase(cache_.front().id);
    cache_.pop_front();
  }
  return encoded;
}

// --- Vectors
// --------------------------------------------------------------------------------------------------------------------

struct Vision::Embedding {
  TenantId tenant;
  EmbedImagesRequest request;
  TimePoint deadline;
  Reply<ImageEmbeddings> reply;
  ImageEmbeddings made;
};

void Vision::embed(TenantId tenant, EmbedImagesRequest request, TimePoint deadline, Reply<ImageEmbeddings> reply) {
  for (const ImageSource& source : request.images) stats_.waiting_bytes.add(static_cast<std::int64_t>(source.text.size()));
  auto embedding = std::make_shared<Embedding>(tenant, std::move(request), deadline, std::move(reply), ImageEmbeddings{});
  post(std::move(tenant), [this, embedding = std::move(embedding)]() mutable { embed_next(std::move(embedding)); });
}

// One image is a job: others have their turn in between.
void Vision::embed_next(std::shared_ptr<Embedding> embedding) {
  auto& vectors = embedding->made.embeddings;
  auto& images = embedding->request.images;
  const auto end = [&](Expected<ImageEmbeddings> made) {
    for (const ImageSource& image : images) stats_.waiting_bytes.add(-static_cast<std::int64_t>(image.text.size()));
    embedding->reply(std::move(made));
  };
  if (clock_.now() >= embedding->deadline) {
    return end(fail(ErrorCode::limit_wait,
                    std::format("{} of {} images were encoded by the request's deadline: try again later or set a longer "
                                "deadline_ms",
                                vectors.size(), images.size())));
  }
  const std::size_t index = vectors.size();
  const ImageSource source{.kind = images[index].kind, .text = std::exchange(images[index].text, {})};
  stats_.waiting_bytes.add(-static_cast<std::int64_t>(source.text.size()));
  const auto image = take(source);
  const auto encoded = image ? encode((*image)->id) : std::unexpected(image.error());
  if (!encoded) {
    const Error& error = encoded.error();
    return end(fail(error.code, images.size() == 1 ? error.message : std::format("images[{}]: {}", index, error.message)));
  }
  vectors.push_back(pooled(**encoded));
  if (vectors.size() == images.size()) return end(std::move(embedding->made));
  const TenantId tenant = embedding->tenant;
  jobs_.add(tenant, [this, embedding = std::move(embedding)]() mutable { embed_next(std::move(embedding)); });
}

}  // namespace uma::engine
