// Tokenizes texts that chat templates have written. What stands between two control tokens of the template is tokenized as one
// text, as models see it in training and as they write it, also where a user's text meets the template's. Text of users never
// becomes a control token. Pure; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "core/prompt_outline.h"
#include "core/request.h"
#include "jinja/value.h"
#include "llm/model.h"

namespace uma::chat {

// Returns the tokens of the image with this id (MessageImage::id). Called on any thread; may block on the disk.
using ImageTokens = std::function<Expected<std::vector<Token>>(const std::string& id)>;

// The tokens of a text. Where a token's bytes are not those of the text, as with tokenizers that normalize, places are near.
struct PlacedTokens {
  std::vector<Token> tokens;
  std::vector<std::size_t> ends;  // End of each token, in bytes of the text; ascending.

  void push_back(Token token, std::size_t end) {
    tokens.push_back(token);
    ends.push_back(end);
  }
  // The number of tokens that are wholly before byte `at`.
  [[nodiscard]] std::size_t count_before(std::size_t at) const;
  // The end of the tokens that have a byte before `at`.
  [[nodiscard]] std::size_t end_of(std::size_t at) const;
};

// Says where each of these tokens comes from. `begin` is the byte of `text` at which they begin, `first` the place of the first
// one in its chain, and `messages` are those that the text was written from.
[[nodiscard]] PromptOutline outline_of(const jinja::Text& text, const PlacedTokens& placed, std::size_t begin,
                                       std::size_t first, std::span<const ChatMessage> messages);

class PromptTokenizer {
 public:
  // `images` is null if the model takes no images. The vocabulary outlives the tokenizer.
  PromptTokenizer(const llm::Vocab& vocab, ImageTokens images);

  // Appends the tokens of a part of the text. Errors: E_MODEL_003 for an image, those of the tokenizer.
  [[nodiscard]] Expected<Unit> append(const jinja::Text& text, std::size_t begin, std::size_t end, PlacedTokens& placed) const;
  // The placeholder of an image in a user's text. It is random, so a user's text cannot contain it.
  [[nodiscard]] std::string image_mark(const std::string& id) const { return image_mark_ + id + kImageMarkEnd; }
  [[nodiscard]] bool begins_with_image(std::string_view text) const { return text.starts_with(image_mark_); }

 private:
  class Segment;
  [[nodiscard]] Expected<Unit> append_template(std::string_view text, std::size_t at, Segment& segment) const;
  [[nodiscard]] Expected<Unit> append_input(std::string_view text, std::size_t at, Segment& segment) const;

  static constexpr char kImageMarkEnd = 'z';  // Ids have digits and the letters a to f.

  const llm::Vocab& vocab_;
  const ImageTokens images_;
  const std::string image_mark_;  // Followed by the image's id.
};

}  // namespace uma::chat
