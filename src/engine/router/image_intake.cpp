#include "engine/router/image_intake.h"

#include <format>
#include <string_view>
#include <utility>

#include "base/thrown.h"
#include "image/fetched_images.h"
#include "image/image_id.h"
#include "image/message_images.h"

namespace uma::engine {
namespace {

const std::string& text_of(const ImageSource& image) {
  return image.text;
}

const std::string& text_of(const InputImage& image) {
  return image.source.text;
}

Media media_of(const ImageSource& image) {
  return image.media;
}

Media media_of(const InputImage& image) {
  return image.source.media;
}

// The total size of the images as the client sent them.
template <class ImageT>
std::size_t bytes_of(const std::vector<ImageT>& images) {
  std::size_t bytes = 0;
  for (const ImageT& image : images) bytes += text_of(image).size();
  return bytes;
}

struct TakenInput {
  Input input;
  ImageHold hold;
  Expected<Unit> outcome;
};

}  // namespace

void ImageRelease::set(const SessionId& session, const std::vector<std::string>& extras) {
  if (extras.empty() && !references_->has_any(session)) return;
  std::unordered_set<std::string> ids;
  for (const std::string& extra : extras) {
    for (std::string& file : image::image_files(extra)) ids.insert(std::move(file));
  }
  release_unused(references_->set(session, std::move(ids)));
}

void ImageRelease::release_unused(std::vector<std::string> ids) const {
  std::erase_if(ids, [this](const std::string& id) { return references_->is_used(id); });
  if (ids.empty() || !on_free_) return;
  on_free_(std::move(ids), [references = references_](const std::string& id) { return references->is_used(id); });
}

ImageHold::~ImageHold() {
  if (release_ == nullptr) return;
  run_noting([this] {
    for (const image::ImagePtr& image : taken_.images) ids_.push_back(image::file_of(image->id));
    taken_ = {};
    release_->release_unused(std::move(ids_));
  });
}

std::int32_t leave_out_unseen(const image::ImageEncoder* encoder, Input& input) {
  constexpr std::string_view kInPlace = "(There is an image here, which this model cannot see.)";
  if (encoder != nullptr && encoder->reads(Media::image)) return 0;
  std::int32_t count = 0;
  for (std::size_t i = 0; i < input.images.size();) {
    const InputImage& image = input.images[i];
    if (image.source.media == Media::image && input.messages[image.message].role == "tool") {
      image::put_line(input, i, kInPlace);
      ++count;
    } else {
      ++i;
    }
  }
  return count;
}

// Checks that the model reads the images and clips, and that the queue has memory for them.
template <class ImageT>
Expected<Unit> ImageIntake::check(const ServedModel& served, const std::vector<ImageT>& images) const {
  if (images.empty()) return Unit{};
  const image::ImageEncoder* encoder = served.image_encoder.get();
  for (const ImageT& image : images) {
    if (encoder != nullptr && encoder->reads(media_of(image))) continue;
    const std::string_view what = media_of(image) == Media::audio ? "audio" : "images";
    return fail(ErrorCode::model_capability,
                std::format("model \"{}\" reads no {}: start umad with --mmproj and the model's projector{}", served.name, what,
                            encoder == nullptr ? "" : std::format(", if it has one that reads {}", what)));
  }
  const std::size_t bytes = bytes_of(images) + static_cast<std::size_t>(encoder->stats().waiting_bytes.value());
  if (bytes > limits_.queue_bytes_max) {
    return fail(ErrorCode::limit_wait,
                std::format("the images in the queue hold {} bytes, limits.queue_bytes_max is {}: try again later", bytes,
                            limits_.queue_bytes_max));
  }
  return Unit{};
}

// Replaces URLs by the fetched files. True: there was a URL.
template <class ImageT>
Task<Expected<bool>> ImageIntake::fetch(TenantId tenant, std::vector<ImageT>& images, TimePoint deadline, std::stop_token end) {
  std::vector<std::string> urls = image::urls_of(images);
  if (fetcher_ == nullptr || urls.empty()) co_return false;
  auto fetched = co_await tasks_.ask<Fetched>([&](Promise<Fetched> reply) {
    fetcher_->fetch(tenant, std::move(urls), deadline, std::move(end),
                    [reply = std::move(reply)](Fetched files) mutable { reply(std::move(files)); });
  });
  if (!fetched) co_return fetched.error();
  if (auto put = image::put_fetched(images, std::move(*fetched)); !put) co_return put.error();
  co_return true;
}

Task<Expected<ImageHold>> ImageIntake::read(const ServedModel& served, Input& input, Reading how) {
  if (auto may = check(served, input.images); !may) co_return may.error();
  const auto fetched = co_await fetch(how.tenant, input.images, how.deadline, how.end);
  if (!fetched) co_return fetched.error();
  if (*fetched && how.share) {
    if (auto held = how.share->grow(memory_of(input)); !held) co_return held.error();
  }
  if (auto may = check(served, input.images); !may) co_return may.error();
  auto taken = co_await tasks_.ask<TakenInput>([&](Promise<TakenInput> reply) {
    served.image_encoder->take_all(
        work_, how.tenant, std::exchange(input, {}), how.keeps, how.end,
        [release = release_, reply = std::move(reply)](Input read, image::TakenImages images, Expected<Unit> outcome) mutable {
          reply(TakenInput{
              .input = std::move(read), .hold = ImageHold(release, std::move(images)), .outcome = std::move(outcome)});
        });
  });
  if (!taken) co_return taken.error();
  input = std::move(taken->input);
  if (!taken->outcome) co_return taken->outcome.error();
  co_return std::move(taken->hold);
}

Task<Expected<ImageEmbeddings>> ImageIntake::embed(const ServedModel& served, std::vector<ImageSource> images, Reading how) {
  if (auto may = check(served, images); !may) co_return may.error();
  const auto fetched = co_await fetch(how.tenant, images, how.deadline, how.end);
  if (!fetched) co_return fetched.error();
  if (*fetched && how.share) {
    if (auto held = how.share->grow(bytes_of(images)); !held) co_return held.error();
  }
  if (auto may = check(served, images); !may) co_return may.error();
  co_return co_await tasks_.ask<ImageEmbeddings>([&](Promise<ImageEmbeddings> reply) {
    served.image_encoder->embed(work_, how.tenant, std::move(images), how.end, how.deadline, std::move(reply));
  });
}

}  // namespace uma::engine
