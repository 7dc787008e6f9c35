// embed_by_library MODEL PROJECTOR PART...: prints the vector of these parts as libllama and libmtmd compute it by themselves,
// with mtmd's own helper, as a JSON array of length 1: what test_image_vectors.py compares umad's vectors with. A part is
// `template:WORDS` (with control tokens), `text:WORDS` (without), `image:FILE`, or `eos`.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mtmd-helper.h>
#include <mtmd.h>
#include <print>
#include <string>
#include <string_view>
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

// The text model with its context, and the projector.
class Library {
 public:
  bool load(const char* model, const char* projector) {
    ggml_backend_load_all();
    llama_model_params how = llama_model_default_params();
    llama_model_kv_override overrides[2] = {};  // As umad loads models: without a space before each text.
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;
    std::strcpy(overrides[0].key, "tokenizer.ggml.add_space_prefix");
    how.kv_overrides = overrides;
    model_.reset(llama_model_load_from_file(model, how));
    if (!model_) return false;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = 2048;
    params.n_threads = params.n_threads_batch = 1;
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_LAST;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_.reset(llama_init_from_model(model_.get(), params));
    mtmd_context_params options = mtmd_context_params_default();
    options.warmup = false;
    options.n_threads = 1;
    options.image_max_tokens = 1024;  // As umad by default.
    mtmd_.reset(mtmd_init_from_file(projector, model_.get(), options));
    return context_ && mtmd_ && add_tokens({llama_vocab_bos(vocab())});
  }

  bool add(std::string_view part) {
    if (part == "eos") return add_tokens({llama_vocab_eos(vocab())});
    const std::string words(part.substr(part.find(':') + 1));
    if (part.starts_with("image:")) return add_image(words);
    std::vector<llama_token> tokens(words.size() + 8);
    tokens.resize(static_cast<std::size_t>(llama_tokenize(vocab(), words.data(), static_cast<std::int32_t>(words.size()),
                                                          tokens.data(), static_cast<std::int32_t>(tokens.size()), false,
                                                          part.starts_with("template:"))));
    return add_tokens(std::move(tokens));
  }

  void print() const {
    const float* values = llama_get_embeddings_seq(context_.get(), 0);
    const std::int32_t width = llama_model_n_embd_out(model_.get());
    double squares = 0;
    for (std::int32_t i = 0; i < width; ++i) squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    for (std::int32_t i = 0; i < width; ++i) {
      std::print("{}{}", i == 0 ? "[" : ", ", static_cast<double>(values[i]) / std::sqrt(squares));
    }
    std::println("]");
  }

 private:
  [[nodiscard]] const llama_vocab* vocab() const { return llama_model_get_vocab(model_.get()); }

  bool add_tokens(std::vector<llama_token> tokens) {
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
    for (const llama_token token : tokens) {
      const std::int32_t i = batch.n_tokens++;
      batch.token[i] = token;
      batch.pos[i] = past_++;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    const bool is_done = llama_decode(context_.get(), batch) == 0;
    llama_batch_free(batch);
    return is_done;
  }

  bool add_image(const std::string& path) {
    const std::unique_ptr<mtmd_bitmap, Freed<mtmd_bitmap_free>> bitmap(
        mtmd_helper_bitmap_init_from_file(mtmd_.get(), path.c_str(), false, mtmd_helper_init_opt_default()).bitmap);
    const std::unique_ptr<mtmd_input_chunks, Freed<mtmd_input_chunks_free>> chunks(mtmd_input_chunks_init());
    const mtmd_input_part part{.text = nullptr, .bitmap = bitmap.get()};
    const mtmd_input_part* const parts[] = {&part};
    if (!bitmap || mtmd_tokenize_from_parts(mtmd_.get(), chunks.get(), parts, 1, false) != 0) return false;
    return mtmd_helper_eval_chunks(mtmd_.get(), context_.get(), chunks.get(), past_, 0, 512, false, &past_) == 0;
  }

  std::unique_ptr<llama_model, Freed<llama_model_free>> model_;
  std::unique_ptr<llama_context, Freed<llama_free>> context_;
  std::unique_ptr<mtmd_context, Freed<mtmd_free>> mtmd_;
  llama_pos past_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::println(stderr, "usage: embed_by_library MODEL PROJECTOR PART...");
    return 1;
  }
  Library library;
  if (!library.load(argv[1], argv[2])) {
    std::println(stderr, "embed_by_library: {} and {} cannot be loaded", argv[1], argv[2]);
    return 2;
  }
  for (int i = 3; i < argc; ++i) {
    if (library.add(argv[i])) continue;
    std::println(stderr, "embed_by_library: part {} cannot be computed: {}", i - 2, argv[i]);
    return 2;
  }
  library.print();
  return 0;
}
