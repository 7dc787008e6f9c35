#include "pool/stores/same_content.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "kv/checksum.h"

namespace uma::pool {
namespace {

constexpr std::uint64_t kSampleBytes = 64 << 10;
constexpr std::uint64_t kSamples = 32;

// The hash of a file's samples, the first at its beginning and the last at its end.
std::optional<kv::Checksum> hash_of_samples(const std::string& path, std::uint64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> sample(static_cast<std::size_t>(std::min(kSampleBytes, bytes)));
  kv::RunningHash hash;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    file.seekg(static_cast<std::streamoff>((bytes - sample.size()) / (kSamples - 1) * i));
    file.read(reinterpret_cast<char*>(sample.data()), static_cast<std::streamsize>(sample.size()));
    if (!file) return std::nullopt;
    hash.add(sample);
  }
  return hash.value();
}

}  // namespace

bool have_same_content(const std::string& first, const std::string& second) {
  std::error_code problem;
  const std::uint64_t bytes = std::filesystem::file_size(first, problem);
  if (problem || bytes != std::filesystem::file_size(second, problem) || problem) return false;
  const auto hash = hash_of_samples(first, bytes);
  return hash && hash == hash_of_samples(second, bytes);
}

}  // namespace uma::pool
