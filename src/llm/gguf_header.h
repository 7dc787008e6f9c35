// What a GGUF file says of its model, without loading it: the metadata that choosing, listing and paying for a model take, and
// the sizes of its tensors. The reader is our own, because a file comes from anywhere: whatever its bytes are, the answer is a
// value or an error that says what is wrong, after bounded work (kGgufHeadBytesMax read, small values kept). What the library
// would end the process over is refused here, before it sees the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace uma::llm {

inline constexpr std::uint64_t kGgufHeadBytesMax = 256ul << 20;  // of metadata and the list of tensors

// Numbers are 0 where the file does not say. Those of a model's shape are of its architecture's keys ("llama.block_count").
struct GgufHeader {
  std::uint32_t version = 0;
  std::uint64_t pairs_count = 0;
  std::uint64_t tensors_count = 0;
  std::uint64_t data_offset = 0;  // of the first tensor

  std::string architecture;
  std::string name;        // general.name, at most 256 bytes of it
  std::string size_label;  // "7B"
  std::optional<std::int64_t> file_type;
  std::int64_t context_length = 0;
  std::int64_t block_count = 0;
  std::int64_t embedding_length = 0;
  std::int64_t feed_forward_length = 0;  // the largest of all layers
  std::int64_t head_count = 0;           // the largest of all layers
  std::int64_t head_count_kv_sum = 0;    // of all layers together
  std::int64_t key_length = 0;           // of one head
  std::int64_t value_length = 0;
  std::int64_t vocabulary_size = 0;
  std::int64_t expert_count = 0;
  std::int64_t expert_used_count = 0;
  std::int64_t sliding_window = 0;
  std::int64_t state_bytes = 0;                 // that layers with states keep of one sequence
  std::optional<std::int64_t> pooling_type;     // 0 none, 1 mean, 2 first token, 3 last token, 4 rank
  std::optional<bool> causal_attention;         // false: an encoder
  std::optional<std::int64_t> projection_size;  // of a projector: the embedding length of the models it fits
  bool has_chat_template = false;

  std::int64_t split_count = 1;  // files of the model
  std::int64_t split_index = 0;  // of this one, from 0

  std::uint64_t weight_bytes = 0;  // of this file's tensors
  std::uint64_t expert_bytes = 0;  // of them, of a mixture's experts
  std::uint64_t token_bytes = 0;   // of them, of the tokens' rows
  bool has_output = false;         // logits are not computed with these, but with weights of their own
  std::uint64_t parameters = 0;    // of this file's tensors

  // A file of image or audio encoders that goes with a text model ("mmproj"): no model of its own.
  [[nodiscard]] bool is_projector() const { return architecture == "clip"; }
};

// Reads up to `into.size()` bytes at `offset`; returns how many there were.
using ReadAt = std::function<std::size_t(std::uint64_t offset, std::span<std::byte> into)>;

// Errors: E_MODEL_002 with what is wrong and where, without the file's name.
[[nodiscard]] Expected<GgufHeader> read_gguf_header(std::uint64_t file_bytes, const ReadAt& read);
// Of a regular file; the error begins with its path.
[[nodiscard]] Expected<GgufHeader> read_gguf_header(const std::string& path);

// The name of file `index` (from 0) of a model in several: of "model-00001-of-00003.gguf" the others are found by it. Nothing:
// the name is not of that form.
struct SplitName {
  std::string stem;  // "model", with its folder
  std::int64_t index = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::string file(std::int64_t of_index) const;
};
[[nodiscard]] std::optional<SplitName> parse_split_name(std::string_view path);

// The header of a whole model: that of `path`, and of all other files of a model in several, whose weights are added. Errors:
// as read_gguf_header, or a part that is missing, belongs to another model, or is not the first.
[[nodiscard]] Expected<GgufHeader> read_model_header(const std::string& path);

}  // namespace uma::llm
