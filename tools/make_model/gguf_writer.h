// Writes a GGUF file from metadata and matrices, whose values are random, computed or given. The same input gives the same
// bytes on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ggml.h>
#include <gguf.h>

namespace uma {

struct Matrix {
  enum class Filling : std::uint8_t {
    random,    // Normal, deviation gain / sqrt(columns).
    constant,  // gain
    decays,    // The decay rates of mamba's states, the same in every row.
    given,     // `values`
  };
  std::string name;
  std::int64_t rows;
  std::int64_t columns;
  float gain = 1;
  bool is_quiet = false;  // Drawn from a separate generator.
  Filling filling = Filling::random;
  std::optional<ggml_type> type = {};   // Stored type, if it is not the type of the file.
  std::int64_t special_rows = 0;        // Number of first rows that are drawn with `special_gain`.
  float special_gain = 1;               // Replaces `gain` in the special rows.
  std::vector<float> values = {};       // Row by row; for Filling::given.
  std::array<std::int64_t, 4> shape{};  // Dimensions in the file, if it is not a matrix there; else zeros.
};

// A vector with the same value everywhere, in 32 bits.
[[nodiscard]] Matrix vector_of(std::string name, std::int64_t columns, float value);

// A matrix of zeros to be filled by `at`; one row is a vector in 32 bits.
[[nodiscard]] Matrix zeros(std::string name, std::int64_t rows, std::int64_t columns);
[[nodiscard]] float& at(Matrix& matrix, std::int64_t row, std::int64_t column);

struct GgufFree {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufFree>;

// Writes to a temporary name beside `path`, then renames: `path` is never half a model, and two writers do not disturb each
// other. Matrices are stored as `type` unless they have a type of their own. Draws on all cores. The error is the file system's
// message, with the name of the file. Uses memory for one matrix in its stored form and one row of floats for each core.
[[nodiscard]] std::expected<void, std::string> write_gguf(GgufPtr metadata, std::span<const Matrix> matrices, ggml_type type,
                                                          std::uint64_t seed, const std::filesystem::path& path);

}  // namespace uma
