// The images of requests: fetched from URLs, read and checked by the model's image encoder, and held while their files are
// needed. Owned by the router's thread; holds may end on any thread.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "core/embedding.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/image.h"
#include "core/image_fetcher.h"
#include "core/limits.h"
#include "core/request.h"
#include "core/service.h"
#include "core/work/task.h"
#include "engine/model/model_table.h"
#include "image/image_encoder.h"
#include "image/image_references.h"

namespace uma::engine {

// Called with images that no session uses any more. Any thread may call `is_used` to ask whether a session uses an image again.
using OnImagesFree = std::function<void(std::vector<std::string> ids, std::function<bool(const std::string& id)> is_used)>;

// Releases images that no session uses.
class ImageRelease {
 public:
  // `on_free` may be null.
  explicit ImageRelease(OnImagesFree on_free) : on_free_(std::move(on_free)) {}

  // Router thread. From now on the session uses exactly the images of these messages (ChatMessage::extra).
  void set(const SessionId& session, const std::vector<std::string>& extras);
  [[nodiscard]] std::unordered_set<std::string> all() const { return references_->all(); }
  // Any thread. Calls `on_free` with the images among `ids` that no session uses.
  void release_unused(std::vector<std::string> ids) const;

 private:
  const OnImagesFree on_free_;
  // Shared with the `is_used` functions.
  const std::shared_ptr<image::ImageReferences> references_ = std::make_shared<image::ImageReferences>();
};

// Keeps images until a request has ended, then releases those that no session uses.
class ImageHold {
 public:
  ImageHold() = default;
  ImageHold(std::shared_ptr<const ImageRelease> release, image::TakenImages taken)
      : release_(std::move(release)), taken_(std::move(taken)) {}
  ImageHold(std::shared_ptr<const ImageRelease> release, std::vector<std::string> ids, std::vector<image::KeptImages::Use> uses)
      : release_(std::move(release)), taken_{.images = {}, .uses = std::move(uses)}, ids_(std::move(ids)) {}
  ImageHold(ImageHold&&) = default;
  ImageHold& operator=(ImageHold&& other) noexcept {
    std::swap(release_, other.release_);
    std::swap(taken_, other.taken_);
    std::swap(ids_, other.ids_);
    return *this;
  }
  ~ImageHold();
  // Images in results of tools in whose place a line of text was written.
  [[nodiscard]] std::int32_t unreadable() const { return taken_.unreadable; }

 private:
  std::shared_ptr<const ImageRelease> release_;  // Shared with the intake; null: the hold is empty.
  image::TakenImages taken_;
  std::vector<std::string> ids_;
};

// Writes a line of text in place of each image in the result of a tool, if the model does not see: a tool's picture is not to
// end the conversation. Returns their number. `encoder` may be null.
[[nodiscard]] std::int32_t leave_out_unseen(const image::ImageEncoder* encoder, Input& input);

class ImageIntake {
 public:
  // `fetcher` may be null: then images are not fetched from URLs. The references outlive the intake.
  ImageIntake(ImageFetcher* fetcher, OnImagesFree on_free, const Limits& limits, TaskRunner& tasks, WorkPool& work)
      : fetcher_(fetcher),
        release_(std::make_shared<ImageRelease>(std::move(on_free))),
        limits_(limits),
        tasks_(tasks),
        work_(work) {}

  struct Reading {
    TenantId tenant;
    bool keeps = false;           // The images belong to a session: their files are kept.
    TimePoint deadline = kNever;  // For fetching.
    std::stop_token end{};        // Requested: the result is not needed any more.
    RequestShare share{};         // The request's memory; fetched files are charged to it.
  };
  // Fetches, reads and checks the images of the input, and writes them into its messages. Errors: E_PROTO_003 with the field,
  // E_MODEL_003, E_LIMIT_003.
  [[nodiscard]] Task<Expected<ImageHold>> read(const ServedModel& served, Input& input, Reading how);
  // Computes a vector for each image, from the projector's rows. The deadline is for all images. Errors: as read().
  [[nodiscard]] Task<Expected<ImageEmbeddings>> embed(const ServedModel& served, std::vector<ImageSource> images, Reading how);

  [[nodiscard]] ImageRelease& release() { return *release_; }
  [[nodiscard]] const ImageRelease& release() const { return *release_; }
  [[nodiscard]] ImageHold hold(std::vector<std::string> ids, std::vector<image::KeptImages::Use> uses) const {
    return {release_, std::move(ids), std::move(uses)};
  }

 private:
  template <class ImageT>
  [[nodiscard]] Expected<Unit> check(const ServedModel& served, const std::vector<ImageT>& images) const;
  template <class ImageT>
  [[nodiscard]] Task<Expected<bool>> fetch(TenantId tenant, std::vector<ImageT>& images, TimePoint deadline,
                                           std::stop_token end);

  ImageFetcher* const fetcher_;
  const std::shared_ptr<ImageRelease> release_;  // Shared with the holds.
  const Limits& limits_;
  TaskRunner& tasks_;
  WorkPool& work_;
};

}  // namespace uma::engine
