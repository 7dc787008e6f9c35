// Makes small GGUF files for tests, valid or damaged. Tensors have no data: write() makes a sparse file of the required length.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace uma::testing {

class GgufBytes {
 public:
  static constexpr std::uint64_t kAlignment = 32;

  // A llama with one layer and 16 numbers per token, with the tensors that the checks of headers read.
  static GgufBytes small_model(std::string_view name = "small") {
    GgufBytes file;
    file.text("general.architecture", "llama").text("general.name", name);
    file.u32("llama.block_count", 1).u32("llama.context_length", 256).u32("llama.embedding_length", 16);
    file.u32("llama.feed_forward_length", 32).u32("llama.attention.head_count", 2).u32("llama.rope.dimension_count", 8);
    file.texts("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b"});
    file.tensor("token_embd.weight", {16, 4}).tensor("output_norm.weight", {16});
    return file;
  }

  static constexpr std::uint32_t kQ8 = 8;

  GgufBytes& u32(std::string_view key, std::uint32_t value) { return scalar(key, 4, value, 4); }
  GgufBytes& u64(std::string_view key, std::uint64_t value) { return scalar(key, 10, value, 8); }
  GgufBytes& boolean(std::string_view key, bool value) { return scalar(key, 7, value ? 1 : 0, 1); }
  GgufBytes& f32(std::string_view key, float value) { return scalar(key, 6, __builtin_bit_cast(std::uint32_t, value), 4); }
  GgufBytes& text(std::string_view key, std::string_view value) {
    begin_pair(key, 8);
    add_text(pairs_, value);
    return *this;
  }
  GgufBytes& texts(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, 8, values.size());
    for (const std::string& value : values) add_text(pairs_, value);
    return *this;
  }
  GgufBytes& numbers(std::string_view key, const std::vector<std::uint32_t>& values) {
    begin_array(key, 4, values.size());
    for (const std::uint32_t value : values) add(pairs_, value, 4);
    return *this;
  }
  // An array with a false type and count; its items are `bytes`.
  GgufBytes& array_of(std::string_view key, std::uint32_t type, std::uint64_t count, std::string_view bytes = "") {
    begin_array(key, type, count);
    pairs_ += bytes;
    return *this;
  }
  // Adds a tensor behind the last one; type 0 is f32, and type 8, q8_0, has 34 bytes for 32 numbers.
  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type = 0,
                    std::uint64_t bytes_per_number = 4) {
    std::uint64_t bytes = bytes_per_number;
    for (const std::uint64_t size : sizes) bytes *= size;
    if (type == kQ8) bytes = bytes / bytes_per_number / 32 * 34;
    data_end_ = (data_end_ + kAlignment - 1) / kAlignment * kAlignment;
    tensor_at(name, sizes, type, data_end_);
    data_end_ += bytes;
    return *this;
  }
  GgufBytes& tensor_at(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                       std::uint64_t offset) {
    ++tensors_count_;
    add_text(tensors_, name);
    add(tensors_, sizes.size(), 4);
    for (const std::uint64_t size : sizes) add(tensors_, size, 8);
    add(tensors_, type, 4);
    add(tensors_, offset, 8);
    return *this;
  }

  // Metadata and the list of tensors.
  [[nodiscard]] std::string head() const {
    std::string bytes = "GGUF";
    add(bytes, 3, 4);
    add(bytes, tensors_count_, 8);
    add(bytes, pairs_count_, 8);
    return bytes + pairs_ + tensors_;
  }
  // Reads the metadata and the list of tensors, as read_gguf_header() wants it.
  [[nodiscard]] auto reader() const {
    return [bytes = head()](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
      if (offset >= bytes.size()) return 0;
      const std::size_t count = std::min<std::size_t>(into.size(), bytes.size() - offset);
      std::memcpy(into.data(), bytes.data() + offset, count);
      return count;
    };
  }
  [[nodiscard]] std::uint64_t file_bytes() const {
    return (head().size() + kAlignment - 1) / kAlignment * kAlignment + data_end_;
  }
  void write(const std::filesystem::path& path) const {
    std::ofstream(path, std::ios::binary) << head();
    std::filesystem::resize_file(path, file_bytes());
  }

  static void add(std::string& bytes, std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i));
  }

 private:
  static void add_text(std::string& bytes, std::string_view text) {
    add(bytes, text.size(), 8);
    bytes += text;
  }
  void begin_pair(std::string_view key, std::uint32_t type) {
    ++pairs_count_;
    add_text(pairs_, key);
    add(pairs_, type, 4);
  }
  void begin_array(std::string_view key, std::uint32_t type, std::uint64_t count) {
    begin_pair(key, 9);
    add(pairs_, type, 4);
    add(pairs_, count, 8);
  }
  GgufBytes& scalar(std::string_view key, std::uint32_t type, std::uint64_t value, std::size_t width) {
    begin_pair(key, type);
    add(pairs_, value, width);
    return *this;
  }

  std::string pairs_;
  std::string tensors_;
  std::uint64_t pairs_count_ = 0;
  std::uint64_t tensors_count_ = 0;
  std::uint64_t data_end_ = 0;
};

}  // namespace uma::testing
