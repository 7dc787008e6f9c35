#include "llm/detokenizer.h"

#include "base/utf8.h"

namespace uma::llm {

void Detokenizer::push(Token token, std::string& out) {
  pending_ += vocab_.piece(token);
  const std::size_t whole = pending_.size() - incomplete_utf8_tail(pending_);
  const std::string_view text = std::string_view(pending_).substr(0, whole);
  if (is_utf8(text)) {
    out += text;
  } else {
    out += replace_invalid_utf8(text);
  }
  pending_.erase(0, whole);
}

void Detokenizer::finish(std::string& out) {
  out += replace_invalid_utf8(pending_);
  pending_.clear();
}

}  // namespace uma::llm
