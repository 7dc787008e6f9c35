// Which version of libllama this program runs with, was built with and is tested with.
#pragma once

#include <string>
#include <string_view>

namespace uma::llm {

struct LibraryVersions {
  std::string_view running;  // "0.7.1"
  std::string_view built;    // "0.7.0"
  std::string_view tested;   // "0.7"
};

[[nodiscard]] LibraryVersions library_versions();

// A remark for people about these versions; empty if their minor versions are the same.
[[nodiscard]] std::string library_remark(const LibraryVersions& versions);

}  // namespace uma::llm
