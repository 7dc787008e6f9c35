// Turns the texts of embedding and reranking requests into what is computed, and what was computed into what is answered. Text
// of users never becomes special tokens; what the model wants around it does. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/embedding.h"
#include "core/error.h"
#include "llm/embedding.h"
#include "llm/model.h"

namespace uma::capability {

// What is computed for a request. Parts of one input follow each other.
struct EmbedTexts {
  struct Text {
    std::vector<Token> tokens;
    std::size_t input = 0;  // of the request
  };
  std::vector<Text> texts;
  std::int64_t tokens = 0;  // of all

  void add(std::vector<Token> text, std::size_t input);
};

// How one model reads texts. `tasks`: the prefix of each task that it knows by name.
class TextEmbedder {
 public:
  TextEmbedder(std::shared_ptr<const llm::Model> model, const llm::EmbeddingShape& shape,
               std::map<std::string, std::string> tasks);

  [[nodiscard]] const llm::Model& model() const { return *model_; }
  [[nodiscard]] const llm::EmbeddingShape& shape() const { return shape_; }

  // Errors: E_MODEL_003 for a model of the other kind; E_PROTO_003 for a task, tokens or a number of dimensions that the model
  // does not have, and for a text without tokens; E_LIMIT_001 for one that is too long.
  [[nodiscard]] Expected<EmbedTexts> texts_of(const EmbedRequest& request) const;
  // One per document. Errors: likewise.
  [[nodiscard]] Expected<EmbedTexts> texts_of(const RerankRequest& request) const;

  // Without the model's name. `outputs`: of the request's texts, one after the other. Errors: E_RUNTIME_001 where the model has
  // computed no numbers.
  [[nodiscard]] Expected<EmbedResult> result_of(const EmbedRequest& request, const EmbedTexts& texts,
                                                std::span<const float> outputs) const;
  [[nodiscard]] Expected<RerankResult> result_of(const RerankRequest& request, const EmbedTexts& texts,
                                                 std::span<const float> outputs) const;

 private:
  // Of a text, possibly behind others, and of the template's own words.
  struct TemplatePart {
    enum class Kind : std::uint8_t { words, query, document } kind = Kind::words;
    std::string words;
  };
  struct Query {
    std::string_view text;
    std::vector<Token> tokens;
    bool is_plain = true;  // it has no text of a special token
  };

  [[nodiscard]] Expected<Unit> check_capability(Capability wanted) const;
  [[nodiscard]] Error too_long(std::string_view what, std::size_t index, std::size_t tokens, std::string_view ways) const;
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text) const;
  [[nodiscard]] Expected<bool> is_plain(std::string_view text, std::span<const Token> tokens) const;
  [[nodiscard]] Expected<Unit> add_input(const EmbedRequest& request, std::size_t index, EmbedTexts& texts) const;
  [[nodiscard]] Expected<std::vector<Token>> pair_of(const Query& query, std::string_view document) const;
  [[nodiscard]] Expected<std::vector<Token>> template_of(const Query& query, std::string_view document,
                                                         std::span<const Token> document_tokens) const;
  [[nodiscard]] Expected<std::vector<Token>> in_parts(const Query& query, std::span<const Token> document) const;

  const std::shared_ptr<const llm::Model> model_;  // shared: jobs use it that outlive a router's interest in it
  const llm::EmbeddingShape shape_;
  const std::map<std::string, std::string> tasks_;
  std::vector<TemplatePart> template_;  // of pairs; empty: the model's frame
};

}  // namespace uma::capability
