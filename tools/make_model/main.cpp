// make_model: writes a random-weight model. Exit codes: 0 written, 1 usage, 2 not written.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <print>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "make_model/model_file.h"
#include "make_model/picture_model_file.h"
#include "make_model/projector_file.h"
#include "make_model/replies.h"
#include "make_model/script.h"
#include "make_model/scripted_model.h"
#include "make_model/words.h"

namespace {

uma::ModelSpec tiny_spec() {
  return {.name = "uma tiny",
          .type = GGML_TYPE_F16,
          .layers = 2,
          .width = 64,
          .heads = 4,
          .kv_heads = 2,
          .feed_forward = 192,
          .n_ctx = 4096,
          .vocabulary_size = 1536};
}

// The contexts of the next three models cannot be cut back at every token.
uma::ModelSpec tiny_swa_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny swa";
  spec.architecture = uma::Architecture::gemma3;
  spec.layers = 6;  // The last of the six sees every token.
  spec.window = 32;
  return spec;
}

uma::ModelSpec tiny_recurrent_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny recurrent";
  spec.architecture = uma::Architecture::mamba;
  return spec;
}

uma::ModelSpec tiny_hybrid_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny hybrid";
  spec.architecture = uma::Architecture::jamba;
  return spec;
}

// The next three have the architectures of the presets 4b, moe-30b and moe-20b, with heads that are wider than width / heads.
uma::ModelSpec tiny_qwen3_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny qwen3";
  spec.architecture = uma::Architecture::qwen3;
  spec.head_size = 32;
  spec.has_output = false;
  return spec;
}

uma::ModelSpec tiny_moe_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny moe";
  spec.architecture = uma::Architecture::qwen3moe;
  spec.head_size = 32;
  spec.feed_forward = 32;
  spec.experts = 8;
  spec.experts_used = 2;
  return spec;
}

uma::ModelSpec tiny_gpt_oss_spec() {
  uma::ModelSpec spec = tiny_moe_spec();
  spec.name = "uma tiny gpt-oss";
  spec.architecture = uma::Architecture::gpt_oss;
  spec.window = 32;
  // All are used, so that no other rounding chooses other experts: tests compare logits of the same tokens in other batches.
  spec.experts_used = spec.experts;
  return spec;
}

uma::ModelSpec tiny_embed_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny embed";
  spec.architecture = uma::Architecture::bert;
  spec.kv_heads = spec.heads;
  spec.n_ctx = 128;
  spec.pooled_by = uma::PooledBy::mean;
  return spec;
}

// A model with word pieces and texts of 512 tokens, like most models of this architecture.
uma::ModelSpec tiny_wordpiece_spec() {
  uma::ModelSpec spec = tiny_embed_spec();
  spec.name = "uma tiny wordpiece";
  spec.tokenizer = uma::Tokenizer::word_pieces;
  spec.n_ctx = 512;
  spec.vocabulary_size = 4096;
  return spec;
}

uma::ModelSpec tiny_register_spec() {
  return {.name = "uma tiny register",
          .type = GGML_TYPE_F16,
          .layers = 3,
          .width = 128,
          .heads = 1,
          .kv_heads = 1,
          .feed_forward = 32,
          .n_ctx = 4096,
          .vocabulary_size = 1536,
          .image_markers = true,
          .weights = uma::Weights::shift_register};
}

// The projector of tiny-register: an image of 32 by 32 pixels becomes 256 rows.
uma::ProjectorSpec tiny_projector_spec() {
  return {.name = "uma tiny projector",
          .image_size = 32,
          .patch_size = 2,
          .layers = 2,
          .width = 64,
          .heads = 4,
          .feed_forward = 128,
          .row_width = tiny_register_spec().width};
}

// A model whose images have positions of several dimensions, and its projector: an image of 84 by 84 pixels becomes 9 rows.
uma::ModelSpec tiny_grid_spec() {
  uma::ModelSpec spec = tiny_spec();
  spec.name = "uma tiny grid";
  spec.architecture = uma::Architecture::qwen2vl;
  spec.image_markers = true;
  return spec;
}

// The model with grids as an embedding model whose texts and images share one space; it has the same projector.
uma::ModelSpec tiny_grid_embed_spec() {
  uma::ModelSpec spec = tiny_grid_spec();
  spec.name = "uma tiny grid embed";
  spec.chat_template = uma::ChatTemplate::plain;
  spec.pooled_by = uma::PooledBy::last;
  return spec;
}

uma::ProjectorSpec tiny_grid_projector_spec() {
  return {.name = "uma tiny grid projector",
          .kind = uma::ProjectorKind::qwen25vl,
          .image_size = 560,
          .patch_size = 14,
          .layers = 2,
          .width = 32,
          .heads = 2,
          .feed_forward = 64,
          .row_width = tiny_grid_spec().width};
}

// A projector of sound for tiny and tiny-grid: a half minute becomes 30 rows.
uma::ProjectorSpec tiny_sound_projector_spec() {
  return {.name = "uma tiny sound projector",
          .kind = uma::ProjectorKind::ultravox,
          .layers = 1,
          .width = 16,
          .heads = 1,
          .feed_forward = 32,
          .row_width = tiny_spec().width,
          .stack = 50};
}

// A model that draws pictures of 32 by 32 pixels.
uma::PictureSpec tiny_picture_spec() {
  return {.name = "uma tiny picture",
          .image_size = 32,
          .patch = 8,
          .width = 64,
          .layers = 2,
          .heads = 2,
          .feed_forward = 128,
          .text_length = 12,
          .words = {"a", "red", "green", "blue", "circle", "circles", "square", "squares", "two", "left", "of", "and"}};
}

const std::map<std::string, uma::ProjectorSpec>& projectors() {
  static const std::map<std::string, uma::ProjectorSpec> projectors{{"tiny-register", tiny_projector_spec()},
                                                                    {"tiny-grid", tiny_grid_projector_spec()},
                                                                    {"tiny-sound", tiny_sound_projector_spec()}};
  return projectors;
}

uma::ModelSpec spec_134m() {
  return {.name = "uma 134m",
          .type = GGML_TYPE_Q8_0,
          .layers = 12,
          .width = 768,
          .heads = 12,
          .kv_heads = 12,
          .feed_forward = 2048,
          .n_ctx = 32768,
          .vocabulary_size = 32000};
}

// For conversations of coding agents: twice the context, a third of the KV bytes per token, and a template that writes tools.
uma::ModelSpec spec_134m_agent() {
  uma::ModelSpec spec = spec_134m();
  spec.name = "uma 134m agent";
  spec.kv_heads = 4;
  spec.n_ctx = 65536;
  spec.chat_template = uma::ChatTemplate::tools;
  return spec;
}

// The shape of Qwen3 4B.
uma::ModelSpec spec_4b() {
  return {.name = "uma 4b",
          .architecture = uma::Architecture::qwen3,
          .type = GGML_TYPE_Q4_0,
          .layers = 36,
          .width = 2560,
          .heads = 32,
          .kv_heads = 8,
          .head_size = 128,
          .feed_forward = 9728,
          .n_ctx = 40960,
          .vocabulary_size = 151936,
          .has_output = false};
}

// The shape of gpt-oss 20B.
uma::ModelSpec spec_moe_20b() {
  return {.name = "uma moe 20b",
          .architecture = uma::Architecture::gpt_oss,
          .type = GGML_TYPE_MXFP4,
          .layers = 24,
          .width = 2880,
          .heads = 64,
          .kv_heads = 8,
          .head_size = 64,
          .feed_forward = 2880,
          .experts = 32,
          .experts_used = 4,
          .n_ctx = 131072,
          .vocabulary_size = 201088,
          .window = 128};
}

// The shape of Qwen3 30B-A3B.
uma::ModelSpec spec_moe_30b() {
  return {.name = "uma moe 30b",
          .architecture = uma::Architecture::qwen3moe,
          .type = GGML_TYPE_Q4_0,
          .layers = 48,
          .width = 2048,
          .heads = 32,
          .kv_heads = 4,
          .head_size = 128,
          .feed_forward = 768,
          .experts = 128,
          .experts_used = 8,
          .n_ctx = 40960,
          .vocabulary_size = 151936};
}

const std::map<std::string, uma::ModelSpec>& presets() {
  static const std::map<std::string, uma::ModelSpec> presets = [] {
    std::map<std::string, uma::ModelSpec> made{{"tiny", tiny_spec()},
                                               {"tiny-chat", tiny_spec()},
                                               {"tiny-code", tiny_spec()},
                                               {"tiny-swa", tiny_swa_spec()},
                                               {"tiny-recurrent", tiny_recurrent_spec()},
                                               {"tiny-hybrid", tiny_hybrid_spec()},
                                               {"tiny-embed", tiny_embed_spec()},
                                               {"tiny-rerank", tiny_embed_spec()},
                                               {"tiny-embed-last", tiny_spec()},
                                               {"tiny-wordpiece", tiny_wordpiece_spec()},
                                               {"tiny-wordpiece-rank", tiny_wordpiece_spec()},
                                               {"tiny-register", tiny_register_spec()},
                                               {"tiny-grid", tiny_grid_spec()},
                                               {"tiny-grid-embed", tiny_grid_embed_spec()},
                                               {"tiny-qwen3", tiny_qwen3_spec()},
                                               {"tiny-moe", tiny_moe_spec()},
                                               {"tiny-gpt-oss", tiny_gpt_oss_spec()},
                                               {"4b", spec_4b()},
                                               {"moe-20b", spec_moe_20b()},
                                               {"moe-30b", spec_moe_30b()},
                                               {"134m", spec_134m()},
                                               {"134m-agent", spec_134m_agent()}};
    made.at("tiny-chat").chat_template = uma::ChatTemplate::plain;
    made.at("tiny-code").gap_markers = true;
    made.at("tiny-embed-last").pooled_by = uma::PooledBy::last;
    made.at("tiny-rerank").pooled_by = uma::PooledBy::rank;
    made.at("tiny-wordpiece-rank").pooled_by = uma::PooledBy::rank;
    return made;
  }();
  return presets;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Writes a GGUF model with random weights; the same flags give the same bytes.");
  std::string preset = "tiny";
  std::string out;
  std::string script;
  std::string replies;
  std::size_t words_count = 0;
  std::optional<ggml_type> type;
  std::optional<std::uint32_t> layers, width, heads, kv_heads, head_size, feed_forward, experts, experts_used, n_ctx,
      vocabulary_size, window;
  std::uint64_t seed = 1;
  std::uint32_t quiet_layers = 0;
  float quiet_gain = 0;
  bool chat_template = false;
  std::string chat_template_file;
  std::vector<std::string> control_tokens;
  std::string projector_name;
  bool draws = false;
  std::uint32_t adapter_rank = 0;
  const std::map<std::string, ggml_type> types{
      {"f16", GGML_TYPE_F16}, {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0}, {"mxfp4", GGML_TYPE_MXFP4}};

  app.add_option("--preset", preset, "shape to start from")->check(CLI::IsMember(presets()))->capture_default_str();
  app.add_option("--type", type, "type of the matrices: f16, q8_0, q4_0, or mxfp4 for experts with all else in q8_0")
      ->transform(CLI::CheckedTransformer(types));
  app.add_option("--layers", layers, "transformer blocks; the last one given counts")->take_last();
  app.add_option("--width", width, "embedding length");
  app.add_option("--heads", heads, "attention heads");
  app.add_option("--kv-heads", kv_heads, "key and value heads");
  app.add_option("--head-size", head_size, "columns of a head (qwen3, mixtures; 0: width / heads)");
  app.add_option("--ff", feed_forward, "inner width of the feed-forward block, or of one expert");
  app.add_option("--experts", experts, "experts of a layer (mixtures)");
  app.add_option("--experts-used", experts_used, "experts that compute a token (mixtures)");
  app.add_option("--n-ctx", n_ctx, "context length in tokens that the model declares");
  app.add_option("--vocab", vocabulary_size, "entries of the vocabulary");
  app.add_option("--window", window, "tokens that layers with a sliding window see (tiny-swa, tiny-gpt-oss, moe-20b)");
  app.add_option("--seed", seed, "seed of the weights")->capture_default_str();
  app.add_option("--quiet-layers", quiet_layers,
                 "number of last blocks that add little; all other weights are as without them (default 0)");
  app.add_option("--quiet-gain", quiet_gain, "factor for the output of the quiet blocks (default 0)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--chat-template", chat_template, "add ChatML with <|im_start|> and <|im_end|>");
  app.add_option("--chat-template-file", chat_template_file,
                 "file with the chat template to write, such as one of tests/templates")
      ->check(CLI::ExistingFile);
  app.add_option("--control-token", control_tokens, "mark that is one token, which replies do not show; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--projector", projector_name, "write this projector instead; only --out and --seed apply to it")
      ->check(CLI::IsMember(projectors()));
  app.add_flag("--picture", draws, "write a model that draws pictures instead; only --out and --seed apply to it");
  app.add_option("--adapter", adapter_rank, "write a LoRA adapter of this rank for the model instead")
      ->check(CLI::Range(1U, 256U));
  app.add_option("--replies", replies,
                 "write a model that plays these replies (replies.h) instead; --out and --chat-template-file apply to it");
  app.add_option("--script", script, "write a model that follows this script (README.md) instead; only --out applies to it");
  CLI::Option* out_option = app.add_option("--out", out, "file to write");
  app.add_option("--words", words_count, "print this number of words of the bench instead")
      ->check(CLI::Range(std::size_t{1}, uma::kWordsCountMax))
      ->excludes(out_option);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }

  for (std::size_t index = 0; index < words_count; ++index) {
    std::println("{}", uma::make_word(index));
  }
  if (words_count > 0) {
    return 0;
  }
  if (out.empty()) {
    std::println(stderr, "make_model: give --out FILE or --words N (--help explains the options)");
    return 1;
  }

  const auto report = [](const std::expected<void, std::string>& written) {
    if (written) return 0;
    std::println(stderr, "make_model: {}", written.error());
    return 2;
  };
  if (!projector_name.empty()) {
    uma::ProjectorSpec projector = projectors().at(projector_name);
    projector.seed = seed;
    return report(uma::write_projector(projector, out));
  }

  if (draws) {
    uma::PictureSpec picture = tiny_picture_spec();
    picture.seed = seed;
    return report(uma::write_picture_model(picture, out));
  }

  if (!script.empty()) {
    return report(
        uma::read_script(script).and_then([&](const uma::Script& read) { return uma::write_scripted_model(read, out); }));
  }

  const std::string template_text = chat_template_file.empty() ? "" : read_file(chat_template_file);
  if (!chat_template_file.empty() && template_text.empty()) {
    std::println(stderr, "make_model: {} is empty or cannot be read", chat_template_file);
    return 1;
  }
  if (!replies.empty()) {
    return report(uma::read_replies(replies).and_then(
        [&](const uma::Replies& read) { return uma::write_played_model(read, template_text, out); }));
  }

  uma::ModelSpec spec = presets().at(preset);
  spec.type = type.value_or(spec.type);
  spec.layers = layers.value_or(spec.layers);
  spec.width = width.value_or(spec.width);
  spec.heads = heads.value_or(spec.heads);
  spec.kv_heads = kv_heads.value_or(heads ? *heads : spec.kv_heads);
  spec.head_size = head_size.value_or(spec.head_size);
  spec.feed_forward = feed_forward.value_or(spec.feed_forward);
  spec.experts = experts.value_or(spec.experts);
  spec.experts_used = experts_used.value_or(spec.experts_used);
  spec.n_ctx = n_ctx.value_or(spec.n_ctx);
  spec.vocabulary_size = vocabulary_size.value_or(spec.vocabulary_size);
  spec.window = window.value_or(spec.window);
  if (chat_template && spec.chat_template == uma::ChatTemplate::none) spec.chat_template = uma::ChatTemplate::plain;
  spec.chat_template_text = template_text;
  spec.control_tokens = control_tokens;
  spec.seed = seed;
  spec.quiet_layers = quiet_layers;
  spec.quiet_gain = quiet_gain;

  return report(adapter_rank > 0 ? uma::write_adapter(spec, adapter_rank, out) : uma::write_model(spec, out));
}
