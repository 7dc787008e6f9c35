#include "llm/file/gguf_files.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <format>
#include <system_error>

namespace uma::llm {
namespace {

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string SplitName::file(std::int64_t of_index) const {
  return std::format("{}-{:05}-of-{:05}.gguf", stem, of_index + 1, count);
}

std::optional<SplitName> parse_split_name(std::string_view path) {
  constexpr std::size_t kDigits = 5;
  constexpr std::string_view kOf = "-of-";
  constexpr std::string_view kExtension = ".gguf";
  constexpr std::size_t kTail = 1 + kDigits + kOf.size() + kDigits + kExtension.size();
  if (path.size() <= kTail || !path.ends_with(kExtension)) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  const auto index = number_in(tail.substr(1, kDigits));
  const auto count = number_in(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || !index || !count) return std::nullopt;
  if (*index < 1 || *count < 1 || *index > *count) return std::nullopt;
  return SplitName{.stem = std::string(path.substr(0, path.size() - kTail)), .index = *index - 1, .count = *count};
}

std::vector<std::string> model_files(const std::string& path) {
  const auto split = parse_split_name(path);
  if (!split) return {path};
  std::vector<std::string> files;
  for (std::int64_t i = 0; i < split->count; ++i) files.push_back(split->file(i));
  return files;
}

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
