// Vocab on libllama. Internal to llm, because it includes the library's header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <llama.h>

#include "llm/model.h"
#include "llm/text_cuts.h"

namespace uma::llm {

class LlamaVocab final : public Vocab {
 public:
  // Reads every piece once. `adds_space_prefix` is the file's setting, because the model is loaded with the prefix disabled.
  static Expected<std::unique_ptr<LlamaVocab>> create(const llama_vocab* vocab, bool adds_space_prefix);

  [[nodiscard]] std::int32_t size() const override { return static_cast<std::int32_t>(piece_ends_.size()); }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const override;
  [[nodiscard]] std::string_view piece(Token token) const override;
  [[nodiscard]] std::span<const OrderedPiece> ordered_pieces() const override { return ordered_pieces_; }
  [[nodiscard]] bool is_end_of_generation(Token token) const override;
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return end_of_generation_; }
  [[nodiscard]] std::optional<Token> bos() const override { return bos_; }
  [[nodiscard]] bool adds_space_prefix() const override { return adds_space_prefix_; }
  [[nodiscard]] std::string text(Token token) const override;
  [[nodiscard]] bool is_user_defined(Token token) const override;
  [[nodiscard]] std::size_t token_bytes_max(bool parse_special) const override {
    // Others write many bytes as one unknown token.
    const auto type = llama_vocab_type(vocab_);
    if (type != LLAMA_VOCAB_TYPE_SPM && type != LLAMA_VOCAB_TYPE_BPE) return SIZE_MAX;
    return std::max(piece_bytes_max_, parse_special ? control_bytes_max_ : 0);
  }
  [[nodiscard]] std::optional<GapMarks> gap_marks() const override { return gap_marks_; }

 private:
  LlamaVocab(const llama_vocab* vocab, bool adds_space_prefix, const std::optional<TextCuts::Characters>& joined);

  // Appends the tokens of a part of a text.
  [[nodiscard]] Expected<Unit> tokenize_part(std::string_view text, bool parse_special, std::vector<Token>& tokens) const;

  const llama_vocab* vocab_;  // Owned by the model.
  bool adds_space_prefix_;
  const TextCuts cuts_with_specials_;  // For texts whose special tokens are parsed,
  const TextCuts cuts_;                // and for others.
  std::optional<Token> bos_;
  std::optional<GapMarks> gap_marks_;
  std::size_t piece_bytes_max_ = 1;
  std::size_t control_bytes_max_ = 0;
  std::vector<Token> end_of_generation_;
  std::string pieces_;                   // All pieces, one after the other.
  std::vector<std::size_t> piece_ends_;  // End of each token's piece in pieces_.
  std::vector<OrderedPiece> ordered_pieces_;
};

}  // namespace uma::llm
