// Reads the metadata of sessions and responses (core/metadata.h), and changes of it.
#pragma once

#include <string>
#include <vector>

#include "core/metadata.h"
#include "json/field_reader.h"

namespace uma::wire {

// Reads "metadata" as an object of texts; "{}" if it is absent.
[[nodiscard]] std::string metadata_field(json::FieldReader& fields);
// Reads "metadata" as an object of texts, and returns it as changes of a session that had no metadata.
[[nodiscard]] std::vector<MetadataChange> whole_metadata(json::FieldReader& fields);
// Reads "metadata" as the changes that it asks for: a text sets a pair, null removes it.
[[nodiscard]] std::vector<MetadataChange> metadata_changes(json::FieldReader& fields);
// Rewrites the metadata of a file as metadata_field() would. Returns false if no request could have it.
[[nodiscard]] bool normalize_metadata(std::string& metadata);

}  // namespace uma::wire
