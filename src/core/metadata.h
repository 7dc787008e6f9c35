// The metadata of a session: texts by name, as one JSON object of strings exactly as wire/metadata_fields.h writes it; an empty
// text is the same as {}. It stays JSON from the request to the answer: these functions cut and join it without decoding. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace uma {

inline constexpr std::size_t kMetadataPairsMax = 16;  // OpenAI's limits for metadata.
inline constexpr std::size_t kMetadataNameBytesMax = 64;
inline constexpr std::size_t kMetadataValueBytesMax = 512;

// Bytes of the metadata that lists show and search. Of an idle session only this much is in memory, so 100,000 sessions have at
// most 100 MiB of it, whatever their clients keep. A title and tags take about 100 bytes.
inline constexpr std::size_t kListedMetadataBytesMax = 1024;

// A pair of the object: two JSON strings with their quotes, which are parts of it.
struct MetadataPair {
  std::string_view name;
  std::string_view value;
};

// A pair to set, as JSON strings with their quotes. An empty value removes the pair.
struct MetadataChange {
  std::string name;
  std::string value;
  bool operator==(const MetadataChange&) const = default;
};

// Nullopt: the text has another format, for example because it was damaged on the disk, or too many pairs.
[[nodiscard]] std::optional<std::vector<MetadataPair>> metadata_pairs(std::string_view metadata);

// The part that lists show: "title" and "tags" before the others, and only pairs that fit kListedMetadataBytesMax together.
// Empty if there is none, or if `metadata` has another format.
[[nodiscard]] std::string listed_metadata(std::string_view metadata);

// The metadata after the changes, the last of which counts for a name. New names follow the old ones. The result may have too
// many pairs.
[[nodiscard]] std::string changed_metadata(std::string_view metadata, std::span<const MetadataChange> changes);

// Appends the text of a JSON string of the metadata.
void append_metadata_text(std::string& out, std::string_view json_string);

}  // namespace uma
