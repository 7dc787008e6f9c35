#include "server/http/handlers/picture_state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

namespace uma::server {
namespace {

constexpr std::size_t kPicturesAtOnce = 8;

}  // namespace

bool PictureState::deliver(const PictureEvent& event) {
  std::optional<Promise<Unit>> on_begun;
  std::string bytes;
  if (const auto* picture = std::get_if<DrawnPicture>(&event)) {
    bytes = encode_ == nullptr ? std::string(picture->png) : encode_(begun(), *picture);
  }
  {
    const MutexLock lock(mutex_);
    if (const auto* begun = std::get_if<PictureBegun>(&event)) {
      begun_ = *begun;
      on_begun = std::exchange(on_begun_, std::nullopt);
    } else if (const auto* step = std::get_if<PictureStep>(&event)) {
      step_ = *step;
      ++steps_done_;
      return true;
    } else {
      const auto& picture = std::get<DrawnPicture>(event);
      // A call may finish several pictures at once.
      if (untaken_bytes_ >= bytes_max_ && untaken_.size() >= kPicturesAtOnce) return false;
      untaken_bytes_ += bytes.size();
      untaken_.push_back(
          {.picture = picture.picture, .partial = picture.partial, .file = {.seed = picture.seed, .bytes = std::move(bytes)}});
    }
  }
  if (on_begun) (*on_begun)(Unit{});
  wake_();
  return true;
}

void PictureState::end(Expected<PictureReceipt> receipt) {
  std::optional<Promise<Unit>> on_begun;
  std::optional<Promise<PictureReceipt>> on_end;
  {
    const MutexLock lock(mutex_);
    receipt_ = receipt;
    on_begun = std::exchange(on_begun_, std::nullopt);
    on_end = std::exchange(on_end_, std::nullopt);
  }
  if (on_begun) (*on_begun)(receipt ? Expected<Unit>(Unit{}) : std::unexpected(receipt.error()));
  if (on_end) return (*on_end)(std::move(receipt));
  wake_();
}

void PictureState::tell_begun(Promise<Unit> reply) {
  const MutexLock lock(mutex_);
  on_begun_ = std::move(reply);
}

void PictureState::tell_end(Promise<PictureReceipt> reply) {
  const MutexLock lock(mutex_);
  on_end_ = std::move(reply);
}

std::vector<PictureState::Untaken> PictureState::take() {
  const MutexLock lock(mutex_);
  untaken_bytes_ = 0;
  return std::exchange(untaken_, {});
}

PictureBegun PictureState::begun() const {
  const MutexLock lock(mutex_);
  return begun_;
}

std::optional<Expected<PictureReceipt>> PictureState::receipt() const {
  const MutexLock lock(mutex_);
  return receipt_;
}

std::optional<PictureStep> PictureState::last_step() const {
  const MutexLock lock(mutex_);
  return receipt_ ? std::nullopt : step_;
}

double PictureState::share_done() const {
  const MutexLock lock(mutex_);
  const std::int64_t all = std::int64_t{begun_.pictures} * begun_.steps;
  return static_cast<double>(steps_done_) / static_cast<double>(std::max<std::int64_t>(1, all));
}

}  // namespace uma::server
