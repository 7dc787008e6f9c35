#include "umad/shared_store.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <format>
#include <fstream>
#include <utility>

#include "kv/shared/redis_address.h"
#include "kv/shared/shared_folder.h"
#include "kv/shared/shared_redis.h"

namespace uma::umad {

std::expected<std::string, std::string> shared_store_password(const Environment& environment) {
  if (auto given = environment("UMA_SHARED_STATES_PASSWORD")) return *given;
  const auto path = environment("UMA_SHARED_STATES_PASSWORD_FILE");
  if (!path) return "";
  std::ifstream file(*path);
  std::string line;
  if (!std::getline(file, line)) {
    return std::unexpected(std::format("UMA_SHARED_STATES_PASSWORD_FILE: no password could be read from {}", *path));
  }
  return line;
}

std::string shared_states_text(const Config& config) {
  if (config.shared_states.empty()) return "nothing";
  const auto address = kv::parse_redis_address(config.shared_states);
  return address ? address->text() : std::format("the folder {}", config.shared_states);
}

std::unique_ptr<kv::SharedStates> open_shared_states(const Config& config, const Clock& clock) {
  if (config.shared_states.empty()) return nullptr;
  kv::SharedBounds bounds = config.shared_bounds;
  bounds.ttl_s = std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::seconds>(config.shared_ttl).count());
  const auto now_s = [&clock] { return clock.unix_s(); };
  const auto connect = [&]() -> std::unique_ptr<kv::SharedStore> {
    const auto address = kv::parse_redis_address(config.shared_states);
    if (!address) return std::make_unique<kv::SharedFolder>(config.shared_states, bounds, now_s);
    return std::make_unique<kv::SharedRedis>(kv::RedisOptions{.address = *address, .password = config.shared_password}, bounds,
                                             now_s);
  };
  return std::make_unique<kv::SharedStates>(connect(), connect(), clock);
}

}  // namespace uma::umad
