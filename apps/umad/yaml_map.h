// Reads and writes the small YAML files that umad keeps for itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include <yaml-cpp/yaml.h>

#include "umad/config_value.h"
#include "umad/machine.h"

namespace uma::umad {

// Reads the values of one map in the file and remembers the first problem.
class MapReader {
 public:
  // `problem` is empty, or has the problem of a map that was read before; it outlives the reader.
  MapReader(const YAML::Node& map, std::string& problem);

  // The value of `key`; T{} after a problem.
  template <class T>
  T take(const char* key, const Reader<T>& read) {
    const auto text = take_text(key);
    if (!text) return T{};
    auto result = read(*text);
    if (!result) complain(std::string(key) + ": expected " + result.error());
    return result.value_or(T{});
  }
  // Reports keys that have not been read.
  void finish(std::size_t maps_inside);

 private:
  [[nodiscard]] std::optional<std::string> take_text(const char* key);
  void complain(std::string what);

  YAML::Node map_;
  std::string& problem_;
  std::size_t taken_ = 0;
};

[[nodiscard]] Reader<std::string> any_text();
// Reads the key `version`. The error says that the file is damaged, or made by a newer umad than one that reads `newest`.
[[nodiscard]] std::expected<void, std::string> check_version(MapReader& top, const std::string& problem, std::int64_t newest);
// Reads the keys cpu, cores and library.
[[nodiscard]] Machine take_machine(MapReader& map, std::int64_t cores_max);
// Whether what was measured with `found` holds for `wanted`; the error says why not. The library is not compared.
[[nodiscard]] std::expected<void, std::string> check_origin(const std::string& model_found, const Machine& found,
                                                            const std::string& model_wanted, const Machine& wanted);
// Text as a double-quoted YAML scalar. Control characters become blanks.
[[nodiscard]] std::string yaml_string(std::string_view text);

// The contents of a small regular file; nullopt if it does not exist. The error says why it cannot be read.
[[nodiscard]] std::expected<std::optional<std::string>, std::string> read_small_file(const std::string& path);

}  // namespace uma::umad
