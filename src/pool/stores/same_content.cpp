#include "pool/stores/same_content.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

namespace uma::pool {
namespace {

constexpr std::uint64_t kSampleBytes = 64 << 10;
constexpr std::uint64_t kSamples = 32;

}  // namespace

bool have_same_content(const std::string& first, const std::string& second) {
  std::error_code problem;
  const std::uint64_t bytes = std::filesystem::file_size(first, problem);
  if (problem || bytes != std::filesystem::file_size(second, problem) || problem) return false;
  std::ifstream files[] = {std::ifstream(first, std::ios::binary), std::ifstream(second, std::ios::binary)};
  std::vector<char> samples[2];
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    for (std::size_t file = 0; file < 2; ++file) {
      samples[file].resize(static_cast<std::size_t>(std::min(kSampleBytes, bytes)));
      // The first is at the beginning, the last at the end.
      files[file].seekg(static_cast<std::streamoff>((bytes - samples[file].size()) / (kSamples - 1) * i));
      files[file].read(samples[file].data(), static_cast<std::streamsize>(samples[file].size()));
      if (!files[file]) return false;
    }
    if (samples[0] != samples[1]) return false;
  }
  return true;
}

}  // namespace uma::pool
