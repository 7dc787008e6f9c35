#include "llm/picture/picture_weights.h"

#include <algorithm>
#include <utility>

#include "llm/device/llama_devices.h"
#include "llm/picture/graph_runner.h"

namespace uma::llm {
namespace {

ggml_backend_dev_t cpu() {
  return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

// Whether the CPU multiplies a matrix of this type and these sizes in the layout.
bool multiplies_in(ggml_backend_buffer_type_t layout, ggml_type type, std::int64_t columns, std::int64_t rows) {
  constexpr std::int64_t kSome = 64;
  const ggml_context_ptr context(ggml_init({.mem_size = 4 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(layout, 0));
  ggml_tensor* const matrix = ggml_new_tensor_2d(context.get(), type, columns, rows);
  matrix->buffer = empty.get();
  ggml_tensor* const product =
      ggml_mul_mat(context.get(), matrix, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns, kSome));
  return empty != nullptr && ggml_backend_dev_supports_op(cpu(), product);
}

}  // namespace

PictureWeights::PictureWeights(ggml_backend_dev_t device, std::size_t tensors_max)
    : home_(device != nullptr ? device : cpu()), tensors_max_(tensors_max) {
  if (device == nullptr) layouts_ = cpu_layouts();
}

ggml_tensor* PictureWeights::add(ggml_type type, std::span<const std::int64_t> sizes, bool is_matrix) {
  // With rows of 32 numbers AMX computes wrong products of many rows (docs/LIBLLAMA.md).
  constexpr std::int64_t kColumnsMin = 64;
  auto* memory = ggml_backend_dev_buffer_type(home_);
  if (is_matrix && sizes[0] >= kColumnsMin) {
    const auto layout =
        std::ranges::find_if(layouts_, [&](auto* each) { return multiplies_in(each, type, sizes[0], sizes[1]); });
    if (layout != layouts_.end()) memory = *layout;
  }
  return ggml_new_tensor(in(memory), type, static_cast<int>(sizes.size()), sizes.data());
}

// The context of the tensors in this kind of memory.
ggml_context* PictureWeights::in(ggml_backend_buffer_type_t type) {
  const auto known = std::ranges::find(parts_, type, &Part::type);
  if (known != parts_.end()) return known->context.get();
  ggml_context_ptr context(
      ggml_init({.mem_size = tensors_max_ * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  return parts_.emplace_back(std::move(context), type).context.get();
}

bool PictureWeights::allocate() {
  for (Part& part : parts_) {
    part.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(part.context.get(), part.type));
    if (part.buffer == nullptr) return false;
    ggml_backend_buffer_set_usage(part.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  }
  return true;
}

PictureBytes PictureWeights::measure() {
  PictureBytes bytes;
  for (Part& part : parts_) {
    add_bytes(bytes, home_, ggml_backend_alloc_ctx_tensors_from_buft_size(part.context.get(), part.type));
    // An empty buffer says where the weights will be; without one the scheduler would want memory for them.
    part.buffer.reset(ggml_backend_buft_alloc_buffer(part.type, 0));
    ggml_backend_buffer_set_usage(part.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (ggml_tensor* tensor = ggml_get_first_tensor(part.context.get()); tensor != nullptr;
         tensor = ggml_get_next_tensor(part.context.get(), tensor)) {
      tensor->buffer = part.buffer.get();
    }
  }
  return bytes;
}

PictureBytes PictureWeights::bytes() const {
  PictureBytes bytes;
  for (const Part& part : parts_) add_bytes(bytes, home_, ggml_backend_buffer_get_size(part.buffer.get()));
  return bytes;
}

}  // namespace uma::llm
