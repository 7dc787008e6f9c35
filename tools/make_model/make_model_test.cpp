// Tests the models with the real libllama, as the bench and the tests of other modules use them.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <llama.h>

#include "make_model/gguf_writer.h"
#include "make_model/model_file.h"
#include "make_model/model_test_support.h"
#include "make_model/shift_register.h"
#include "make_model/vocabulary.h"
#include "make_model/words.h"

namespace uma {
namespace {

std::vector<llama_token> generate_greedy(llama_model& model, std::vector<llama_token> batch, int tokens_count) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  params.n_threads = 1;
  params.n_threads_batch = 1;
  const ContextPtr context(llama_init_from_model(&model, params));
  const int vocabulary_size = llama_vocab_n_tokens(llama_model_get_vocab(&model));
  std::vector<llama_token> generated;
  for (int step = 0; step < tokens_count; ++step) {
    if (llama_decode(context.get(), llama_batch_get_one(batch.data(), static_cast<int>(batch.size()))) != 0) {
      return {};
    }
    const float* logits = llama_get_logits_ith(context.get(), -1);
    batch = {static_cast<llama_token>(std::max_element(logits, logits + vocabulary_size) - logits)};
    generated.push_back(batch[0]);
  }
  return generated;
}

std::vector<llama_token> generate_greedy(llama_model& model, const std::string& prompt, int tokens_count) {
  return generate_greedy(model, tokenize(model, prompt), tokens_count);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

ModelSpec smallest_spec() {
  return {.name = "test",
          .type = GGML_TYPE_Q4_0,
          .layers = 1,
          .width = 32,
          .heads = 2,
          .kv_heads = 1,
          .feed_forward = 32,
          .n_ctx = 256,
          .vocabulary_size = static_cast<std::uint32_t>(vocabulary_size_min(Markers::chat)),
          .chat_template = ChatTemplate::plain,
          .seed = 7};
}

class MakeModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_up_library(); }
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / std::format("make_model_test.{}", getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Empty if the model has none.
  std::string template_of(const ModelSpec& spec) const {
    const std::filesystem::path path = folder_ / "template.gguf";
    EXPECT_TRUE(write_model(spec, path));
    const ModelPtr model = load(path, /*vocabulary_only=*/true);
    const char* text = llama_model_chat_template(model.get(), nullptr);
    return text != nullptr ? text : "";
  }

  std::filesystem::path folder_;
  const std::filesystem::path models_ = std::filesystem::path(std::getenv("UMA_TEST_MODEL")).parent_path();
};

TEST(Words, AreDistinctAndBeginWithEarlierWords) {
  std::set<std::string> seen;
  for (std::size_t index = 0; index < 30'000; ++index) {
    const std::string word = make_word(index);
    ASSERT_TRUE(word.size() == 2 || seen.contains(word.substr(0, word.size() - 2))) << word;
    ASSERT_TRUE(seen.insert(word).second) << word;
  }
}

TEST(Vocabulary, FillsTheSizeAskedFor) {
  for (const std::size_t size : {vocabulary_size_min(Markers::chat), std::size_t{1536}, std::size_t{32'000}}) {
    const Vocabulary vocabulary = make_vocabulary(size, Markers::chat);
    EXPECT_EQ(vocabulary.texts.size(), size);
    EXPECT_EQ(vocabulary.scores.size(), size);
    EXPECT_EQ(vocabulary.types.size(), size);
    EXPECT_EQ(vocabulary.texts[kTokenEos], "</s>");
  }
}

TEST_F(MakeModel, GivesTheSameBytesFromTheSameSeedAndOthersFromAnother) {
  ModelSpec spec = smallest_spec();
  ASSERT_TRUE(write_model(spec, folder_ / "a.gguf"));
  ASSERT_TRUE(write_model(spec, folder_ / "b.gguf"));
  spec.seed = 8;
  ASSERT_TRUE(write_model(spec, folder_ / "c.gguf"));
  EXPECT_EQ(read_file(folder_ / "a.gguf"), read_file(folder_ / "b.gguf"));
  EXPECT_NE(read_file(folder_ / "a.gguf"), read_file(folder_ / "c.gguf"));
}

// A large matrix is drawn in parts, one on each core; the bytes are those of one core.
TEST_F(MakeModel, DrawsTheSameRowsInPartsAsInOneGo) {
  constexpr std::int64_t kRows = 4096;
  constexpr std::int64_t kColumns = 512;
  constexpr std::size_t kDataBytes = kRows * (kColumns / 32) * 34;  // Q8_0
  const auto data_of = [&](std::int64_t rows_of_each) {
    std::vector<Matrix> matrices;
    for (std::int64_t row = 0; row < kRows; row += rows_of_each) {
      matrices.push_back({std::format("part.{}", row), rows_of_each, kColumns});
    }
    EXPECT_TRUE(write_gguf(GgufPtr(gguf_init_empty()), matrices, GGML_TYPE_Q8_0, 5, folder_ / "parts.gguf"));
    const std::string file = read_file(folder_ / "parts.gguf");
    EXPECT_GT(file.size(), kDataBytes);
    return file.substr(file.size() - std::min(file.size(), kDataBytes));
  };
  const std::string whole = data_of(kRows);
  EXPECT_EQ(whole, data_of(kRows / 256));
  EXPECT_NE(whole.substr(0, kDataBytes / 2), whole.substr(kDataBytes / 2));
}

TEST_F(MakeModel, QuietLayersLeaveTheTextAsItIsWithoutThem) {
  ModelSpec spec = smallest_spec();
  spec.type = GGML_TYPE_Q8_0;
  spec.layers = 2;
  ASSERT_TRUE(write_model(spec, folder_ / "short.gguf"));
  const auto text_of = [&](const char* name) {
    return generate_greedy(*load(folder_ / name, /*vocabulary_only=*/false), "once upon a time", 40);
  };
  spec.layers = 5;
  spec.quiet_layers = 3;
  ASSERT_TRUE(write_model(spec, folder_ / "quiet.gguf"));
  EXPECT_EQ(text_of("quiet.gguf"), text_of("short.gguf"));
  spec.quiet_gain = 1;
  ASSERT_TRUE(write_model(spec, folder_ / "loud.gguf"));
  EXPECT_NE(text_of("loud.gguf"), text_of("short.gguf"));
}

TEST_F(MakeModel, RefusesImpossibleShapesInWords) {
  ModelSpec spec = smallest_spec();
  spec.width = 48;
  EXPECT_EQ(write_model(spec, folder_ / "a.gguf").error(), "width is 48, must be a multiple of 32");
  spec = smallest_spec();
  spec.vocabulary_size = 10;
  EXPECT_FALSE(write_model(spec, folder_ / "a.gguf"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(MakeModel, LeavesNothingBehindWhereItCannotWrite) {
  std::filesystem::create_directory(folder_ / "taken.gguf");  // Rename onto a folder fails.
  EXPECT_FALSE(write_model(smallest_spec(), folder_ / "taken.gguf"));
  EXPECT_FALSE(write_model(smallest_spec(), folder_ / "missing" / "a.gguf"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(MakeModel, TokenizesEachWordOfItsVocabularyToOneToken) {
  ModelSpec spec = smallest_spec();
  spec.vocabulary_size = 32'000;
  ASSERT_TRUE(write_model(spec, folder_ / "words.gguf"));
  const ModelPtr model = load(folder_ / "words.gguf", /*vocabulary_only=*/true);
  ASSERT_NE(model, nullptr);
  std::string text;
  constexpr std::size_t kWordsCount = 30'000;
  for (std::size_t index = 0; index < kWordsCount; ++index) {
    text += (index == 0 ? "" : " ") + make_word(index);
  }
  const std::vector<llama_token> tokens = tokenize(*model, text);
  EXPECT_EQ(tokens.size(), kWordsCount);
  EXPECT_EQ(detokenize(*model, tokens), text);
  EXPECT_EQ(tokenize(*model, "once upon a time there was a little girl").size(), 9u);
}

TEST_F(MakeModel, TokenizesEveryByteAndGivesTextBack) {
  const ModelPtr model = load(std::getenv("UMA_TEST_MODEL"), /*vocabulary_only=*/true);
  ASSERT_NE(model, nullptr);
  std::string text = "Zwölf Boxkämpfer \xF0\x9F\xA5\x8A, 漢字\n\t";
  for (int byte = 1; byte < 128; ++byte) {
    text += static_cast<char>(byte);
  }
  EXPECT_EQ(detokenize(*model, tokenize(*model, text)), text);
}

TEST_F(MakeModel, WritesGreedyTextThatVariesAndDependsOnTheWholePrompt) {
  const ModelPtr model = load(std::getenv("UMA_TEST_MODEL"), /*vocabulary_only=*/false);
  ASSERT_NE(model, nullptr);
  const std::string end = " the dog and the cat say hello to the small boy";
  const std::vector<llama_token> first = generate_greedy(*model, "once upon a time" + end, 64);
  const std::vector<llama_token> second = generate_greedy(*model, "mother make a picture" + end, 64);
  ASSERT_EQ(first.size(), 64u);
  EXPECT_NE(first, second);
  EXPECT_GE(std::set(first.begin(), first.end()).size(), 16u);
  EXPECT_GE(std::set(second.begin(), second.end()).size(), 16u);
}

// Computes the rule of shift_register.h from tokens, without weights.
std::vector<llama_token> continued_by_rule(std::vector<llama_token> tokens, std::size_t count, const Vocabulary& vocabulary) {
  const std::vector<std::int64_t> words = register_words(vocabulary);
  std::map<llama_token, std::int64_t> codes;
  for (std::int64_t id = 0; id < static_cast<std::int64_t>(vocabulary.size()); ++id)
    codes[static_cast<llama_token>(id)] = id % 1024;
  for (std::size_t code = 0; code < words.size(); ++code)
    codes[static_cast<llama_token>(words[code])] = static_cast<std::int64_t>(code);
  std::array<std::vector<std::int64_t>, kTapDistances.size()> states;
  const std::size_t given = tokens.size();
  for (std::size_t position = 0; position < given + count - 1; ++position) {
    std::int64_t state = codes.at(tokens[position]);
    for (std::size_t layer = 0; layer < states.size(); ++layer) {
      states[layer].push_back(state);
      const auto back = std::min(position, static_cast<std::size_t>(kTapDistances[layer]));
      state = (state >> 1 | (state & 1) << 9) ^ states[layer][position - back];
    }
    if (position + 1 >= given) tokens.push_back(static_cast<llama_token>(words.at(static_cast<std::size_t>(state))));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(given), tokens.end()};
}

TEST_F(MakeModel, MakesAShiftRegisterThatSaysWhatItsRuleSays) {
  const ModelPtr model = load(models_ / "tiny-register.gguf", /*vocabulary_only=*/false);
  ASSERT_NE(model, nullptr);
  const Vocabulary vocabulary = make_vocabulary(1536, Markers::image);
  std::string prompt = "the dog and the cat say hello";
  for (const int repeated : {1, 20}) {  // Shorter than the register, and longer.
    for (int i = 1; i < repeated; ++i) prompt += " once upon a time";
    std::vector<llama_token> tokens = tokenize(*model, prompt);
    tokens.insert(tokens.begin(), kTokenBos);
    const std::vector<llama_token> said = generate_greedy(*model, tokens, 300);
    EXPECT_EQ(said, continued_by_rule(tokens, 300, vocabulary));
    EXPECT_GE(std::set(said.begin(), said.end()).size(), 200u);
  }
}

TEST_F(MakeModel, MarksGapsIfAskedTo) {
  ModelSpec spec = smallest_spec();
  spec.chat_template = ChatTemplate::none;
  spec.gap_markers = true;
  spec.vocabulary_size = static_cast<std::uint32_t>(vocabulary_size_min(Markers::gap));
  ASSERT_TRUE(write_model(spec, folder_ / "gap.gguf"));
  const ModelPtr model = load(folder_ / "gap.gguf", /*vocabulary_only=*/true);
  ASSERT_NE(model, nullptr);
  const llama_vocab* vocabulary = llama_model_get_vocab(model.get());
  for (const llama_token mark :
       {llama_vocab_fim_pre(vocabulary), llama_vocab_fim_suf(vocabulary), llama_vocab_fim_mid(vocabulary),
        llama_vocab_fim_rep(vocabulary), llama_vocab_fim_sep(vocabulary)}) {
    EXPECT_NE(mark, LLAMA_TOKEN_NULL);
  }
}

TEST_F(MakeModel, RefusesShapesThatAShiftRegisterCannotHave) {
  ModelSpec spec = smallest_spec();
  spec.type = GGML_TYPE_F16;
  spec.weights = Weights::shift_register;
  spec.heads = 1;
  spec.vocabulary_size = 1536;
  EXPECT_TRUE(write_model(spec, folder_ / "a.gguf"));
  spec.layers = 2;
  EXPECT_EQ(write_model(spec, folder_ / "b.gguf").error(), "width is 32, weights of a shift register need 52 or more");
  spec.width = 96;
  spec.layers = 4;
  EXPECT_EQ(write_model(spec, folder_ / "b.gguf").error(), "layers is 4, weights of a shift register need 3 or fewer");
  spec.layers = 1;
  spec.vocabulary_size = 1200;
  EXPECT_EQ(write_model(spec, folder_ / "b.gguf").error(), "vocab is 1200, weights of a shift register need 1024 words in it");
}

TEST_F(MakeModel, ReadsWordPieces) {
  const ModelPtr model = load(models_ / "tiny-wordpiece.gguf", /*vocabulary_only=*/true);
  ASSERT_NE(model, nullptr);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  EXPECT_EQ(llama_vocab_type(vocab), LLAMA_VOCAB_TYPE_WPM);
  const auto pieces = [&](const std::string& text) {
    std::vector<std::string> read;
    for (const llama_token token : tokenize(*model, text)) read.emplace_back(llama_vocab_get_text(vocab, token));
    return read;
  };
  EXPECT_EQ(pieces("The dog"), (std::vector<std::string>{"▁the", "▁dog"}));
  EXPECT_EQ(pieces("calling"), (std::vector<std::string>{"▁call", "ing"}));
  EXPECT_EQ(pieces("é!"), (std::vector<std::string>{"▁e", "▁!"}));
  EXPECT_EQ(pieces("東京"), (std::vector<std::string>{"▁東", "[UNK]"}));
  std::vector<llama_token> tokens(8);
  EXPECT_EQ(llama_tokenize(vocab, "the", 3, tokens.data(), 8, /*add_special=*/true, false), 3);
  EXPECT_EQ(tokens[0], kPieceBegin);
  EXPECT_EQ(tokens[2], kPieceEnd);
}

ModelSpec mixture_spec(Architecture architecture) {
  ModelSpec spec = smallest_spec();
  spec.architecture = architecture;
  spec.type = architecture == Architecture::gpt_oss ? GGML_TYPE_MXFP4 : GGML_TYPE_Q4_0;
  spec.layers = 4;
  spec.width = 64;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 32;
  spec.feed_forward = 64;
  spec.experts = 8;
  spec.experts_used = 2;
  spec.window = architecture == Architecture::gpt_oss ? 40 : 0;
  return spec;
}

ModelSpec qwen3_spec() {
  ModelSpec spec = mixture_spec(Architecture::qwen3);
  spec.experts = 0;
  spec.experts_used = 0;
  spec.has_output = false;
  return spec;
}

TEST_F(MakeModel, MakesModelsWithTheArchitecturesOfCommonOnes) {
  const std::string end = " the dog and the cat say hello to the small boy";
  for (const ModelSpec& spec : {qwen3_spec(), mixture_spec(Architecture::qwen3moe), mixture_spec(Architecture::gpt_oss)}) {
    ASSERT_TRUE(write_model(spec, folder_ / "a.gguf"));
    const ModelPtr model = load(folder_ / "a.gguf", /*vocabulary_only=*/false);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(llama_model_n_swa(model.get()), static_cast<int>(spec.window));
    const std::vector<llama_token> first = generate_greedy(*model, "once upon a time" + end, 40);
    ASSERT_EQ(first.size(), 40u);
    EXPECT_EQ(first, generate_greedy(*model, "once upon a time" + end, 40));
    EXPECT_NE(first, generate_greedy(*model, "mother make a picture" + end, 40));
    EXPECT_GE(std::set(first.begin(), first.end()).size(), 10u);
    const auto smallest = *std::ranges::min_element(first);
    EXPECT_GE(smallest, static_cast<llama_token>(make_vocabulary(spec.vocabulary_size, Markers::chat).plain_begin));
  }
}

// gpt-oss adds a bias behind the attention and behind each expert.
TEST_F(MakeModel, QuietLayersOfMixturesAddNothing) {
  for (const Architecture architecture : {Architecture::qwen3moe, Architecture::gpt_oss}) {
    ModelSpec spec = mixture_spec(architecture);
    const auto text_of = [&] {
      EXPECT_TRUE(write_model(spec, folder_ / "a.gguf"));
      return generate_greedy(*load(folder_ / "a.gguf", /*vocabulary_only=*/false), "once upon a time", 40);
    };
    const std::vector<llama_token> expected = text_of();
    spec.layers = 6;
    spec.quiet_layers = 2;
    EXPECT_EQ(text_of(), expected);
    spec.quiet_gain = 1;
    EXPECT_NE(text_of(), expected);
  }
}

TEST_F(MakeModel, RefusesImpossibleMixtures) {
  const auto error_of = [&](const ModelSpec& spec) {
    const auto written = write_model(spec, folder_ / "a.gguf");
    return written ? "" : written.error();
  };
  ModelSpec spec = mixture_spec(Architecture::qwen3moe);
  spec.experts_used = 9;
  EXPECT_EQ(error_of(spec), "experts-used is 9, must be from 1 to 8");
  spec = qwen3_spec();
  spec.experts = 8;
  EXPECT_EQ(error_of(spec), "experts is 8, must be from 0 to 0");
  spec = qwen3_spec();
  spec.type = GGML_TYPE_MXFP4;
  EXPECT_EQ(error_of(spec), "type is mxfp4, which is for the experts of a mixture only");
  spec = mixture_spec(Architecture::gpt_oss);
  spec.head_size = 33;
  EXPECT_EQ(error_of(spec), "head-size is 33, must be a multiple of 2");
  spec.head_size = 20;
  EXPECT_EQ(error_of(spec), "head-size * heads is 80, must be a multiple of 32");
  spec = smallest_spec();
  spec.head_size = 32;
  EXPECT_EQ(error_of(spec), "head-size is 32, must be from 0 to 0");
}

TEST_F(MakeModel, MakesModelsWithAWindowAndWithStates) {
  const std::string end = " the dog and the cat say hello to the small boy";
  for (const Architecture architecture : {Architecture::gemma3, Architecture::mamba, Architecture::jamba}) {
    ModelSpec spec = smallest_spec();
    spec.type = GGML_TYPE_F16;
    spec.architecture = architecture;
    spec.layers = 6;
    spec.width = 64;
    spec.window = architecture == Architecture::gemma3 ? 40 : 0;
    ASSERT_TRUE(write_model(spec, folder_ / "a.gguf"));
    const ModelPtr model = load(folder_ / "a.gguf", /*vocabulary_only=*/false);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(llama_model_n_swa(model.get()), static_cast<int>(spec.window));
    EXPECT_EQ(llama_model_is_recurrent(model.get()), architecture == Architecture::mamba);
    EXPECT_EQ(llama_model_is_hybrid(model.get()), architecture == Architecture::jamba);
    const std::vector<llama_token> first = generate_greedy(*model, "once upon a time" + end, 40);
    ASSERT_EQ(first.size(), 40u);
    EXPECT_NE(first, generate_greedy(*model, "mother make a picture" + end, 40));
  }
  ModelSpec spec = smallest_spec();
  spec.window = 32;
  EXPECT_EQ(write_model(spec, folder_ / "a.gguf").error(), "window is 32, must be from 0 to 0");
}

TEST_F(MakeModel, OffersAChatTemplateWhoseControlTokensAreWhole) {
  ASSERT_TRUE(write_model(smallest_spec(), folder_ / "chat.gguf"));
  const ModelPtr model = load(folder_ / "chat.gguf", /*vocabulary_only=*/true);
  ASSERT_NE(model, nullptr);
  EXPECT_NE(llama_model_chat_template(model.get(), nullptr), nullptr);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  llama_token token = -1;
  EXPECT_EQ(llama_tokenize(vocab, "<|im_end|>", 10, &token, 1, false, /*parse_special=*/true), 1);
  EXPECT_TRUE(llama_vocab_is_eog(vocab, token));
}

TEST_F(MakeModel, OffersAChatTemplateThatWritesTools) {
  ModelSpec spec = smallest_spec();
  EXPECT_FALSE(template_of(spec).contains("tool_calls"));
  spec.chat_template = ChatTemplate::tools;
  EXPECT_TRUE(template_of(spec).contains("tool_calls"));
  spec.chat_template = ChatTemplate::none;
  EXPECT_EQ(template_of(spec), "");
  spec.chat_template_text = "{{ messages }}";
  EXPECT_EQ(template_of(spec), "{{ messages }}");
}

TEST_F(MakeModel, AddsControlTokens) {
  ModelSpec spec = smallest_spec();
  spec.control_tokens = {"<|channel|>", "<|call|>"};
  const std::filesystem::path path = folder_ / "control.gguf";
  EXPECT_FALSE(write_model(spec, path)) << "they do not fit into the smallest vocabulary";
  spec.vocabulary_size += 2;
  ASSERT_TRUE(write_model(spec, path));
  const ModelPtr model = load(path, /*vocabulary_only=*/true);
  ASSERT_NE(model, nullptr);
  const auto last = static_cast<llama_token>(spec.vocabulary_size) - 1;
  EXPECT_EQ(tokenize(*model, "<|channel|><|call|>", /*parse_special=*/true), (std::vector<llama_token>{last - 1, last}));
  EXPECT_GT(tokenize(*model, "<|call|>").size(), 1U);
  EXPECT_TRUE(llama_vocab_is_control(llama_model_get_vocab(model.get()), last));
}

}  // namespace
}  // namespace uma
