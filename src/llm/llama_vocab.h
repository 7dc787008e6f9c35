// Vocab on libllama. Internal to llm, because it includes the library's header.
#pragma once

#include <string>
#include <vector>

#include <llama.h>

#include "llm/model.h"

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
  [[nodiscard]] std::size_t control_bytes_max() const override { return control_bytes_max_; }
  [[nodiscard]] std::optional<GapMarks> gap_marks() const override { return gap_marks_; }

 private:
  LlamaVocab(const llama_vocab* vocab, bool adds_space_prefix) : vocab_(vocab), adds_space_prefix_(adds_space_prefix) {}

  const llama_vocab* vocab_;  // Owned by the model.
  bool adds_space_prefix_;
  std::optional<Token> bos_;
  std::optional<GapMarks> gap_marks_;
  std::size_t control_bytes_max_ = 0;
  std::vector<Token> end_of_generation_;
  std::string pieces_;                   // All pieces, one after the other.
  std::vector<std::size_t> piece_ends_;  // End of each token's piece in pieces_.
  std::vector<OrderedPiece> ordered_pieces_;
};

}  // namespace uma::llm
