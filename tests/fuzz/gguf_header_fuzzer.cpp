// Property: the GGUF header reader returns a result for any bytes, and an accepted header is consistent: the tensors are inside
// the file, and the numbers are within the limits of models; the same for an adapter and a model of pictures. The first byte
// determines the claimed length of the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "llm/file/adapter_file.h"
#include "llm/file/gguf_header.h"
#include "llm/picture/picture_file.h"

namespace {

// An accepted adapter has only pairs of matrices within its bytes.
void check_adapter(const uma::llm::GgufHeader& adapter) {
  if (!uma::llm::check_adapter_tensors(adapter)) return;
  std::uint64_t bytes = 0;
  for (const uma::llm::GgufTensor& tensor : adapter.tensors) bytes += tensor.bytes;
  UMA_CHECK(bytes == adapter.weight_bytes && bytes <= uma::llm::kAdapterBytesMax);
  UMA_CHECK(adapter.tensors.size() >= 2);
}

// An accepted model of pictures has tensors within its bytes, and a shape that is whole.
void check_picture(uma::llm::GgufHeader header) {
  const std::uint64_t weight_bytes = header.weight_bytes;
  const auto file = uma::llm::picture_file_of(std::move(header));
  if (!file) return;
  std::uint64_t bytes = 0;
  for (const uma::llm::GgufTensor& tensor : file->header.tensors) bytes += tensor.bytes;
  UMA_CHECK(bytes == weight_bytes && file->words.size() >= 3 && file->steps >= 1);
  UMA_CHECK(file->shape.grid() * file->shape.patch == file->shape.image_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint64_t file_bytes = (size - 1) << (data[0] % 40);
  const std::span<const std::uint8_t> bytes(data + 1, size - 1);
  const uma::llm::ReadAt read = [&](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset >= bytes.size()) return 0;
    const std::size_t count = std::min<std::size_t>(into.size(), bytes.size() - offset);
    std::memcpy(into.data(), bytes.data() + offset, count);
    return count;
  };
  if (const auto adapter = uma::llm::read_gguf_header(file_bytes, read, uma::llm::GgufKind::adapter)) check_adapter(*adapter);
  if (auto picture = uma::llm::read_gguf_header(file_bytes, read, uma::llm::GgufKind::picture))
    check_picture(*std::move(picture));
  const auto header = uma::llm::read_gguf_header(file_bytes, read);
  if (!header) {
    UMA_CHECK(header.error().code == uma::ErrorCode::model_load && !header.error().message.empty());
    return 0;
  }
  UMA_CHECK(header->expert_bytes <= header->weight_bytes && header->weight_bytes <= file_bytes);
  UMA_CHECK(header->weight_bytes == 0 || header->data_offset < file_bytes);
  UMA_CHECK(header->block_count >= 0 && header->block_count <= 512 && header->vocabulary_size >= 0);
  UMA_CHECK(header->split_index >= 0 && header->split_index < header->split_count);
  if (!header->is_projector() && header->split_index == 0) UMA_CHECK(header->block_count > 0);
  return 0;
}
