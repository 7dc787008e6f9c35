#include "kv/shared/shared_redis.h"

#include <algorithm>
#include <charconv>
#include <format>
#include <hiredis/hiredis.h>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "kv/disk/state_file_io.h"

namespace uma::kv {
namespace {

constexpr std::string_view kIndexKey = "uma:1:index";
constexpr std::uint64_t kChunksMax = std::uint64_t{1} << 18;  // 1 TiB

std::string session_key(std::string_view session) {
  return std::format("uma:1:s:{}", session);
}
std::string head_key(std::string_view upload) {
  return std::format("uma:1:h:{}", upload);
}
std::string chunk_key(std::string_view upload, std::uint64_t chunk) {
  return std::format("uma:1:c:{}:{}", upload, chunk);
}

std::string_view text_of(const redisReply& reply) {
  return reply.type == REDIS_REPLY_STRING ? std::string_view(reply.str, reply.len) : std::string_view();
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const redisReply* const> items_of(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ARRAY || reply.element == nullptr) return {};
  return {reply.element, reply.elements};
}

bool read_count(std::string_view text, std::uint64_t& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

bool is_hex(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Cuts what is added into chunks.
class Chunks {
 public:
  explicit Chunks(std::function<Expected<Unit>(std::span<const std::byte>)> send) : send_(std::move(send)) {
    bytes_.reserve(kRedisChunkBytes);
  }
  Expected<Unit> add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), kRedisChunkBytes - bytes_.size()));
      bytes_.insert(bytes_.end(), part.begin(), part.end());
      bytes = bytes.subspan(part.size());
      if (bytes_.size() < kRedisChunkBytes) continue;
      if (auto sent = end(); !sent) return sent;
    }
    return Unit{};
  }
  Expected<Unit> end() {
    if (bytes_.empty()) return Unit{};
    auto sent = send_(bytes_);
    bytes_.clear();
    return sent;
  }

 private:
  const std::function<Expected<Unit>(std::span<const std::byte>)> send_;
  Bytes bytes_;
};

}  // namespace

std::string SharedRedis::StateKey::text() const {
  return std::format("{}:{}:{}:{}:{}:{}", session, identity, state, upload, chunks, bytes);
}

std::optional<SharedRedis::StateKey> SharedRedis::StateKey::of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != std::string_view::npos && parts.size() < 7;) {
    end = text.find(':');
    parts.push_back(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
  if (parts.size() != 6 || !std::ranges::all_of(std::span(parts).first(4), is_hex)) return std::nullopt;
  StateKey key{.session = std::string(parts[0]),
               .identity = std::string(parts[1]),
               .state = std::string(parts[2]),
               .upload = std::string(parts[3])};
  const bool is_valid = read_count(parts[4], key.chunks) && read_count(parts[5], key.bytes) && key.chunks <= kChunksMax;
  return is_valid ? std::optional(std::move(key)) : std::nullopt;
}

SharedRedis::SharedRedis(RedisOptions options, SharedBounds bounds, std::function<std::int64_t()> unix_s)
    : connection_(std::move(options)), bounds_(bounds), unix_s_(std::move(unix_s)) {
  connection_.give_up_when([this] { return is_late(); });
}

Expected<ColdHead> SharedRedis::write(const StateOwner& owner, const Snapshot& snapshot) {
  UMA_CHECK(!owner.session.empty());
  const Bytes head = encode_state_head(owner, snapshot, checksum_of(snapshot));
  std::uint64_t payload_bytes = 0;
  for (const SnapshotPiece& piece : snapshot.pieces) payload_bytes += in_blocks(piece.bytes.size());
  const StateKey key{.session = shared_session_name(owner.tenant, owner.session),
                     .identity = shared_identity_name(snapshot.identity),
                     .state = state_name(owner, snapshot.identity, snapshot.tokens),
                     .upload = std::format("{:016x}{:016x}", secure_u64(), secure_u64()),
                     .chunks = (payload_bytes + kRedisChunkBytes - 1) / kRedisChunkBytes,
                     .bytes = head.size() + payload_bytes};
  if (key.bytes > std::min(bounds_.state_bytes_max, bounds_.bytes_max)) {
    return fail(ErrorCode::limit_quota, std::format("{}: a state of {} bytes is larger than allowed there", text(), key.bytes));
  }
  auto written = write_parts(key, head, snapshot);
  if (written) written = publish(key);
  if (!written) {
    (void)remove(key);
    return std::unexpected(written.error());
  }
  return ColdHead{.name = key.text(),
                  .owner = owner,
                  .identity = snapshot.identity,
                  .tokens = snapshot.tokens,
                  .bytes = key.bytes,
                  .last_used_s = unix_s_()};
}

Expected<Unit> SharedRedis::write_parts(const StateKey& key, std::span<const std::byte> head, const Snapshot& snapshot) {
  // In the index first, so that clean() finds what a killed daemon leaves.
  const std::string now = std::to_string(unix_s_());
  const std::string ttl = std::to_string(bounds_.ttl_s);
  if (auto added = connection_.call({"ZADD", kIndexKey, now, key.text()}); !added) return std::unexpected(added.error());
  const auto set = [&](const std::string& name, std::span<const std::byte> bytes) -> Expected<Unit> {
    if (auto stored = connection_.call({"SET", name, as_text(bytes), "EX", ttl}); !stored)
      return std::unexpected(stored.error());
    return Unit{};
  };
  std::uint64_t next = 0;
  Chunks chunks([&](std::span<const std::byte> bytes) { return set(chunk_key(key.upload, next++), bytes); });
  for (const SnapshotPiece& piece : snapshot.pieces) {
    if (auto sent = chunks.add(piece.bytes); !sent) return sent;
    const std::size_t padding = in_blocks(piece.bytes.size()) - piece.bytes.size();
    if (auto sent = chunks.add(std::span(kBlockOfZeros).first(padding)); !sent) return sent;
  }
  if (auto sent = chunks.end(); !sent) return sent;
  return set(head_key(key.upload), head);
}

// The state counts from now on. Removes those that it replaces.
Expected<Unit> SharedRedis::publish(const StateKey& key) {
  const auto former = states_of(key.session);
  if (!former) return std::unexpected(former.error());
  const std::string session = session_key(key.session);
  const auto set = connection_.call({"HSET", session, key.identity, key.text()});
  if (!set) return std::unexpected(set.error());
  if (auto ends = connection_.call({"EXPIRE", session, std::to_string(bounds_.ttl_s)}); !ends)
    return std::unexpected(ends.error());
  std::size_t others = 0;
  for (const StateKey& each : *former) {
    const bool is_replaced = each.identity == key.identity;
    if (!is_replaced && ++others < kSharedIdentitiesMax) continue;
    if (!is_replaced) (void)connection_.call({"HDEL", session, each.identity});
    if (auto removed = remove(each); !removed) log_debug("kv: {}", removed.error().message);
  }
  return Unit{};
}

Expected<std::vector<SharedRedis::StateKey>> SharedRedis::states_of(const std::string& session) {
  const auto values = connection_.call({"HVALS", session_key(session)});
  if (!values) return std::unexpected(values.error());
  std::vector<StateKey> keys;
  for (const redisReply* item : items_of(**values)) {
    auto key = StateKey::of(text_of(*item));
    if (key && key->session == session) keys.push_back(std::move(*key));
  }
  return keys;
}

Expected<std::optional<StateHead>> SharedRedis::read_head(const StateKey& key) {
  const auto reply = connection_.call({"GET", head_key(key.upload)});
  if (!reply) return std::unexpected(reply.error());
  if ((*reply)->type == REDIS_REPLY_NIL) return std::nullopt;
  const std::string from = std::format("{} state {}", text(), key.state);
  auto head = decode_state_head(std::as_bytes(std::span(text_of(**reply))));
  if (!head) return state_refused(from, head.error().message);
  if (state_name(head->owner, head->identity, head->tokens) != key.state || head->file_bytes != key.bytes)
    return state_refused(from, "damaged: its name or its size does not match its content");
  return std::optional(std::move(*head));
}

Expected<std::vector<ColdHead>> SharedRedis::find(const TenantId& tenant, const SessionId& session,
                                                  std::span<const std::string> identities) {
  const auto keys = states_of(shared_session_name(tenant, session));
  if (!keys) return std::unexpected(keys.error());
  std::vector<ColdHead> heads;
  for (const std::string& identity : identities) {
    const auto key = std::ranges::find(*keys, shared_identity_name(identity), &StateKey::identity);
    if (key == keys->end() || key->bytes > bounds_.state_bytes_max) continue;
    auto head = read_head(*key);
    if (head && *head &&
        ((*head)->owner.tenant != tenant || (*head)->owner.session != session || (*head)->identity != identity))
      head = state_refused(text(), "a state belongs to another session or model");
    if (!head && head.error().code != ErrorCode::runtime_decode) return std::unexpected(head.error());
    if (!head) {
      log_warning("kv: a shared state is ignored: {}", head.error().message);
      refuse(*key);
    } else if (*head) {
      heads.push_back({.name = key->text(),
                       .owner = std::move((*head)->owner),
                       .identity = std::move((*head)->identity),
                       .tokens = std::move((*head)->tokens),
                       .bytes = key->bytes,
                       .last_used_s = unix_s_()});
    }
  }
  return heads;
}

Expected<std::optional<Snapshot>> SharedRedis::read(const std::string& name, const StateOwner& owner, std::uint64_t bytes,
                                                    BytePool& pool) {
  const auto key = StateKey::of(name);
  UMA_CHECK(key);
  const std::string from = std::format("{} state {}", text(), key->state);
  auto head = read_head(*key);
  if (head && !*head) return std::nullopt;
  if (head && ((*head)->owner != owner || (*head)->file_bytes != bytes))
    head = state_refused(from, "it belongs to another owner, or has another size than before");
  std::uint64_t unread_bytes = 0;
  if (head) {
    for (const StatePieceEntry& piece : (*head)->pieces) unread_bytes += in_blocks(piece.bytes);
  }
  bool is_gone = false;
  std::uint64_t next = 0;
  RedisReplyPtr chunk(nullptr, [](redisReply*) {});
  std::span<const std::byte> left;
  const auto fill = [&](std::span<std::byte> into, const auto& take) -> Expected<Unit> {
    while (!into.empty()) {
      if (left.empty()) {
        auto reply = connection_.call({"GET", chunk_key(key->upload, next++)});
        if (!reply) return std::unexpected(reply.error());
        is_gone = (*reply)->type == REDIS_REPLY_NIL;
        if (is_gone) return state_refused(from, "it was removed");
        chunk = std::move(*reply);
        left = std::as_bytes(std::span(text_of(*chunk)));
        if (left.size() != std::min<std::uint64_t>(unread_bytes, kRedisChunkBytes))
          return state_refused(from, "damaged: the length of a chunk is wrong");
        unread_bytes -= left.size();
      }
      const auto part = left.first(std::min(left.size(), into.size()));
      std::ranges::copy(part, into.begin());
      take(part);
      into = into.subspan(part.size());
      left = left.subspan(part.size());
    }
    return Unit{};
  };
  auto snapshot = head ? read_state_payload(std::move(**head), from, pool, fill) : std::unexpected(std::move(head.error()));
  if (snapshot && next != key->chunks) snapshot = state_refused(from, "damaged: the number of its chunks is wrong");
  if (is_gone) return std::nullopt;
  if (!snapshot) {
    if (snapshot.error().code == ErrorCode::runtime_decode) refuse(*key);
    return std::unexpected(snapshot.error());
  }
  note_use(*key);
  return std::optional(std::move(*snapshot));
}

// Its time to live begins again. One round trip, because a request waits for the state.
void SharedRedis::note_use(const StateKey& key) {
  const std::string ttl = std::to_string(bounds_.ttl_s);
  std::vector<std::vector<std::string>> commands = {
      {"ZADD", std::string(kIndexKey), "XX", std::to_string(unix_s_()), key.text()},
      {"EXPIRE", session_key(key.session), ttl},
      {"EXPIRE", head_key(key.upload), ttl}};
  for (std::uint64_t i = 0; i < key.chunks; ++i) commands.push_back({"EXPIRE", chunk_key(key.upload, i), ttl});
  if (const auto done = connection_.call_all(commands); !done) log_debug("kv: {}", done.error().message);
}

// Removes the parts of a state. One that its session still names is found missing by its readers.
Expected<Unit> SharedRedis::remove(const StateKey& key) {
  std::vector<std::string> names = {head_key(key.upload)};
  for (std::uint64_t i = 0; i < key.chunks; ++i) names.push_back(chunk_key(key.upload, i));
  std::vector<std::string_view> command = {"DEL"};
  command.insert(command.end(), names.begin(), names.end());
  if (auto removed = connection_.call(command); !removed) return std::unexpected(removed.error());
  if (auto removed = connection_.call({"ZREM", kIndexKey, key.text()}); !removed) return std::unexpected(removed.error());
  return Unit{};
}

// Removes a state whose bytes are wrong.
void SharedRedis::refuse(const StateKey& key) {
  auto removed = remove(key);
  if (removed) {
    if (auto named = connection_.call({"HDEL", session_key(key.session), key.identity}); !named)
      removed = std::unexpected(named.error());
  }
  if (!removed) log_debug("kv: {}", removed.error().message);
}

Expected<Unit> SharedRedis::remove(const TenantId& tenant, const SessionId& session) {
  const std::string name = shared_session_name(tenant, session);
  const auto keys = states_of(name);
  if (!keys) return std::unexpected(keys.error());
  for (const StateKey& key : *keys) {
    if (auto removed = remove(key); !removed) return removed;
  }
  if (auto removed = connection_.call({"DEL", session_key(name)}); !removed) return std::unexpected(removed.error());
  return Unit{};
}

Expected<std::size_t> SharedRedis::clean() {
  const auto listed = connection_.call({"ZRANGE", kIndexKey, "0", "-1", "WITHSCORES"});
  if (!listed) return std::unexpected(listed.error());
  struct Known {
    StateKey key;
    std::uint64_t used_s = 0;
  };
  std::vector<Known> known;  // The longest unused first.
  std::uint64_t bytes = 0;
  const auto items = items_of(**listed);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    auto key = StateKey::of(text_of(*items[i]));
    std::uint64_t used_s = 0;
    if (!key || !read_count(text_of(*items[i + 1]), used_s)) {
      if (auto removed = connection_.call({"ZREM", kIndexKey, text_of(*items[i])}); !removed)
        return std::unexpected(removed.error());
      continue;
    }
    bytes += key->bytes;
    known.push_back({std::move(*key), used_s});
  }
  const auto now_s = static_cast<std::uint64_t>(unix_s_());
  const auto ttl_s = static_cast<std::uint64_t>(bounds_.ttl_s);
  std::size_t removed_count = 0;
  for (const Known& each : known) {
    if (bytes <= bounds_.bytes_max && each.used_s + ttl_s >= now_s) break;
    bytes -= std::min(bytes, each.key.bytes);
    if (auto removed = remove(each.key); !removed) return std::unexpected(removed.error());
    ++removed_count;
  }
  return removed_count;
}

}  // namespace uma::kv
