// How images come to the router: fetched where a request names them by a URL, read and checked by the model's vision, held for
// as long as somebody needs their files. Owned by the router's thread; holds may end on any.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/image.h"
#include "core/limits.h"
#include "core/request.h"
#include "core/service.h"
#include "core/task.h"
#include "engine/image_references.h"
#include "engine/served_models.h"
#include "engine/vision.h"

namespace uma::engine {

class ImageFetcher;

// The images of no session any more; `is_used` tells any thread whether a session has one again by then.
using OnImagesFree = std::function<void(std::vector<std::string> ids, std::function<bool(const std::string& id)> is_used)>;

// Gives images up that no session has.
class ImageRelease {
 public:
  // Null: nobody needs to know.
  explicit ImageRelease(OnImagesFree on_free) : on_free_(std::move(on_free)) {}

  // Router thread. The session has the images of these messages from now on (ChatMessage::extra), and no others.
  void set(const SessionId& session, const std::vector<std::string>& extras);
  [[nodiscard]] std::unordered_set<std::string> all() const { return references_->all(); }
  // Any thread.
  void give_up(std::vector<std::string> ids) const;

 private:
  const OnImagesFree on_free_;
  const std::shared_ptr<ImageReferences> references_ = std::make_shared<ImageReferences>();  // shared with who frees later
};

// Keeps images until a request has ended; those that no session has by then are given up.
class ImageHold {
 public:
  ImageHold() = default;
  ImageHold(std::shared_ptr<const ImageRelease> release, TakenImages taken)
      : release_(std::move(release)), taken_(std::move(taken)) {}
  ImageHold(std::shared_ptr<const ImageRelease> release, std::vector<std::string> ids, std::vector<KeptImages::Use> uses)
      : release_(std::move(release)), taken_{.images = {}, .uses = std::move(uses)}, ids_(std::move(ids)) {}
  ImageHold(ImageHold&&) = default;
  ImageHold& operator=(ImageHold&& other) noexcept {
    std::swap(release_, other.release_);
    std::swap(taken_, other.taken_);
    std::swap(ids_, other.ids_);
    return *this;
  }
  ~ImageHold();

 private:
  std::shared_ptr<const ImageRelease> release_;  // shared with the intake; null: nothing is held
  TakenImages taken_;
  std::vector<std::string> ids_;
};

class ImageIntake {
 public:
  // `fetcher` may be null: then no image is fetched from a URL. The references outlive the intake.
  ImageIntake(ImageFetcher* fetcher, OnImagesFree on_free, const Limits& limits, TaskRunner& tasks)
      : fetcher_(fetcher), release_(std::make_shared<ImageRelease>(std::move(on_free))), limits_(limits), tasks_(tasks) {}

  struct Reading {
    TenantId tenant;
    bool keeps = false;           // they are of a session: their files are kept
    TimePoint deadline = kNever;  // of fetching
    std::stop_token end{};        // requested: the result is not wanted any more
    RequestShare share{};         // of memory; fetched files are charged to it
  };
  // Fetches, reads and checks the images of the input, and writes them into its messages. Errors: E_PROTO_003 with the field,
  // E_MODEL_003, E_LIMIT_003.
  [[nodiscard]] Task<Expected<ImageHold>> read(const ServedModel& served, Input& input, Reading how);
  // A vector for each image. Errors: as read().
  [[nodiscard]] Task<Expected<ImageEmbeddings>> embed(ModelUse use, TenantId tenant, EmbedImagesRequest request,
                                                      TimePoint deadline);

  [[nodiscard]] ImageRelease& release() { return *release_; }
  [[nodiscard]] const ImageRelease& release() const { return *release_; }
  [[nodiscard]] ImageHold hold(std::vector<std::string> ids, std::vector<KeptImages::Use> uses) const {
    return {release_, std::move(ids), std::move(uses)};
  }

 private:
  [[nodiscard]] Expected<Unit> check(const ServedModel& served, std::size_t bytes) const;
  template <class Image>
  [[nodiscard]] Task<Expected<bool>> fetch(TenantId tenant, std::vector<Image>& images, TimePoint deadline,
                                           std::stop_token end);

  ImageFetcher* const fetcher_;
  const std::shared_ptr<ImageRelease> release_;  // shared with the holds
  const Limits& limits_;
  TaskRunner& tasks_;
};

}  // namespace uma::engine
