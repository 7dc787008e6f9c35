// Conversions between texts and tokens for clients (core/text_conversion.h). Owned by the router's thread; the work is done by
// the work pool.
#pragma once

#include "core/error.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/text_conversion.h"
#include "core/work/task.h"
#include "engine/router/router_parts.h"

namespace uma::engine {

// Each command is described in core::Service. Errors: those of a lease of a chat model, E_PROTO_003 for an unknown token,
// E_LIMIT_001, and E_LIMIT_003 for a result that needs too much memory.
class TextConversions {
 public:
  explicit TextConversions(const RouterParts& parts) : parts_(parts) {}

  [[nodiscard]] Task<Expected<TokenizedText>> tokenize(TenantId tenant, TokenizeRequest request);
  [[nodiscard]] Task<Expected<ConvertedText>> detokenize(TenantId tenant, DetokenizeRequest request);
  [[nodiscard]] Task<Expected<ConvertedText>> format_chat(TenantId tenant, GenerateRequest request);

 private:
  [[nodiscard]] Expected<Unit> admit(std::size_t bytes) const;

  const RouterParts parts_;
};

}  // namespace uma::engine
