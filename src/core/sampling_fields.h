// The table of sampling settings: their names, ranges and places in SamplingParams. Requests, cards and the metadata of files
// are read by it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/sampling_params.h"

namespace uma {

struct SamplingFieldInfo {
  SamplingField field;
  std::string_view name;      // In requests and cards.
  std::string_view file_key;  // In the metadata of files, behind "general.sampling."; empty: it has no key there.
  double low;
  double high;
  bool low_excluded = false;
  bool high_excluded = false;
  // Where the value is: one of the two is null.
  double SamplingParams::* number = nullptr;
  int SamplingParams::* whole = nullptr;

  [[nodiscard]] bool is_whole() const { return whole != nullptr; }
  // Whether the value is in the range, and an integer where it must be. False for NaN.
  [[nodiscard]] bool accepts(double value) const;
};

// All settings, in the order of SamplingField.
[[nodiscard]] std::span<const SamplingFieldInfo, kSamplingFields> sampling_fields();
[[nodiscard]] const SamplingFieldInfo& info_of(SamplingField field);

[[nodiscard]] double value_of(const SamplingParams& sampling, SamplingField field);
// Requires: a value that the field accepts.
void set_value(SamplingParams& sampling, SamplingField field, double value);
[[nodiscard]] inline bool is_given(const SamplingParams& sampling, SamplingField field) {
  return sampling.given.test(static_cast<std::size_t>(field));
}
inline void set_given(SamplingParams& sampling, SamplingField field) {
  sampling.given.set(static_cast<std::size_t>(field));
}

// Values of some settings.
class SamplingValues {
 public:
  std::optional<double>& operator[](SamplingField field) { return values_[static_cast<std::size_t>(field)]; }
  const std::optional<double>& operator[](SamplingField field) const { return values_[static_cast<std::size_t>(field)]; }
  bool operator==(const SamplingValues&) const = default;

 private:
  std::array<std::optional<double>, kSamplingFields> values_{};
};

// Where a model's default comes from. Of several sources the last in this order counts.
enum class SamplingSource : std::uint8_t { family, file, card };
[[nodiscard]] std::string_view source_name(SamplingSource source);

// A default of a model, for requests that do not state the setting.
struct SamplingDefault {
  SamplingField field;
  double value = 0;
  SamplingSource source = SamplingSource::card;
  bool operator==(const SamplingDefault&) const = default;
};

}  // namespace uma
