// Converts embedding and reranking requests to tokens, and the outputs of the model to results. Text of users never becomes
// special tokens; only the model's own frame has them. Pure, except for the given InputFormat; any thread.
#pragma once

#include <cstdint>
#include <functional>
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

namespace uma::llm {

// The texts to compute for one request. The parts of one input are consecutive.
struct EmbedTexts {
  struct Text {
    std::vector<Token> tokens;
    std::size_t input = 0;  // Index of the input in the request.
  };
  std::vector<Text> texts;
  std::int64_t tokens = 0;  // Sum over all texts.

  void add(std::vector<Token> text, std::size_t input);
};

// How the inputs of a model that also reads images become tokens.
struct InputFormat {
  // Returns the tokens of a message of the user, with its images, behind an instruction or a prefix that may be empty.
  using Write = std::function<Expected<std::vector<Token>>(const std::string& instruction, const ChatMessage& message)>;

  Write write{};         // Null: the model reads texts only, each in its frame.
  bool is_chat = false;  // `write` applies the model's chat template, which begins with BOS. Then the task is an instruction.
  std::string instruction{};  // For a chat template: the instruction of requests without a task; empty: the template's own.
};

// Tokenizes texts for one model. `tasks` maps each task name to its prefix, or its instruction.
class TextEmbedder {
 public:
  TextEmbedder(std::shared_ptr<const Model> model, const EmbeddingShape& shape, std::map<std::string, std::string> tasks,
               InputFormat format = {});

  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] const EmbeddingShape& shape() const { return shape_; }
  // Whether inputs may have images.
  [[nodiscard]] bool reads_images() const { return shape_.reads_images && format_.write != nullptr; }

  // Errors: E_MODEL_003 for a model without this capability; E_PROTO_003 for an unknown task, tokens outside the vocabulary, a
  // wrong number of dimensions, or a text without tokens; E_LIMIT_001 for a text that is too long.
  [[nodiscard]] Expected<EmbedTexts> texts_of(const EmbedRequest& request) const;
  // Makes one text per document. Errors: as for EmbedRequest.
  [[nodiscard]] Expected<EmbedTexts> texts_of(const RerankRequest& request) const;

  // Makes the result, without the model's name. `outputs` has the outputs of all texts, one after the other. Errors:
  // E_RUNTIME_001 if an output is not finite.
  [[nodiscard]] Expected<EmbedResult> result_of(const EmbedRequest& request, const EmbedTexts& texts,
                                                std::span<const float> outputs) const;
  [[nodiscard]] Expected<RerankResult> result_of(const RerankRequest& request, const EmbedTexts& texts,
                                                 std::span<const float> outputs) const;

 private:
  // A part of the rerank template: fixed words, or the place of a text.
  struct TemplatePart {
    enum class Kind : std::uint8_t { words, query, document } kind = Kind::words;
    std::string words;
  };
  struct Query {
    std::string_view text;
    std::vector<Token> tokens;
    bool is_plain = true;  // The text contains no special token.
  };

  [[nodiscard]] Expected<Unit> check_capability(Capability wanted) const;
  [[nodiscard]] Error too_long(std::string_view what, std::size_t index, std::size_t tokens, std::string_view ways) const;
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text) const;
  [[nodiscard]] Expected<bool> is_plain(std::string_view text, std::span<const Token> tokens) const;
  // The tokens of an input, and those of the frame around the part of them that may be cut.
  struct Framed {
    std::vector<Token> before;
    std::vector<Token> text;
    std::vector<Token> after;
  };
  [[nodiscard]] Expected<Framed> text_input(const EmbedRequest& request, std::size_t index) const;
  [[nodiscard]] Expected<Framed> token_input(const EmbedRequest& request, std::size_t index) const;
  [[nodiscard]] Expected<Framed> chat_input(const std::string& instruction, const ChatMessage& message) const;
  [[nodiscard]] Expected<Unit> add_input(const EmbedRequest& request, std::size_t index, EmbedTexts& texts) const;
  [[nodiscard]] Expected<std::vector<Token>> pair_of(const Query& query, std::string_view document) const;
  [[nodiscard]] Expected<std::vector<Token>> template_of(const Query& query, std::string_view document,
                                                         std::span<const Token> document_tokens) const;
  [[nodiscard]] Expected<std::vector<Token>> in_parts(const Query& query, std::span<const Token> document) const;

  const std::shared_ptr<const Model> model_;  // Shared, because jobs may outlive the router's entry.
  const EmbeddingShape shape_;
  const std::map<std::string, std::string> tasks_;
  const InputFormat format_;
  std::vector<TemplatePart> template_;  // The template of a pair; empty: the model's text frame.
};

}  // namespace uma::llm
