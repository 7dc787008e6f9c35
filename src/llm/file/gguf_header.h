// Reads the header of a GGUF file without loading the model: the metadata that selection, listing and memory accounting need,
// and the sizes of the tensors. The reader is our own, because a file may come from anywhere: for any bytes the result is a
// value or an error with the reason, after bounded work (at most kGgufHeadBytesMax bytes read, small values kept). Files on
// which the library would end the process are refused here, before the library opens them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/sampling_fields.h"

namespace uma::llm {

inline constexpr std::uint64_t kGgufHeadBytesMax = 256ul << 20;  // Metadata and the list of tensors.

// The architecture of Stable Diffusion's files, which do not state one, and the names of their network's tensors.
inline constexpr const char* kDiffusionArchitecture = "stable-diffusion";
inline constexpr const char* kDiffusionPrefix = "model.diffusion_model.";
// GgufTensor::type of a tensor whose numbers the library does not read.
inline constexpr std::uint32_t kTypeNotRead = 0xffff'ffff;

// The kind of file that is expected. A projector is read as a model. picture: a model that draws pictures.
enum class GgufKind : std::uint8_t { model, adapter, picture };

// The inputs that a projector encodes.
struct Encoders {
  bool images = false;
  bool audio = false;
};

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> sizes;  // 1 to 4 dimensions, none of them 0.
  std::uint32_t type = 0;            // The number of the library's type.
  std::uint64_t offset = 0;          // From GgufHeader::data_offset on.
  std::uint64_t bytes = 0;
};

struct LayerBytes {
  std::uint64_t all = 0;
  std::uint64_t experts = 0;  // The part of it for the experts of a mixture.

  LayerBytes& operator+=(const LayerBytes& other) {
    all += other.all;
    experts += other.experts;
    return *this;
  }
};

// A number is 0 if the file does not state it. Numbers of a model's shape come from the keys of its architecture
// ("llama.block_count").
struct GgufHeader {
  std::uint32_t version = 0;
  std::uint64_t pairs_count = 0;
  std::uint64_t tensors_count = 0;
  std::uint64_t data_offset = 0;  // Position of the first tensor.

  std::string architecture;
  std::string name;         // general.name, cut to 256 bytes.
  std::string base_name;    // general.basename, for example "Qwen3".
  std::string finetune;     // For example "Instruct-2507".
  std::string size_label;   // For example "7B".
  SamplingValues sampling;  // The valid values of general.sampling.*.
  std::optional<std::int64_t> file_type;
  std::int64_t context_length = 0;
  std::int64_t rope_original_length = 0;  // The context before the scaling of positions that the file states.
  std::int64_t block_count = 0;
  std::int64_t embedding_length = 0;
  std::int64_t feed_forward_length = 0;  // Maximum over all layers.
  std::int64_t head_count = 0;           // Maximum over all layers.
  std::int64_t head_count_kv_sum = 0;    // Sum over all layers.
  std::int64_t key_length = 0;           // Size of one head.
  std::int64_t value_length = 0;
  std::int64_t vocabulary_size = 0;
  std::int64_t expert_count = 0;
  std::int64_t expert_used_count = 0;
  std::int64_t sliding_window = 0;
  std::int64_t state_bytes = 0;                 // Bytes per sequence in layers that keep states.
  std::optional<std::int64_t> pooling_type;     // 0 none, 1 mean, 2 first token, 3 last token, 4 rank.
  std::optional<bool> causal_attention;         // False: an encoder.
  std::optional<std::int64_t> projection_size;  // For a projector: the embedding length of a matching model.
  Encoders encoders;                            // Encoders of a projector.
  bool has_chat_template = false;

  std::int64_t split_count = 1;  // Number of files of the model.
  std::int64_t split_index = 0;  // Index of this file, from 0.

  std::uint64_t weight_bytes = 0;       // Tensors of this file.
  std::uint64_t expert_bytes = 0;       // The part of weight_bytes for the experts of a mixture.
  std::uint64_t token_bytes = 0;        // The part of weight_bytes for the token embeddings.
  std::vector<LayerBytes> layer_bytes;  // The part of weight_bytes for each layer, without the input and the output.
  std::uint64_t output_bytes = 0;       // The part of weight_bytes that computes the logits; 0: the token embeddings do.
  std::uint64_t parameters = 0;         // Tensors of this file.

  std::vector<GgufTensor> tensors;  // Tensors of an adapter or a model that draws pictures; else empty.
  // The keys of "uma-picture" without that prefix: numbers, and the words that it knows.
  std::map<std::string, double> picture_numbers;
  std::vector<std::string> picture_words;

  [[nodiscard]] bool has_output() const { return output_bytes > 0; }
  // Weights of each layer and, as the last one, of what computes the logits: what `gpu_layers` counts. Without the experts of
  // the first `without_experts` layers.
  [[nodiscard]] std::vector<std::uint64_t> layer_weights(std::int32_t without_experts = 0) const;
  // A projector ("mmproj") has image or audio encoders for a text model and is not a model itself.
  [[nodiscard]] bool is_projector() const { return architecture == "clip"; }
  // Readers of their own check the rest of such files (picture_file.h, diffusion_file.h).
  [[nodiscard]] bool draws_pictures() const { return architecture == "uma-picture" || is_diffusion(); }
  [[nodiscard]] bool is_diffusion() const { return architecture == kDiffusionArchitecture; }
};

// Reads up to `into.size()` bytes at `offset` and returns the number of bytes read.
using ReadAt = std::function<std::size_t(std::uint64_t offset, std::span<std::byte> into)>;

// Errors: E_MODEL_002 with the reason and the position, without the file's name.
[[nodiscard]] Expected<GgufHeader> read_gguf_header(std::uint64_t file_bytes, const ReadAt& read,
                                                    GgufKind kind = GgufKind::model);
// Gives the bytes of a regular file to `parse`. An error begins with the path; E_IO_001 if the file is there and cannot be
// read.
[[nodiscard]] Expected<GgufHeader> read_head_of_file(
    const std::string& path, const std::function<Expected<GgufHeader>(std::uint64_t file_bytes, const ReadAt& read)>& parse);
// Reads a regular file, with the errors of read_head_of_file().
[[nodiscard]] Expected<GgufHeader> read_gguf_header(const std::string& path, GgufKind kind = GgufKind::model);

}  // namespace uma::llm
