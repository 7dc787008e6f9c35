#include "make_model/model_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <format>
#include <string_view>
#include <utility>
#include <vector>

#include <gguf.h>
#include <llama.h>

#include "base/check.h"
#include "make_model/gguf_writer.h"
#include "make_model/shift_register.h"
#include "make_model/vocabulary.h"
#include "make_model/vocabulary_metadata.h"
#include "make_model/words.h"

namespace uma {

namespace {

constexpr std::string_view kChatTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// ChatML with tools: their list is the end of the system message, a call is written as JSON behind the text of its reply, and a
// result is a message with the role tool.
constexpr std::string_view kToolTemplate = R"({%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\n' -}}{%- endif -%}
{{- '<tools>\n' -}}{%- for tool in tools -%}{{- tool | tojson + '\n' -}}{%- endfor -%}{{- '</tools><|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (tools and loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.content -%}{{- message.content -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
{%- if call.function.arguments is string -%}{{- call.function.arguments -}}
{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})";

// Standard deviations relative to 1/sqrt(columns), with which a matrix keeps the size of its input. Attention is sharper than
// that, so that single earlier tokens matter and greedy text depends on the whole prompt. Logits spread enough for temperatures
// to matter.
constexpr float kGainQueryKey = 1.7F;
constexpr float kGainPlain = 1.0F;
constexpr float kGainAttentionOutput = 2.0F;
constexpr float kGainLogits = 2.0F;
// Control and byte tokens get small logits, so greedy text is readable and has no end.
constexpr float kGainSpecialLogits = 0.5F;

// The layers of mamba. A state keeps a token for about 1 / (step * decay) tokens: with steps around 0.05 and decays of 1/4 to
// 4, these are 5 to 80 tokens, so that text depends on more than the last few.
constexpr std::uint32_t kStateSize = 16;
constexpr std::uint32_t kConvolutionTokens = 4;
constexpr std::uint32_t kInnerPerWidth = 2;
constexpr float kStepBias = -3.0F;  // Its softplus is 0.049.
constexpr float kGainState = 2.0F;
constexpr std::int64_t kTokenTypes = 2;  // Bert: the first and the second text of a pair.
constexpr float kPassedOn = 0.5F;        // Part of its input that a layer adds to its output beside the state.

// Whether any layer has attention and a feed-forward block.
bool has_attention(const ModelSpec& spec) {
  return spec.architecture != Architecture::mamba;
}

bool attends(const ModelSpec& spec, std::uint32_t layer) {
  return has_attention(spec) && (spec.architecture != Architecture::jamba || layer % 2 == 1);
}

bool is_mixture(const ModelSpec& spec) {
  return spec.architecture == Architecture::qwen3moe || spec.architecture == Architecture::gpt_oss;
}

bool normalizes_heads(const ModelSpec& spec) {
  return spec.architecture == Architecture::gemma3 || spec.architecture == Architecture::qwen3 ||
         spec.architecture == Architecture::qwen3moe;
}

// The file names the size of a head, which may differ from width / heads.
bool names_head_size(const ModelSpec& spec) {
  return normalizes_heads(spec) || spec.architecture == Architecture::gpt_oss;
}

bool has_window(const ModelSpec& spec) {
  return spec.architecture == Architecture::gemma3 || spec.architecture == Architecture::gpt_oss;
}

std::uint32_t head_size(const ModelSpec& spec) {
  return spec.head_size != 0 ? spec.head_size : spec.width / spec.heads;
}

ggml_type type_of_plain_matrices(const ModelSpec& spec) {
  return spec.type == GGML_TYPE_MXFP4 ? GGML_TYPE_Q8_0 : spec.type;
}

std::uint32_t step_rank(const ModelSpec& spec) {
  return std::max(1U, spec.width / 16);
}

Markers markers_of(const ModelSpec& spec) {
  if (spec.image_markers) return spec.architecture == Architecture::qwen2vl ? Markers::grid : Markers::image;
  if (spec.chat_template != ChatTemplate::none) return Markers::chat;
  return spec.gap_markers ? Markers::gap : Markers::none;
}

std::size_t smallest_vocabulary(const ModelSpec& spec) {
  if (spec.tokenizer == Tokenizer::word_pieces) return word_pieces_size_min();
  return vocabulary_size_min(markers_of(spec)) + spec.control_tokens.size();
}

Vocabulary vocabulary_of(const ModelSpec& spec) {
  if (spec.tokenizer == Tokenizer::word_pieces) return make_word_pieces(spec.vocabulary_size);
  Vocabulary vocabulary = make_vocabulary(spec.vocabulary_size - spec.control_tokens.size(), markers_of(spec));
  for (const std::string& text : spec.control_tokens) {
    vocabulary.texts.push_back(text);
    vocabulary.scores.push_back(0);
    vocabulary.types.push_back(LLAMA_TOKEN_TYPE_CONTROL);
  }
  return vocabulary;
}

std::expected<void, std::string> check_register(const ModelSpec& spec) {
  if (spec.weights == Weights::random) return {};
  const auto refuse = [](std::string_view what, std::string_view needed, auto value) {
    return std::unexpected(std::format("{} is {}, weights of a shift register need {}", what, value, needed));
  };
  const std::int64_t width_min = register_width_min(spec.layers);
  if (spec.layers > kTapDistances.size())
    return refuse("layers", std::format("{} or fewer", kTapDistances.size()), spec.layers);
  if (spec.width < width_min) return refuse("width", std::format("{} or more", width_min), spec.width);
  if (spec.heads != 1) return refuse("heads", "1", spec.heads);
  if (spec.feed_forward < register_feed_forward_min()) {
    return refuse("ff", std::format("{} or more", register_feed_forward_min()), spec.feed_forward);
  }
  if (spec.type != GGML_TYPE_F16) return refuse("type", "f16", ggml_type_name(spec.type));
  if (spec.n_ctx > 8192) return refuse("n-ctx", "8192 or less", spec.n_ctx);
  if (spec.quiet_layers != 0) return refuse("quiet-layers", "0", spec.quiet_layers);
  if (register_words(vocabulary_of(spec)).size() < 1U << kCodeBits) {
    return refuse("vocab", std::format("{} words in it", 1 << kCodeBits), spec.vocabulary_size);
  }
  return {};
}

std::expected<void, std::string> within(std::string_view what, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value < low || value > high) {
    return std::unexpected(std::format("{} is {}, must be from {} to {}", what, value, low, high));
  }
  return {};
}

std::expected<void, std::string> multiple(std::string_view what, std::uint64_t value, std::uint64_t of) {
  if (value % of != 0) {
    return std::unexpected(std::format("{} is {}, must be a multiple of {}", what, value, of));
  }
  return {};
}

std::expected<void, std::string> check_heads(const ModelSpec& spec) {
  // Rotary positions need an even head.
  if (spec.head_size == 0) return multiple("width", spec.width, spec.heads * 2ull);
  return within("head-size", spec.head_size, names_head_size(spec) ? 2 : 0, names_head_size(spec) ? 1024 : 0)
      .and_then([&] { return multiple("head-size", spec.head_size, 2); })
      .and_then([&] {
        return multiple("head-size * heads", std::uint64_t{spec.head_size} * spec.heads,
                        static_cast<std::uint64_t>(ggml_blck_size(spec.type)));
      });
}

std::expected<void, std::string> check_experts(const ModelSpec& spec) {
  constexpr std::uint32_t kExpertsMax = 512;  // The library's limit.
  if (!is_mixture(spec)) {
    if (spec.type == GGML_TYPE_MXFP4) return std::unexpected("type is mxfp4, which is for the experts of a mixture only");
    return within("experts", spec.experts, 0, 0).and_then([&] { return within("experts-used", spec.experts_used, 0, 0); });
  }
  return within("experts", spec.experts, 1, kExpertsMax).and_then([&] {
    return within("experts-used", spec.experts_used, 1, spec.experts);
  });
}

std::expected<void, std::string> check_spec(const ModelSpec& spec) {
  const auto block = static_cast<std::uint64_t>(ggml_blck_size(spec.type));
  return within("layers", spec.layers, 1, 512)
      .and_then([&] { return within("width", spec.width, 32, 65536); })
      .and_then([&] { return within("heads", spec.heads, 1, spec.width / 2); })
      .and_then([&] { return within("kv-heads", spec.kv_heads, 1, spec.heads); })
      .and_then([&] { return within("ff", spec.feed_forward, 32, 1 << 20); })
      .and_then([&] { return within("n-ctx", spec.n_ctx, 64, 1 << 24); })
      .and_then([&] { return within("vocab", spec.vocabulary_size, smallest_vocabulary(spec), kWordsCountMax); })
      .and_then([&] { return multiple("width", spec.width, block); })
      .and_then([&] { return multiple("ff", spec.feed_forward, block); })
      .and_then([&] { return multiple("heads", spec.heads, spec.kv_heads); })
      .and_then([&] { return check_heads(spec); })
      .and_then([&] { return check_experts(spec); })
      .and_then([&] { return within("window", spec.window, has_window(spec) ? 1 : 0, has_window(spec) ? 1 << 20 : 0); })
      .and_then([&] {
        // gemma3 normalizes the output of a layer, so a factor has no effect.
        return within("quiet-layers", spec.quiet_layers, 0, spec.architecture == Architecture::gemma3 ? 0 : spec.layers - 1);
      })
      .and_then([&] { return check_register(spec); });
}

// In 32 bits, with the deviation gain / sqrt(columns).
Matrix random_vector(std::string name, std::int64_t columns, float gain = kGainPlain) {
  return {.name = std::move(name), .rows = 1, .columns = columns, .gain = gain, .type = GGML_TYPE_F32};
}

void add_attention(const ModelSpec& spec, const std::string& block, float added, std::vector<Matrix>& list) {
  const std::int64_t width = spec.width;
  const std::int64_t head = head_size(spec);
  const std::int64_t q_width = head * spec.heads;
  const std::int64_t kv_width = head * spec.kv_heads;
  list.push_back({block + "attn_q.weight", q_width, width, kGainQueryKey});
  list.push_back({block + "attn_k.weight", kv_width, width, kGainQueryKey});
  list.push_back({block + "attn_v.weight", kv_width, width, kGainPlain});
  if (spec.architecture == Architecture::qwen2vl) {
    list.push_back(vector_of(block + "attn_q.bias", width, 0));
    list.push_back(vector_of(block + "attn_k.bias", kv_width, 0));
    list.push_back(vector_of(block + "attn_v.bias", kv_width, 0));
  }
  if (spec.architecture == Architecture::gpt_oss) {
    list.push_back(random_vector(block + "attn_q.bias", q_width));
    list.push_back(random_vector(block + "attn_k.bias", kv_width));
    list.push_back(random_vector(block + "attn_v.bias", kv_width));
  }
  list.push_back({block + "attn_output.weight", width, q_width, kGainAttentionOutput * added});
  if (spec.architecture == Architecture::gpt_oss) {
    list.push_back(random_vector(block + "attn_output.bias", width, added));
    list.push_back(random_vector(block + "attn_sinks.weight", spec.heads));
  }
  if (normalizes_heads(spec)) {
    list.push_back(vector_of(block + "attn_q_norm.weight", head, kGainQueryKey));
    list.push_back(vector_of(block + "attn_k_norm.weight", head, kGainQueryKey));
  }
  if (spec.architecture == Architecture::gemma3) list.push_back(vector_of(block + "post_attention_norm.weight", width, 1));
}

void add_state_layer(const ModelSpec& spec, const std::string& block, float added, std::vector<Matrix>& list) {
  const std::int64_t width = spec.width;
  const std::int64_t inner = width * kInnerPerWidth;
  const std::int64_t rank = step_rank(spec);
  list.push_back({block + "ssm_in.weight", 2 * inner, width, kGainPlain});
  list.push_back({.name = block + "ssm_conv1d.weight",
                  .rows = inner,
                  .columns = kConvolutionTokens,
                  .gain = kGainPlain,
                  .type = GGML_TYPE_F32});
  list.push_back(vector_of(block + "ssm_conv1d.bias", inner, 0));
  list.push_back({block + "ssm_x.weight", rank + 2 * kStateSize, inner, kGainState});
  list.push_back({.name = block + "ssm_dt.weight", .rows = inner, .columns = rank, .gain = kGainPlain, .type = GGML_TYPE_F32});
  list.push_back(vector_of(block + "ssm_dt.bias", inner, kStepBias));
  list.push_back({.name = block + "ssm_a",
                  .rows = inner,
                  .columns = kStateSize,
                  .gain = 0,
                  .filling = Matrix::Filling::decays,
                  .type = GGML_TYPE_F32});
  list.push_back(vector_of(block + "ssm_d", inner, kPassedOn));
  list.push_back({block + "ssm_out.weight", width, inner, kGainAttentionOutput * added});
  if (spec.architecture == Architecture::jamba) {
    list.push_back(vector_of(block + "ssm_dt_norm.weight", rank, 1));
    list.push_back(vector_of(block + "ssm_b_norm.weight", kStateSize, 1));
    list.push_back(vector_of(block + "ssm_c_norm.weight", kStateSize, 1));
  }
}

void add_feed_forward(const ModelSpec& spec, const std::string& block, float added, std::vector<Matrix>& list) {
  const std::int64_t width = spec.width;
  const std::int64_t inner = spec.feed_forward;
  list.push_back(vector_of(block + "ffn_norm.weight", width, 1));
  list.push_back({block + "ffn_gate.weight", inner, width, kGainPlain});
  list.push_back({block + "ffn_up.weight", inner, width, kGainPlain});
  list.push_back({block + "ffn_down.weight", width, inner, kGainPlain * added});
  if (spec.architecture == Architecture::gemma3) list.push_back(vector_of(block + "post_ffw_norm.weight", width, 1));
}

// The router gives every expert the same chance, so the tokens of a batch share fewer experts than in most trained models.
void add_mixture(const ModelSpec& spec, const std::string& block, float added, std::vector<Matrix>& list) {
  const std::int64_t width = spec.width;
  const std::int64_t inner = spec.feed_forward;
  const std::int64_t experts = spec.experts;
  const bool has_biases = spec.architecture == Architecture::gpt_oss;
  const auto add_experts = [&](const char* name, std::int64_t rows, std::int64_t columns, float gain) {
    list.push_back({.name = std::format("{}{}.weight", block, name),
                    .rows = experts * rows,
                    .columns = columns,
                    .gain = gain,
                    .type = spec.type,
                    .shape = {columns, rows, experts, 1}});
    if (!has_biases) return;
    list.push_back(
        {.name = std::format("{}{}.bias", block, name), .rows = experts, .columns = rows, .gain = gain, .type = GGML_TYPE_F32});
  };
  list.push_back(vector_of(block + (has_biases ? "post_attention_norm.weight" : "ffn_norm.weight"), width, 1));
  list.push_back({.name = block + "ffn_gate_inp.weight", .rows = experts, .columns = width, .type = GGML_TYPE_F32});
  if (has_biases) list.push_back(random_vector(block + "ffn_gate_inp.bias", experts));
  add_experts("ffn_gate_exps", inner, width, kGainPlain);
  add_experts("ffn_up_exps", inner, width, kGainPlain);
  add_experts("ffn_down_exps", width, inner, kGainPlain * added);
}

void add_bert_norm(const std::string& name, std::int64_t width, std::vector<Matrix>& list) {
  list.push_back(vector_of(name + ".weight", width, 1));
  list.push_back(vector_of(name + ".bias", width, 0));
}

void add_bert_matrix(const std::string& name, std::int64_t rows, std::int64_t columns, float gain, std::vector<Matrix>& list) {
  list.push_back({name + ".weight", rows, columns, gain});
  list.push_back(vector_of(name + ".bias", rows, 0));
}

std::vector<Matrix> list_bert_matrices(const ModelSpec& spec) {
  const std::int64_t width = spec.width;
  const float gain_entries = std::sqrt(static_cast<float>(width));
  std::vector<Matrix> list;
  list.push_back({"token_embd.weight", spec.vocabulary_size, width, gain_entries});
  list.push_back(
      {.name = "position_embd.weight", .rows = spec.n_ctx, .columns = width, .gain = gain_entries, .type = GGML_TYPE_F32});
  list.push_back(
      {.name = "token_types.weight", .rows = kTokenTypes, .columns = width, .gain = kGainPlain, .type = GGML_TYPE_F32});
  add_bert_norm("token_embd_norm", width, list);
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string block = std::format("blk.{}.", layer);
    add_bert_matrix(block + "attn_q", width, width, kGainQueryKey, list);
    add_bert_matrix(block + "attn_k", width, width, kGainQueryKey, list);
    add_bert_matrix(block + "attn_v", width, width, kGainPlain, list);
    add_bert_matrix(block + "attn_output", width, width, kGainAttentionOutput, list);
    add_bert_norm(block + "attn_output_norm", width, list);
    add_bert_matrix(block + "ffn_up", spec.feed_forward, width, kGainPlain, list);
    add_bert_matrix(block + "ffn_down", width, spec.feed_forward, kGainPlain, list);
    add_bert_norm(block + "layer_output_norm", width, list);
  }
  if (spec.pooled_by == PooledBy::rank) {
    add_bert_matrix("cls", width, width, kGainPlain, list);
    list.push_back({.name = "cls.output.weight", .rows = 1, .columns = width, .gain = kGainPlain, .type = GGML_TYPE_F32});
    list.push_back(vector_of("cls.output.bias", 1, 0));
  }
  return list;
}

std::vector<Matrix> list_matrices(const ModelSpec& spec, const Vocabulary& vocabulary) {
  if (spec.architecture == Architecture::bert) return list_bert_matrices(spec);
  if (spec.weights == Weights::shift_register) {
    return list_register_matrices(vocabulary, spec.layers, spec.width, spec.feed_forward);
  }
  const std::int64_t width = spec.width;
  const std::int64_t tokens = spec.vocabulary_size;
  std::vector<Matrix> list;
  Matrix logits{.name = "output.weight",
                .rows = tokens,
                .columns = width,
                .gain = kGainLogits,
                .special_rows = static_cast<std::int64_t>(vocabulary.plain_begin),
                .special_gain = kGainSpecialLogits};
  if (spec.has_output) {
    // The entries are around 1; gemma multiplies them by sqrt(width) itself.
    const float gain_entries = spec.architecture == Architecture::gemma3 ? 1 : std::sqrt(static_cast<float>(width));
    list.push_back({"token_embd.weight", tokens, width, gain_entries});
  } else {
    list.push_back(logits);
    list.back().name = "token_embd.weight";
  }
  for (std::uint32_t layer = 0; layer < spec.layers; ++layer) {
    const bool is_quiet = layer >= spec.layers - spec.quiet_layers;
    const float added = is_quiet ? spec.quiet_gain : 1;
    const std::size_t first = list.size();
    const std::string block = std::format("blk.{}.", layer);
    list.push_back(vector_of(block + "attn_norm.weight", width, 1));
    if (attends(spec, layer)) {
      add_attention(spec, block, added, list);
    } else {
      add_state_layer(spec, block, added, list);
    }
    if (is_mixture(spec)) {
      add_mixture(spec, block, added, list);
    } else if (has_attention(spec)) {
      add_feed_forward(spec, block, added, list);
    }
    for (std::size_t i = first; i < list.size(); ++i) list[i].is_quiet = is_quiet;
  }
  list.push_back(vector_of("output_norm.weight", width, 1));
  if (spec.has_output) list.push_back(std::move(logits));
  return list;
}

std::uint32_t llama_file_type(ggml_type type) {  // llama_ftype
  switch (type) {
    case GGML_TYPE_F16:
      return 1;
    case GGML_TYPE_Q4_0:
      return 2;
    case GGML_TYPE_MXFP4:
      return 38;
    default:
      return 7;  // Q8_0
  }
}

const char* name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return "llama";
    case Architecture::qwen2vl:
      return "qwen2vl";
    case Architecture::qwen3:
      return "qwen3";
    case Architecture::qwen3moe:
      return "qwen3moe";
    case Architecture::gpt_oss:
      return "gpt-oss";
    case Architecture::gemma3:
      return "gemma3";
    case Architecture::mamba:
      return "mamba";
    case Architecture::jamba:
      return "jamba";
    case Architecture::bert:
      return "bert";
  }
  UMA_CHECK(false);
}

float rotary_base(const ModelSpec& spec) {
  if (spec.weights == Weights::shift_register) return 1;  // A register sets its own angles.
  if (spec.architecture == Architecture::gpt_oss) return 150'000;
  return spec.architecture == Architecture::qwen3 || spec.architecture == Architecture::qwen3moe ? 1e6F : 1e4F;
}

void set_shape(gguf_context* gguf, const ModelSpec& spec) {
  const std::string prefix = name_of(spec.architecture);
  const auto set_u32 = [&](std::string_view key, std::uint32_t value) {
    gguf_set_val_u32(gguf, std::format("{}.{}", prefix, key).c_str(), value);
  };
  const auto set_f32 = [&](std::string_view key, float value) {
    gguf_set_val_f32(gguf, std::format("{}.{}", prefix, key).c_str(), value);
  };
  gguf_set_val_str(gguf, "general.architecture", prefix.c_str());
  gguf_set_val_str(gguf, "general.name", spec.name.c_str());
  gguf_set_val_u32(gguf, "general.file_type", llama_file_type(spec.type));
  gguf_set_val_u32(gguf, "general.quantization_version", GGML_QNT_VERSION);
  set_u32("context_length", spec.n_ctx);
  set_u32("embedding_length", spec.width);
  set_u32("block_count", spec.layers);
  set_u32("feed_forward_length", has_attention(spec) ? spec.feed_forward : 0);
  set_u32("attention.head_count", has_attention(spec) ? spec.heads : 0);
  if (spec.architecture == Architecture::jamba) {
    std::vector<std::uint32_t> heads;  // By layer; none where it has a state instead.
    for (std::uint32_t layer = 0; layer < spec.layers; ++layer) heads.push_back(attends(spec, layer) ? spec.kv_heads : 0);
    gguf_set_arr_data(gguf, "jamba.attention.head_count_kv", GGUF_TYPE_UINT32, heads.data(), heads.size());
  } else {
    set_u32("attention.head_count_kv", has_attention(spec) ? spec.kv_heads : 0);
  }
  if (spec.architecture == Architecture::bert) {
    set_f32("attention.layer_norm_epsilon", 1e-12F);
    gguf_set_val_bool(gguf, "bert.attention.causal", false);
    gguf_set_val_u32(gguf, "tokenizer.ggml.token_type_count", kTokenTypes);
  } else {
    set_f32("attention.layer_norm_rms_epsilon", 1e-5F);
  }
  if (spec.pooled_by != PooledBy::none) set_u32("pooling_type", static_cast<std::uint32_t>(spec.pooled_by));
  if (has_attention(spec) && spec.architecture != Architecture::bert) {
    set_u32("rope.dimension_count", head_size(spec));
    set_f32("rope.freq_base", rotary_base(spec));
  }
  if (spec.architecture == Architecture::qwen2vl) {
    // Pairs of a head's numbers that are rotated by time, line and column.
    const auto pairs = static_cast<std::int32_t>(spec.width / spec.heads / 2);
    const std::int32_t side = pairs / 3;
    const std::array<std::int32_t, 4> sections{pairs - 2 * side, side, side, 0};
    gguf_set_arr_data(gguf, "qwen2vl.rope.dimension_sections", GGUF_TYPE_INT32, sections.data(), sections.size());
  }
  if (has_window(spec)) set_u32("attention.sliding_window", spec.window);
  if (names_head_size(spec)) {
    set_u32("attention.key_length", head_size(spec));
    set_u32("attention.value_length", head_size(spec));
  }
  if (is_mixture(spec)) {
    set_u32("expert_count", spec.experts);
    set_u32("expert_used_count", spec.experts_used);
    set_u32("expert_feed_forward_length", spec.feed_forward);
  }
  if (spec.architecture == Architecture::gpt_oss) {
    constexpr std::uint32_t kStretched = 32;  // The context of the training, to that of the file.
    gguf_set_val_str(gguf, "gpt-oss.rope.scaling.type", "yarn");
    set_f32("rope.scaling.factor", kStretched);
    set_u32("rope.scaling.original_context_length", spec.n_ctx / kStretched);
  }
  if (spec.architecture == Architecture::mamba || spec.architecture == Architecture::jamba) {
    set_u32("ssm.conv_kernel", kConvolutionTokens);
    set_u32("ssm.inner_size", spec.width * kInnerPerWidth);
    set_u32("ssm.state_size", kStateSize);
    set_u32("ssm.time_step_rank", step_rank(spec));
  }
  set_u32("vocab_size", spec.vocabulary_size);
}

void set_word_pieces(gguf_context* gguf) {
  gguf_set_val_str(gguf, "tokenizer.ggml.pre", "bert-bge");
  gguf_set_val_u32(gguf, "tokenizer.ggml.padding_token_id", kPiecePadding);
  gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", kPieceUnknown);
  gguf_set_val_u32(gguf, "tokenizer.ggml.cls_token_id", kPieceBegin);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", kPieceBegin);
  gguf_set_val_u32(gguf, "tokenizer.ggml.seperator_token_id", kPieceEnd);  // The format's spelling.
  gguf_set_val_u32(gguf, "tokenizer.ggml.mask_token_id", kPieceMask);
}

// `ends_texts`: the end token is added to every text.
std::string chat_template_of(const ModelSpec& spec) {
  if (!spec.chat_template_text.empty()) return spec.chat_template_text;
  switch (spec.chat_template) {
    case ChatTemplate::none:
      return "";
    case ChatTemplate::plain:
      return std::string(kChatTemplate);
    case ChatTemplate::tools:
      return std::string(kToolTemplate);
  }
  return "";
}

void set_vocabulary(gguf_context* gguf, const ModelSpec& spec, const Vocabulary& vocabulary) {
  const bool is_word_pieces = spec.tokenizer == Tokenizer::word_pieces;
  set_tokens(gguf, is_word_pieces ? "bert" : "llama", vocabulary);
  if (is_word_pieces) return set_word_pieces(gguf);
  set_sentence_pieces(gguf, {.ends_texts = spec.pooled_by != PooledBy::none, .adds_space = true});
  const std::string chat_template = chat_template_of(spec);
  if (!chat_template.empty()) gguf_set_val_str(gguf, "tokenizer.chat_template", chat_template.c_str());
}

}  // namespace

std::expected<void, std::string> write_adapter(const ModelSpec& spec, std::uint32_t rank, const std::filesystem::path& path) {
  constexpr std::uint32_t kRankMax = 256;
  if (rank == 0 || rank > kRankMax) {
    return std::unexpected(std::format("the rank of the adapter is {}, must be from 1 to {}", rank, kRankMax));
  }
  if (auto possible = check_spec(spec); !possible) {
    return possible;
  }
  GgufPtr gguf(gguf_init_empty());
  gguf_set_val_str(gguf.get(), "general.type", "adapter");
  gguf_set_val_str(gguf.get(), "general.architecture", name_of(spec.architecture));
  gguf_set_val_str(gguf.get(), "general.name", std::format("{} adapter", spec.name).c_str());
  gguf_set_val_str(gguf.get(), "adapter.type", "lora");
  gguf_set_val_f32(gguf.get(), "adapter.lora.alpha", static_cast<float>(rank));  // The library divides it by the rank.
  std::vector<Matrix> factors;
  for (const Matrix& matrix : list_matrices(spec, vocabulary_of(spec))) {
    const bool is_changed = matrix.name.contains(".attn_") || matrix.name.contains(".ffn_");
    const bool is_experts = matrix.shape[0] != 0;  // umad refuses adapters of these.
    if (!is_changed || is_experts || matrix.rows == 1 || !matrix.name.ends_with(".weight")) continue;
    factors.push_back({matrix.name + ".lora_a", rank, matrix.columns, kGainPlain});
    factors.push_back({matrix.name + ".lora_b", matrix.rows, rank, kGainPlain});
  }
  return write_gguf(std::move(gguf), factors, GGML_TYPE_F16, spec.seed, path);
}

std::expected<void, std::string> write_model(const ModelSpec& spec, const std::filesystem::path& path) {
  if (auto possible = check_spec(spec); !possible) {
    return possible;
  }
  const Vocabulary vocabulary = vocabulary_of(spec);
  GgufPtr gguf(gguf_init_empty());
  set_shape(gguf.get(), spec);
  set_vocabulary(gguf.get(), spec, vocabulary);
  return write_gguf(std::move(gguf), list_matrices(spec, vocabulary), type_of_plain_matrices(spec), spec.seed, path);
}

}  // namespace uma
