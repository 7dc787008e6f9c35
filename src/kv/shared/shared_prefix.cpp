#include "kv/shared/shared_prefix.h"

#include <format>
#include <string_view>

#include "base/sha256.h"

namespace uma::kv {
namespace {

constexpr std::string_view kPrefixMark = "prefix ";  // Ids of sessions have no spaces.

}  // namespace

StateOwner prefix_owner(const TenantId& tenant, bool is_public, std::span<const Token> tokens) {
  Sha256 hash;
  // Its length ends the scope, so that no name of a tenant can be continued by tokens.
  const std::string_view scope = is_public ? std::string_view() : std::string_view(tenant.value);
  hash.add(std::format("{} {} {}", is_public ? "public" : "tenant", scope.size(), scope));
  hash.add({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
  return {.tenant = is_public ? TenantId() : tenant,
          .session = SessionId{std::format("{}{}", kPrefixMark, hash.hex())},
          .is_public = is_public};
}

bool is_prefix(const SessionId& session) {
  return session.value.starts_with(kPrefixMark);
}

}  // namespace uma::kv
