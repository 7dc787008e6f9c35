#include "llm/file/gguf_files.h"

#include <algorithm>
#include <format>

#include "core/model_file_name.h"

namespace uma::llm {

Expected<GgufHeader> read_model_header(const std::string& path) {
  auto header = read_gguf_header(path);
  if (!header || header->split_count == 1) return header;
  const auto split = parse_split_name(path);
  if (!split || split->count != header->split_count || split->index != header->split_index) {
    return fail(ErrorCode::model_load,
                std::format("{}: this is file {} of {} of a model, so its name must end in -{:05}-of-{:05}.gguf", path,
                            header->split_index + 1, header->split_count, header->split_index + 1, header->split_count));
  }
  if (split->index != 0) {
    return fail(ErrorCode::model_load, std::format("{}: load the first file of the model instead, {}", path, split->file(0)));
  }
  for (std::int64_t i = 1; i < split->count; ++i) {
    const auto part = read_gguf_header(split->file(i));
    if (!part) return std::unexpected(part.error());
    if (part->split_count != split->count || part->split_index != i) {
      return fail(ErrorCode::model_load, std::format("{}: the metadata calls this file {} of {}", split->file(i),
                                                     part->split_index + 1, part->split_count));
    }
    header->tensors_count += part->tensors_count;
    header->weight_bytes += part->weight_bytes;
    header->expert_bytes += part->expert_bytes;
    header->token_bytes += part->token_bytes;
    header->output_bytes += part->output_bytes;
    header->layer_bytes.resize(std::max(header->layer_bytes.size(), part->layer_bytes.size()));
    for (std::size_t layer = 0; layer < part->layer_bytes.size(); ++layer)
      header->layer_bytes[layer] += part->layer_bytes[layer];
    header->parameters += part->parameters;
  }
  return header;
}

}  // namespace uma::llm
