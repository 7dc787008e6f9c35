#include "uma-cli/models/model_head.h"

#include <cstdint>
#include <format>

namespace uma::cli {
namespace {

// Far more tensors than any model has, and far fewer than random bytes would claim.
constexpr std::uint64_t kTensorsMax = 1u << 20;
constexpr std::uint64_t kPairsMax = 1u << 20;

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

// Safetensors: a length that files have, and the object that follows it.
bool is_safetensors(std::string_view head) {
  constexpr std::size_t kLengthBytes = 8;
  constexpr std::uint64_t kLengthMax = 100u << 20;
  if (head.size() < kModelHeadBytes || head[kLengthBytes] != '{') return false;
  const std::uint64_t length = little_endian(head.substr(0, kLengthBytes));
  return length >= 2 && length <= kLengthMax;
}

}  // namespace

std::string why_not_model(std::string_view head) {
  if (is_safetensors(head)) return "";
  if (!head.starts_with("GGUF")) return "it does not begin with GGUF";
  if (head.size() < kModelHeadBytes) return std::format("it ends after {} bytes", head.size());
  const std::uint64_t version = little_endian(head.substr(4, 4));
  if (version < 2 || version > 3) return std::format("its GGUF version is {}, not 2 or 3", version);
  const std::uint64_t tensors = little_endian(head.substr(8, 8));
  const std::uint64_t pairs = little_endian(head.substr(16, 8));
  // Files of Stable Diffusion have tensors only.
  if (tensors > kTensorsMax || (tensors == 0 && pairs == 0) || pairs > kPairsMax)
    return std::format("it claims {} tensors and {} key-value pairs", tensors, pairs);
  return "";
}

}  // namespace uma::cli
