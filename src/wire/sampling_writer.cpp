#include "wire/sampling_writer.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "core/sampling_fields.h"

namespace uma::wire {
namespace {

constexpr int kDecimals = 9;

void write_setting(json::ObjectWriter& object, std::string_view name, SamplingField field, double value) {
  if (info_of(field).is_whole()) {
    object.field(name, static_cast<std::int64_t>(value));
  } else {
    json::append_number(object.begin(name), value, kDecimals);
  }
}

}  // namespace

void write_sampling_sources(json::ObjectWriter& parent, const ModelSampling& sampling) {
  std::string& out = parent.begin("sampling");
  json::ObjectWriter object(out);
  for (const SamplingDefault& known : sampling.values) {
    json::ObjectWriter entry(object.begin(info_of(known.field).name));
    write_setting(entry, "value", known.field, known.value);
    entry.field("source", source_name(known.source));
    entry.close();
  }
  if (sampling.dry_sequence_breakers) {
    json::ObjectWriter entry(object.begin("dry_sequence_breakers"));
    json::append_array(entry.begin("value"), *sampling.dry_sequence_breakers,
                       [&](const std::string& text) { json::append_string(out, text); });
    entry.field("source", source_name(SamplingSource::card));
    entry.close();
  }
  if (!sampling.family.empty()) object.field("family", sampling.family);
  object.close();
}

void write_sampling_params(json::ObjectWriter& parent, const ModelSampling& sampling) {
  SamplingParams params;
  params.temperature = 1;
  for (const SamplingDefault& known : sampling.values) set_value(params, known.field, known.value);
  json::ObjectWriter object(parent.begin("params"));
  for (const SamplingFieldInfo& info : sampling_fields()) {
    write_setting(object, info.name, info.field, value_of(params, info.field));
  }
  object.close();
}

}  // namespace uma::wire
