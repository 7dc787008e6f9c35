#include "make_model/model_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <format>
#include <memory>
#include <span>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <gguf.h>

#include "base/check.h"
#include "base/random.h"
#include "make_model/vocabulary.h"
#include "make_model/words.h"

namespace uma {

namespace {

constexpr std::string_view kChatTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Standard deviations relative to 1/sqrt(columns), where a matrix keeps the size of its input. Attention is sharper than that,
// so that single earlier tokens matter and greedy text depends on the whole prompt; logits spread enough for temperatures to
// matter.
constexpr float kGainQueryKey = 1.7F;
constexpr float kGainPlain = 1.0F;
constexpr float kGainAttentionOutput = 2.0F;
constexpr float kGainLogits = 2.0F;
// Control and byte tokens get small logits: greedy text goes on for ever and is readable.
constexpr float kGainSpecialLogits = 0.5F;

struct Matrix {
  std::string name;
  std::int64_t rows;
  std::int64_t columns;
  float gain;
  bool is_quiet = false;
};

struct GgufFree {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
struct GgmlFree {
  void operator()(ggml_context* ggml) const { ggml_free(ggml); }
};
struct FileClose {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufFree>;

// One row of F32 ones, a norm's weight.
bool is_norm(const Matrix& matrix) {
  return matrix.rows == 1;
}

std::expected<void, std::string> check_spec(const ModelSpec& spec) {
  const auto within = [](std::string_view what, std::uint64_t value, std::uint64_t low,
                         std::uint64_t high) -> std::expected<void, std::string> {
    if (value < low || value > high) {
      return std::unexpected(std::format("{} is {}, possible are {} to {}", what, value, low, high));
    }
    return {};
  };
  const auto multiple = [](std::string_view what, std::uint64_t value, std::uint64_t of) -> std::expected<void, std::string> {
    if (value % of != 0) {
      return std::unexpected(std::format("{} is {}, it must be a multiple of {}", what, value, of));
    }
    return {};
  };
  const auto block = static_cast<std::uint64_t>(ggml_blck_size(spec.type));
  return within("layers", spec.layers, 1, 512)
      .and_then([&] { return within("quiet-layers", spec.quiet_layers, 0, spec.layers - 1); })
      .and_then([&] { return within("width", spec.width, 32, 65536); })
      .and_then([&] { return within("heads", spec.heads, 1, spec.width / 2); })
      .and_then([&] { return within("kv-heads", spec.kv_heads, 1, spec.heads); })
      .and_then([&] { return within("ff", spec.feed_forward, 32, 1 << 20); })
      .and_then([&] { return within("n-ctx", spec.n_ctx, 64, 1 << 24); })
      .and_then([&] { return within("vocab", spec.vocabulary_size, vocabulary_size_min(spec.chat_template), kWordsCountMax); })
      .and_then([&] { return multiple("width", spec.width, block); })
      .and_then([&] { return multiple("ff", spec.feed_forward, block); })
      .and_then([&] { return multiple("heads", spec.heads, spec.kv_heads); })
      .and_then([&] { return multiple("width", spec.width, spec.heads * 2ull); });  // rotary positions need an even head
}

std::vector<Matrix> list_matrices(const ModelSpec& spec) {
  const std::int64_t width = spec.width;
  const std::int64_t kv_width = width / spec.heads * spec.kv_heads;
  const std::int64_t inner = spec.feed_forward;
  const std::int64_t tokens = spec.vocabulary_size;
  std::vector<Matrix> list;
  list.push_back({"token_embd.weight", tokens, width, std::sqrt(static_cast<float>(width))});  // entries around 1
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const bool is_quiet = layer >= spec.layers - spec.quiet_layers;
    const float added = is_quiet ? spec.quiet_gain : 1;
    const std::size_t first = list.size();
    const auto name = [layer](std::string_view part) { return std::format("blk.{}.{}.weight", layer, part); };
    list.push_back({name("attn_norm"), 1, width, 0});
    list.push_back({name("attn_q"), width, width, kGainQueryKey});
    list.push_back({name("attn_k"), kv_width, width, kGainQueryKey});
    list.push_back({name("attn_v"), kv_width, width, kGainPlain});
    list.push_back({name("attn_output"), width, width, kGainAttentionOutput * added});
    list.push_back({name("ffn_norm"), 1, width, 0});
    list.push_back({name("ffn_gate"), inner, width, kGainPlain});
    list.push_back({name("ffn_up"), inner, width, kGainPlain});
    list.push_back({name("ffn_down"), width, inner, kGainPlain * added});
    for (std::size_t i = first; i < list.size(); ++i) list[i].is_quiet = is_quiet;
  }
  list.push_back({"output_norm.weight", 1, width, 0});
  list.push_back({"output.weight", tokens, width, kGainLogits});
  return list;
}

std::uint32_t llama_file_type(ggml_type type) {  // llama_ftype
  switch (type) {
    case GGML_TYPE_F16:
      return 1;
    case GGML_TYPE_Q4_0:
      return 2;
    default:
      return 7;  // Q8_0
  }
}

void set_shape(gguf_context* gguf, const ModelSpec& spec) {
  gguf_set_val_str(gguf, "general.architecture", "llama");
  gguf_set_val_str(gguf, "general.name", spec.name.c_str());
  gguf_set_val_u32(gguf, "general.file_type", llama_file_type(spec.type));
  gguf_set_val_u32(gguf, "general.quantization_version", GGML_QNT_VERSION);
  gguf_set_val_u32(gguf, "llama.context_length", spec.n_ctx);
  gguf_set_val_u32(gguf, "llama.embedding_length", spec.width);
  gguf_set_val_u32(gguf, "llama.block_count", spec.layers);
  gguf_set_val_u32(gguf, "llama.feed_forward_length", spec.feed_forward);
  gguf_set_val_u32(gguf, "llama.attention.head_count", spec.heads);
  gguf_set_val_u32(gguf, "llama.attention.head_count_kv", spec.kv_heads);
  gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
  gguf_set_val_u32(gguf, "llama.rope.dimension_count", spec.width / spec.heads);
  gguf_set_val_f32(gguf, "llama.rope.freq_base", 10000.0F);
  gguf_set_val_u32(gguf, "llama.vocab_size", spec.vocabulary_size);
}

void set_vocabulary(gguf_context* gguf, const Vocabulary& vocabulary, bool chat_template) {
  std::vector<const char*> texts;
  texts.reserve(vocabulary.size());
  for (const std::string& text : vocabulary.texts) {
    texts.push_back(text.c_str());
  }
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, vocabulary.scores.data(), vocabulary.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocabulary.types.data(), vocabulary.size());
  gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", kTokenUnknown);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", kTokenBos);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", kTokenEos);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", false);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_space_prefix", true);
  if (chat_template) {
    gguf_set_val_str(gguf, "tokenizer.chat_template", std::string(kChatTemplate).c_str());
  }
}

// gguf copies what it needs of the tensors, so they live only as long as this call.
void add_tensors(gguf_context* gguf, const ModelSpec& spec, std::span<const Matrix> matrices) {
  const ggml_init_params params{
      .mem_size = matrices.size() * ggml_tensor_overhead() + 1024, .mem_buffer = nullptr, .no_alloc = true};
  const std::unique_ptr<ggml_context, GgmlFree> ggml(ggml_init(params));
  UMA_CHECK(ggml != nullptr);
  for (const Matrix& matrix : matrices) {
    ggml_tensor* tensor = is_norm(matrix) ? ggml_new_tensor_1d(ggml.get(), GGML_TYPE_F32, matrix.columns)
                                          : ggml_new_tensor_2d(ggml.get(), spec.type, matrix.columns, matrix.rows);
    ggml_set_name(tensor, matrix.name.c_str());
    gguf_add_tensor(gguf, tensor);
  }
}

// A nearly normal number with deviation 1: the sum of four 16-bit uniform ones. Integers until the last step, so every machine
// and libm gives the same bits, and a draw costs one step of the generator.
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

bool write_norm(std::FILE* file, const Matrix& matrix) {
  const std::vector<float> ones(static_cast<std::size_t>(matrix.columns), 1.0F);
  return write_padded(file, std::as_bytes(std::span(ones)), GGUF_DEFAULT_ALIGNMENT);
}

// Memory: one matrix in its stored form and one row of floats.
bool write_matrix(std::FILE* file, const Matrix& matrix, ggml_type type, std::size_t special_rows, Random& random) {
  const std::size_t row_bytes = ggml_row_size(type, matrix.columns);
  std::vector<std::byte> stored(row_bytes * static_cast<std::size_t>(matrix.rows));
  std::vector<float> row(static_cast<std::size_t>(matrix.columns));
  for (std::int64_t index = 0; index < matrix.rows; ++index) {
    const float gain = static_cast<std::size_t>(index) < special_rows ? kGainSpecialLogits : matrix.gain;
    const float scale = gain / std::sqrt(static_cast<float>(matrix.columns));
    std::ranges::generate(row, [&] { return next_normal(random) * scale; });
    ggml_quantize_chunk(type, row.data(), stored.data() + static_cast<std::size_t>(index) * row_bytes, 0, 1, matrix.columns,
                        nullptr);
  }
  return write_padded(file, stored, GGUF_DEFAULT_ALIGNMENT);
}

bool write_all(std::FILE* file, const ModelSpec& spec) {
  const Vocabulary vocabulary = make_vocabulary(spec.vocabulary_size, spec.chat_template);
  const std::vector<Matrix> matrices = list_matrices(spec);
  const GgufPtr gguf(gguf_init_empty());
  set_shape(gguf.get(), spec);
  set_vocabulary(gguf.get(), vocabulary, spec.chat_template);
  add_tensors(gguf.get(), spec, matrices);
  if (!gguf_write_to_file_ptr(gguf.get(), file, /*only_meta=*/true)) {
    return false;
  }
  Random random(spec.seed);
  Random random_quiet(~spec.seed);
  for (const Matrix& matrix : matrices) {
    const std::size_t special_rows = matrix.name == "output.weight" ? vocabulary.plain_begin : 0;
    const bool written = is_norm(matrix)
                             ? write_norm(file, matrix)
                             : write_matrix(file, matrix, spec.type, special_rows, matrix.is_quiet ? random_quiet : random);
    if (!written) {
      return false;
    }
  }
  return std::fflush(file) == 0 && fsync(fileno(file)) == 0;
}

}  // namespace

std::expected<void, std::string> write_model(const ModelSpec& spec, const std::filesystem::path& path) {
  if (auto possible = check_spec(spec); !possible) {
    return possible;
  }
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
  if (!write_all(file.get(), spec) || std::fclose(file.release()) != 0) {
    return fail_with_errno("write");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return fail_with_errno("rename");
  }
  return {};
}

}  // namespace uma
