#include "llm/file/gguf_header.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "llm/file/gguf_files.h"
#include "llm/llama_model.h"
#include "testing/gguf_bytes.h"

namespace uma::llm {
namespace {

using testing::GgufBytes;

// Reads a file of `file_bytes` bytes that begins with `head`.
Expected<GgufHeader> read(std::string_view head, std::uint64_t file_bytes) {
  return read_gguf_header(file_bytes, [&](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset >= head.size()) return 0;
    const std::size_t count = std::min<std::size_t>(into.size(), head.size() - offset);
    std::memcpy(into.data(), head.data() + offset, count);
    return count;
  });
}
Expected<GgufHeader> read(const GgufBytes& file) {
  return read(file.head(), file.file_bytes());
}
// The error message of a refused file.
std::string refusal(const Expected<GgufHeader>& header) {
  EXPECT_FALSE(header.has_value());
  if (header) return "";
  EXPECT_EQ(header.error().code, ErrorCode::model_load);
  return header.error().message;
}
void expect_refused(const GgufBytes& file, std::string_view part) {
  const std::string message = refusal(read(file));
  EXPECT_TRUE(message.contains(part)) << message;
}

TEST(GgufHeader, ReadsTheDefaultsOfSamplingThatAreInRange) {
  GgufBytes file = GgufBytes::small_model();
  file.text("general.basename", "Small").text("general.finetune", "Instruct");
  file.f32("general.sampling.temp", 0.7F).u32("general.sampling.top_k", 20).f32("general.sampling.penalty_repeat", 1.05F);
  file.f32("general.sampling.mirostat", 2).text("general.sampling.sequence", "tk").u32("general.sampling.unknown", 3);
  // Out of range, no number, no integer, and of the wrong type.
  file.f32("general.sampling.top_p", 1.01F).f32("general.sampling.min_p", std::numeric_limits<float>::quiet_NaN());
  file.f32("general.sampling.penalty_last_n", 1.5F).texts("general.sampling.xtc_threshold", {"0.1"});
  file.u64("general.sampling.mirostat_tau", ~0ULL).boolean("general.sampling.mirostat_eta", true);
  file.f32("general.sampling.xtc_probability", std::numeric_limits<float>::infinity());
  const auto header = read(file);
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->base_name, "Small");
  EXPECT_EQ(header->finetune, "Instruct");
  SamplingValues expected;
  expected[SamplingField::temperature] = 0.7;
  expected[SamplingField::top_k] = 20;
  expected[SamplingField::repeat_penalty] = 1.05;
  expected[SamplingField::mirostat] = 2;
  EXPECT_EQ(header->sampling, expected);
}

TEST(GgufHeader, ANegativeTopKOfSamplingIsOff) {
  GgufBytes file = GgufBytes::small_model();
  file.f32("general.sampling.top_k", -1);
  EXPECT_EQ(read(file)->sampling[SamplingField::top_k], 0);
}

TEST(GgufHeader, ReadsWhatAModelIs) {
  GgufBytes file;
  file.text("general.name", "Assistant").text("general.size_label", "7B").text("general.architecture", "llama");
  file.u32("general.file_type", 7).u32("llama.block_count", 2).u32("llama.context_length", 4096);
  file.u32("llama.embedding_length", 64).u32("llama.feed_forward_length", 128).u32("llama.attention.head_count", 4);
  file.u32("llama.attention.head_count_kv", 2).u32("llama.expert_count", 8).u32("llama.expert_used_count", 2);
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F).texts("tokenizer.ggml.tokens", {"a", "b", "c"});
  file.text("tokenizer.chat_template", "{{ messages }}");
  file.tensor("token_embd.weight", {64, 3}).tensor("blk.0.ffn_up_exps.weight", {64, 128, 8}, 1, 2);
  const auto header = read(file);
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->architecture, "llama");
  EXPECT_EQ(header->name, "Assistant");
  EXPECT_EQ(header->size_label, "7B");
  EXPECT_EQ(header->file_type, 7);
  EXPECT_EQ(header->block_count, 2);
  EXPECT_EQ(header->context_length, 4096);
  EXPECT_EQ(header->head_count_kv_sum, 4);
  EXPECT_EQ(header->key_length, 16);
  EXPECT_EQ(header->vocabulary_size, 3);
  EXPECT_EQ(header->expert_count, 8);
  EXPECT_TRUE(header->has_chat_template);
  EXPECT_FALSE(header->pooling_type.has_value());
  EXPECT_FALSE(header->is_projector());
  EXPECT_EQ(header->expert_bytes, 64u * 128 * 8 * 2);
  EXPECT_EQ(header->weight_bytes, 64u * 3 * 4 + header->expert_bytes);
  EXPECT_EQ(header->token_bytes, 64u * 3 * 4);
  EXPECT_FALSE(header->has_output());
  EXPECT_EQ(header->data_offset % GgufBytes::kAlignment, 0u);
}

TEST(GgufHeader, HeadsMayDifferFromLayerToLayer) {
  GgufBytes file = GgufBytes::small_model();
  file.numbers("llama.attention.head_count_kv", {2, 0, 1});
  const auto header = read(file);
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->head_count_kv_sum, 3);
}

TEST(GgufHeader, KnowsTheContextBeforeItsScaling) {
  EXPECT_EQ(read(GgufBytes::small_model())->rope_original_length, 0);
  GgufBytes file = GgufBytes::small_model();
  file.u32("llama.rope.scaling.original_context_length", 64);
  EXPECT_EQ(read(file)->rope_original_length, 64);
}

TEST(GgufHeader, KnowsEncodersAndProjectors) {
  GgufBytes encoder = GgufBytes::small_model();
  encoder.u32("llama.pooling_type", 4).boolean("llama.attention.causal", false);
  const auto header = read(encoder);
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->pooling_type, 4);
  EXPECT_EQ(header->causal_attention, false);

  GgufBytes projector;
  projector.text("general.architecture", "clip").u32("clip.vision.projection_dim", 128).tensor("v.blk.0.ln1.bias", {8}, 1, 2);
  const auto other = read(projector);
  ASSERT_TRUE(other.has_value()) << other.error().message;
  EXPECT_TRUE(other->is_projector());
  EXPECT_EQ(other->projection_size, 128);
  EXPECT_TRUE(other->encoders.images && !other->encoders.audio);

  GgufBytes hears;
  hears.text("general.architecture", "clip").boolean("clip.has_audio_encoder", true).u32("clip.audio.projection_dim", 64);
  const auto audio = read(hears.tensor("a.blk.0.ln1.bias", {8}, 1, 2));
  ASSERT_TRUE(audio.has_value()) << audio.error().message;
  EXPECT_EQ(audio->projection_size, 64);
  EXPECT_TRUE(!audio->encoders.images && audio->encoders.audio);
}

TEST(GgufHeader, TheLibraryReadsTheSame) {
  const char* path = std::getenv("UMA_TEST_MODEL");
  ASSERT_NE(path, nullptr);
  for (const std::string& file : {std::string(path), std::string(UMA_SHIPPED_MODEL)}) {
    const auto header = read_model_header(file);
    ASSERT_TRUE(header.has_value()) << header.error().message;
    const auto model = load_llama_model(file, {});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const ModelFacts& facts = (*model)->facts();
    EXPECT_EQ(header->weight_bytes, facts.bytes);
    EXPECT_EQ(header->parameters, facts.parameters);
    EXPECT_EQ(header->context_length, facts.train_tokens);
    EXPECT_EQ(header->vocabulary_size, (*model)->vocab().size());
    EXPECT_EQ(header->has_chat_template, !facts.chat_template.empty());
  }
}

TEST(GgufHeader, RefusesWhatIsNoGguf) {
  EXPECT_TRUE(refusal(read("", 0)).contains("truncated"));
  EXPECT_TRUE(refusal(read("GGML\3\0\0\0", 8)).contains("does not begin with GGUF"));
  std::string head = GgufBytes::small_model().head();
  head[4] = 9;
  EXPECT_TRUE(refusal(read(head, head.size())).contains("version is 9"));
  head.replace(4, 4, std::string_view("\0\0\0\3", 4));
  EXPECT_TRUE(refusal(read(head, head.size())).contains("byte order"));
  head = GgufBytes::small_model().head();
  head[15] = 1;  // The tensor count becomes 2^56.
  EXPECT_TRUE(refusal(read(head, head.size())).contains("it claims"));
}

TEST(GgufHeader, RefusesAHeadThatIsCutAnywhere) {
  const std::string head = GgufBytes::small_model().head();
  for (std::size_t size = 0; size < head.size(); ++size) {
    EXPECT_FALSE(read(std::string_view(head).substr(0, size), size).has_value()) << size;
    // The file is longer than its readable part.
    EXPECT_FALSE(read(std::string_view(head).substr(0, size), 10'000).has_value()) << size;
  }
}

TEST(GgufHeader, RefusesAModelWithoutAVocabulary) {
  for (const char* tokenizer : {"none", "no_vocab"}) {
    GgufBytes file = GgufBytes::small_model();
    expect_refused(file.text("tokenizer.ggml.model", tokenizer), "the model has no vocabulary");
  }
  GgufBytes file = GgufBytes::small_model();
  EXPECT_TRUE(read(file.text("tokenizer.ggml.model", "llama")).has_value());
}

TEST(GgufHeader, RefusesMixturesWithoutExperts) {
  for (const std::string architecture : {"smallthinker", "llada-moe"}) {
    const auto of_kind = [&](std::uint32_t experts) {
      GgufBytes file;
      file.text("general.architecture", architecture);
      for (const auto& [key, value] : std::vector<std::pair<std::string, std::uint32_t>>{{"block_count", 1},
                                                                                         {"context_length", 256},
                                                                                         {"embedding_length", 16},
                                                                                         {"feed_forward_length", 32},
                                                                                         {"attention.head_count", 2},
                                                                                         {"expert_count", experts},
                                                                                         {"expert_used_count", experts}}) {
        file.u32(std::format("{}.{}", architecture, key), value);
      }
      return file.texts("tokenizer.ggml.tokens", {"a"}).tensor("token_embd.weight", {16, 1});
    };
    expect_refused(of_kind(0), architecture + ".expert_count is 0");
    EXPECT_TRUE(read(of_kind(4)).has_value());
  }
}

TEST(GgufHeader, RefusesLengthsThatCannotBe) {
  const auto with_array = [](std::uint32_t type, std::uint64_t count) {
    GgufBytes file = GgufBytes::small_model();
    return file.array_of("tokenizer.ggml.scores", type, count);
  };
  expect_refused(with_array(6, std::uint64_t{1} << 62), "array claims");
  expect_refused(with_array(6, 1 << 20), "truncated in its metadata");
  expect_refused(with_array(8, ~std::uint64_t{0}), "truncated in its metadata");
  expect_refused(with_array(9, 1), "contains arrays");
  expect_refused(with_array(77, 1), "unknown type 77");
  std::string head = GgufBytes::small_model().head();
  for (std::size_t i = 24; i < 32; ++i) head[i] = '\xff';  // The length of the first key.
  EXPECT_TRUE(refusal(read(head, head.size())).contains("a key of"));
}

TEST(GgufHeader, RefusesShapesThatTheLibraryDoesNotSurvive) {
  const auto with = [](std::string_view key, std::uint32_t value) {
    GgufBytes file;
    file.text("general.architecture", "llama");
    for (const auto& [name, number] : {std::pair<std::string_view, std::uint32_t>{"llama.block_count", 1},
                                       {"llama.context_length", 256},
                                       {"llama.embedding_length", 16},
                                       {"llama.attention.head_count", 2}}) {
      file.u32(name, name == key ? value : number);
    }
    if (!key.ends_with("count") || key.contains("expert") || key.contains("rope")) file.u32(std::string(key) + ".x", 0);
    if (key.contains("expert") || key.contains("rope")) file.u32(key, value);
    return file;
  };
  EXPECT_TRUE(read(with("", 0)).has_value());
  expect_refused(with("llama.block_count", 0), "none may be 0");
  expect_refused(with("llama.block_count", 513), "not 0 to 512");
  expect_refused(with("llama.embedding_length", 0), "none may be 0");
  expect_refused(with("llama.context_length", 0xffff'ffff), "context_length is 4294967295");
  expect_refused(with("llama.expert_count", 4), "4 experts and uses 0");
  expect_refused(with("llama.rope.dimension_count", 7), "must be even");
  expect_refused(with("llama.rope.dimension_count", 10), "at most the head size 8");
  expect_refused(with("llama.rope.dimension_count", 0), "must be even");

  GgufBytes file = GgufBytes::small_model();
  expect_refused(file.f32("llama.attention.layer_norm_rms_epsilon", -1), "is not between 0 and 1");
  file = GgufBytes::small_model();
  expect_refused(file.f32("llama.attention.layer_norm_epsilon", __builtin_nanf("")), "is not between 0 and 1");
  file = GgufBytes::small_model();
  expect_refused(file.u32("general.alignment", 24), "not a power of two");
  file = GgufBytes::small_model();
  expect_refused(file.u32("llama.block_count", 1), "appears twice");
  expect_refused(GgufBytes().u32("llama.block_count", 1), "general.architecture is missing");
}

TEST(GgufHeader, RefusesTensorsThatTheLibraryDoesNotSurvive) {
  const auto with = [](std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type) {
    GgufBytes file = GgufBytes::small_model();
    return file.tensor(name, sizes, type);
  };
  EXPECT_TRUE(read(with("blk.0.ffn_up.weight", {16, 32}, 1)).has_value());
  expect_refused(with("a", {}, 0), "0 dimensions");
  expect_refused(with("a", {1, 1, 1, 1, 1}, 0), "5 dimensions");
  expect_refused(with("a", {0}, 0), "size 0 in dimension 0");
  expect_refused(with("a", {std::uint64_t{1} << 40, std::uint64_t{1} << 40}, 0), "in dimension 1");
  expect_refused(with("a", {16, 2}, 99), "unknown type 99");
  expect_refused(with("a", {16, 2}, 15), "unknown type 15");  // A type for computation only.
  expect_refused(with("a", {16, 2}, 8), "but blocks of 32");
  expect_refused(with("blk.0.attn_norm.weight", {16}, 1), "must have f32");
  expect_refused(with("blk.0.ssm_conv1d.weight", {4, 16}, 1), "must have f32");
  expect_refused(with("blk.0.ffn_up.weight", {16, 2}, 26), "integers instead of weights");
  expect_refused(with("token_embd.weight", {16, 4}, 0), "appears twice");
  expect_refused(with(std::string(64, 'x'), {16}, 0), "a tensor's name of 64 bytes");

  GgufBytes file = GgufBytes::small_model();
  expect_refused(file.tensor_at("a", {16}, 0, 64), "behind the previous tensor");
  file = GgufBytes::small_model();
  expect_refused(file.tensor_at("a", {std::uint64_t{1} << 58}, 0, 320), "truncated: tensor");
  const GgufBytes whole = GgufBytes::small_model();
  EXPECT_TRUE(refusal(read(whole.head(), whole.file_bytes() - 1)).contains("truncated: its tensors"));
  GgufBytes wide;
  wide.text("general.architecture", "llama").u32("llama.block_count", 1).u32("llama.context_length", 8);
  wide.u32("llama.embedding_length", 16).tensor("token_embd.weight", {32, 4});
  expect_refused(wide, "rows of 32 numbers");
}

TEST(GgufHeader, AnyBytesGiveAnAnswer) {
  const std::string head = GgufBytes::small_model().head();
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    std::string bytes = head;
    for (std::uint64_t i = 0; i <= random.next_below(4); ++i) {
      bytes[random.next_below(bytes.size())] = static_cast<char>(random.next_u64());
    }
    if (!read(bytes, random.next_below(2) == 0 ? bytes.size() : 4096).has_value()) ++refused;
  }
  EXPECT_GT(refused, 1000u);
}

class GgufFiles : public ::testing::Test {
 protected:
  GgufFiles() : folder_(std::filesystem::path(::testing::TempDir()) / ("uma-gguf-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~GgufFiles() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Writes file `index` of `count`.
  void write_part(const std::string& name, std::uint32_t index, std::uint32_t count) const {
    GgufBytes file = index == 0 ? GgufBytes::small_model() : GgufBytes();
    file.u32("split.count", count).u32("split.no", index);
    file.tensor("blk." + std::to_string(index) + ".ffn_up.weight", {16, 32});
    file.write(path(name));
  }

  const std::filesystem::path folder_;
};

TEST_F(GgufFiles, OnlyRegularFilesAreRead) {
  EXPECT_TRUE(refusal(read_gguf_header(path("absent.gguf"))).contains("No such file"));
  EXPECT_TRUE(refusal(read_gguf_header(folder_.string())).contains("not a regular file"));
  ASSERT_EQ(::mkfifo(path("pipe.gguf").c_str(), 0600), 0);
  EXPECT_TRUE(refusal(read_gguf_header(path("pipe.gguf"))).contains("not a regular file"));
}

TEST_F(GgufFiles, AModelOfSeveralFilesIsTheSumOfThem) {
  write_part("big-00001-of-00003.gguf", 0, 3);
  write_part("big-00002-of-00003.gguf", 1, 3);
  EXPECT_TRUE(refusal(read_model_header(path("big-00001-of-00003.gguf"))).contains("big-00003-of-00003.gguf: No such file"));
  write_part("big-00003-of-00003.gguf", 2, 3);
  const auto header = read_model_header(path("big-00001-of-00003.gguf"));
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->weight_bytes, (16u * 4 + 16 + 3 * 16 * 32) * 4);
  EXPECT_EQ(header->architecture, "llama");

  EXPECT_TRUE(refusal(read_model_header(path("big-00002-of-00003.gguf"))).contains("load the first file"));
  write_part("big-00003-of-00003.gguf", 1, 3);
  EXPECT_TRUE(refusal(read_model_header(path("big-00001-of-00003.gguf"))).contains("calls this file 2 of 3"));
  write_part("other.gguf", 0, 2);
  EXPECT_TRUE(refusal(read_model_header(path("other.gguf"))).contains("its name must end in -00001-of-00002.gguf"));
}

}  // namespace
}  // namespace uma::llm
