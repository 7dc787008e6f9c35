// SHA-256 (FIPS 180-4), incremental or of a whole buffer.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace uma {

using Sha256Digest = std::array<unsigned char, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void add(std::string_view bytes);
  // The digest of the bytes so far; more may be added.
  [[nodiscard]] Sha256Digest digest() const;
  [[nodiscard]] std::string hex() const;  // The digest as lower-case hexadecimal digits.

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

[[nodiscard]] Sha256Digest sha256(std::string_view bytes);
// Parses 64 hexadecimal digits of either case; nullopt for other text.
[[nodiscard]] std::optional<Sha256Digest> parse_sha256_hex(std::string_view text);
// Compares in a time that does not depend on the position of a difference.
[[nodiscard]] bool are_equal(const Sha256Digest& left, const Sha256Digest& right);

}  // namespace uma
