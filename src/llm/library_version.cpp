#include "llm/library_version.h"

#include <format>

#include <llama.h>

namespace uma::llm {
namespace {

// "0.7" of "0.7.1".
std::string_view minor_of(std::string_view version) {
  const std::size_t first = version.find('.');
  return first == std::string_view::npos ? version : version.substr(0, version.find('.', first + 1));
}

}  // namespace

LibraryVersions library_versions() {
  return {.running = llama_version(), .built = UMA_LLAMA_BUILT, .tested = UMA_LLAMA_MINOR};
}

std::string library_remark(const LibraryVersions& versions) {
  if (minor_of(versions.running) != minor_of(versions.built)) {
    return std::format(
        "libllama {} is installed, but umad was built with {}: build it again, because the two may not fit together",
        versions.running, versions.built);
  }
  if (minor_of(versions.running) != versions.tested) {
    return std::format("umad is tested with libllama {}, this is {}: run script/test before you rely on it", versions.tested,
                       versions.running);
  }
  return {};
}

}  // namespace uma::llm
