// Reads numbers and texts out of bytes that may be anything: where less is left than was asked for, nothing is read any more,
// and is_short() says so once at the end. Little-endian, as this machine is.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace uma {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

class ByteReader {
 public:
  // The bytes outlive it.
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  // Empty where fewer are left.
  std::span<const std::byte> take(std::uint64_t count) {
    is_short_ = is_short_ || count > left_.size();
    if (is_short_) return {};
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  // 0 where too few are left.
  template <class Number>
  Number take_number() {
    Number number{};
    const auto bytes = take(sizeof number);
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), sizeof number);
    return number;
  }
  std::string take_text(std::uint64_t count) {
    const auto bytes = take(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <class T>
  std::vector<T> take_all(std::uint32_t count) {
    const auto bytes = take(std::uint64_t{count} * sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  [[nodiscard]] bool is_short() const { return is_short_; }
  [[nodiscard]] bool is_at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool is_short_ = false;
};

}  // namespace uma
