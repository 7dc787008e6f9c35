// The weights of a picture model in memory: on its device, or on the CPU in the layouts in which it multiplies fastest.
// Internal to llm, because it includes the library's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include "core/error.h"
#include "llm/picture/picture_model.h"

namespace uma::llm {

class PictureWeights {
 public:
  // Null: the CPU.
  PictureWeights(ggml_backend_dev_t device, std::size_t tensors_max);

  // Describes a tensor with 1 to 4 sizes. `is_matrix`: it is only multiplied with, by mul_mat.
  [[nodiscard]] ggml_tensor* add(ggml_type type, std::span<const std::int64_t> sizes, bool is_matrix);
  // Takes memory for all of them. False: there is none.
  [[nodiscard]] bool allocate();
  // Counts the memory instead, and makes graphs of them measurable.
  [[nodiscard]] PictureBytes measure();
  // After allocate().
  [[nodiscard]] PictureBytes bytes() const;

 private:
  struct Part {  // In one kind of memory.
    ggml_context_ptr context;
    ggml_backend_buffer_type_t type = nullptr;
    ggml_backend_buffer_ptr buffer{};
  };
  [[nodiscard]] ggml_context* in(ggml_backend_buffer_type_t type);

  ggml_backend_dev_t home_;
  const std::size_t tensors_max_;
  std::vector<ggml_backend_buffer_type_t> layouts_;  // The best one first.
  std::vector<Part> parts_;
};

}  // namespace uma::llm
