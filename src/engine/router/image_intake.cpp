#include "engine/router/image_intake.h"

#include <format>
#include <utility>

#include "base/thrown.h"
#include "capability/message_images.h"
#include "engine/image_fetcher.h"

namespace uma::engine {
namespace {

const std::string& text_of(const ImageSource& image) {
  return image.text;
}

const std::string& text_of(const InputImage& image) {
  return image.source.text;
}

// Of what clients sent of the images.
template <class Image>
std::size_t bytes_of(const std::vector<Image>& images) {
  std::size_t bytes = 0;
  for (const Image& image : images) bytes += text_of(image).size();
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
    for (std::string& id : capability::image_ids(extra)) ids.insert(std::move(id));
  }
  give_up(references_->set(session, std::move(ids)));
}

void ImageRelease::give_up(std::vector<std::string> ids) const {
  std::erase_if(ids, [this](const std::string& id) { return references_->is_used(id); });
  if (ids.empty() || !on_free_) return;
  on_free_(std::move(ids), [references = references_](const std::string& id) { return references->is_used(id); });
}

ImageHold::~ImageHold() {
  if (release_ == nullptr) return;
  run_noting([this] {
    for (const ImagePtr& image : taken_.images) ids_.push_back(image->id);
    taken_ = {};
    release_->give_up(std::move(ids_));
  });
}

// Whether the model reads images, and whether as many bytes of them may wait.
Expected<Unit> ImageIntake::check(const ServedModel& served, std::size_t bytes) const {
  if (served.vision == nullptr) {
    return fail(ErrorCode::model_capability,
                std::format("\"{}\" reads no images: start umad with --mmproj and its projector", served.name));
  }
  bytes += static_cast<std::size_t>(served.vision->stats().waiting_bytes.value());
  if (bytes > limits_.queue_bytes_max) {
    return fail(ErrorCode::limit_wait,
                std::format("images that wait hold {} bytes, limits.queue_bytes_max is {}: try again later", bytes,
                            limits_.queue_bytes_max));
  }
  return Unit{};
}

// Puts files in the place of URLs. True where there was one.
template <class Image>
Task<Expected<bool>> ImageIntake::fetch(TenantId tenant, std::vector<Image>& images, TimePoint deadline, std::stop_token end) {
  std::vector<std::string> urls = urls_of(images);
  if (fetcher_ == nullptr || urls.empty()) co_return false;
  auto fetched = co_await tasks_.ask<Fetched>([&](Reply<Fetched> reply) {
    fetcher_->fetch(tenant, std::move(urls), deadline, std::move(end),
                    [reply = std::move(reply)](Fetched files) mutable { reply(std::move(files)); });
  });
  if (!fetched) co_return fetched.error();
  if (auto put = put_fetched(images, std::move(*fetched)); !put) co_return put.error();
  co_return true;
}

Task<Expected<ImageHold>> ImageIntake::read(const ServedModel& served, Input& input, Reading how) {
  if (auto may = check(served, bytes_of(input.images)); !may) co_return may.error();
  const auto fetched = co_await fetch(how.tenant, input.images, how.deadline, how.end);
  if (!fetched) co_return fetched.error();
  if (*fetched && how.share) {
    if (auto held = how.share->grow(memory_of(input)); !held) co_return held.error();
  }
  if (auto may = check(served, bytes_of(input.images)); !may) co_return may.error();
  auto taken = co_await tasks_.ask<TakenInput>([&](Reply<TakenInput> reply) {
    served.vision->take_all(
        how.tenant, std::exchange(input, {}), how.keeps, how.end,
        [release = release_, reply = std::move(reply)](Input read, TakenImages images, Expected<Unit> outcome) mutable {
          reply(TakenInput{
              .input = std::move(read), .hold = ImageHold(release, std::move(images)), .outcome = std::move(outcome)});
        });
  });
  if (!taken) co_return taken.error();
  input = std::move(taken->input);
  if (!taken->outcome) co_return taken->outcome.error();
  co_return std::move(taken->hold);
}

Task<Expected<ImageEmbeddings>> ImageIntake::embed(ModelUse use, TenantId tenant, EmbedImagesRequest request,
                                                   TimePoint deadline) {
  if (auto may = check(*use, 0); !may) co_return may.error();
  if (auto fetched = co_await fetch(tenant, request.images, deadline, request.end); !fetched) co_return fetched.error();
  if (auto may = check(*use, bytes_of(request.images)); !may) co_return may.error();
  co_return co_await tasks_.ask<ImageEmbeddings>(
      [&](Reply<ImageEmbeddings> reply) { use->vision->embed(tenant, std::move(request), deadline, std::move(reply)); });
}

}  // namespace uma::engine
