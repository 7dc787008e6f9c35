#include "core/picture.h"

#include <algorithm>
#include <array>
#include <format>

#include "base/text.h"

namespace uma {
namespace {

template <class Value>
struct Named {
  Value value;
  std::string_view name;
  std::string_view label;
  std::array<std::string_view, 2> aliases;  // Names in other programs.
};
constexpr Named<PictureSampler> kSamplers[] = {
    {PictureSampler::euler, "euler", "Euler", {"k_euler"}},
    {PictureSampler::euler_ancestral, "euler_a", "Euler a", {"k_euler_a", "k_euler_ancestral"}},
    {PictureSampler::dpmpp_2m, "dpm++_2m", "DPM++ 2M", {"dpmpp_2m", "k_dpmpp_2m"}},
    {PictureSampler::lcm, "lcm", "LCM", {}},
};
constexpr Named<NoiseSchedule> kSchedules[] = {
    {NoiseSchedule::discrete, "discrete", "Normal", {"uniform"}},
    {NoiseSchedule::karras, "karras", "Karras", {}},
    {NoiseSchedule::trailing, "trailing", "SGM Uniform", {"sgm_uniform"}},
};

template <class Value, std::size_t count>
constexpr std::array<Value, count> values_of(const Named<Value> (&all)[count]) {
  std::array<Value, count> values{};
  std::ranges::transform(all, values.begin(), &Named<Value>::value);
  return values;
}
constexpr auto kAllSamplers = values_of(kSamplers);
constexpr auto kAllSchedules = values_of(kSchedules);

template <class Value>
std::optional<Value> named(std::span<const Named<Value>> all, std::string_view name) {
  const std::string wanted = lower_ascii(name);
  if (wanted.empty()) return std::nullopt;
  const auto found = std::ranges::find_if(all, [&](const Named<Value>& each) {
    return each.name == wanted || lower_ascii(each.label) == wanted || std::ranges::contains(each.aliases, wanted);
  });
  return found == all.end() ? std::nullopt : std::optional(found->value);
}

template <class Value>
std::string names_of(std::span<const Named<Value>> all) {
  std::string names;
  for (const Named<Value>& each : all) names += std::format("{}{}", names.empty() ? "" : ", ", each.name);
  return names;
}

}  // namespace

std::string_view sampler_name(PictureSampler sampler) {
  return kSamplers[static_cast<std::size_t>(sampler)].name;
}
std::string_view schedule_name(NoiseSchedule schedule) {
  return kSchedules[static_cast<std::size_t>(schedule)].name;
}
std::string_view sampler_label(PictureSampler sampler) {
  return kSamplers[static_cast<std::size_t>(sampler)].label;
}
std::string_view schedule_label(NoiseSchedule schedule) {
  return kSchedules[static_cast<std::size_t>(schedule)].label;
}
std::optional<PictureSampler> sampler_of(std::string_view name) {
  return named<PictureSampler>(kSamplers, name);
}
std::optional<NoiseSchedule> schedule_of(std::string_view name) {
  return named<NoiseSchedule>(kSchedules, name);
}
std::span<const PictureSampler> all_samplers() {
  return kAllSamplers;
}
std::span<const NoiseSchedule> all_schedules() {
  return kAllSchedules;
}

std::string sampler_names() {
  return names_of<PictureSampler>(kSamplers);
}
std::string schedule_names() {
  return names_of<NoiseSchedule>(kSchedules);
}

std::string parameters_of(const PictureRequest& request, const PictureReceipt& receipt, std::uint64_t seed) {
  std::string text = request.caption;
  if (!request.negative_caption.empty()) text += "\nNegative prompt: " + request.negative_caption;
  text += std::format("\nSteps: {}, Sampler: {}, ", receipt.steps, sampler_label(receipt.sampler));
  if (receipt.schedule) text += std::format("Schedule type: {}, ", schedule_label(*receipt.schedule));
  return text + std::format("CFG scale: {:g}, Seed: {}, Size: {}x{}, Model: {}", receipt.guidance, seed, receipt.width,
                            receipt.height, receipt.model);
}

}  // namespace uma
