#include "uma-cli/sha256.h"

#include <array>
#include <format>
#include <openssl/evp.h>

#include "base/check.h"

namespace uma::cli {

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

std::string Sha256::hex() const {
  const std::unique_ptr<evp_md_ctx_st, Free> copy(EVP_MD_CTX_new());
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned size = 0;
  UMA_CHECK(copy != nullptr && EVP_MD_CTX_copy_ex(copy.get(), context_.get()) == 1);
  UMA_CHECK(EVP_DigestFinal_ex(copy.get(), sum.data(), &size) == 1);
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += std::format("{:02x}", sum[i]);
  return text;
}

}  // namespace uma::cli
