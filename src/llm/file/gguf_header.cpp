#include "llm/file/gguf_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <limits>
#include <map>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

#include "base/read_number.h"
#include "base/system/unique_fd.h"
#include "core/sampling_fields.h"
#include "llm/file/head_reader.h"

namespace uma::llm {
namespace {

// Limits far above every model and far below the numbers in damaged files.
constexpr std::uint64_t kPairsMax = 1u << 16;
constexpr std::uint64_t kTensorsMax = 1u << 16;
constexpr std::uint64_t kKeyBytesMax = 256;
constexpr std::uint64_t kTensorNameBytesMax = 63;  // The library's limit.
constexpr std::uint64_t kLongNameBytesMax = 1024;  // Names of Stable Diffusion's tensors, which the library does not read.
constexpr std::uint64_t kTextBytesMax = 256;       // Bytes of a kept text.
constexpr std::uint64_t kArrayKeptMax = 1024;      // Numbers of a kept array, which has one for each layer.
constexpr std::uint64_t kAlignmentMax = 1u << 20;
constexpr std::int64_t kLayersMax = 512;  // The library's limits; beyond them it ends the process.
constexpr std::int64_t kExpertsMax = 512;
constexpr std::int64_t kNumberMax = 1 << 24;  // Limit of every other number of a shape.
constexpr std::uint64_t kDimensionsMax = 4;
constexpr std::uint64_t kDefaultAlignment = 32;

// The numbers of the value types in GGUF.
enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

std::uint64_t width_of(ValueType type) {
  static constexpr std::array<std::uint64_t, 13> kWidths = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kWidths[static_cast<std::size_t>(type)];
}

// The types of weights, with numbers and bytes per block. Missing are types that the library has dropped, and types for
// computation only, which end the process when used for weights.
struct TensorType {
  std::uint32_t number;
  std::uint64_t block;
  std::uint64_t bytes;
};
constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kI32 = 26;
constexpr TensorType kTensorTypes[] = {
    {kF32, 1, 4},   {1, 1, 2},      {2, 32, 18},    {3, 32, 20},    {6, 32, 22},   {7, 32, 24},   {8, 32, 34},   {10, 256, 84},
    {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210}, {16, 256, 66}, {17, 256, 74}, {18, 256, 98}, {19, 256, 50},
    {20, 32, 18},   {21, 256, 110}, {22, 256, 82},  {23, 256, 136}, {kI32, 1, 4},  {29, 256, 56}, {30, 1, 2},    {34, 256, 54},
    {35, 256, 66},  {39, 32, 17},   {40, 64, 36},   {41, 128, 18},  {42, 64, 18},
};

// Tensors that the library multiplies or adds without conversion. A type other than f32 ends the process.
bool must_be_f32(std::string_view name, std::span<const std::uint64_t> sizes) {
  const bool is_vector = std::ranges::all_of(sizes.subspan(1), [](std::uint64_t size) { return size == 1; });
  static constexpr std::string_view kStates[] = {".ssm_conv1d", ".ssm_a", ".ssm_d"};
  const auto is_part = [&](std::string_view part) { return name.ends_with(part) || name.contains(std::string(part) + "."); };
  return is_vector || name.contains("norm") || name == "token_types.weight" || std::ranges::any_of(kStates, is_part);
}

// Values of these keys are kept. A leading dot or underscore matches every key with this ending.
constexpr std::string_view kKeptSuffixes[] = {
    "general.architecture",
    "general.type",
    "general.name",
    "general.basename",
    "general.finetune",
    "general.size_label",
    "general.file_type",
    "general.alignment",
    "tokenizer.ggml.model",
    "adapter.type",
    "split.count",
    "split.no",
    ".context_length",
    ".rope.scaling.original_context_length",
    ".block_count",
    ".embedding_length",
    ".feed_forward_length",
    ".attention.head_count",
    ".attention.head_count_kv",
    ".attention.key_length",
    ".attention.value_length",
    ".attention.causal",
    ".attention.sliding_window",
    ".expert_count",
    ".expert_used_count",
    ".pooling_type",
    ".ssm.conv_kernel",
    ".ssm.inner_size",
    ".ssm.state_size",
    ".ssm.group_count",
    ".vision.projection_dim",
    ".audio.projection_dim",
    "clip.has_vision_encoder",
    "clip.has_audio_encoder",
    ".vocab_size",
    ".rope.dimension_count",
    "_epsilon",
};

constexpr std::string_view kSamplingPrefix = "general.sampling.";
constexpr std::string_view kPicturePrefix = "uma-picture.";

bool is_kept(std::string_view key) {
  if (key.starts_with(kSamplingPrefix)) {
    key.remove_prefix(kSamplingPrefix.size());
    return std::ranges::contains(sampling_fields(), key, &SamplingFieldInfo::file_key) && !key.empty();
  }
  return std::ranges::any_of(kKeptSuffixes, [&](std::string_view suffix) {
    return suffix.front() == '.' || suffix.front() == '_' ? key.ends_with(suffix) : key == suffix;
  });
}

// The layer of a tensor such as "blk.7.ffn_up.weight".
std::optional<std::size_t> layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::size_t layer = 0;
  const auto [end, problem] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  const bool is_layer = problem == std::errc() && end != name.data() + name.size() && *end == '.' && layer < kLayersMax;
  return is_layer ? std::optional(layer) : std::nullopt;
}

std::optional<std::uint64_t> multiply(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

using Value = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>>;

// Reads the key-value pairs and the list of tensors, and keeps the values of GgufHeader.
class HeaderParser {
 public:
  HeaderParser(std::uint64_t file_bytes, const ReadAt& read, GgufKind kind)
      : kind_(kind), reader_(file_bytes, read), file_bytes_(file_bytes) {}

  Expected<GgufHeader> parse() {
    read_counts();
    for (std::uint64_t i = 0; i < header_.pairs_count && reader_.is_ok(); ++i) read_pair();
    if (reader_.is_ok()) read_shape();
    for (std::uint64_t i = 0; i < header_.tensors_count && reader_.is_ok(); ++i) read_tensor();
    if (reader_.is_ok() && is_bare_) check_bare();
    if (reader_.is_ok()) check_data();
    if (!reader_.is_ok()) return fail(ErrorCode::model_load, reader_.problem());
    return std::move(header_);
  }

 private:
  void read_counts() {
    if (reader_.u32() != 0x46554747) return reader_.refuse("not a GGUF file: it does not begin with GGUF");
    header_.version = reader_.u32();
    if (header_.version == 0x02000000 || header_.version == 0x03000000) {
      return reader_.refuse("the file has the wrong byte order for this machine");
    }
    if (header_.version < 2 || header_.version > 3) {
      return reader_.refuse(std::format("its GGUF version is {}, not 2 or 3", header_.version));
    }
    header_.tensors_count = reader_.u64();
    header_.pairs_count = reader_.u64();
    if (header_.tensors_count > kTensorsMax || header_.pairs_count > kPairsMax) {
      reader_.refuse(std::format("it claims {} tensors and {} key-value pairs", header_.tensors_count, header_.pairs_count));
    }
  }

  std::optional<ValueType> read_type() {
    const std::uint32_t number = reader_.u32();
    if (number <= static_cast<std::uint32_t>(ValueType::f64)) return static_cast<ValueType>(number);
    reader_.refuse(std::format("a value has the unknown type {}", number));
    return std::nullopt;
  }

  void read_pair() {
    std::string key = reader_.text(kKeyBytesMax, "a key");
    const auto type = read_type();
    if (!reader_.is_ok()) return;
    if (key == "tokenizer.chat_template") header_.has_chat_template = *type == ValueType::text;
    if (kind_ == GgufKind::adapter) check_adapter_pair(key, *type);
    if (kind_ == GgufKind::picture && key.starts_with(kPicturePrefix)) return read_picture_pair(key, *type);
    if (!is_kept(key)) return skip_value(*type, key);
    auto value = read_value(*type);
    if (!reader_.is_ok()) return;
    if (values_.contains(key)) return reader_.refuse(std::format("the key {} appears twice", key));
    if (value) values_.emplace(std::move(key), *std::move(value));
  }

  // Keeps numbers and the words.
  void read_picture_pair(const std::string& key, ValueType type) {
    const std::string name = key.substr(kPicturePrefix.size());
    if (name == "words" && type == ValueType::array) return read_words();
    if (type == ValueType::array || type == ValueType::text) return skip_value(type, key);
    const auto value = read_value(type);
    if (!reader_.is_ok() || !value) return;
    double number = 0;
    if (const auto* whole = std::get_if<std::int64_t>(&*value)) number = static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&*value)) number = *real;
    if (!header_.picture_numbers.try_emplace(name, number).second) reader_.refuse(std::format("the key {} appears twice", key));
  }

  void read_words() {
    constexpr std::uint64_t kWordsMax = 65'536;
    constexpr std::uint64_t kWordBytesMax = 64;
    const auto items = read_type();
    const std::uint64_t count = reader_.u64();
    if (!reader_.is_ok()) return;
    if (*items != ValueType::text || count > kWordsMax || !header_.picture_words.empty()) {
      return reader_.refuse(std::format("{}words is not one list of up to {} texts", kPicturePrefix, kWordsMax));
    }
    for (std::uint64_t i = 0; i < count && reader_.is_ok(); ++i)
      header_.picture_words.push_back(reader_.text(kWordBytesMax, "a word"));
  }

  // The library ends the process on another type of this number.
  void check_adapter_pair(std::string_view key, ValueType type) {
    if (key == "adapter.lora.alpha" && type != ValueType::f32) reader_.refuse("adapter.lora.alpha is not a 32-bit float");
    if (key == "adapter.alora.invocation_tokens") {
      reader_.refuse("it is an activated adapter (aLoRA), which begins at tokens of its own: these are not supported");
    }
  }

  void skip_value(ValueType type, std::string_view key) {
    if (type == ValueType::text) return reader_.skip(reader_.u64());
    if (type != ValueType::array) return reader_.skip(width_of(type));
    const auto items = read_type();
    const std::uint64_t count = reader_.u64();
    if (!reader_.is_ok()) return;
    if (key == "tokenizer.ggml.tokens") header_.vocabulary_size = static_cast<std::int64_t>(std::min(count, kTokensBound));
    skip_items(*items, count);
  }

  void skip_items(ValueType type, std::uint64_t count) {
    if (type == ValueType::array) return reader_.refuse("an array contains arrays");
    if (type != ValueType::text) {
      const auto bytes = multiply(count, width_of(type));
      return bytes ? reader_.skip(*bytes) : reader_.refuse(std::format("an array claims {} values", count));
    }
    // Every text takes at least eight bytes, so the end of the file bounds the loop.
    for (std::uint64_t i = 0; i < count && reader_.is_ok(); ++i) reader_.skip(reader_.u64());
  }

  // Returns nothing for an unused type.
  std::optional<Value> read_value(ValueType type) {
    switch (type) {
      case ValueType::text:
        return read_text();
      case ValueType::boolean:
        return reader_.unsigned_number(1) != 0;
      case ValueType::f32:
        return static_cast<double>(std::bit_cast<float>(reader_.u32()));
      case ValueType::f64:
        return std::bit_cast<double>(reader_.u64());
      case ValueType::array:
        return read_numbers();
      default:
        return read_integer(type);
    }
  }

  std::string read_text() {
    const std::uint64_t size = reader_.u64();
    const std::uint64_t kept = std::min(size, kTextBytesMax);
    std::string text(kept, '\0');
    for (char& byte : text) byte = static_cast<char>(reader_.unsigned_number(1));
    reader_.skip(size - kept);
    return text;
  }

  // A number beyond int64 becomes the largest int64, which fails every check.
  std::int64_t read_integer(ValueType type) {
    const std::uint64_t width = width_of(type);
    const std::uint64_t value = reader_.unsigned_number(width);
    const bool is_signed = type == ValueType::i8 || type == ValueType::i16 || type == ValueType::i32 || type == ValueType::i64;
    if (is_signed) {
      const auto shift = static_cast<int>(64 - 8 * width);
      return static_cast<std::int64_t>(value << shift) >> shift;
    }
    return static_cast<std::int64_t>(std::min<std::uint64_t>(value, std::numeric_limits<std::int64_t>::max()));
  }

  std::optional<Value> read_numbers() {
    const auto type = read_type();
    const std::uint64_t count = reader_.u64();
    if (!reader_.is_ok()) return std::nullopt;
    const bool is_integer =
        *type != ValueType::f32 && *type != ValueType::f64 && *type != ValueType::text && *type != ValueType::array;
    if (!is_integer || count > kArrayKeptMax) {
      skip_items(*type, count);
      return std::nullopt;
    }
    std::vector<std::int64_t> numbers;
    for (std::uint64_t i = 0; i < count && reader_.is_ok(); ++i) {
      numbers.push_back(*type == ValueType::boolean ? static_cast<std::int64_t>(reader_.unsigned_number(1) != 0)
                                                    : read_integer(*type));
    }
    return numbers;
  }

  template <class T>
  const T* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : std::get_if<T>(&found->second);
  }
  std::string text_of(const std::string& key) const {
    const auto* text = find<std::string>(key);
    return text == nullptr ? std::string() : *text;
  }

  // A number of the model's shape; the maximum if the file has one for each layer; 0 if missing.
  std::int64_t number_of(std::string_view suffix, std::int64_t max) {
    const std::string key = header_.architecture + std::string(suffix);
    std::int64_t value = 0;
    if (const auto* number = find<std::int64_t>(key)) {
      value = *number;
    } else if (const auto* numbers = find<std::vector<std::int64_t>>(key); numbers != nullptr && !numbers->empty()) {
      if (std::ranges::min(*numbers) < 0) value = -1;
      if (value == 0) value = std::ranges::max(*numbers);
    }
    if (value < 0 || value > max) reader_.refuse(std::format("{} is {}, not 0 to {}", key, value, max));
    return value;
  }

  void read_shape() {
    header_.architecture = text_of("general.architecture");
    if (const auto* alignment = find<std::int64_t>("general.alignment")) {
      const auto value = static_cast<std::uint64_t>(*alignment);
      if (!std::has_single_bit(value) || value > kAlignmentMax) {
        return reader_.refuse(std::format("general.alignment is {}, not a power of two", *alignment));
      }
      alignment_ = value;
    }
    header_.name = text_of("general.name");
    header_.base_name = text_of("general.basename");
    header_.finetune = text_of("general.finetune");
    header_.size_label = text_of("general.size_label");
    read_sampling();
    if (const auto* type = find<std::int64_t>("general.file_type")) header_.file_type = *type;
    read_split();
    // In a split model, only the first file has the metadata.
    is_bare_ = kind_ != GgufKind::adapter && header_.architecture.empty() && header_.split_index == 0;
    if (!check_file_kind() || header_.architecture.empty()) return;
    read_sizes();
    read_heads();
    read_states();
    check_numbers();
    check_kind();
    if (const auto* pooling = find<std::int64_t>(header_.architecture + ".pooling_type")) header_.pooling_type = *pooling;
    if (const auto* causal = find<bool>(header_.architecture + ".attention.causal")) header_.causal_attention = *causal;
    for (const std::string_view key : {".audio.projection_dim", ".vision.projection_dim"}) {
      if (const auto* size = find<std::int64_t>(header_.architecture + std::string(key))) header_.projection_size = *size;
    }
    if (!header_.is_projector()) return;
    const auto* audio = find<bool>("clip.has_audio_encoder");
    const auto* images = find<bool>("clip.has_vision_encoder");
    header_.encoders.audio = audio != nullptr && *audio;
    header_.encoders.images = images == nullptr ? !header_.encoders.audio : *images;
  }

  // Reads the defaults of sampling. A value of the wrong type or outside its range is as good as none.
  void read_sampling() {
    for (const SamplingFieldInfo& field : sampling_fields()) {
      if (field.file_key.empty()) continue;
      const std::string key = std::string(kSamplingPrefix) + std::string(field.file_key);
      std::optional<double> value;
      if (const auto* whole = find<std::int64_t>(key)) value = static_cast<double>(*whole);
      if (const auto* number = find<double>(key)) value = as_written(*number);
      // Other programs turn top-k off with a negative number.
      if (value && field.field == SamplingField::top_k) value = std::max(*value, 0.0);
      if (value && field.accepts(*value)) header_.sampling[field.field] = value;
    }
  }

  // The number that somebody has written for a value in single precision: 0.7 instead of 0.699999988.
  static double as_written(double value) {
    const auto narrow = static_cast<float>(value);
    if (!std::isfinite(narrow) || static_cast<double>(narrow) != value) return value;
    const std::string text = std::format("{}", narrow);
    double written = value;
    read_number(text.data(), text.data() + text.size(), written);
    return written;
  }

  // Whether the file is a model. An adapter has no shape of its own.
  bool check_file_kind() {
    const std::string type = text_of("general.type");
    if (kind_ == GgufKind::model) {
      if (type == "adapter") reader_.refuse("it is a LoRA adapter, not a model: name it under `adapters` in a model's card");
      return reader_.is_ok();
    }
    if (kind_ == GgufKind::picture) return false;
    if (type != "adapter") {
      reader_.refuse("it is not an adapter: general.type is not \"adapter\"");
    } else if (text_of("adapter.type") != "lora") {
      reader_.refuse("adapter.type is not \"lora\", the only supported type");
    } else if (header_.architecture.empty()) {
      reader_.refuse("general.architecture is missing");
    } else if (header_.split_count > 1) {
      reader_.refuse("it is one of several files: an adapter is one file");
    }
    return false;
  }

  // Checks numbers that the library uses unchecked. Some would end the process, some take for ever.
  void check_numbers() {
    for (const auto& [key, value] : values_) {
      if (!key.ends_with("_epsilon")) continue;
      const auto* number = std::get_if<double>(&value);
      if (number == nullptr || !(*number >= 0 && *number < 1)) {
        return reader_.refuse(std::format("{} is not between 0 and 1", key));
      }
    }
    if (!values_.contains(header_.architecture + ".rope.dimension_count")) return;
    const std::int64_t turned = number_of(".rope.dimension_count", kNumberMax);
    // Models with states may have no rotation.
    const bool may_be_none = header_.state_bytes > 0;
    if (turned % 2 != 0 || turned > header_.key_length || (turned == 0 && !may_be_none)) {
      reader_.refuse(std::format("{}.rope.dimension_count is {}: it must be even, and at most the head size {}",
                                 header_.architecture, turned, header_.key_length));
    }
  }

  // Checks the library's assumptions about a kind of model and its vocabulary.
  void check_kind() {
    static constexpr std::string_view kMixtures[] = {"smallthinker", "llada-moe"};
    if (std::ranges::contains(kMixtures, header_.architecture) && header_.expert_count == 0) {
      reader_.refuse(std::format("{}.expert_count is 0, but this architecture has experts", header_.architecture));
    }
    const std::string tokenizer = text_of("tokenizer.ggml.model");
    if (tokenizer == "none" || tokenizer == "no_vocab") {
      reader_.refuse(std::format("the model has no vocabulary: tokenizer.ggml.model is {}", tokenizer));
    }
  }

  void read_split() {
    constexpr std::int64_t kFilesMax = 65'535;
    if (const auto* count = find<std::int64_t>("split.count"); count != nullptr && *count > 1) header_.split_count = *count;
    if (const auto* index = find<std::int64_t>("split.no")) header_.split_index = *index;
    if (header_.split_count > kFilesMax || header_.split_index < 0 || header_.split_index >= header_.split_count) {
      reader_.refuse(std::format("the metadata calls this file {} of {}", header_.split_index, header_.split_count));
    }
  }

  void read_sizes() {
    constexpr std::int64_t kTokensMax = std::numeric_limits<std::int32_t>::max();
    header_.context_length = number_of(".context_length", kTokensMax);
    header_.rope_original_length = number_of(".rope.scaling.original_context_length", kTokensMax);
    header_.block_count = number_of(".block_count", kLayersMax);
    header_.embedding_length = number_of(".embedding_length", kNumberMax);
    header_.feed_forward_length = number_of(".feed_forward_length", kNumberMax);
    header_.expert_count = number_of(".expert_count", kExpertsMax);
    header_.expert_used_count = number_of(".expert_used_count", kExpertsMax);
    header_.sliding_window = number_of(".attention.sliding_window", kTokensMax);
    if (header_.vocabulary_size == 0) header_.vocabulary_size = number_of(".vocab_size", kNumberMax);
    if (!reader_.is_ok() || header_.is_projector() || header_.draws_pictures()) return;
    if (header_.vocabulary_size > kNumberMax) {
      return reader_.refuse(std::format("the vocabulary has {} tokens", header_.vocabulary_size));
    }
    if (header_.block_count == 0 || header_.embedding_length == 0 || header_.context_length == 0) {
      return reader_.refuse(
          std::format("{}.block_count, .embedding_length and .context_length are {}, {} and {}: none may be 0",
                      header_.architecture, header_.block_count, header_.embedding_length, header_.context_length));
    }
    if (header_.expert_used_count > header_.expert_count || (header_.expert_count > 0 && header_.expert_used_count == 0)) {
      reader_.refuse(std::format("the model has {} experts and uses {}", header_.expert_count, header_.expert_used_count));
    }
  }

  void read_heads() {
    header_.head_count = number_of(".attention.head_count", kNumberMax);
    const std::int64_t head_count_kv = number_of(".attention.head_count_kv", kNumberMax);
    header_.key_length = number_of(".attention.key_length", kNumberMax);
    header_.value_length = number_of(".attention.value_length", kNumberMax);
    if (!reader_.is_ok()) return;
    if (header_.head_count > 0) {
      const std::int64_t width = header_.embedding_length / header_.head_count;
      if (header_.key_length == 0) header_.key_length = width;
      if (header_.value_length == 0) header_.value_length = width;
    }
    const auto* of_layers = find<std::vector<std::int64_t>>(header_.architecture + ".attention.head_count_kv");
    if (of_layers != nullptr) {
      for (const std::int64_t heads : *of_layers) header_.head_count_kv_sum += heads;
    } else {
      header_.head_count_kv_sum = header_.block_count * (head_count_kv > 0 ? head_count_kv : header_.head_count);
    }
  }

  // The library's layout of a state: for each layer a window of the convolution's inputs and the state itself, in f32.
  void read_states() {
    const std::int64_t kernel = number_of(".ssm.conv_kernel", kLayersMax);
    const std::int64_t inner = inner_size_ = number_of(".ssm.inner_size", kNumberMax);
    const std::int64_t state = number_of(".ssm.state_size", kNumberMax / 16);
    const std::int64_t groups = number_of(".ssm.group_count", kLayersMax);
    if (!reader_.is_ok() || kernel == 0) return;
    const std::int64_t layer = (kernel - 1) * (inner + 2 * groups * state) + inner * state;
    header_.state_bytes = header_.block_count * layer * static_cast<std::int64_t>(sizeof(float));
  }

  void read_tensor() {
    const std::string name = reader_.text(is_bare_ ? kLongNameBytesMax : kTensorNameBytesMax, "a tensor's name");
    const std::uint32_t dimensions = reader_.u32();
    if (reader_.is_ok() && (dimensions == 0 || dimensions > kDimensionsMax)) {
      reader_.refuse(std::format("tensor {} has {} dimensions", name, dimensions));
    }
    if (reader_.is_ok() && !names_.insert(name).second) reader_.refuse(std::format("tensor {} appears twice", name));
    std::vector<std::uint64_t> sizes;
    std::uint64_t numbers = 1;
    for (std::uint32_t i = 0; i < dimensions && reader_.is_ok(); ++i) {
      sizes.push_back(reader_.u64());
      const auto product = multiply(numbers, sizes.back());
      // The library counts bytes in signed 64-bit numbers.
      if (!product || *product == 0 || *product > std::numeric_limits<std::int64_t>::max() / 8) {
        return reader_.refuse(std::format("tensor {} has the size {} in dimension {}", name, sizes.back(), i));
      }
      numbers = *product;
    }
    const std::uint32_t number = reader_.u32();
    const std::uint64_t offset = reader_.u64();
    if (!reader_.is_ok()) return;
    const auto type = std::ranges::find(kTensorTypes, number, &TensorType::number);
    if (type == std::end(kTensorTypes)) {
      return reader_.refuse(std::format("tensor {} has the unknown type {}", name, number));
    }
    if (sizes.front() % type->block != 0) {
      return reader_.refuse(
          std::format("tensor {} has rows of {} numbers, but blocks of {}", name, sizes.front(), type->block));
    }
    if (kind_ == GgufKind::model && !header_.is_projector() && !is_bare_) check_tensor(name, sizes, number);
    const std::uint64_t bytes = numbers / type->block * type->bytes;
    if (kind_ != GgufKind::model || is_bare_) {
      header_.tensors.push_back({.name = name, .sizes = sizes, .type = number, .offset = offset, .bytes = bytes});
    }
    add_tensor(name, offset, numbers, bytes);
  }

  // Checks the library's assumptions about a model's tensors.
  void check_tensor(const std::string& name, std::span<const std::uint64_t> sizes, std::uint32_t type) {
    if (type != kF32 && must_be_f32(name, sizes)) {
      return reader_.refuse(std::format("tensor {} has the type {}, but must have f32", name, type));
    }
    if (type == kI32 && !name.contains("tid2eid")) {
      return reader_.refuse(std::format("tensor {} has integers instead of weights", name));
    }
    check_row(name, "token_embd.weight", sizes.front(), header_.embedding_length, "embedding_length");
    check_row(name, ".ssm_out.weight", sizes.front(), inner_size_, "ssm.inner_size");
  }
  void check_row(const std::string& name, std::string_view checked, std::uint64_t row, std::int64_t expected,
                 std::string_view key) {
    // In a split model, only the first file has the metadata.
    if (header_.architecture.empty() || !name.ends_with(checked)) return;
    if (name.size() > checked.size() && checked.front() != '.') return;
    if (row != static_cast<std::uint64_t>(expected)) {
      reader_.refuse(
          std::format("tensor {} has rows of {} numbers, but {}.{} is {}", name, row, header_.architecture, key, expected));
    }
  }

  // Tensors are stored one behind the other, each at a multiple of the alignment.
  void add_tensor(const std::string& name, std::uint64_t offset, std::uint64_t numbers, std::uint64_t bytes) {
    if (offset != aligned(data_end_)) {
      return reader_.refuse(
          std::format("tensor {} begins at {}, not behind the previous tensor, at {}", name, offset, aligned(data_end_)));
    }
    if (bytes > file_bytes_ || offset > file_bytes_ - bytes) {
      return reader_.refuse(std::format("the file is truncated: tensor {} needs {} bytes", name, bytes));
    }
    data_end_ = offset + bytes;
    header_.parameters += numbers;
    header_.weight_bytes += bytes;
    const std::uint64_t of_experts = name.contains("_exps.") ? bytes : 0;
    header_.expert_bytes += of_experts;
    if (name == "token_embd.weight") header_.token_bytes = bytes;
    if (name == "output.weight") header_.output_bytes = bytes;
    if (const auto layer = layer_of(name)) {
      if (header_.layer_bytes.size() <= *layer) header_.layer_bytes.resize(*layer + 1);
      header_.layer_bytes[*layer] += {.all = bytes, .experts = of_experts};
    }
  }

  // Files of Stable Diffusion have no metadata: their tensors tell what they are. Of their decoders, nothing does.
  void check_bare() {
    const auto is_of_network = [](const GgufTensor& tensor) { return tensor.name.starts_with(kDiffusionPrefix); };
    if (std::ranges::any_of(header_.tensors, is_of_network)) {
      header_.architecture = kDiffusionArchitecture;
    } else if (kind_ == GgufKind::model) {
      reader_.refuse("general.architecture is missing");
    }
  }

  // The data begins after the list, at a multiple of the alignment.
  void check_data() {
    header_.data_offset = aligned(reader_.position());
    if (header_.data_offset > file_bytes_ || data_end_ > file_bytes_ - header_.data_offset) {
      if (data_end_ == 0) return;
      reader_.refuse(std::format("the file is truncated: its tensors need {} bytes from byte {} on, the file has {}", data_end_,
                                 header_.data_offset, file_bytes_));
    }
  }

  [[nodiscard]] std::uint64_t aligned(std::uint64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }

  // Larger numbers are refused later, with the number in the message.
  static constexpr std::uint64_t kTokensBound = std::uint64_t{1} << 40;

  const GgufKind kind_;
  HeadReader reader_;
  const std::uint64_t file_bytes_;
  GgufHeader header_;
  std::uint64_t alignment_ = kDefaultAlignment;
  std::int64_t inner_size_ = 0;  // Inner size of layers with states.
  bool is_bare_ = false;         // It states no architecture.
  std::uint64_t data_end_ = 0;   // End of the tensors so far, from the beginning of the first.
  std::map<std::string, Value> values_;
  std::set<std::string> names_;
};

}  // namespace

std::vector<std::uint64_t> GgufHeader::layer_weights(std::int32_t without_experts) const {
  std::vector<std::uint64_t> layers;
  for (const LayerBytes& bytes : layer_bytes) {
    layers.push_back(std::cmp_less(layers.size(), without_experts) ? bytes.all - bytes.experts : bytes.all);
  }
  layers.resize(static_cast<std::size_t>(block_count));
  layers.push_back(has_output() ? output_bytes : token_bytes);
  return layers;
}

Expected<GgufHeader> read_gguf_header(std::uint64_t file_bytes, const ReadAt& read, GgufKind kind) {
  return HeaderParser(file_bytes, read, kind).parse();
}

Expected<GgufHeader> read_head_of_file(
    const std::string& path, const std::function<Expected<GgufHeader>(std::uint64_t file_bytes, const ReadAt& read)>& parse) {
  // O_NONBLOCK, because opening a pipe would wait for its other end.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::model_load : ErrorCode::io_failed;
    return fail(code, std::format("{}: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::model_load, std::format("{}: not a regular file", path));
  bool is_readable = true;
  auto header =
      parse(static_cast<std::uint64_t>(status.st_size), [&](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
        const ssize_t got = ::pread(file.get(), into.data(), into.size(), static_cast<off_t>(offset));
        is_readable &= got >= 0;
        return got > 0 ? static_cast<std::size_t>(got) : 0;
      });
  if (!header) header.error().message = std::format("{}: {}", path, header.error().message);
  if (!header && !is_readable) header.error().code = ErrorCode::io_failed;
  return header;
}

Expected<GgufHeader> read_gguf_header(const std::string& path, GgufKind kind) {
  return read_head_of_file(
      path, [kind](std::uint64_t file_bytes, const ReadAt& read) { return read_gguf_header(file_bytes, read, kind); });
}

}  // namespace uma::llm
