#include "llm/file/adapter_file.h"

#include <algorithm>
#include <cstddef>
#include <fcntl.h>
#include <format>
#include <map>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ggml.h>

#include "base/system/unique_fd.h"

namespace uma::llm {
namespace {

constexpr std::string_view kFirst = ".lora_a";
constexpr std::string_view kSecond = ".lora_b";
constexpr std::string_view kTokens = "token_embd.weight";

// The two factors of what is added to a tensor of the model.
struct Factors {
  const GgufTensor* first = nullptr;
  const GgufTensor* second = nullptr;
};

bool is_supported(std::uint32_t type) {
  return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0;
}

// The library ignores these.
bool is_ignored(const GgufTensor& tensor) {
  return tensor.name.ends_with("_norm.weight");
}

std::unexpected<Error> refuse_tensor(const GgufTensor& tensor, std::string_view why) {
  return fail(ErrorCode::model_load, std::format("tensor {} {}", tensor.name, why));
}

Expected<Unit> check_tensor(const GgufTensor& tensor) {
  if (tensor.name.contains("exps.")) return refuse_tensor(tensor, "is for the experts of a mixture, which is not supported");
  const bool is_matrix = tensor.sizes.size() >= 2 &&
                         std::ranges::all_of(tensor.sizes.begin() + 2, tensor.sizes.end(), [](auto size) { return size == 1; });
  if (!is_matrix) return refuse_tensor(tensor, "is not a matrix");
  if (!is_supported(tensor.type)) {
    return refuse_tensor(tensor, std::format("has the type {}: an adapter has f32, f16, bf16 or q8_0", tensor.type));
  }
  return Unit{};
}

// The library multiplies the factors without comparing them for the embeddings of tokens.
Expected<Unit> check_factors(const std::string& name, const Factors& factors) {
  if (factors.first == nullptr || factors.second == nullptr) {
    return fail(ErrorCode::model_load, std::format("tensor {} has one factor instead of two: {} is missing", name,
                                                   factors.first == nullptr ? kFirst : kSecond));
  }
  const std::uint64_t rank = name == kTokens ? factors.first->sizes[0] : factors.first->sizes[1];
  if (rank == factors.second->sizes[0]) return Unit{};
  return fail(ErrorCode::model_load,
              std::format("the factors of tensor {} have the ranks {} and {}", name, rank, factors.second->sizes[0]));
}

}  // namespace

Expected<Unit> check_adapter_tensors(const GgufHeader& adapter) {
  if (adapter.weight_bytes > kAdapterBytesMax) {
    return fail(ErrorCode::model_load,
                std::format("its tensors take {} bytes, but the limit is {}", adapter.weight_bytes, kAdapterBytesMax));
  }
  std::map<std::string, Factors> pairs;
  for (const GgufTensor& tensor : adapter.tensors) {
    if (is_ignored(tensor)) continue;
    const bool is_first = tensor.name.ends_with(kFirst);
    if (!is_first && !tensor.name.ends_with(kSecond)) {
      return refuse_tensor(tensor, std::format("ends neither with {} nor with {}", kFirst, kSecond));
    }
    if (auto checked = check_tensor(tensor); !checked) return checked;
    Factors& factors = pairs[tensor.name.substr(0, tensor.name.size() - kFirst.size())];
    (is_first ? factors.first : factors.second) = &tensor;
  }
  if (pairs.empty()) return fail(ErrorCode::model_load, "it changes no tensor of a model");
  for (const auto& [name, factors] : pairs) {
    if (auto checked = check_factors(name, factors); !checked) return checked;
  }
  return Unit{};
}

Expected<GgufHeader> read_adapter_header(const std::string& path) {
  auto header = read_gguf_header(path, GgufKind::adapter);
  if (!header) return header;
  if (const auto checked = check_adapter_tensors(*header); !checked) {
    return fail(ErrorCode::model_load, std::format("{}: {}", path, checked.error().message));
  }
  return header;
}

Expected<Unit> check_adapter_fits(const GgufHeader& adapter, const GgufHeader& model) {
  if (adapter.architecture != model.architecture) {
    return fail(ErrorCode::model_load, std::format("it is for models of the architecture {}, but the model is {}",
                                                   adapter.architecture, model.architecture));
  }
  // A model without a separate output multiplies by the embeddings, for which the library would take the factors, too, in the
  // wrong order.
  const bool has_tokens =
      std::ranges::any_of(adapter.tensors, [](const GgufTensor& tensor) { return tensor.name.starts_with(kTokens); });
  if (has_tokens && !model.has_output()) {
    return fail(ErrorCode::model_load,
                std::format("it changes {}, which this model also uses as its output: that is not supported", kTokens));
  }
  return Unit{};
}

Expected<Unit> check_adapter_values(const std::string& path, const GgufHeader& adapter) {
  constexpr std::size_t kPart = std::size_t{34} << 15;  // About a MiB of whole blocks of each supported type.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return fail(ErrorCode::model_load, std::format("{}: the file cannot be read", path));
  std::vector<std::byte> part(kPart);
  for (const GgufTensor& tensor : adapter.tensors) {
    if (is_ignored(tensor)) continue;
    for (std::uint64_t at = 0; at < tensor.bytes; at += kPart) {
      const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kPart, tensor.bytes - at));
      const auto offset = static_cast<off_t>(adapter.data_offset + tensor.offset + at);
      if (::pread(file.get(), part.data(), bytes, offset) != static_cast<ssize_t>(bytes)) {
        return fail(ErrorCode::model_load, std::format("{}: tensor {} cannot be read", path, tensor.name));
      }
      if (!ggml_validate_row_data(static_cast<ggml_type>(tensor.type), part.data(), bytes)) {
        return fail(ErrorCode::model_load, std::format("{}: tensor {} has numbers that are not finite", path, tensor.name));
      }
    }
  }
  return Unit{};
}

}  // namespace uma::llm
