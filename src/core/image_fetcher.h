// Fetches images that requests name by URL (docs/decisions/0034). `fetch` implements it; the engine uses only this interface.
#pragma once

#include <cstddef>
#include <expected>
#include <stop_token>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/move_only_function.h"
#include "core/error.h"
#include "core/ids.h"

namespace uma {

// The failure to fetch one URL of several; `index` is its position.
struct FetchFailure {
  std::size_t index = 0;
  Error error;
};
using Fetched = std::expected<std::vector<Bytes>, FetchFailure>;

class ImageFetcher {
 public:
  using Done = MoveOnlyFunction<void(Fetched)>;

  virtual ~ImageFetcher() = default;
  // Any thread. Fetches the files one after another and calls `done` once, at once or on a thread of the fetcher, but not after
  // `stop` was requested. Takes a minute at most. Errors: E_PROTO_003 for a URL that is not allowed or returned no file;
  // E_LIMIT_003 if too many fetches run, in total or for the tenant, and past the deadline.
  virtual void fetch(const TenantId& tenant, std::vector<std::string> urls, TimePoint deadline, std::stop_token stop,
                     Done done) = 0;
  // Cancels running fetches, and refuses later ones with E_LIMIT_003. Not to be called from `done`.
  virtual void stop() = 0;
};

}  // namespace uma
