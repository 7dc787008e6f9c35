// Property: the heads of safetensors files and the captions of Stable Diffusion give a result for any bytes. An accepted head
// has its tensors within the file, and graphs are made of it or refused; a caption becomes whole pieces of known tokens. The
// first byte chooses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <ggml-cpp.h>

#include "base/check.h"
#include "llm/file/safetensors_header.h"
#include "llm/picture/clip_tokens.h"
#include "llm/picture/diffusion_graph.h"
#include "llm/picture/prompt_weights.h"

namespace {

void check_caption(std::string_view text) {
  const auto parts = uma::llm::read_prompt(text);
  if (!parts) {
    UMA_CHECK(parts.error().code == uma::ErrorCode::proto_field);
    return;
  }
  for (const uma::llm::PromptPart& part : *parts) {
    UMA_CHECK(std::isfinite(part.weight));
    for (const std::int32_t token : uma::llm::ClipTokens::shared().encode(part.text))
      UMA_CHECK(token >= 0 && token < uma::llm::kClipStart);
  }
}

void check_graphs(const uma::llm::DiffusionFile& file) {
  const ggml_context_ptr context(
      ggml_init({.mem_size = (file.tensors.size() + 1) * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  const auto network = uma::llm::describe_network(file, context.get());
  if (!network) return;
  (void)uma::llm::make_text_graph(*network);
  (void)uma::llm::make_noise_graph(*network, 8, 16, uma::llm::kClipLength);
  (void)uma::llm::make_decode_graph(*network, 8, 16);
  (void)uma::llm::make_encode_graph(*network, 8, 16);
}

void check_head(std::span<const std::uint8_t> bytes) {
  // The file goes on behind what is given here.
  const std::uint64_t file_bytes = bytes.size() + (std::uint64_t{1} << 40);
  const uma::llm::ReadAt read = [&](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset >= bytes.size()) return 0;
    const std::size_t count = std::min<std::size_t>(into.size(), bytes.size() - offset);
    std::memcpy(into.data(), bytes.data() + offset, count);
    return count;
  };
  const auto head = uma::llm::read_safetensors_header(file_bytes, read);
  if (!head) {
    UMA_CHECK(head.error().code == uma::ErrorCode::model_load && !head.error().message.empty());
    return;
  }
  std::uint64_t end = 0;
  for (const uma::llm::GgufTensor& tensor : head->tensors) {
    UMA_CHECK(tensor.offset >= end && !tensor.sizes.empty() && tensor.sizes.size() <= 4);
    end = tensor.offset + tensor.bytes;
  }
  UMA_CHECK(head->data_offset + end <= file_bytes);
  if (const auto file = uma::llm::diffusion_file_of({.path = "a.safetensors"}, {*head})) check_graphs(*file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::uint8_t> bytes(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    check_caption({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } else {
    check_head(bytes);
  }
  return 0;
}
