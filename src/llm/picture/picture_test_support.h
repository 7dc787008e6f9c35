// A small picture model with random weights, and its mathematics written out in double precision (tools/train_image/model.py).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "llm/picture/picture_file.h"
#include "testing/gguf_bytes.h"

namespace uma::llm {

using Numbers = std::vector<double>;
// Rows of the same width, one behind the other.
struct Matrix {
  std::size_t width = 0;
  Numbers numbers{};
  [[nodiscard]] std::size_t rows() const { return numbers.size() / width; }
  [[nodiscard]] double* row(std::size_t index) { return numbers.data() + index * width; }
  [[nodiscard]] const double* row(std::size_t index) const { return numbers.data() + index * width; }
};

class ReferencePictures {
 public:
  // Another seed, other weights.
  explicit ReferencePictures(std::uint32_t seed, std::int32_t a_width = 32) : random_(seed) {
    shape.width = a_width;
    const auto size = [](std::int32_t number) { return static_cast<std::uint64_t>(number); };
    const std::uint64_t width = size(shape.width);
    const auto layer = [&](const std::string& prefix) {
      add(prefix + "attn_qkv.weight", {width, 3 * width});
      add(prefix + "attn_q_norm", {size(shape.head_width())});
      add(prefix + "attn_k_norm", {size(shape.head_width())});
      add(prefix + "attn_output.weight", {width, width});
      add(prefix + "ffn_gate_up.weight", {width, 2 * size(shape.feed_forward)});
      add(prefix + "ffn_down.weight", {size(shape.feed_forward), width});
    };
    add("text_embd", {width, words.size()});
    add("text_pos", {width, size(shape.text_length)});
    for (std::int32_t i = 0; i < shape.text_layers; ++i) {
      layer(std::format("text.{}.", i));
      add(std::format("text.{}.attn_norm", i), {width});
      add(std::format("text.{}.ffn_norm", i), {width});
    }
    add("text_norm", {width});
    add("patch_embd.weight", {size(shape.patch_numbers()), width});
    add("pos_row", {width, size(shape.grid())});
    add("pos_col", {width, size(shape.grid())});
    add("type_embd", {width, 2});
    add("time_in.weight", {size(shape.time_frequencies), width});
    add("time_out.weight", {width, width});
    add("pool.weight", {width, width});
    add("mod.weight", {width, 6 * width});
    add("mod.bias", {6 * width});
    for (std::int32_t i = 0; i < shape.layers; ++i) {
      layer(std::format("blk.{}.", i));
      add(std::format("blk.{}.mod_table", i), {6 * width, 2});
      add(std::format("blk.{}.attn_bias", i), {size(shape.heads), size(shape.bias_rows())});
    }
    add("final_mod.weight", {width, 2 * width});
    add("final_mod.bias", {2 * width});
    add("output.weight", {width, size(shape.patch_numbers())});
    add("output.bias", {size(shape.patch_numbers())});
  }

  PictureShape shape{.image_size = 16,
                     .patch = 4,
                     .width = 32,
                     .layers = 2,
                     .heads = 2,
                     .feed_forward = 64,
                     .text_length = 5,
                     .text_layers = 2,
                     .time_frequencies = 16};
  std::vector<std::string> words{"<pad>", "<begin>", "red", "circle", "circles", "square"};

  [[nodiscard]] testing::GgufBytes head() const {
    testing::GgufBytes file = keys();
    for (const std::string& name : order_)
      file.tensor(name, sizes_.at(name), blocks_.contains(name) ? testing::GgufBytes::kQ8 : 0);
    return file;
  }
  [[nodiscard]] testing::GgufBytes keys() const {
    testing::GgufBytes file;
    file.text("general.architecture", kPictureArchitecture).text("general.name", "small");
    const std::pair<const char*, std::int32_t> numbers[] = {{"image_size", shape.image_size},
                                                            {"patch", shape.patch},
                                                            {"width", shape.width},
                                                            {"layers", shape.layers},
                                                            {"heads", shape.heads},
                                                            {"feed_forward", shape.feed_forward},
                                                            {"text_length", shape.text_length},
                                                            {"text_layers", shape.text_layers},
                                                            {"time_frequencies", shape.time_frequencies},
                                                            {"steps", 4}};
    for (const auto& [key, number] : numbers) file.u32(std::format("uma-picture.{}", key), static_cast<std::uint32_t>(number));
    file.f32("uma-picture.guidance", 2.5F).text("uma-picture.prediction", "x").texts("uma-picture.words", words);
    return file;
  }
  void write(const std::filesystem::path& path) const {
    const testing::GgufBytes file = head();
    file.write(path);
    std::fstream data(path, std::ios::binary | std::ios::in | std::ios::out);
    constexpr std::uint64_t kAlignment = testing::GgufBytes::kAlignment;
    std::uint64_t at = (file.head().size() + kAlignment - 1) / kAlignment * kAlignment;
    for (const std::string& name : order_) {
      const std::vector<float>& numbers = tensors_.at(name);
      const auto blocks = blocks_.find(name);
      const std::string bytes =
          blocks != blocks_.end() ? blocks->second
                                  : std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
      data.seekp(static_cast<std::streamoff>(at));
      data.write(bytes.data(), std::ssize(bytes));
      at += (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    }
  }

  // From now on the matrices whose rows are whole blocks are in Q8_0, in the file and in the mathematics.
  void quantise() {
    constexpr std::size_t kBlock = 32;
    for (const std::string& name : order_) {
      if (!name.ends_with(".weight") || sizes_.at(name).front() % kBlock != 0) continue;
      std::vector<float>& numbers = tensors_.at(name);
      std::string& bytes = blocks_[name];
      for (std::size_t begin = 0; begin < numbers.size(); begin += kBlock) {
        const std::span block(&numbers[begin], kBlock);
        float largest = 0;
        for (const float number : block) largest = std::max(largest, std::abs(number));
        const auto scale = static_cast<_Float16>(largest / 127);
        bytes.append(reinterpret_cast<const char*>(&scale), sizeof scale);
        for (float& number : block) {
          const auto level = static_cast<std::int8_t>(std::lround(number / static_cast<float>(scale)));
          bytes += static_cast<char>(level);
          number = static_cast<float>(level) * static_cast<float>(scale);
        }
      }
    }
  }

  struct Read {
    Matrix text;
    Numbers pooled;
  };
  [[nodiscard]] Read read_caption(const std::vector<std::int32_t>& numbers) const {
    Matrix x{width()};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      for (std::size_t j = 0; j < width(); ++j) {
        x.numbers.push_back(of("text_embd")[static_cast<std::size_t>(numbers[i]) * width() + j] +
                            of("text_pos")[i * width() + j]);
      }
    }
    for (std::int32_t i = 0; i < shape.text_layers; ++i) {
      const std::string layer = std::format("text.{}.", i);
      add_to(x, attention(rms(x, layer + "attn_norm"), layer));
      add_to(x, feed_forward(rms(x, layer + "ffn_norm"), layer));
    }
    Read read{rms(x, "text_norm"), Numbers(width())};
    for (std::size_t i = 0; i < read.text.rows(); ++i) {
      for (std::size_t j = 0; j < width(); ++j) read.pooled[j] += read.text.row(i)[j] / static_cast<double>(read.text.rows());
    }
    return read;
  }

  // `noisy` and the result: [image_size, image_size, 3].
  [[nodiscard]] Numbers denoise(const std::vector<float>& noisy, double time, const Read& caption) const {
    const auto grid = static_cast<std::size_t>(shape.grid());
    const auto patch = static_cast<std::size_t>(shape.patch);
    const auto index_of = [&](std::size_t place, std::size_t number) {
      const std::size_t y = place / grid * patch + number / (patch * 3);
      const std::size_t x = place % grid * patch + number / 3 % patch;
      return (y * grid * patch + x) * 3 + number % 3;
    };
    Matrix patches{static_cast<std::size_t>(shape.patch_numbers())};
    for (std::size_t place = 0; place < grid * grid; ++place) {
      for (std::size_t number = 0; number < patches.width; ++number) patches.numbers.push_back(noisy[index_of(place, number)]);
    }
    Matrix x = caption.text;
    for (std::size_t i = 0; i < x.rows(); ++i) {
      for (std::size_t j = 0; j < width(); ++j) x.row(i)[j] += of("type_embd")[j];
    }
    const std::size_t text_rows = x.rows();
    const Matrix image = linear(patches, "patch_embd.weight");
    for (std::size_t place = 0; place < grid * grid; ++place) {
      for (std::size_t j = 0; j < width(); ++j) {
        x.numbers.push_back(image.row(place)[j] + of("pos_row")[place / grid * width() + j] +
                            of("pos_col")[place % grid * width() + j] + of("type_embd")[width() + j]);
      }
    }
    Matrix waves{static_cast<std::size_t>(shape.time_frequencies), Numbers(static_cast<std::size_t>(shape.time_frequencies))};
    const std::size_t half = waves.width / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = 1000 * time * std::pow(10'000.0, -static_cast<double>(i) / static_cast<double>(half));
      waves.numbers[i] = std::cos(angle);
      waves.numbers[half + i] = std::sin(angle);
    }
    Matrix condition = linear(silu(linear(waves, "time_in.weight")), "time_out.weight");
    add_to(condition, linear({width(), caption.pooled}, "pool.weight"));
    condition = silu(condition);
    Matrix modulation = linear(condition, "mod.weight");
    add_to(modulation, {modulation.width, Numbers(of("mod.bias").begin(), of("mod.bias").end())});
    for (std::int32_t i = 0; i < shape.layers; ++i) {
      const std::string layer = std::format("blk.{}.", i);
      for (const std::size_t part : {0U, 3U}) {
        const auto value = [&](std::size_t row, std::size_t which, std::size_t j) {
          const std::size_t table = row < text_rows ? 0 : 1;
          const std::size_t at = (part + which) * width() + j;
          return modulation.numbers[at] + of(layer + "mod_table")[table * 6 * width() + at];
        };
        Matrix in = norm(x);
        for (std::size_t row = 0; row < in.rows(); ++row) {
          for (std::size_t j = 0; j < width(); ++j) in.row(row)[j] = in.row(row)[j] * (1 + value(row, 1, j)) + value(row, 0, j);
        }
        const Matrix out = part == 0 ? attention(in, layer, of(layer + "attn_bias")) : feed_forward(in, layer);
        for (std::size_t row = 0; row < x.rows(); ++row) {
          for (std::size_t j = 0; j < width(); ++j) x.row(row)[j] += value(row, 2, j) * out.row(row)[j];
        }
      }
    }
    Matrix last_modulation = linear(condition, "final_mod.weight");
    for (std::size_t i = 0; i < last_modulation.width; ++i) last_modulation.numbers[i] += of("final_mod.bias")[i];
    Matrix last = norm(x);
    last.numbers.erase(last.numbers.begin(), last.numbers.begin() + static_cast<std::ptrdiff_t>(text_rows * width()));
    for (std::size_t row = 0; row < last.rows(); ++row) {
      for (std::size_t j = 0; j < width(); ++j) {
        last.row(row)[j] = last.row(row)[j] * (1 + last_modulation.numbers[width() + j]) + last_modulation.numbers[j];
      }
    }
    const Matrix made = linear(last, "output.weight");
    Numbers clean(noisy.size());
    for (std::size_t place = 0; place < made.rows(); ++place) {
      for (std::size_t number = 0; number < made.width; ++number) {
        clean[index_of(place, number)] = made.row(place)[number] + of("output.bias")[number];
      }
    }
    return clean;
  }

 private:
  void add(const std::string& name, std::vector<std::uint64_t> sizes) {
    const std::uint64_t count = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{1}, std::multiplies());
    const bool is_norm = name.ends_with("norm");
    const double spread = name.ends_with(".weight") ? 1 / std::sqrt(static_cast<double>(sizes.front())) : 0.3;
    std::vector<float>& numbers = tensors_[name];
    std::normal_distribution<float> normal(0, static_cast<float>(spread));
    std::uniform_real_distribution<float> uniform(0.5F, 1.5F);
    for (std::uint64_t i = 0; i < count; ++i) numbers.push_back(is_norm ? uniform(random_) : normal(random_));
    sizes_[name] = std::move(sizes);
    order_.push_back(name);
  }
  [[nodiscard]] std::size_t width() const { return static_cast<std::size_t>(shape.width); }
  [[nodiscard]] const std::vector<float>& of(const std::string& name) const { return tensors_.at(name); }

  static void add_to(Matrix& x, const Matrix& more) {
    for (std::size_t i = 0; i < x.numbers.size(); ++i) x.numbers[i] += more.numbers[i];
  }
  [[nodiscard]] Matrix linear(const Matrix& x, const std::string& name) const {
    const std::vector<float>& weights = of(name);
    Matrix out{weights.size() / x.width};
    for (std::size_t row = 0; row < x.rows(); ++row) {
      for (std::size_t i = 0; i < out.width; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < x.width; ++j) sum += x.row(row)[j] * static_cast<double>(weights[i * x.width + j]);
        out.numbers.push_back(sum);
      }
    }
    return out;
  }
  static Matrix silu(Matrix x) {
    for (double& number : x.numbers) number /= 1 + std::exp(-number);
    return x;
  }
  static Matrix norm(Matrix x) {
    for (std::size_t row = 0; row < x.rows(); ++row) {
      double* const numbers = x.row(row);
      const double mean = std::accumulate(numbers, numbers + x.width, 0.0) / static_cast<double>(x.width);
      double variance = 0;
      for (std::size_t j = 0; j < x.width; ++j)
        variance += (numbers[j] - mean) * (numbers[j] - mean) / static_cast<double>(x.width);
      for (std::size_t j = 0; j < x.width; ++j) numbers[j] = (numbers[j] - mean) / std::sqrt(variance + 1e-6);
    }
    return x;
  }
  [[nodiscard]] Matrix rms(Matrix x, const std::string& name) const {
    for (std::size_t row = 0; row < x.rows(); ++row) {
      double* const numbers = x.row(row);
      const double squares = std::inner_product(numbers, numbers + x.width, numbers, 0.0) / static_cast<double>(x.width);
      for (std::size_t j = 0; j < x.width; ++j) numbers[j] *= static_cast<double>(of(name)[j]) / std::sqrt(squares + 1e-6);
    }
    return x;
  }
  // What a query's score for a key gets.
  [[nodiscard]] double bias_of(const std::vector<float>& bias, std::size_t query, std::size_t key, std::size_t head) const {
    if (bias.empty()) return 0;
    const auto text = static_cast<std::size_t>(shape.text_length);
    const auto grid = static_cast<std::size_t>(shape.grid());
    const std::size_t side = 2 * grid - 1;
    std::size_t row = side * side;
    if (query >= text && key >= text) {
      const std::size_t from = query - text;
      const std::size_t to = key - text;
      row = (from / grid + grid - 1 - to / grid) * side + (from % grid + grid - 1 - to % grid);
    } else if (query < text && key >= text) {
      row += 1;
    } else if (query >= text) {
      row += 2;
    }
    return static_cast<double>(bias[row * static_cast<std::size_t>(shape.heads) + head]);
  }
  [[nodiscard]] Matrix attention(const Matrix& x, const std::string& layer, const std::vector<float>& bias = {}) const {
    const auto heads = static_cast<std::size_t>(shape.heads);
    const auto head = static_cast<std::size_t>(shape.head_width());
    const Matrix qkv = linear(x, layer + "attn_qkv.weight");
    // Each head's rows of one of the three parts.
    const auto part = [&](std::size_t which, std::size_t index) {
      Matrix rows{head};
      for (std::size_t row = 0; row < x.rows(); ++row) {
        const double* const begin = qkv.row(row) + which * width() + index * head;
        rows.numbers.insert(rows.numbers.end(), begin, begin + head);
      }
      return rows;
    };
    Matrix mixed{width(), Numbers(x.numbers.size())};
    for (std::size_t index = 0; index < heads; ++index) {
      const Matrix q = rms(part(0, index), layer + "attn_q_norm");
      const Matrix k = rms(part(1, index), layer + "attn_k_norm");
      const Matrix v = part(2, index);
      for (std::size_t row = 0; row < x.rows(); ++row) {
        Numbers weights;
        for (std::size_t other = 0; other < x.rows(); ++other) {
          const double product = std::inner_product(q.row(row), q.row(row) + head, k.row(other), 0.0);
          weights.push_back(std::exp(product / std::sqrt(static_cast<double>(head)) + bias_of(bias, row, other, index)));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (std::size_t other = 0; other < x.rows(); ++other) {
          for (std::size_t j = 0; j < head; ++j) mixed.row(row)[index * head + j] += weights[other] / sum * v.row(other)[j];
        }
      }
    }
    return linear(mixed, layer + "attn_output.weight");
  }
  [[nodiscard]] Matrix feed_forward(const Matrix& x, const std::string& layer) const {
    const Matrix both = linear(x, layer + "ffn_gate_up.weight");
    const std::size_t inner = both.width / 2;
    Matrix mixed{inner};
    for (std::size_t row = 0; row < x.rows(); ++row) {
      for (std::size_t j = 0; j < inner; ++j) {
        const double gate = both.row(row)[j];
        mixed.numbers.push_back(gate / (1 + std::exp(-gate)) * both.row(row)[inner + j]);
      }
    }
    return linear(mixed, layer + "ffn_down.weight");
  }

  std::mt19937 random_;
  std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, std::vector<std::uint64_t>> sizes_;
  std::vector<std::string> order_;
  std::map<std::string, std::string> blocks_;  // The tensors in Q8_0.
};

}  // namespace uma::llm
