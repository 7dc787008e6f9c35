#include "kv/shared/shared_store.h"

#include <format>

#include "kv/checksum.h"
#include "kv/disk/state_file.h"

namespace uma::kv {
namespace {

std::string hex_hash(const std::string& text) {
  const Checksum hash = hash_of(std::as_bytes(std::span(text)));
  return std::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace

std::string shared_session_name(const TenantId& tenant, const SessionId& session) {
  return hex_hash(std::format("{} {} {}", tenant.value.size(), tenant.value, session.value));
}

std::string shared_identity_name(std::string_view identity) {
  return hex_hash(std::format("{} {}", kStateFileVersion, identity));
}

}  // namespace uma::kv
