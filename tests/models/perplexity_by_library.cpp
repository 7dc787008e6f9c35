// perplexity_by_library MODEL < TEXT: prints how likely libllama alone finds the text: the mean of the negative logarithms of
// its tokens' probabilities, each behind all tokens before it, and their number. Computed in one call, as umad computes a short
// prompt.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <print>
#include <span>
#include <string>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>

namespace {

template <auto free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};

double negative_log_probability(std::span<const float> logits, llama_token token) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::println(stderr, "usage: perplexity_by_library MODEL < TEXT");
    return 1;
  }
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  ggml_backend_load_all();
  llama_model_params how = llama_model_default_params();
  llama_model_kv_override overrides[2] = {};  // As umad loads models: without a space before each text.
  overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;
  std::strcpy(overrides[0].key, "tokenizer.ggml.add_space_prefix");
  how.kv_overrides = overrides;
  const std::unique_ptr<llama_model, Freed<llama_model_free>> model(llama_model_load_from_file(argv[1], how));
  if (!model) return 2;
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  std::vector<llama_token> tokens(text.size() + 8);
  const auto count = llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                    static_cast<std::int32_t>(tokens.size()), true, false);
  if (count < 2) return 2;
  tokens.resize(static_cast<std::size_t>(count));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<std::uint32_t>((count + 255) / 256 * 256);
  const std::unique_ptr<llama_context, Freed<llama_free>> context(llama_init_from_model(model.get(), params));
  if (!context) return 2;
  llama_batch batch = llama_batch_init(count, 0, 1);
  for (const llama_token token : tokens) {
    const std::int32_t i = batch.n_tokens++;
    batch.token[i] = token;
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  const bool is_done = llama_decode(context.get(), batch) == 0;
  llama_batch_free(batch);
  if (!is_done) return 2;
  const auto vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(vocab));
  double sum = 0;
  for (std::int32_t i = 0; i + 1 < count; ++i) {
    sum +=
        negative_log_probability({llama_get_logits_ith(context.get(), i), vocabulary}, tokens[static_cast<std::size_t>(i) + 1]);
  }
  std::println("{} {}", sum / (count - 1), count);
  return 0;
}
