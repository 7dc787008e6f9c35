// Which version of libllama this program runs with, was built with and is tested with.
#pragma once

#include <string>
#include <string_view>

namespace uma::llm {

struct LibraryVersions {
  std::string_view running;  // Such as "0.7.1".
  std::string_view built;    // Such as "0.7.0".
  std::string_view tested;   // Such as "0.7".
};

[[nodiscard]] LibraryVersions library_versions();

// What a person should know about these versions; empty if their minor versions are the same.
[[nodiscard]] std::string library_remark(const LibraryVersions& versions);

}  // namespace uma::llm
