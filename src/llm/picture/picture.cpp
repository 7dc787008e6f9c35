#include "llm/picture/picture.h"

#include <format>

#include "base/sha256.h"

namespace uma::llm {

std::string pixels_hash(const Picture& picture) {
  Sha256 hash;
  hash.add(std::format("{} x {} RGB\n", picture.width, picture.height));
  hash.add({reinterpret_cast<const char*>(picture.levels.data()), picture.levels.size()});
  return hash.hex();
}

}  // namespace uma::llm
