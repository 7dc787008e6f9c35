// Requests for pictures, from their admission to their receipt. Owned by the router's thread.
#pragma once

#include <memory>

#include "base/metrics.h"
#include "base/random.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/picture.h"
#include "core/work/promise.h"
#include "core/work/task.h"
#include "engine/model/model_loader.h"
#include "engine/router/router_parts.h"
#include "image/decode_picture.h"

namespace uma::engine {

class PictureRequests {
 public:
  // The references outlive this object.
  PictureRequests(const RouterParts& parts, ModelLoader& source, Random& random, Counter& refused,
                  const image::DecodePicture& decode)
      : parts_(parts), source_(source), random_(random), refused_(refused), decode_(decode) {}

  // Accepts a request and starts it.
  void draw(RequestId id, const TenantId& tenant, PictureRequest call, std::shared_ptr<PictureSink> sink,
            Promise<PictureReceipt> reply);

 private:
  [[nodiscard]] Task<> run(InFlight& request, PictureRequest call, std::shared_ptr<PictureSink> sink,
                           std::shared_ptr<Promise<PictureReceipt>> reply);
  [[nodiscard]] Task<Expected<PictureReceipt>> compute(InFlight& request, PictureRequest& call,
                                                       std::shared_ptr<PictureSink> sink);
  [[nodiscard]] Task<Expected<PictureReceipt>> draw_in_lane(InFlight& request, PictureRequest& call,
                                                            std::shared_ptr<PictureSink> sink);

  const RouterParts parts_;
  ModelLoader& source_;
  Random& random_;
  Counter& refused_;
  const image::DecodePicture& decode_;
};

}  // namespace uma::engine
