// Compares the tokens of long texts, which are cut, with those that the library makes of the whole text.
#include "llm/llama_vocab.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "base/endable_work.h"
#include "base/random.h"

namespace uma::llm {
namespace {

using Library = std::unique_ptr<llama_model, decltype(&llama_model_free)>;

Library load_vocabulary() {
  const char* path = std::getenv("UMA_TEST_MODEL");
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model_kv_override no_prefix{
      .tag = LLAMA_KV_OVERRIDE_TYPE_BOOL, .key = "tokenizer.ggml.add_space_prefix", .val_bool = false};
  const std::array<llama_model_kv_override, 2> overrides{no_prefix, {}};
  params.kv_overrides = overrides.data();
  return {llama_model_load_from_file(path != nullptr ? path : "build/release/models/tiny.gguf", params), &llama_model_free};
}

std::vector<Token> whole(const llama_vocab* vocab, const std::string& text, bool parse_special) {
  std::vector<Token> tokens(text.size() + 8);
  const auto count = llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                    static_cast<std::int32_t>(tokens.size()), false, parse_special);
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

TEST(LlamaVocab, LongTextsHaveTheTokensOfTheWholeText) {
  const Library library = load_vocabulary();
  ASSERT_TRUE(library);
  const llama_vocab* vocab = llama_model_get_vocab(library.get());
  const auto own = LlamaVocab::create(vocab, false).value();
  constexpr std::array<std::string_view, 12> kUnits{"the ",  "once upon a time", "\n",         "\n\n",   "<s>", "</s>",
                                                    "<unk>", "\u00e9\u0301",     "\U0001f642", "\xe3\n", " ",   "<0x0A>"};
  Random random(1);
  for (const bool parse_special : {false, true}) {
    for (int round = 0; round < 50; ++round) {
      std::string text;
      while (text.size() < 20'000) {
        const std::string_view unit = kUnits[random.next_below(kUnits.size())];
        for (std::size_t repeats = random.next_below(round % 2 == 0 ? 3 : 3000); repeats > 0; --repeats) text += unit;
      }
      ASSERT_EQ(own->tokenize(text, parse_special).value(), whole(vocab, text, parse_special)) << round;
    }
  }
}

TEST(LlamaVocab, NobodysTextIsNotTokenizedToItsEnd) {
  const Library library = load_vocabulary();
  ASSERT_TRUE(library);
  const auto own = LlamaVocab::create(llama_model_get_vocab(library.get()), false).value();
  std::stop_source end;
  const EndableWork work(end.get_token());
  EXPECT_TRUE(own->tokenize("once upon a time", false));
  end.request_stop();
  EXPECT_EQ(own->tokenize("once upon a time", false).error().code, ErrorCode::limit_wait);
  const EndableWork other{std::stop_token()};
  EXPECT_TRUE(own->tokenize("once upon a time", false));
}

}  // namespace
}  // namespace uma::llm
