// Models that accept no new background requests for now, because a load waits for the memory that their current ones will free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/model/model_loader.h"

namespace uma::pool {

// Thread-safe.
class BackgroundHolds {
 public:
  // Called first. `host` outlives the holds.
  void start(engine::LoaderDelegate& host) { host_ = &host; }
  [[nodiscard]] bool contain(const std::string& model) const;

 private:
  friend class BackgroundHold;
  void change(const std::vector<std::string>& models, std::int32_t change);

  engine::LoaderDelegate* host_ = nullptr;
  mutable Mutex mutex_;
  std::map<std::string, std::int32_t> counts_ GUARDED_BY(mutex_);  // Number of loads that hold each model back.
};

// The holds of one load, released when it begins or has failed.
class BackgroundHold {
 public:
  explicit BackgroundHold(BackgroundHolds& holds) : holds_(holds) {}
  ~BackgroundHold() { holds_.change(models_, -1); }
  BackgroundHold(const BackgroundHold&) = delete;
  BackgroundHold& operator=(const BackgroundHold&) = delete;

  void add(std::vector<std::string> models);

 private:
  BackgroundHolds& holds_;
  std::vector<std::string> models_;
};

}  // namespace uma::pool
