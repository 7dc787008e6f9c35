// What tests of models need of libllama.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>

namespace uma {

// Loads the backends, once in a process, and silences the library.
inline void set_up_library() {
  static const bool is_loaded = [] {
    ggml_backend_load_all();
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    return true;
  }();
  static_cast<void>(is_loaded);
}

struct ModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelFree>;
using ContextPtr = std::unique_ptr<llama_context, ContextFree>;

inline ModelPtr load(const std::filesystem::path& path, bool vocabulary_only) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocabulary_only;
  return ModelPtr(llama_model_load_from_file(path.c_str(), params));
}

inline std::vector<llama_token> tokenize(const llama_model& model, const std::string& text, bool parse_special = false) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int count = llama_tokenize(llama_model_get_vocab(&model), text.data(), static_cast<int>(text.size()), tokens.data(),
                                   static_cast<int>(tokens.size()), /*add_special=*/false, parse_special);
  tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
  return tokens;
}

inline std::string detokenize(const llama_model& model, const std::vector<llama_token>& tokens) {
  std::string text(tokens.size() * 64 + 64, '\0');
  const int bytes = llama_detokenize(llama_model_get_vocab(&model), tokens.data(), static_cast<int>(tokens.size()), text.data(),
                                     static_cast<int>(text.size()), /*remove_special=*/false, /*unparse_special=*/false);
  text.resize(static_cast<std::size_t>(std::max(bytes, 0)));
  return text;
}

struct Said {
  std::string text{};    // Up to the end of the message.
  float margin = 0;      // The smallest distance between the best two logits.
  bool has_end = false;  // The model ended its message.
};

// Continues the tokens until the model ends its message.
inline Said say(llama_model& model, std::vector<llama_token> batch) {
  constexpr int kGeneratedMax = 200;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(batch.size() + kGeneratedMax);
  params.n_batch = params.n_ctx;
  params.n_threads = 1;
  params.n_threads_batch = 1;
  const ContextPtr context(llama_init_from_model(&model, params));
  const llama_vocab* vocab = llama_model_get_vocab(&model);
  const int vocabulary_size = llama_vocab_n_tokens(vocab);
  Said said{.margin = std::numeric_limits<float>::max()};
  std::vector<llama_token> generated;
  while (generated.size() < kGeneratedMax && !said.has_end) {
    if (llama_decode(context.get(), llama_batch_get_one(batch.data(), static_cast<int>(batch.size()))) != 0) break;
    float* logits = llama_get_logits_ith(context.get(), -1);
    float* best = std::max_element(logits, logits + vocabulary_size);
    batch = {static_cast<llama_token>(best - logits)};
    const float logit = *best;
    *best = -std::numeric_limits<float>::max();
    said.margin = std::min(said.margin, logit - *std::max_element(logits, logits + vocabulary_size));
    said.has_end = llama_vocab_is_eog(vocab, batch[0]);
    if (!said.has_end) generated.push_back(batch[0]);
  }
  said.text = detokenize(model, generated);
  return said;
}

}  // namespace uma
