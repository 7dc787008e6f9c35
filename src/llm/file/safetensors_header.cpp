#include "llm/file/safetensors_header.h"

#include <algorithm>
#include <array>
#include <format>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <boost/system/error_code.hpp>

#include "base/text.h"
#include "json/field_reader.h"

namespace uma::llm {
namespace {

constexpr std::size_t kEntriesMax = 1u << 16;
constexpr std::size_t kNameBytesMax = 1024;
constexpr std::size_t kRankMax = 4;

struct ElementType {
  std::string_view name;
  std::uint64_t bytes;
  std::uint32_t type;  // The library's, or kTypeNotRead.
};
constexpr ElementType kTypes[] = {
    {"F32", 4, 0},
    {"F16", 2, 1},
    {"BF16", 2, 30},
    {"F64", 8, kTypeNotRead},
    {"F8_E4M3", 1, kTypeNotRead},
    {"F8_E5M2", 1, kTypeNotRead},
    {"I64", 8, kTypeNotRead},
    {"I32", 4, kTypeNotRead},
    {"I16", 2, kTypeNotRead},
    {"I8", 1, kTypeNotRead},
    {"U64", 8, kTypeNotRead},
    {"U32", 4, kTypeNotRead},
    {"U16", 2, kTypeNotRead},
    {"U8", 1, kTypeNotRead},
    {"BOOL", 1, kTypeNotRead},
};

std::unexpected<Error> refuse(std::string text) {
  return fail(ErrorCode::model_load, std::move(text));
}

// Whole numbers of an array; nullopt: it is none, or has others.
std::optional<std::vector<std::uint64_t>> numbers_of(const boost::json::value* value) {
  if (value == nullptr || !value->is_array()) return std::nullopt;
  std::vector<std::uint64_t> numbers;
  for (const boost::json::value& each : value->get_array()) {
    if (each.is_uint64()) {
      numbers.push_back(each.get_uint64());
    } else if (each.is_int64() && each.get_int64() >= 0) {
      numbers.push_back(static_cast<std::uint64_t>(each.get_int64()));
    } else {
      return std::nullopt;
    }
  }
  return numbers;
}

Expected<GgufTensor> tensor_of(std::string_view name, const boost::json::value& value, std::uint64_t data_bytes) {
  if (name.empty() || name.size() > kNameBytesMax) return refuse(std::format("a tensor has a name of {} bytes", name.size()));
  const boost::json::object* const entry = value.if_object();
  if (entry == nullptr) return refuse(std::format("the entry of tensor {} is no object", name));
  const boost::json::value* const dtype = entry->if_contains("dtype");
  if (dtype == nullptr || !dtype->is_string()) return refuse(std::format("tensor {} has no dtype", name));
  const std::string_view type_name = dtype->get_string();
  const auto type = std::ranges::find(kTypes, type_name, &ElementType::name);
  if (type == std::end(kTypes)) return refuse(std::format("tensor {} has the unknown dtype {}", name, type_name.substr(0, 32)));
  auto shape = numbers_of(entry->if_contains("shape"));
  const auto place = numbers_of(entry->if_contains("data_offsets"));
  if (!shape || shape->size() > kRankMax)
    return refuse(std::format("the shape of tensor {} is not a list of up to {} numbers", name, kRankMax));
  if (!place || place->size() != 2 || (*place)[0] > (*place)[1] || (*place)[1] > data_bytes)
    return refuse(std::format("tensor {} is not within the file", name));
  std::uint64_t bytes = type->bytes;
  for (const std::uint64_t size : *shape) {
    if (size == 0 || size > std::numeric_limits<std::int64_t>::max() / 8 / bytes)
      return refuse(std::format("tensor {} has the size {}", name, size));
    bytes *= size;
  }
  if (bytes != (*place)[1] - (*place)[0])
    return refuse(std::format("tensor {} has {} bytes, its shape needs {}", name, (*place)[1] - (*place)[0], bytes));
  if (shape->empty()) shape->push_back(1);
  std::ranges::reverse(*shape);
  return GgufTensor{
      .name = std::string(name), .sizes = *std::move(shape), .type = type->type, .offset = (*place)[0], .bytes = bytes};
}

}  // namespace

bool is_safetensors_name(std::string_view path) {
  return lower_ascii(path).ends_with(".safetensors");
}

Expected<GgufHeader> read_safetensors_header(std::uint64_t file_bytes, const ReadAt& read) {
  constexpr std::uint64_t kLengthBytes = 8;
  const auto take = [&](std::uint64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
      const std::size_t got = read(offset, into);
      if (got == 0) return false;
      offset += got;
      into = into.subspan(got);
    }
    return true;
  };
  std::array<std::byte, kLengthBytes> length_bytes{};
  if (file_bytes < kLengthBytes || !take(0, length_bytes)) return refuse("not a safetensors file: it is too short");
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<std::uint64_t>(length_bytes[i]);
  if (length < 2 || length > file_bytes - kLengthBytes) return refuse("not a safetensors file: its head has a wrong length");
  if (length > kSafetensorsHeadBytesMax)
    return refuse(std::format("its head of {} bytes is larger than {} MiB", length, kSafetensorsHeadBytesMax >> 20));
  std::string text(length, '\0');
  if (!take(kLengthBytes, std::as_writable_bytes(std::span(text)))) return refuse("its head cannot be read");
  boost::system::error_code problem;
  const boost::json::value value = json::parse(text, {}, problem);
  if (problem || !value.is_object()) return refuse("not a safetensors file: its head is no JSON object");
  GgufHeader header;
  header.data_offset = kLengthBytes + length;
  if (value.get_object().size() > kEntriesMax + 1)
    return refuse(std::format("it has {} tensors, more than {}", value.get_object().size(), kEntriesMax));
  for (const auto& [name, entry] : value.get_object()) {
    if (name == "__metadata__") continue;
    auto tensor = tensor_of(name, entry, file_bytes - header.data_offset);
    if (!tensor) return std::unexpected(tensor.error());
    std::uint64_t numbers = 1;
    for (const std::uint64_t size : tensor->sizes) numbers *= size;
    header.parameters += numbers;
    header.weight_bytes += tensor->bytes;
    if (tensor->name.starts_with(kDiffusionPrefix)) header.architecture = kDiffusionArchitecture;
    header.tensors.push_back(*std::move(tensor));
  }
  header.tensors_count = header.tensors.size();
  std::ranges::sort(header.tensors, {}, &GgufTensor::offset);
  for (std::size_t i = 1; i < header.tensors.size(); ++i) {
    const GgufTensor& before = header.tensors[i - 1];
    if (before.offset + before.bytes > header.tensors[i].offset)
      return refuse(std::format("the tensors {} and {} overlap", before.name, header.tensors[i].name));
  }
  return header;
}

Expected<GgufHeader> read_safetensors_header(const std::string& path) {
  return read_head_of_file(
      path, [](std::uint64_t file_bytes, const ReadAt& read) { return read_safetensors_header(file_bytes, read); });
}

}  // namespace uma::llm
