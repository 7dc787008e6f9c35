// Downloads, names and deletes models, and changes their cards. Thread rule: calls may come from any thread and return at once;
// replies and the calls of a sink come from other threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/work/promise.h"

namespace uma {

inline constexpr std::size_t kPullSourceBytesMax = 2048;  // Limit of a source; it may be a URL.
inline constexpr std::size_t kCardBytesMax = 65'536;      // Limit of a model's card.

struct PullProgress {
  std::string file{};  // Name of the file that is being fetched or checked; empty: the hub is asked for it.
  std::uint64_t bytes_done = 0;
  std::optional<std::uint64_t> bytes_total{};
};

struct PullInProgress {
  std::string source;  // Without the query of a URL, which may be secret.
  PullProgress progress{};
};

// Follows one download. Called by one thread at a time.
class PullSink {
 public:
  virtual ~PullSink() = default;
  // Called every second or more often. Returns false to cancel the download; what was fetched is kept for the next attempt.
  virtual bool update(const PullProgress& progress) = 0;
  // Called exactly once, at the end, with the name of the model.
  virtual void end(Expected<std::string> model) = 0;
};

class ModelLibrary {
 public:
  virtual ~ModelLibrary() = default;
  // Downloads `source`: a URL, or OWNER/REPO[:FILE-OR-QUANT] on the hub. The model is known by its file's name, and by `source`
  // without the query of a URL, if that may be a name. A download of this source that is in progress is followed, and goes on
  // while one of its sinks wants it. Errors: E_PROTO_003 for another text, E_LIMIT_003 if too many downloads are in progress,
  // E_IO_001.
  virtual void pull(std::string source, std::shared_ptr<PullSink> sink) = 0;
  [[nodiscard]] virtual std::vector<PullInProgress> pulls() const = 0;
  // Deletes the files of a model in the models folder, after unloading it, and all names that add_alias() gave it; or only the
  // alias that `name` is. Errors: E_MODEL_001, E_SESSION_002 while the model is in use, E_MODEL_003 if it lies elsewhere.
  virtual void remove(std::string name, Promise<Unit> reply) = 0;
  // Gives a model another name, until it is removed. Errors: E_MODEL_001, E_PROTO_003 if `alias` is no name or is taken.
  virtual void add_alias(std::string model, std::string alias, Promise<Unit> reply) = 0;
  // Replies with the model's card, the text below its name in models.yaml. Errors: E_MODEL_001, E_IO_001.
  virtual void read_card(std::string model, Promise<std::string> reply) = 0;
  // Replaces the model's card in models.yaml, reads the file again, and replies with the card. Models that are loaded stay as
  // they are. `was`: the card that is to be replaced; nullopt: any. Errors: as above; E_PROTO_003 with the line of a mistake;
  // E_SESSION_002 if the card is another one than `was`.
  virtual void store_card(std::string model, std::string card, std::optional<std::string> was, Promise<std::string> reply) = 0;
};

}  // namespace uma
