#include "llm/llama_vocab.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/endable_work.h"
#include "base/utf8.h"
#include "llm/llama_guard.h"

namespace uma::llm {
namespace {

std::optional<Token> known(llama_token token) {
  return token == LLAMA_TOKEN_NULL ? std::nullopt : std::optional<Token>(token);
}

// `joined`: see joined_characters().
TextCuts cuts_of(const llama_vocab* vocab, bool parse_special, const std::optional<TextCuts::Characters>& joined) {
  constexpr int kParsed = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
  std::vector<TextCuts::Special> specials;
  for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const int own = llama_vocab_get_attr(vocab, token);
    const bool is_parsed = (own & kParsed) != 0;
    if (is_parsed ? !parse_special : (own & LLAMA_TOKEN_ATTR_USER_DEFINED) == 0) continue;
    specials.push_back({.text = llama_vocab_get_text(vocab, token),
                        .takes_blanks_before = (own & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
                        .takes_blanks_behind = (own & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
  }
  return TextCuts(std::move(specials), joined);
}

// The characters of the texts of SentencePiece's tokens, which it joins by pairs.
std::optional<TextCuts::Characters> joined_characters(const llama_vocab* vocab) {
  if (llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_SPM) return std::nullopt;
  TextCuts::Characters joined(0x110000);  // All of Unicode.
  joined[' '] = true;                     // It stands in the texts as another character.
  for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    if ((llama_vocab_get_attr(vocab, token) & LLAMA_TOKEN_ATTR_BYTE) != 0) continue;
    const std::string_view text = llama_vocab_get_text(vocab, token);
    for (std::size_t at = 0; at < text.size();) {
      char32_t character = 0;
      at += decode_code_point(text.substr(at), character);
      if (character < joined.size()) joined[character] = true;
    }
  }
  return joined;
}

std::optional<GapMarks> gap_marks_of(const llama_vocab* vocab) {
  const auto prefix = known(llama_vocab_fim_pre(vocab));
  const auto suffix = known(llama_vocab_fim_suf(vocab));
  const auto middle = known(llama_vocab_fim_mid(vocab));
  if (!prefix || !suffix || !middle) return std::nullopt;
  return GapMarks{.prefix = *prefix,
                  .suffix = *suffix,
                  .middle = *middle,
                  .repository = known(llama_vocab_fim_rep(vocab)),
                  .file = known(llama_vocab_fim_sep(vocab))};
}

}  // namespace

LlamaVocab::LlamaVocab(const llama_vocab* vocab, bool adds_space_prefix, const std::optional<TextCuts::Characters>& joined)
    : vocab_(vocab),
      adds_space_prefix_(adds_space_prefix),
      cuts_with_specials_(cuts_of(vocab, true, joined)),
      cuts_(cuts_of(vocab, false, joined)) {}

Expected<std::unique_ptr<LlamaVocab>> LlamaVocab::create(const llama_vocab* vocab, bool adds_space_prefix) {
  return guarded(ErrorCode::model_load, "reading the vocabulary", [&]() -> Expected<std::unique_ptr<LlamaVocab>> {
    std::unique_ptr<LlamaVocab> made(new LlamaVocab(vocab, adds_space_prefix, joined_characters(vocab)));
    const std::int32_t count = llama_vocab_n_tokens(vocab);
    if (count <= 0) return fail(ErrorCode::model_load, "the model has no vocabulary");
    std::string buffer(256, '\0');
    made->piece_ends_.reserve(static_cast<std::size_t>(count));
    for (Token token = 0; token < count; ++token) {
      std::int32_t length =
          llama_token_to_piece(vocab, token, buffer.data(), static_cast<std::int32_t>(buffer.size()), 0, false);
      if (length < 0) {
        buffer.resize(static_cast<std::size_t>(-static_cast<std::int64_t>(length)));
        length = llama_token_to_piece(vocab, token, buffer.data(), static_cast<std::int32_t>(buffer.size()), 0, false);
      }
      made->pieces_.append(buffer.data(), static_cast<std::size_t>(std::max(length, 0)));
      made->piece_ends_.push_back(made->pieces_.size());
      // A blank may be a longer character in the text than in the piece.
      if (length > 0)
        made->piece_bytes_max_ = std::max(
            {made->piece_bytes_max_, static_cast<std::size_t>(length), std::strlen(llama_vocab_get_text(vocab, token))});
      if (length == 0)
        made->control_bytes_max_ = std::max(made->control_bytes_max_, std::strlen(llama_vocab_get_text(vocab, token)));
      if (llama_vocab_is_eog(vocab, token)) made->end_of_generation_.push_back(token);
    }
    made->ordered_pieces_ = order_pieces(*made);
    if (llama_vocab_get_add_bos(vocab) && llama_vocab_bos(vocab) != LLAMA_TOKEN_NULL) made->bos_ = llama_vocab_bos(vocab);
    made->gap_marks_ = gap_marks_of(vocab);
    return made;
  });
}

Expected<std::vector<Token>> LlamaVocab::tokenize(std::string_view text, bool parse_special) const {
  if (text.empty()) return std::vector<Token>();
  if (text.size() > std::numeric_limits<std::int32_t>::max() / 2)
    return fail(ErrorCode::limit_prompt, "the text is longer than 1 GiB");
  constexpr std::size_t kPartBytes = 4096;
  const TextCuts& cuts = parse_special ? cuts_with_specials_ : cuts_;
  std::vector<Token> tokens;
  while (!text.empty()) {
    if (EndableWork::has_ended()) return fail(ErrorCode::limit_wait, "the request has ended");
    const std::size_t end = cuts.next(text, std::min(kPartBytes, text.size()));
    if (const auto done = tokenize_part(text.substr(0, end), parse_special, tokens); !done)
      return std::unexpected(done.error());
    text.remove_prefix(end);
  }
  tokens.shrink_to_fit();
  return tokens;
}

Expected<Unit> LlamaVocab::tokenize_part(std::string_view text, bool parse_special, std::vector<Token>& tokens) const {
  return guarded(ErrorCode::runtime_decode, "tokenizing", [&]() -> Expected<Unit> {
    // A token has at least one byte of text, so this is enough except for normalizing tokenizers.
    const std::size_t before = tokens.size();
    tokens.resize(before + text.size() + 8);
    const auto run = [&] {
      return llama_tokenize(vocab_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data() + before,
                            static_cast<std::int32_t>(tokens.size() - before), false, parse_special);
    };
    std::int32_t count = run();
    if (count < 0 && count != std::numeric_limits<std::int32_t>::min()) {
      tokens.resize(before + static_cast<std::size_t>(-count));
      count = run();
    }
    if (count < 0) return fail(ErrorCode::runtime_decode, "the tokenizer of this model refused the text");
    tokens.resize(before + static_cast<std::size_t>(count));
    return Unit{};
  });
}

std::string_view LlamaVocab::piece(Token token) const {
  if (token < 0 || token >= size()) return {};
  const auto index = static_cast<std::size_t>(token);
  const std::size_t begin = index == 0 ? 0 : piece_ends_[index - 1];
  return std::string_view(pieces_).substr(begin, piece_ends_[index] - begin);
}

std::string LlamaVocab::text(Token token) const {
  const std::string_view plain = piece(token);
  if (!plain.empty()) return std::string(plain);
  return guarded(ErrorCode::runtime_decode, "reading a token",
                 [&]() -> Expected<std::string> { return std::string(llama_vocab_get_text(vocab_, token)); })
      .value_or("");
}

bool LlamaVocab::is_user_defined(Token token) const {
  return token >= 0 && token < size() && (llama_vocab_get_attr(vocab_, token) & LLAMA_TOKEN_ATTR_USER_DEFINED) != 0;
}

bool LlamaVocab::is_end_of_generation(Token token) const {
  return std::ranges::binary_search(end_of_generation_, token);
}

}  // namespace uma::llm
