// The pictures of one request, between the lane that draws them and the connection that answers. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "core/picture.h"
#include "core/service.h"
#include "core/work/promise.h"
#include "wire/openai/picture_codec.h"

namespace uma::server {

class PictureState final : public PictureSink {
 public:
  // A picture that the connection has not taken yet.
  struct Untaken {
    std::int32_t picture = 0;  // See DrawnPicture.
    std::int32_t partial = 0;
    wire::PngFile file;  // Its bytes are what `encode` has made.
  };

  // Makes the text that is kept of a picture in place of its file. Called by the thread that draws.
  using Encode = std::function<std::string(const PictureBegun& begun, const DrawnPicture& picture)>;

  // A client that leaves more than `bytes_max` of pictures untaken reads too slowly. wake() is called without a lock. `encode`
  // is null where the files are kept.
  PictureState(std::function<void()> wake, std::size_t bytes_max, Encode encode = nullptr)
      : wake_(std::move(wake)), bytes_max_(bytes_max), encode_(std::move(encode)) {}

  bool deliver(const PictureEvent& event) override;
  // The reply of the service.
  void end(Expected<PictureReceipt> receipt);

  // Replies when the request has begun, or with the error that has ended it before. Called before the request starts.
  void tell_begun(Promise<Unit> reply);
  // Replies with the receipt. Called before the request starts.
  void tell_end(Promise<PictureReceipt> reply);

  [[nodiscard]] std::vector<Untaken> take();
  [[nodiscard]] PictureBegun begun() const;
  // Nullopt: it has not ended.
  [[nodiscard]] std::optional<Expected<PictureReceipt>> receipt() const;
  // The last step; nullopt: there is none, or the request has ended.
  [[nodiscard]] std::optional<PictureStep> last_step() const;
  // The steps that are done, as a share of all.
  [[nodiscard]] double share_done() const;

 private:
  const std::function<void()> wake_;
  const std::size_t bytes_max_;
  const Encode encode_;

  mutable Mutex mutex_;
  PictureBegun begun_ GUARDED_BY(mutex_);
  std::vector<Untaken> untaken_ GUARDED_BY(mutex_);
  std::size_t untaken_bytes_ GUARDED_BY(mutex_) = 0;
  std::optional<PictureStep> step_ GUARDED_BY(mutex_);
  std::int64_t steps_done_ GUARDED_BY(mutex_) = 0;
  std::optional<Expected<PictureReceipt>> receipt_ GUARDED_BY(mutex_);
  std::optional<Promise<Unit>> on_begun_ GUARDED_BY(mutex_);
  std::optional<Promise<PictureReceipt>> on_end_ GUARDED_BY(mutex_);
};

// Cancels a request when it goes out of scope, unless it has ended.
class PictureGuard {
 public:
  // The references outlive the guard.
  PictureGuard(Service& service, const PictureState& state) : service_(service), state_(state) {}
  ~PictureGuard() {
    if (id_ && !state_.receipt()) service_.cancel(*id_, [](Expected<bool>) {});
  }
  PictureGuard(const PictureGuard&) = delete;
  PictureGuard& operator=(const PictureGuard&) = delete;

  void set(RequestId id) { id_ = id; }

 private:
  Service& service_;
  const PictureState& state_;
  std::optional<RequestId> id_;
};

}  // namespace uma::server
