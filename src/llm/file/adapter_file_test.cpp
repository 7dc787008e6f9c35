#include "llm/file/adapter_file.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include "llm/file/trial_load.h"
#include "llm/llama_model.h"
#include "llm/sampling/logits.h"
#include "testing/gguf_bytes.h"

namespace uma::llm {
namespace {

using testing::GgufBytes;

constexpr std::uint32_t kF16 = 1;

GgufBytes adapter_head() {
  GgufBytes file;
  file.text("general.type", "adapter").text("general.architecture", "llama").text("adapter.type", "lora");
  return file;
}

GgufBytes small_adapter() {
  GgufBytes file = adapter_head();
  file.f32("adapter.lora.alpha", 8);
  file.tensor("blk.0.attn_q.weight.lora_a", {16, 4}, kF16, 2).tensor("blk.0.attn_q.weight.lora_b", {4, 16}, kF16, 2);
  return file;
}

Expected<GgufHeader> read_as_adapter(const GgufBytes& file, GgufKind kind = GgufKind::adapter) {
  auto header = read_gguf_header(file.file_bytes(), file.reader(), kind);
  if (!header || kind != GgufKind::adapter) return header;
  if (const auto checked = check_adapter_tensors(*header); !checked) return std::unexpected(checked.error());
  return header;
}

void expect_no_adapter(const GgufBytes& file, std::string_view part) {
  const auto header = read_as_adapter(file);
  ASSERT_FALSE(header) << part;
  EXPECT_EQ(header.error().code, ErrorCode::model_load);
  EXPECT_TRUE(header.error().message.contains(part)) << header.error().message;
}

TEST(AdapterFile, ReadsTheFactorsOfAnAdapter) {
  const auto header = read_as_adapter(small_adapter());
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->architecture, "llama");
  EXPECT_EQ(header->weight_bytes, 256U);
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[1].name, "blk.0.attn_q.weight.lora_b");
  EXPECT_EQ(header->tensors[1].sizes, (std::vector<std::uint64_t>{4, 16}));
  EXPECT_EQ(header->tensors[1].offset, 128U);
}

TEST(AdapterFile, RefusesWhatIsNoAdapter) {
  expect_no_adapter(GgufBytes::small_model(), "general.type is not \"adapter\"");
  const auto as_model = read_as_adapter(small_adapter(), GgufKind::model);
  ASSERT_FALSE(as_model);
  EXPECT_TRUE(as_model.error().message.contains("a LoRA adapter, not a model")) << as_model.error().message;
  GgufBytes other;
  other.text("general.type", "adapter").text("general.architecture", "llama").text("adapter.type", "control_vector");
  expect_no_adapter(other, "adapter.type is not \"lora\"");
  GgufBytes number;
  number.u32("general.type", 5).text("general.architecture", "llama").text("adapter.type", "lora");
  expect_no_adapter(number, "general.type is not");
  GgufBytes nameless;
  nameless.text("general.type", "adapter").text("adapter.type", "lora");
  expect_no_adapter(nameless, "general.architecture is missing");
  expect_no_adapter(adapter_head(), "it changes no tensor");
}

TEST(AdapterFile, RefusesNumbersOnWhichTheLibraryEndsTheProcess) {
  expect_no_adapter(adapter_head().u32("adapter.lora.alpha", 8), "adapter.lora.alpha is not a 32-bit float");
  expect_no_adapter(adapter_head().numbers("adapter.alora.invocation_tokens", {1, 2}), "activated adapter");
}

TEST(AdapterFile, RefusesFactorsThatDoNotFitEachOther) {
  const auto of = [](std::string_view name, const std::vector<std::uint64_t>& first, const std::vector<std::uint64_t>& second) {
    GgufBytes file = adapter_head();
    file.tensor(std::string(name) + ".lora_a", first, kF16, 2).tensor(std::string(name) + ".lora_b", second, kF16, 2);
    return file;
  };
  expect_no_adapter(of("blk.0.attn_q.weight", {16, 4}, {8, 16}), "have the ranks 4 and 8");
  EXPECT_TRUE(read_as_adapter(of("token_embd.weight", {4, 1536}, {4, 16})));
  expect_no_adapter(of("token_embd.weight", {16, 4}, {4, 16}), "have the ranks 16 and 4");
  expect_no_adapter(of("blk.0.attn_q.weight", {16, 4, 2}, {4, 16}), "is not a matrix");
  expect_no_adapter(of("blk.0.attn_q.weight", {16}, {4, 16}), "is not a matrix");
  expect_no_adapter(of("blk.0.ffn_up_exps.weight", {16, 4}, {4, 16}), "experts of a mixture");
  expect_no_adapter(adapter_head().tensor("blk.0.attn_q.weight.lora_a", {16, 4}), ".lora_b is missing");
  expect_no_adapter(adapter_head().tensor("blk.0.attn_q.weight", {16, 4}), "ends neither with .lora_a nor with .lora_b");
  expect_no_adapter(adapter_head().tensor("blk.0.attn_q.weight.lora_a", {32, 4}, 2, 1), "has the type 2");
}

TEST(AdapterFile, FitsModelsOfItsArchitecture) {
  GgufHeader model;
  model.architecture = "llama";
  EXPECT_TRUE(check_adapter_fits(*read_as_adapter(small_adapter()), model));
  model.architecture = "gemma3";
  EXPECT_EQ(check_adapter_fits(*read_as_adapter(small_adapter()), model).error().message,
            "it is for models of the architecture llama, but the model is gemma3");
  const auto tokens = read_as_adapter(adapter_head()
                                          .tensor("token_embd.weight.lora_a", {4, 1536}, kF16, 2)
                                          .tensor("token_embd.weight.lora_b", {4, 16}, kF16, 2));
  model.architecture = "llama";
  EXPECT_FALSE(check_adapter_fits(*tokens, model)) << "its output is the same tensor";
  model.output_bytes = 1;
  EXPECT_TRUE(check_adapter_fits(*tokens, model));
}

// --- With the library

class AdapterOfTiny : public ::testing::Test {
 protected:
  static std::filesystem::path model_path() {
    const char* path = std::getenv("UMA_TEST_MODEL");
    return path != nullptr ? path : "build/release/models/tiny.gguf";
  }
  static std::string adapter_path() { return (model_path().parent_path() / "tiny-lora.gguf").string(); }
  static std::shared_ptr<const Model> load(const std::string& path) {
    return load_llama_model(model_path().string(), {.adapters = {{.name = "a", .path = path}}}).value();
  }
  static std::vector<float> logits_with(const Model& model, std::vector<AdapterUse> uses) {
    auto context = model.new_context({.cells = 64, .sequences = 1, .threads = 1}).value();
    context->use_adapters(make_adapter_set(model.facts().adapters, std::move(uses)));
    return logits_of(*context);
  }
  static std::vector<float> logits_of(Context& context) {
    std::vector<BatchRow> rows;
    for (std::int32_t i = 0; i < 8; ++i) rows.push_back({300 + 11 * i, i, 0, i == 7});
    EXPECT_EQ(context.decode(rows, nullptr).value(), DecodeStatus::done);
    const auto logits = context.logits(7);
    return {logits.begin(), logits.end()};
  }
  // The adapter's file with other bytes at its end, in a file that is removed after the test.
  std::string with_end(std::string_view bytes) {
    std::ifstream file(adapter_path(), std::ios::binary);
    std::string data{std::istreambuf_iterator<char>(file), {}};
    data.replace(data.size() - bytes.size(), bytes.size(), bytes);
    std::ofstream(changed_, std::ios::binary) << data;
    return changed_;
  }
  void TearDown() override { std::filesystem::remove(changed_); }

  const std::string changed_ =
      (std::filesystem::temp_directory_path() / ("uma-adapter-" + std::to_string(::getpid()) + ".gguf")).string();
};

TEST_F(AdapterOfTiny, ChangesTheLogitsByItsScale) {
  const auto model = load(adapter_path());
  ASSERT_EQ(model->facts().adapters.size(), 1U);
  EXPECT_EQ(model->facts().adapters[0].problem, "");
  EXPECT_GT(model->facts().adapters[0].bytes, 0U);
  const std::vector<float> base = logits_with(*model, {});
  const std::vector<float> half = logits_with(*model, {{.index = 0, .scale = 0.5F}});
  const std::vector<float> whole = logits_with(*model, {{.index = 0, .scale = 1}});
  EXPECT_EQ(logits_with(*model, {{.index = 0, .scale = 0}}), base);
  EXPECT_GT(logits_distance(base, half), 0.1);
  EXPECT_GT(logits_distance(base, whole), 0.1);
  EXPECT_GT(logits_distance(half, whole), 0.1);
}

// Writes the model with the adapter added to its weights, in f16 as they are.
void write_merged(const std::string& model_path, const std::string& adapter_path, const std::string& path) {
  const auto read = [](const std::string& from, ggml_context** tensors) {
    return std::unique_ptr<gguf_context, decltype(&gguf_free)>(
        gguf_init_from_file(from.c_str(), {.no_alloc = false, .ctx = tensors}), gguf_free);
  };
  ggml_context* weights = nullptr;
  ggml_context* factors = nullptr;
  const auto model = read(model_path, &weights);
  const auto adapter = read(adapter_path, &factors);
  const auto number = [](const ggml_tensor* tensor, std::int64_t row, std::int64_t column) -> ggml_fp16_t& {
    return static_cast<ggml_fp16_t*>(tensor->data)[row * tensor->ne[0] + column];
  };
  std::filesystem::copy_file(model_path, path, std::filesystem::copy_options::overwrite_existing);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (ggml_tensor* tensor = ggml_get_first_tensor(weights); tensor != nullptr;
       tensor = ggml_get_next_tensor(weights, tensor)) {
    const std::string name = ggml_get_name(tensor);
    const ggml_tensor* first = ggml_get_tensor(factors, (name + ".lora_a").c_str());
    const ggml_tensor* second = ggml_get_tensor(factors, (name + ".lora_b").c_str());
    if (first == nullptr) continue;
    for (std::int64_t row = 0; row < tensor->ne[1]; ++row) {
      for (std::int64_t column = 0; column < tensor->ne[0]; ++column) {
        float sum = ggml_fp16_to_fp32(number(tensor, row, column));
        for (std::int64_t i = 0; i < first->ne[1]; ++i) {
          sum += ggml_fp16_to_fp32(number(second, row, i)) * ggml_fp16_to_fp32(number(first, i, column));
        }
        number(tensor, row, column) = ggml_fp32_to_fp16(sum);
      }
    }
    const std::size_t at =
        gguf_get_data_offset(model.get()) + gguf_get_tensor_offset(model.get(), gguf_find_tensor(model.get(), name.c_str()));
    file.seekp(static_cast<std::streamoff>(at));
    file.write(static_cast<const char*>(tensor->data), static_cast<std::streamsize>(ggml_nbytes(tensor)));
  }
  ggml_free(weights);
  ggml_free(factors);
}

TEST_F(AdapterOfTiny, EqualsTheModelWithTheAdapterInItsWeights) {
  const auto model = load(adapter_path());
  write_merged(model_path().string(), adapter_path(), changed_);
  const auto merged = load_llama_model(changed_, {}).value();
  EXPECT_LT(logits_distance(logits_with(*model, {{.index = 0, .scale = 1}}), logits_with(*merged, {})), 0.02);
}

TEST_F(AdapterOfTiny, IsChangedBetweenTwoCalls) {
  const auto model = load(adapter_path());
  auto context = model->new_context({.cells = 64, .sequences = 1, .threads = 1}).value();
  const AdapterSet whole = make_adapter_set(model->facts().adapters, {{.index = 0, .scale = 1}});
  for (int i = 0; i < 2; ++i) {
    for (const AdapterSet& set : {AdapterSet(), whole}) {
      context->use_adapters(set);
      EXPECT_EQ(logits_of(*context), logits_with(*model, set.uses));
      ASSERT_TRUE(context->truncate(0, 0));
    }
  }
}

TEST_F(AdapterOfTiny, PassesItsTrial) {
  const auto tried = try_adapter(model_path().string(), adapter_path());
  EXPECT_TRUE(tried) << tried.error().message;
  EXPECT_TRUE(adapter_trial_identity(model_path().string(), adapter_path()));
}

TEST_F(AdapterOfTiny, AFileThatCannotBeUsedIsLeftOut) {
  const auto problem_of = [](const std::string& path) {
    const auto model = load(path);
    EXPECT_FALSE(logits_with(*model, {}).empty());
    return model->facts().adapters.at(0).problem;
  };
  EXPECT_TRUE(problem_of(with_end("\xff\x7f")).contains("numbers that are not finite"));
  EXPECT_FALSE(problem_of(changed_).contains("/")) << "no folders";
  EXPECT_TRUE(problem_of(model_path().string()).contains("it is not an adapter"));
  EXPECT_TRUE(problem_of("/nowhere/none.gguf").contains("No such file"));
  EXPECT_FALSE(try_adapter(model_path().string(), model_path().string()));
}

}  // namespace
}  // namespace uma::llm
