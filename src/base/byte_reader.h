// Reads numbers and texts from untrusted bytes. If fewer bytes are left than requested, nothing more is read, and is_short()
// returns true. Little-endian, like this machine.
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
  // `bytes` must outlive the reader.
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  // Returns an empty span if fewer bytes are left.
  std::span<const std::byte> take(std::uint64_t count) {
    is_short_ = is_short_ || count > left_.size();
    if (is_short_) return {};
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  // Returns 0 if too few bytes are left.
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
