#include "core/sampling_fields.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace uma {
namespace {

constexpr double kIntMax = std::numeric_limits<int>::max();
constexpr double kFactorMax = 100;

using Field = SamplingField;
using Params = SamplingParams;

constexpr std::array<SamplingFieldInfo, kSamplingFields> kSamplingTable = {{
    {Field::temperature, "temperature", "temp", 0, kFactorMax, false, false, &Params::temperature},
    {Field::top_p, "top_p", "top_p", 0, 1, false, false, &Params::top_p},
    {Field::top_k, "top_k", "top_k", 0, kIntMax, false, false, nullptr, &Params::top_k},
    {Field::min_p, "min_p", "min_p", 0, 1, false, true, &Params::min_p},
    {Field::typical_p, "typical_p", "", 0, 1, true, false, &Params::typical_p},
    {Field::repeat_penalty, "repeat_penalty", "penalty_repeat", 0, kFactorMax, true, false, &Params::repeat_penalty},
    {Field::repeat_last_n, "repeat_last_n", "penalty_last_n", -1, kIntMax, false, false, nullptr, &Params::repeat_last_n},
    {Field::presence_penalty, "presence_penalty", "", -2, 2, false, false, &Params::presence_penalty},
    {Field::frequency_penalty, "frequency_penalty", "", -2, 2, false, false, &Params::frequency_penalty},
    {Field::dry_multiplier, "dry_multiplier", "", 0, kFactorMax, false, false, &Params::dry_multiplier},
    {Field::dry_base, "dry_base", "", 1, kFactorMax, false, false, &Params::dry_base},
    {Field::dry_allowed_length, "dry_allowed_length", "", 1, kIntMax, false, false, nullptr, &Params::dry_allowed_length},
    {Field::dry_penalty_last_n, "dry_penalty_last_n", "", -1, kIntMax, false, false, nullptr, &Params::dry_penalty_last_n},
    {Field::xtc_probability, "xtc_probability", "xtc_probability", 0, 1, false, false, &Params::xtc_probability},
    {Field::xtc_threshold, "xtc_threshold", "xtc_threshold", 0, 1, false, false, &Params::xtc_threshold},
    {Field::mirostat, "mirostat", "mirostat", 0, 2, false, false, nullptr, &Params::mirostat},
    {Field::mirostat_tau, "mirostat_tau", "mirostat_tau", 0, kFactorMax, false, false, &Params::mirostat_tau},
    {Field::mirostat_eta, "mirostat_eta", "mirostat_eta", 0, 1, false, false, &Params::mirostat_eta},
}};

}  // namespace

bool SamplingFieldInfo::accepts(double value) const {
  const bool is_above = low_excluded ? value > low : value >= low;
  const bool is_below = high_excluded ? value < high : value <= high;
  return is_above && is_below && (!is_whole() || value == std::trunc(value));
}

std::span<const SamplingFieldInfo, kSamplingFields> sampling_fields() {
  return kSamplingTable;
}

const SamplingFieldInfo& info_of(SamplingField field) {
  const SamplingFieldInfo& info = kSamplingTable[static_cast<std::size_t>(field)];
  UMA_CHECK(info.field == field);
  return info;
}

double value_of(const SamplingParams& sampling, SamplingField field) {
  const SamplingFieldInfo& info = info_of(field);
  return info.is_whole() ? sampling.*info.whole : sampling.*info.number;
}

void set_value(SamplingParams& sampling, SamplingField field, double value) {
  const SamplingFieldInfo& info = info_of(field);
  UMA_CHECK(info.accepts(value));
  if (info.is_whole()) {
    sampling.*info.whole = static_cast<int>(value);
  } else {
    sampling.*info.number = value;
  }
}

std::string_view source_name(SamplingSource source) {
  switch (source) {
    case SamplingSource::family:
      return "family";
    case SamplingSource::file:
      return "file";
    case SamplingSource::card:
      break;
  }
  return "card";
}

}  // namespace uma
