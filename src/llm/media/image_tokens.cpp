#include "llm/media/image_tokens.h"

#include <string>

#include <xxhash.h>

namespace uma::llm {

Token image_token(std::string_view image, std::string_view projector, std::int32_t row) {
  const std::string name = std::string(image) + '|' + std::string(projector);
  const XXH64_hash_t hash = XXH3_64bits_withSeed(name.data(), name.size(), static_cast<XXH64_hash_t>(row));
  return kImageTokensBegin + static_cast<Token>(hash % kImageTokensBegin);
}

}  // namespace uma::llm
