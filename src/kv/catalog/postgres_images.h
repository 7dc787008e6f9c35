// The images of sessions in the PostgreSQL database that several daemons share (docs/CLUSTER.md, docs/decisions/0085): each
// by its tenant and the SHA-256 of its file, in pieces. A thread of its own ("uma-images") has a connection of its own, so
// that the catalog's commits never wait for an image. Which sessions refer to an image is in `session_images`, which the
// catalog writes in the transaction of the session.
//
// Thread-safe. Invariants: (1) An image that a session refers to is not removed: the database checks it. (2) An image that no
// session refers to is removed, unless it was stored within `unused_kept`: the commit that refers to it may be on its way.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mailbox.h"
#include "base/move_only_function.h"
#include "core/error.h"
#include "core/ids.h"
#include "kv/catalog/postgres.h"

namespace uma::kv {

struct PostgresImagesOptions {
  std::string address;  // Connection string or URI of libpq.
  std::string node;     // The daemon's name.
  // The limit of all images in the database. A tenant's may have as many bytes as they leave free (TenantBudget).
  std::uint64_t bytes_max = 0;
  Duration unused_kept = std::chrono::minutes(10);
  Duration sweep_every = std::chrono::minutes(10);  // Between two looks for images that no session refers to.
  const Clock* clock = &machine_clock();            // Thread-safe; outlives the object.
};

class PostgresImages {
 public:
  // Reads the file of an image. Called on the thread of the images.
  using ReadFile = std::function<Expected<Bytes>(const std::string& id)>;
  using Stored = MoveOnlyFunction<void(Expected<Unit>)>;
  using Fetched = MoveOnlyFunction<void(Expected<Bytes>)>;

  // Starts the thread, which connects when it has work. Requires: the tables exist before the first call.
  explicit PostgresImages(PostgresImagesOptions options);
  // Calls stop().
  ~PostgresImages();
  PostgresImages(const PostgresImages&) = delete;

  // Stores those of the images that the tenant does not have in the database, whose files `read` reads. `done` is called once,
  // from any thread, when all of them are stored, or with the first error: E_IO_001, E_LIMIT_003 beyond bytes_max, or that of
  // `read`. Images that were stored before the error stay until they are removed as unused.
  void store(TenantId tenant, std::vector<std::string> ids, ReadFile read, Stored done);
  // Reads the file of an image, whoever has stored it. The caller compares its hash. `done` is called once, from any thread.
  // Errors: E_IO_001. Calls of fetch() and store() that have not begun within kBeginsWithin, because the database does not
  // answer, get E_IO_001.
  void fetch(std::string id, Fetched done);
  // Ends the thread; what waits gets E_LIMIT_003.
  void stop();

  // The bytes of an image in one piece, which one statement carries.
  static constexpr std::size_t kPieceBytes = 1ul << 20;
  static constexpr Duration kBeginsWithin = std::chrono::seconds(15);

 private:
  struct Storing {
    TenantId tenant;
    std::vector<std::string> ids;
    ReadFile read;
    Stored done;
    std::size_t next = 0;   // Index in ids.
    TimePoint begins_by{};  // Later nobody waits for it any more.
  };
  struct Fetching {
    std::string id;
    Fetched done;
    TimePoint begins_by{};
  };
  using Call = std::variant<Storing, Fetching>;

  void run();
  void step();
  void take_calls();
  void refuse_all();
  void refuse_late();
  void store_next();
  void fetch_first();
  void sweep();
  [[nodiscard]] TimePoint next_wake() const;
  [[nodiscard]] bool has_calls() const { return !storing_.empty() || !fetching_.empty(); }
  [[nodiscard]] SqlExpected<Unit> connect();
  template <class Work>
  auto with_connection(Work&& work) -> decltype(work());
  [[nodiscard]] SqlExpected<bool> touch(const TenantId& tenant, const std::string& id);
  [[nodiscard]] SqlExpected<Unit> store_image(const Storing& call, const std::string& id, std::optional<Error>& refusal);
  [[nodiscard]] SqlExpected<bool> write_image(const TenantId& tenant, const std::string& id, std::span<const std::byte> file,
                                              std::optional<Error>& refusal);
  [[nodiscard]] SqlExpected<Unit> check_space(const TenantId& tenant, std::uint64_t bytes, std::optional<Error>& refusal);
  [[nodiscard]] SqlExpected<Bytes> fetch_image(const std::string& id, std::optional<Error>& refusal);
  [[nodiscard]] Error failure(const SqlError& error);

  const PostgresImagesOptions options_;
  const Clock& clock_;

  // Owned by the thread.
  PostgresConnection connection_;
  Statement touch_;
  Statement get_bytes_;
  Statement add_image_;
  Statement add_piece_;
  Statement find_image_;
  Statement get_piece_;
  Statement remove_unused_;
  std::vector<Call> taken_;
  std::deque<Storing> storing_;
  std::deque<Fetching> fetching_;
  TimePoint next_connect_{};
  TimePoint next_sweep_;
  TimePoint used_at_{};  // The connection.
  bool is_failing_ = false;

  // Shared.
  Mailbox<Call> inbox_;
  std::thread thread_;  // Started by the constructor, joined by stop().
};

}  // namespace uma::kv
