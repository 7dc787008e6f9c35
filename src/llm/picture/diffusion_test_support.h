// Small models with the structure of Stable Diffusion, whose weights follow from their tensors' names, and what the reference
// in tests/diffusion/make_golden.py computes with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <ggml.h>

#include "llm/picture/diffusion_golden.h"
#include "testing/gguf_bytes.h"

namespace uma::llm {

// As hashed() of the reference.
inline std::vector<float> hashed_numbers(std::string_view name, std::size_t count) {
  std::uint32_t seed = 2'166'136'261;
  for (const char byte : name) seed = (seed ^ static_cast<std::uint8_t>(byte)) * 16'777'619;
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2'654'435'761 + seed;
    for (int round = 0; round < 2; ++round) x = (x ^ (x >> 16)) * 0x45D9F3B;
    x ^= x >> 16;
    numbers[i] = static_cast<float>(x / 2147483648.0 - 1);
  }
  return numbers;
}

class SmallDiffusion {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> sizes;  // PyTorch's order.
    double add = 0;                    // To each number of the reference's.

    [[nodiscard]] std::size_t count() const {
      return std::accumulate(sizes.begin(), sizes.end(), std::size_t{1}, std::multiplies<>());
    }
    [[nodiscard]] std::vector<float> numbers() const {
      std::vector<float> numbers = hashed_numbers(name, count());
      double factor = std::sqrt(3 / (static_cast<double>(count()) / static_cast<double>(sizes.front())));
      double shift = add;
      if (name.ends_with("embedding.weight") || name.ends_with("positional_embedding")) {
        factor = 0.5;
      } else if (sizes.size() == 1) {
        factor = 0.1;
        shift += name.ends_with("weight") ? 1 : 0;
      }
      for (float& number : numbers) number = static_cast<float>(number * factor + shift);
      return numbers;
    }
  };
  struct Result {
    std::string name;
    std::size_t count = 0;
    double mean = 0;
    double rms = 0;
    std::vector<double> samples;  // At equal distances.
  };

  // "sd1", "sd2" or "tae".
  explicit SmallDiffusion(std::string_view name) {
    std::istringstream lines{std::string(diffusion_golden())};
    bool is_own = false;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string kind;
      std::string what;
      words >> kind >> what;
      if (kind == "model") is_own = what == name;
      if (!is_own) continue;
      if (kind == "tensor") {
        Tensor& tensor = tensors.emplace_back(Tensor{.name = what, .sizes = {}});
        for (std::uint64_t size = 0; words >> size;) tensor.sizes.push_back(size);
      }
      if (kind == "result") {
        Result result{.name = what, .samples = {}};
        words >> result.count >> result.mean >> result.rms;
        for (double sample = 0; words >> sample;) result.samples.push_back(sample);
        results[result.name] = std::move(result);
      }
    }
  }

  static constexpr float kTime = 601;
  static constexpr std::int32_t kWidth = 16;  // Width of the latent picture.
  static constexpr std::int32_t kHeight = 8;

  [[nodiscard]] static std::vector<float> input(std::string_view name, std::size_t count) {
    std::vector<float> numbers = hashed_numbers(std::format("input {}", name), count);
    for (float& number : numbers) number = static_cast<float>(number * std::sqrt(3.0));
    return numbers;
  }
  [[nodiscard]] static std::vector<std::int32_t> input_tokens(std::size_t count, std::int32_t all) {
    std::vector<std::int32_t> tokens;
    for (const float number : hashed_numbers("input tokens", count))
      tokens.push_back(std::min(static_cast<std::int32_t>((static_cast<double>(number) + 1) / 2 * all), all - 1));
    return tokens;
  }

  // The bytes of a tensor's numbers in the type.
  [[nodiscard]] static std::string bytes_of(std::span<const float> numbers, ggml_type type) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    std::string bytes(ggml_row_size(type, count), '\0');
    if (type == GGML_TYPE_F32) {
      std::memcpy(bytes.data(), numbers.data(), bytes.size());
    } else {
      ggml_get_type_traits(type)->from_float_ref(numbers.data(), bytes.data(), count);
    }
    return bytes;
  }

  void write_safetensors(const std::filesystem::path& path, ggml_type type = GGML_TYPE_F32) const {
    const char* const dtype = type == GGML_TYPE_F32 ? "F32" : type == GGML_TYPE_F16 ? "F16" : "BF16";
    std::string head = "{";
    std::string data;
    for (const Tensor& tensor : tensors) {
      const std::string bytes = bytes_of(tensor.numbers(), type);
      std::string sizes;
      for (const std::uint64_t size : tensor.sizes) sizes += std::format("{}{}", sizes.empty() ? "" : ", ", size);
      head += std::format("{}\"{}\": {{\"dtype\": \"{}\", \"shape\": [{}], \"data_offsets\": [{}, {}]}}",
                          head.size() == 1 ? "" : ", ", tensor.name, dtype, sizes, data.size(), data.size() + bytes.size());
      data += bytes;
    }
    head += "}";
    std::string length;
    testing::GgufBytes::add(length, head.size(), 8);
    std::ofstream(path, std::ios::binary) << length << head << data;
  }

  // As programs for it write GGUF: without metadata, matrices in `type` if their rows are whole blocks, kernels as F16 then.
  void write_gguf(const std::filesystem::path& path, ggml_type type = GGML_TYPE_F32) const {
    testing::GgufBytes file;
    std::vector<std::string> data;
    for (const Tensor& tensor : tensors) {
      std::vector<std::uint64_t> sizes(tensor.sizes.rbegin(), tensor.sizes.rend());
      ggml_type own = GGML_TYPE_F32;
      if (type != GGML_TYPE_F32 && sizes.size() == 2) own = sizes.front() % 32 == 0 ? type : GGML_TYPE_F16;
      if (type != GGML_TYPE_F32 && sizes.size() > 2) own = GGML_TYPE_F16;
      data.push_back(bytes_of(tensor.numbers(), own));
      file.tensor(tensor.name, sizes, static_cast<std::uint32_t>(own), own == GGML_TYPE_F16 ? 2 : 4);
    }
    file.write(path);
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    constexpr std::uint64_t kAlignment = testing::GgufBytes::kAlignment;
    const auto aligned = [](std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
    std::uint64_t at = aligned(file.head().size());
    for (const std::string& bytes : data) {
      out.seekp(static_cast<std::streamoff>(at));
      out << bytes;
      at = aligned(at + bytes.size());
    }
  }

  std::vector<Tensor> tensors;
  std::map<std::string, Result> results;
};

}  // namespace uma::llm
