#include "core/picture.h"

#include <format>

namespace uma {

std::string parameters_of(const PictureRequest& request, const PictureReceipt& receipt, std::uint64_t seed) {
  std::string text = request.caption;
  if (!request.negative_caption.empty()) text += "\nNegative prompt: " + request.negative_caption;
  return text + std::format("\nSteps: {}, Sampler: Euler, CFG scale: {:g}, Seed: {}, Size: {}x{}, Model: {}", receipt.steps,
                            receipt.guidance, seed, receipt.width, receipt.height, receipt.model);
}

}  // namespace uma
