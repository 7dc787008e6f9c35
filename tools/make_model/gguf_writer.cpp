#include "make_model/gguf_writer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <format>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "base/check.h"
#include "base/random.h"

namespace uma {

namespace {

struct GgmlFree {
  void operator()(ggml_context* ggml) const { ggml_free(ggml); }
};
struct FileClose {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

ggml_type stored_type(const Matrix& matrix, ggml_type type) {
  return matrix.type.value_or(type);
}

// gguf copies what it needs of the tensors, so they are freed at the end of this call.
void add_tensors(gguf_context* gguf, ggml_type file_type, std::span<const Matrix> matrices) {
  const ggml_init_params params{
      .mem_size = matrices.size() * ggml_tensor_overhead() + 1024, .mem_buffer = nullptr, .no_alloc = true};
  const std::unique_ptr<ggml_context, GgmlFree> ggml(ggml_init(params));
  UMA_CHECK(ggml != nullptr);
  for (const Matrix& matrix : matrices) {
    const ggml_type type = stored_type(matrix, file_type);
    ggml_tensor* tensor = nullptr;
    if (matrix.shape[0] != 0) {
      tensor = ggml_new_tensor(ggml.get(), type, static_cast<int>(matrix.shape.size()), matrix.shape.data());
    } else if (matrix.rows == 1) {
      tensor = ggml_new_tensor_1d(ggml.get(), type, matrix.columns);
    } else {
      tensor = ggml_new_tensor_2d(ggml.get(), type, matrix.columns, matrix.rows);
    }
    UMA_CHECK(ggml_nelements(tensor) == matrix.rows * matrix.columns);
    ggml_set_name(tensor, matrix.name.c_str());
    gguf_add_tensor(gguf, tensor);
  }
}

// A nearly normal number with deviation 1: the sum of four uniform 16-bit numbers. All steps but the last use integers, so
// every machine and libm gives the same bits. A number costs one step of the generator.
float next_normal(Random& random) {
  constexpr float kMean = 4 * 65535 / 2.0F;
  constexpr float kDeviation = 37837.0F;  // sqrt(4 * (65536^2 - 1) / 12)
  const std::uint64_t bits = random.next_u64();
  const auto sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) - kMean) / kDeviation;
}

bool write_padded(std::FILE* file, std::span<const std::byte> bytes, std::size_t alignment) {
  static constexpr std::byte kZeros[GGUF_DEFAULT_ALIGNMENT]{};
  const std::size_t padding = (alignment - bytes.size() % alignment) % alignment;
  return std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() && std::fwrite(kZeros, 1, padding, file) == padding;
}

void fill_row(const Matrix& matrix, std::int64_t index, std::span<float> row, Random& random) {
  switch (matrix.filling) {
    case Matrix::Filling::random: {
      const float gain = index < matrix.special_rows ? matrix.special_gain : matrix.gain;
      const float scale = gain / std::sqrt(static_cast<float>(matrix.columns));
      std::ranges::generate(row, [&] { return next_normal(random) * scale; });
      break;
    }
    case Matrix::Filling::constant:
      std::ranges::fill(row, matrix.gain);
      break;
    case Matrix::Filling::decays:
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = -0.25F * static_cast<float>(i + 1);
      break;
    case Matrix::Filling::given:
      std::copy_n(matrix.values.begin() + index * matrix.columns, matrix.columns, row.begin());
      break;
  }
}

// Fills the rows from `begin` to `end` of the stored form of the whole matrix. `random` draws row 0 first.
void fill_rows(const Matrix& matrix, ggml_type type, std::int64_t begin, std::int64_t end, Random random,
               std::span<std::byte> stored) {
  const std::size_t row_bytes = ggml_row_size(type, matrix.columns);
  std::vector<float> row(static_cast<std::size_t>(matrix.columns));
  random.skip(static_cast<std::uint64_t>(begin * matrix.columns));
  for (std::int64_t index = begin; index < end; ++index) {
    fill_row(matrix, index, row, random);
    ggml_quantize_chunk(type, row.data(), stored.subspan(static_cast<std::size_t>(index) * row_bytes).data(), 0, 1,
                        matrix.columns, nullptr);
  }
}

bool write_matrix(std::FILE* file, const Matrix& matrix, ggml_type type, Random& random) {
  constexpr std::int64_t kWeightsPerThreadMin = 1 << 18;  // About a millisecond.
  std::vector<std::byte> stored(ggml_row_size(type, matrix.columns) * static_cast<std::size_t>(matrix.rows));
  const std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::int64_t parts = std::clamp<std::int64_t>(matrix.rows * matrix.columns / kWeightsPerThreadMin, 1, cores);
  const auto fill_part = [&](std::int64_t part) {
    fill_rows(matrix, type, matrix.rows * part / parts, matrix.rows * (part + 1) / parts, random, stored);
  };
  {
    std::vector<std::jthread> threads;
    for (std::int64_t part = 1; part < parts; ++part) threads.emplace_back(fill_part, part);
    fill_part(0);
  }
  if (matrix.filling == Matrix::Filling::random) random.skip(static_cast<std::uint64_t>(matrix.rows * matrix.columns));
  return write_padded(file, stored, GGUF_DEFAULT_ALIGNMENT);
}

bool write_all(std::FILE* file, gguf_context* gguf, std::span<const Matrix> matrices, ggml_type type, std::uint64_t seed) {
  add_tensors(gguf, type, matrices);
  if (!gguf_write_to_file_ptr(gguf, file, /*only_meta=*/true)) {
    return false;
  }
  Random random(seed);
  Random random_quiet(~seed);
  for (const Matrix& matrix : matrices) {
    if (!write_matrix(file, matrix, stored_type(matrix, type), matrix.is_quiet ? random_quiet : random)) {
      return false;
    }
  }
  return std::fflush(file) == 0 && fsync(fileno(file)) == 0;
}

}  // namespace

Matrix vector_of(std::string name, std::int64_t columns, float value) {
  return {.name = std::move(name),
          .rows = 1,
          .columns = columns,
          .gain = value,
          .filling = Matrix::Filling::constant,
          .type = GGML_TYPE_F32};
}

Matrix zeros(std::string name, std::int64_t rows, std::int64_t columns) {
  return {.name = std::move(name),
          .rows = rows,
          .columns = columns,
          .filling = Matrix::Filling::given,
          .type = rows == 1 ? std::optional(GGML_TYPE_F32) : std::nullopt,
          .values = std::vector<float>(static_cast<std::size_t>(rows * columns))};
}

float& at(Matrix& matrix, std::int64_t row, std::int64_t column) {
  UMA_CHECK(row >= 0 && row < matrix.rows && column >= 0 && column < matrix.columns);
  return matrix.values[static_cast<std::size_t>(row * matrix.columns + column)];
}

std::expected<void, std::string> write_gguf(GgufPtr metadata, std::span<const Matrix> matrices, ggml_type type,
                                            std::uint64_t seed, const std::filesystem::path& path) {
  const std::string temporary = std::format("{}.{}.tmp", path.string(), getpid());
  const auto fail_with_errno = [&](std::string_view what) -> std::unexpected<std::string> {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    return std::unexpected(std::format("cannot {} {}: {}", what, temporary, reason));
  };
  std::unique_ptr<std::FILE, FileClose> file(std::fopen(temporary.c_str(), "wb"));
  if (file == nullptr) {
    return fail_with_errno("create");
  }
  if (!write_all(file.get(), metadata.get(), matrices, type, seed) || std::fclose(file.release()) != 0) {
    return fail_with_errno("write");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return fail_with_errno("rename");
  }
  return {};
}

}  // namespace uma
