#include "wire/own/metadata_fields.h"

#include <algorithm>
#include <format>

#include <boost/json/value.hpp>
#include <boost/system/error_code.hpp>

#include "json/json_writer.h"

namespace uma::wire {
namespace {

std::string json_string(std::string_view text) {
  std::string quoted;
  json::append_string(quoted, text);
  return quoted;
}

}  // namespace

std::vector<MetadataChange> metadata_changes(json::FieldReader& fields) {
  std::vector<MetadataChange> changes;
  const boost::json::object* metadata = fields.object("metadata");
  if (metadata == nullptr) return changes;
  if (metadata->size() > kMetadataPairsMax) {
    fields.fail_field("metadata", std::format("has {} pairs, but the limit is {}", metadata->size(), kMetadataPairsMax));
  }
  for (const auto& [key, value] : *metadata) {
    const auto name = fields.checked_text("metadata", boost::json::value(key), {1, kMetadataNameBytesMax});
    if (!name) break;
    if (value.is_null()) {
      changes.push_back({json_string(*name), ""});
      continue;
    }
    const auto text = fields.checked_text("metadata", value, {0, kMetadataValueBytesMax});
    if (!text) break;
    changes.push_back({json_string(*name), json_string(*text)});
  }
  return changes;
}

std::vector<MetadataChange> whole_metadata(json::FieldReader& fields) {
  std::vector<MetadataChange> pairs = metadata_changes(fields);
  if (std::ranges::any_of(pairs, [](const MetadataChange& pair) { return pair.value.empty(); })) {
    fields.fail_field("metadata", "must be a string, got null");
  }
  return pairs;
}

std::string metadata_field(json::FieldReader& fields) {
  const std::string metadata = changed_metadata("", whole_metadata(fields));
  return metadata.empty() ? "{}" : metadata;
}

bool normalize_metadata(std::string& metadata) {
  if (metadata.empty()) return true;
  boost::system::error_code problem;
  boost::json::object given;
  given["metadata"] = json::parse(metadata, {}, problem);
  if (problem) return false;
  json::FieldReader fields(given);
  metadata = metadata_field(fields);
  return fields.ok();
}

}  // namespace uma::wire
