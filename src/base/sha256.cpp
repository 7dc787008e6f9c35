#include "base/sha256.h"

#include <charconv>
#include <format>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace uma {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  UMA_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

void Sha256::add(std::string_view bytes) {
  UMA_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::digest() const {
  const std::unique_ptr<evp_md_ctx_st, Free> copy(EVP_MD_CTX_new());
  Sha256Digest digest{};
  unsigned size = 0;
  UMA_CHECK(copy != nullptr && EVP_MD_CTX_copy_ex(copy.get(), context_.get()) == 1);
  UMA_CHECK(EVP_DigestFinal_ex(copy.get(), digest.data(), &size) == 1 && size == digest.size());
  return digest;
}

std::string Sha256::hex() const {
  std::string text;
  for (const unsigned char byte : digest()) text += std::format("{:02x}", byte);
  return text;
}

Sha256Digest sha256(std::string_view bytes) {
  Sha256 sum;
  sum.add(bytes);
  return sum.digest();
}

std::optional<Sha256Digest> parse_sha256_hex(std::string_view text) {
  Sha256Digest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const char* const digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, digest[i], 16).ptr != digits + 2) return std::nullopt;
  }
  return digest;
}

bool are_equal(const Sha256Digest& left, const Sha256Digest& right) {
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace uma
