// Bytes in the memory that devices have for themselves, by the name of the device. An integrated GPU has none: what it holds is
// in the machine's memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace uma::llm {

class DeviceBytes {
 public:
  using Map = std::map<std::string, std::uint64_t>;

  DeviceBytes() = default;
  DeviceBytes(std::initializer_list<Map::value_type> bytes) : bytes_(bytes) {}

  void add(const std::string& device, std::uint64_t bytes) {
    if (bytes > 0) bytes_[device] += bytes;
  }
  DeviceBytes& operator+=(const DeviceBytes& other) {
    for (const auto& [device, bytes] : other.bytes_) add(device, bytes);
    return *this;
  }
  DeviceBytes& operator-=(const DeviceBytes& other) {
    for (const auto& [device, bytes] : other.bytes_) bytes_[device] -= std::min(bytes_[device], bytes);
    std::erase_if(bytes_, [](const auto& entry) { return entry.second == 0; });
    return *this;
  }
  DeviceBytes& operator*=(std::uint64_t factor) {
    for (auto& [device, bytes] : bytes_) bytes *= factor;
    return *this;
  }
  [[nodiscard]] std::uint64_t of(const std::string& device) const {
    const auto found = bytes_.find(device);
    return found == bytes_.end() ? 0 : found->second;
  }
  [[nodiscard]] std::uint64_t total() const {
    std::uint64_t total = 0;
    for (const auto& [device, bytes] : bytes_) total += bytes;
    return total;
  }
  // The part of `all` that remains for the machine's memory.
  [[nodiscard]] std::uint64_t rest_of(std::uint64_t all) const { return all - std::min(all, total()); }
  [[nodiscard]] bool is_empty() const { return bytes_.empty(); }
  [[nodiscard]] const Map& by_device() const { return bytes_; }
  bool operator==(const DeviceBytes&) const = default;

 private:
  Map bytes_;
};

[[nodiscard]] inline DeviceBytes operator+(DeviceBytes a, const DeviceBytes& b) {
  return a += b;
}
[[nodiscard]] inline DeviceBytes operator*(DeviceBytes bytes, std::uint64_t factor) {
  return bytes *= factor;
}

}  // namespace uma::llm
