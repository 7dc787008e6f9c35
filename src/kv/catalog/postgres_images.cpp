#include "kv/catalog/postgres_images.h"

#include <algorithm>
#include <format>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/system/thread_name.h"
#include "base/thrown.h"

namespace uma::kv {
namespace {

constexpr Duration kImagesConnectEvery = std::chrono::seconds(1);
// A connection without work for so long is closed: most daemons have images rarely, and each connection costs the server
// memory.
constexpr Duration kIdleConnection = std::chrono::minutes(1);
// An image has less (image::kImageBytesMax). What claims more is no image.
constexpr std::int64_t kImageFileBytesMax = 64l << 20;
// One statement of a sweep removes so many, so that none takes long.
constexpr std::int64_t kSweptMax = 20;

std::unexpected<Error> refused_at_end() {
  return fail(ErrorCode::limit_wait, "the daemon stops");
}

std::unexpected<SqlError> gone(std::string_view what) {
  return std::unexpected(SqlError{SqlFault::busy, std::string(what)});
}

}  // namespace

PostgresImages::PostgresImages(PostgresImagesOptions options)
    : options_(std::move(options)),
      clock_(*options_.clock),
      connection_(options_.address),
      touch_(connection_, "UPDATE images SET used = clock_timestamp() WHERE tenant = ?1 AND sha256 = ?2 RETURNING key"),
      get_bytes_(connection_, R"sql(
        SELECT coalesce(sum(bytes_count), 0)::bigint, coalesce(sum(bytes_count) FILTER (WHERE tenant = ?1), 0)::bigint
        FROM images)sql"),
      add_image_(connection_, R"sql(
        INSERT INTO images (tenant, sha256, bytes_count) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING key)sql"),
      add_piece_(connection_, "INSERT INTO image_pieces (image, number, bytes) VALUES (?1, ?2, ?3) RETURNING number"),
      find_image_(connection_, "SELECT key, bytes_count FROM images WHERE sha256 = ?1 LIMIT 1"),
      get_piece_(connection_, "SELECT bytes FROM image_pieces WHERE image = ?1 AND number = ?2"),
      // A session that begins to refer to one of them meanwhile locks its row, or makes this fail.
      remove_unused_(connection_, R"sql(
        DELETE FROM images WHERE key IN (
          SELECT i.key FROM images i WHERE i.used < clock_timestamp() - ?1 * interval '1 millisecond'
          AND NOT EXISTS (SELECT 1 FROM session_images r WHERE r.image = i.key) ORDER BY i.key LIMIT ?2 FOR UPDATE SKIP LOCKED)
        RETURNING key)sql"),
      next_sweep_(clock_.now() + options_.sweep_every),
      thread_([this] {
        set_thread_name("uma-images");
        run();
      }) {}

PostgresImages::~PostgresImages() {
  stop();
}

void PostgresImages::stop() {
  inbox_.close();
  connection_.cancel();
  if (thread_.joinable()) thread_.join();
}

// --- Calls

void PostgresImages::store(TenantId tenant, std::vector<std::string> ids, ReadFile read, Stored done) {
  const auto answer = std::make_shared<Stored>(std::move(done));
  const bool is_open =
      inbox_.push(Storing{std::move(tenant), std::move(ids), std::move(read),
                          [answer](Expected<Unit> stored) { (*answer)(std::move(stored)); }, 0, clock_.now() + kBeginsWithin});
  if (!is_open) (*answer)(refused_at_end());
}

void PostgresImages::fetch(std::string id, Fetched done) {
  const auto answer = std::make_shared<Fetched>(std::move(done));
  const bool is_open = inbox_.push(
      Fetching{std::move(id), [answer](Expected<Bytes> file) { (*answer)(std::move(file)); }, clock_.now() + kBeginsWithin});
  if (!is_open) (*answer)(refused_at_end());
}

void PostgresImages::run() {
  while (inbox_.wait_drain(taken_, has_calls() ? TimePoint{} : next_wake())) {
    run_noting([this] {
      take_calls();
      step();
    });
  }
  run_noting([this] { refuse_all(); });
  connection_.disconnect();
}

void PostgresImages::take_calls() {
  for (Call& call : taken_) {
    if (auto* storing = std::get_if<Storing>(&call)) storing_.push_back(std::move(*storing));
    if (auto* fetching = std::get_if<Fetching>(&call)) fetching_.push_back(std::move(*fetching));
  }
  taken_.clear();
}

// One image, or the database's housekeeping. Somebody waits for a fetched image while its conversation stands still, so these
// are first.
void PostgresImages::step() {
  refuse_late();
  if (!fetching_.empty()) return fetch_first();
  if (!storing_.empty()) return store_next();
  const TimePoint now = clock_.now();
  if (now >= next_sweep_) sweep();
  if (!connection_.is_lost() && now > used_at_ + kIdleConnection) connection_.disconnect();
}

TimePoint PostgresImages::next_wake() const {
  return connection_.is_lost() ? next_sweep_ : std::min(next_sweep_, used_at_ + kIdleConnection + std::chrono::milliseconds(1));
}

void PostgresImages::refuse_late() {
  const TimePoint now = clock_.now();
  const auto late = [] {
    return fail(ErrorCode::io_failed, "the database of the sessions' images does not answer: try again");
  };
  while (!fetching_.empty() && fetching_.front().begins_by < now) {
    Fetching call = std::move(fetching_.front());
    fetching_.pop_front();
    call.done(late());
  }
  while (!storing_.empty() && storing_.front().next == 0 && storing_.front().begins_by < now) {
    Storing call = std::move(storing_.front());
    storing_.pop_front();
    call.done(late());
  }
}

void PostgresImages::refuse_all() {
  take_calls();
  for (Storing& call : std::exchange(storing_, {})) run_noting([&] { call.done(refused_at_end()); });
  for (Fetching& call : std::exchange(fetching_, {})) run_noting([&] { call.done(refused_at_end()); });
}

// --- Connection

// Connects at most once a second.
SqlExpected<Unit> PostgresImages::connect() {
  const TimePoint now = clock_.now();
  if (now < next_connect_) return std::unexpected(SqlError{SqlFault::lost, "no connection to the database"});
  auto connected = connection_.connect(std::format("umad {} images", options_.node),
                                       {"client_min_messages=warning", "statement_timeout=15s", "lock_timeout=10s",
                                        "idle_in_transaction_session_timeout=30s", "synchronous_commit=on"});
  // A try may take seconds.
  next_connect_ = clock_.now() + kImagesConnectEvery;
  return connected;
}

template <class Work>
auto PostgresImages::with_connection(Work&& work) -> decltype(work()) {
  const bool was_open = !connection_.is_lost();
  if (!was_open) {
    if (auto done = connect(); !done) return std::unexpected(done.error());
  }
  used_at_ = clock_.now();
  auto result = work();
  // The connection may have ended while nobody used it. All that this class does may be done again.
  const bool has_ended_at_once = !result && result.error().is_lost() && clock_.now() < used_at_ + kImagesConnectEvery;
  if (was_open && has_ended_at_once) {
    next_connect_ = {};
    if (connect()) result = work();
  }
  connection_.roll_back();
  return result;
}

// The database's words are for the log: they may name hosts and users.
Error PostgresImages::failure(const SqlError& error) {
  if (!is_failing_) log_error("images  the database: {}", error.message);
  is_failing_ = true;
  std::string_view reason = "it refuses the image";
  if (error.is_lost() || error.is_io()) reason = "it cannot be reached; umad connects again by itself";
  if (error.is_full()) reason = "its disk or memory is full";
  if (error.is_busy()) reason = "it was busy for too long: try again";
  return {ErrorCode::io_failed, std::format("the database of the sessions' images: {}", reason)};
}

// --- Storing

void PostgresImages::store_next() {
  Storing& call = storing_.front();
  auto stored = contain([&]() -> Expected<Unit> {
    if (call.next == call.ids.size()) return Unit{};
    std::optional<Error> refusal;
    auto done = with_connection([&] { return store_image(call, call.ids[call.next], refusal); });
    if (!done) return std::unexpected(failure(done.error()));
    if (refusal) return std::unexpected(std::move(*refusal));
    is_failing_ = false;
    return Unit{};
  });
  if (stored && ++call.next < call.ids.size()) {
    // The others have their turn.
    storing_.push_back(std::move(call));
    storing_.pop_front();
    return;
  }
  Stored done = std::move(call.done);
  storing_.pop_front();
  done(std::move(stored));
}

// Whether the tenant has the image in the database, which then keeps it as one that was just stored.
SqlExpected<bool> PostgresImages::touch(const TenantId& tenant, const std::string& id) {
  touch_.bind(tenant.value, id);
  auto row = touch_.next();
  touch_.end();
  return row;
}

SqlExpected<Unit> PostgresImages::store_image(const Storing& call, const std::string& id, std::optional<Error>& refusal) {
  const auto is_there = touch(call.tenant, id);
  if (!is_there) return std::unexpected(is_there.error());
  if (*is_there) return Unit{};
  const auto file = call.read(id);
  if (!file) {
    refusal = file.error();
    return Unit{};
  }
  if (auto begun = connection_.begin(); !begun) return begun;
  const auto written = write_image(call.tenant, id, *file, refusal);
  if (!written) return std::unexpected(written.error());
  if (refusal) return Unit{};
  if (auto done = connection_.commit(); !done) return done;
  if (*written) return Unit{};
  // Another daemon has stored it meanwhile.
  const auto is_there_now = touch(call.tenant, id);
  if (!is_there_now) return std::unexpected(is_there_now.error());
  if (!*is_there_now) return gone("the image was removed meanwhile");
  return Unit{};
}

// Returns false if it is there already.
SqlExpected<bool> PostgresImages::write_image(const TenantId& tenant, const std::string& id, std::span<const std::byte> file,
                                              std::optional<Error>& refusal) {
  if (auto fits = check_space(tenant, file.size(), refusal); !fits) return std::unexpected(fits.error());
  if (refusal) return false;
  add_image_.bind(tenant.value, id, static_cast<std::int64_t>(file.size()));
  const auto row = add_image_.next();
  if (!row) return std::unexpected(row.error());
  if (!*row) return false;
  const std::int64_t key = add_image_.integer(0);
  add_image_.end();
  for (std::int64_t number = 0; !file.empty(); ++number) {
    const auto piece = file.first(std::min(file.size(), kPieceBytes));
    add_piece_.bind(key, number, piece);
    // Waits for the server, so that one piece at a time is in its memory and in the connection's.
    const auto added = add_piece_.next();
    add_piece_.end();
    if (!added) return std::unexpected(added.error());
    file = file.subspan(piece.size());
  }
  return true;
}

// Several daemons that store at once may exceed the limit by these images.
SqlExpected<Unit> PostgresImages::check_space(const TenantId& tenant, std::uint64_t bytes, std::optional<Error>& refusal) {
  get_bytes_.bind(tenant.value);
  const auto row = get_bytes_.next();
  if (!row) return std::unexpected(row.error());
  const auto used = static_cast<std::uint64_t>(get_bytes_.integer(0));
  const auto own = static_cast<std::uint64_t>(get_bytes_.integer(1));
  get_bytes_.end();
  const std::uint64_t left = options_.bytes_max - std::min(options_.bytes_max, used);
  if (own > left || bytes > (left - own) / 2) {
    refusal = Error{ErrorCode::limit_wait,
                    std::format("this image needs {} bytes, but images of sessions on all nodes hold {} of {} "
                                "(vision.kept_bytes_max), {} of them for this tenant, which may hold at most as many as it "
                                "leaves free: end sessions with images",
                                bytes, used, options_.bytes_max, own)};
  }
  return Unit{};
}

// --- Fetching

void PostgresImages::fetch_first() {
  Fetching call = std::move(fetching_.front());
  fetching_.pop_front();
  call.done(contain([&]() -> Expected<Bytes> {
    std::optional<Error> refusal;
    auto file = with_connection([&] { return fetch_image(call.id, refusal); });
    if (!file) return std::unexpected(failure(file.error()));
    if (refusal) return std::unexpected(std::move(*refusal));
    is_failing_ = false;
    return std::move(*file);
  }));
}

SqlExpected<Bytes> PostgresImages::fetch_image(const std::string& id, std::optional<Error>& refusal) {
  find_image_.bind(id);
  const auto row = find_image_.next();
  if (!row) return std::unexpected(row.error());
  const std::int64_t key = *row ? find_image_.integer(0) : 0;
  const std::int64_t size = *row ? find_image_.integer(1) : -1;
  find_image_.end();
  Bytes file;
  const auto refuse = [&](std::string_view why) {
    refusal = Error{ErrorCode::io_failed, std::format("the image {} of the session cannot be read: {}", id, why)};
    return Bytes();
  };
  if (size < 0) return refuse("the file is missing, also in the database");
  if (size > kImageFileBytesMax) return refuse("its size in the database is impossible");
  for (std::int64_t number = 0; std::ssize(file) < size; ++number) {
    get_piece_.bind(key, number);
    const auto piece = get_piece_.next();
    if (!piece) return std::unexpected(piece.error());
    const auto bytes = *piece ? get_piece_.blob(0) : std::span<const std::byte>();
    if (bytes.empty()) return refuse("a piece of it is missing in the database");
    file.insert(file.end(), bytes.begin(), bytes.end());
    get_piece_.end();
  }
  return file;
}

// --- Images that no session refers to

void PostgresImages::sweep() {
  next_sweep_ = clock_.now() + options_.sweep_every;
  const auto removed = with_connection([&]() -> SqlExpected<std::int64_t> {
    std::int64_t count = 0;
    const std::int64_t kept_ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.unused_kept).count();
    remove_unused_.bind(kept_ms, kSweptMax);
    auto row = remove_unused_.next();
    for (; row && *row; row = remove_unused_.next()) ++count;
    remove_unused_.end();
    if (!row) return std::unexpected(row.error());
    return count;
  });
  // If a session refers to one of them again, the next sweep finds the others.
  if (!removed) return log_debug("images  unused ones were not removed: {}", removed.error().message);
  if (*removed > 0) log_info("images  {} that no session refers to were removed from the database", *removed);
  if (*removed == kSweptMax) next_sweep_ = clock_.now();
}

}  // namespace uma::kv
