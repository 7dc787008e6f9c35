// Pictures, and the library's own evaluation of an image among tokens, for tests of images with lines and columns.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "base/bytes.h"
#include "core/ids.h"
#include "llm/picture/picture.h"

namespace uma::llm {

inline std::filesystem::path test_models() {
  return std::filesystem::path(std::getenv("UMA_TEST_MODEL")).parent_path();
}

// A gradient.
inline Picture gradient(int width, int height) {
  Picture picture{.width = width, .height = height, .levels = {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (const int colour : {x * y, 5 * y, 3 * x}) picture.levels.push_back(static_cast<std::uint8_t>(colour));
    }
  }
  return picture;
}

// A context of the library, fed by mtmd's own helper.
class LibraryEvaluation {
 public:
  LibraryEvaluation(const std::string& model, const std::string& projector, llama_context_params params) {
    model_.reset(llama_model_load_from_file((test_models() / model).c_str(), llama_model_default_params()));
    params.n_threads = params.n_threads_batch = 1;
    context_.reset(llama_init_from_model(model_.get(), params));
    mtmd_context_params how = mtmd_context_params_default();
    how.warmup = false;
    how.n_threads = 1;
    mtmd_.reset(mtmd_init_from_file((test_models() / projector).c_str(), model_.get(), how));
  }

  [[nodiscard]] llama_context* context() { return context_.get(); }
  [[nodiscard]] std::int32_t vocabulary() const { return llama_vocab_n_tokens(llama_model_get_vocab(model_.get())); }

  // Computes the tokens behind what was computed. `wants_all`: each has an output, else only the last one.
  void add_tokens(std::span<const Token> tokens, bool wants_all) {
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
    batch.n_tokens = static_cast<std::int32_t>(tokens.size());
    for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = tokens[static_cast<std::size_t>(i)];
      batch.pos[i] = past_++;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = static_cast<std::int8_t>(wants_all || i + 1 == batch.n_tokens);
    }
    EXPECT_EQ(llama_decode(context_.get(), batch), 0);
    llama_batch_free(batch);
  }

  // Computes the rows of an image, without the marks around them.
  void add_image(const Picture& image) {
    const std::unique_ptr<mtmd_bitmap, decltype(&mtmd_bitmap_free)> bitmap(
        mtmd_bitmap_init(static_cast<std::uint32_t>(image.width), static_cast<std::uint32_t>(image.height),
                         image.levels.data()),
        mtmd_bitmap_free);
    const std::unique_ptr<mtmd_input_chunks, decltype(&mtmd_input_chunks_free)> chunks(mtmd_input_chunks_init(),
                                                                                       mtmd_input_chunks_free);
    const mtmd_input_part part{.text = nullptr, .bitmap = bitmap.get()};
    const mtmd_input_part* const parts[] = {&part};
    EXPECT_EQ(mtmd_tokenize_from_parts(mtmd_.get(), chunks.get(), parts, 1, false), 0);
    for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
      const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks.get(), i);
      if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) continue;
      EXPECT_EQ(mtmd_helper_eval_chunk_single(mtmd_.get(), context_.get(), chunk, past_, 0, 512, false, &past_), 0);
    }
  }

 private:
  template <auto free>
  struct Freed {
    template <class T>
    void operator()(T* object) const {
      free(object);
    }
  };
  std::unique_ptr<llama_model, Freed<llama_model_free>> model_;
  std::unique_ptr<llama_context, Freed<llama_free>> context_;
  std::unique_ptr<mtmd_context, Freed<mtmd_free>> mtmd_;
  llama_pos past_ = 0;
};

}  // namespace uma::llm
