// Tests on libllama, with the tiny random-weight model that the build makes (UMA_TEST_MODEL).
#include "llm/llama_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <fstream>
#include <set>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "llm/detokenizer.h"

namespace uma::llm {
namespace {

std::string model_path() {
  const char* path = std::getenv("UMA_TEST_MODEL");
  return path != nullptr ? path : "build/release/models/tiny.gguf";
}

std::shared_ptr<const Model> model() {
  static const std::shared_ptr<const Model> loaded = load_llama_model(model_path(), {}).value();
  return loaded;
}

std::unique_ptr<Context> context(KvLayout layout, std::int32_t cells = 2048, std::int32_t sequences = 4) {
  return model()->new_context({.cells = cells, .sequences = sequences, .threads = 1, .layout = layout}).value();
}

std::vector<Token> tokens_of(std::string_view text) {
  return model()->vocab().tokenize(text, false).value();
}

// Appends `tokens` to a sequence; the logits of the last one are then readable.
void feed(Context& target, std::int32_t sequence, std::span<const Token> tokens) {
  std::vector<BatchRow> rows;
  const std::int32_t begin = target.sequence_length(sequence);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({tokens[i], begin + static_cast<std::int32_t>(i), sequence, i + 1 == tokens.size()});
  }
  ASSERT_EQ(target.decode(rows, nullptr).value(), DecodeStatus::done);
}

std::vector<float> last_logits(Context& target, std::size_t rows) {
  const auto logits = target.logits(static_cast<std::int32_t>(rows) - 1);
  return {logits.begin(), logits.end()};
}

TEST(LlamaModel, AMissingFileIsAnErrorWithItsName) {
  const auto loaded = load_llama_model("/nonexistent/model.gguf", {});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::model_load);
  EXPECT_NE(loaded.error().message.find("/nonexistent/model.gguf"), std::string::npos);
}

TEST(LlamaModel, ADamagedFileIsAnError) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / std::format("uma_damaged_{}.gguf", ::getpid());
  std::filesystem::copy_file(model_path(), path, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_FALSE(load_llama_model(path.string(), {}));
  std::ofstream(path) << "not a model";
  EXPECT_FALSE(load_llama_model(path.string(), {}));
  std::filesystem::remove(path);
}

TEST(LlamaModel, ALoadCanBeCancelledAndReportsProgress) {
  double seen = -1;
  const auto loaded = load_llama_model(model_path(), {.on_progress = [&](double progress) {
                                         seen = progress;
                                         return false;
                                       }});
  EXPECT_FALSE(loaded);
  EXPECT_GE(seen, 0);
}

TEST(LlamaVocab, EveryByteGoesThroughAndComesBack) {
  std::string all;
  for (int byte = 1; byte < 128; ++byte) all += static_cast<char>(byte);
  all += "\u00e9\u20ac\U0001F600";
  std::string back;
  Detokenizer detokenizer(model()->vocab());
  for (const Token token : tokens_of(all)) detokenizer.push(token, back);
  detokenizer.finish(back);
  EXPECT_EQ(back, all);
}

TEST(LlamaVocab, ADeltaIsAContinuationWithoutASpaceOfTheTokenizersOwn) {
  std::string back;
  Detokenizer detokenizer(model()->vocab());
  for (const std::string_view part : {"ab", "cd", " ef"}) {
    for (const Token token : tokens_of(part)) detokenizer.push(token, back);
  }
  EXPECT_EQ(back, "abcd ef");
}

TEST(LlamaVocab, TextOfControlTokensStaysText) {
  const std::optional<Token> bos = model()->vocab().bos();
  ASSERT_TRUE(bos);
  EXPECT_EQ(std::ranges::count(tokens_of("<s>"), *bos), 0);
}

TEST(LlamaContext, FollowsTheLayoutThatWasAsked) {
  const auto split = context(KvLayout::split);
  EXPECT_FALSE(split->shape().is_unified);
  EXPECT_EQ(split->shape().sequence_cells_max, 512);
  const auto unified = context(KvLayout::unified);
  EXPECT_TRUE(unified->shape().is_unified);
  EXPECT_EQ(unified->shape().sequence_cells_max, 2048);
  EXPECT_FALSE(model()->new_context({.cells = 1024, .sequences = 300, .threads = 1, .layout = KvLayout::split}));
}

TEST(LlamaContext, ChoosesAPoolWhereSplittingWouldLeaveTooLittle) {
  EXPECT_TRUE(context(KvLayout::automatic, 1024, 8)->shape().is_unified);
  EXPECT_FALSE(context(KvLayout::automatic, 8192, 4)->shape().is_unified);
}

TEST(LlamaContext, ComputesTheRowsThatWereAskedAtOnce) {
  EXPECT_EQ(context(KvLayout::split)->shape().ubatch_rows_max, 512);
  EXPECT_EQ(model()->new_context({.cells = 1024, .sequences = 2, .ubatch_rows = 64}).value()->shape().ubatch_rows_max, 64);
}

TEST(LlamaContext, RowsOfLogitsFillCacheLinesSoThatTensorsAreOnThem) {
  for (const std::int32_t slots : {1, 3, 8, 16}) {
    const std::int32_t rows = context(KvLayout::split, 4096, slots)->shape().logits_rows_max;
    EXPECT_EQ(rows * sizeof(float) % 64, 0u) << rows << " rows for " << slots << " slots";
  }
}

TEST(LlamaContext, StateIdentityIncludesTheActualFlashAttention) {
  const auto with = [](FlashAttention flash_attention) {
    return model()->new_context({.cells = 1024, .sequences = 2, .flash_attention = flash_attention}).value();
  };
  const auto on = with(FlashAttention::on);
  const auto off = with(FlashAttention::off);
  const auto chosen = with(FlashAttention::automatic);
  EXPECT_TRUE(on->shape().has_flash_attention);
  EXPECT_FALSE(off->shape().has_flash_attention);
  EXPECT_NE(on->state_identity(), off->state_identity());
  EXPECT_EQ(chosen->state_identity(), chosen->shape().has_flash_attention ? on->state_identity() : off->state_identity());

  // The library accepts a state exactly if the identity is equal.
  const std::vector<Token> tokens = tokens_of("the quick brown fox");
  const auto length = static_cast<std::int32_t>(tokens.size());
  feed(*chosen, 0, tokens);
  Bytes state;
  ASSERT_TRUE(chosen->save_state(0, 0, length, state));
  EXPECT_EQ(on->load_state(1, 0, length, on->fit_state(state)).has_value(), on->state_identity() == chosen->state_identity());
  EXPECT_EQ(off->load_state(1, 0, length, off->fit_state(state)).has_value(),
            off->state_identity() == chosen->state_identity());
}

TEST(LlamaContext, QuantizedKeysAndValuesAreSmallerAndHaveAnIdentityOfTheirOwn) {
  const auto loaded = load_llama_model(UMA_SHIPPED_MODEL, {}).value();  // A model whose heads are 32 wide, one block.
  const auto with = [&](KvTypes types) {
    return loaded->new_context({.cells = 1024, .sequences = 2, .threads = 1, .kv_types = types}).value();
  };
  const auto plain = with({});
  std::vector<KvTypes> all{{KvType::q8_0, KvType::q4_0}, {KvType::f16, KvType::q5_1}};
  for (const KvTypeFacts& facts : kKvTypes) {
    if (facts.type != KvType::f16) all.push_back(KvTypes::both(facts.type));
  }
  std::set<std::string> identities{plain->state_identity()};
  for (const KvTypes types : all) {
    SCOPED_TRACE(kv_types_text(types));
    const auto quantized = with(types);
    const auto block = static_cast<std::uint64_t>(facts_of(types.keys).block_bytes + facts_of(types.values).block_bytes);
    EXPECT_EQ(quantized->shape().kv_bytes_per_token * 128, plain->shape().kv_bytes_per_token * block);
    EXPECT_TRUE(quantized->shape().has_flash_attention);
    EXPECT_TRUE(identities.insert(quantized->state_identity()).second);
  }
}

TEST(LlamaContext, AStateOfQuantizedKeysAndValuesContinuesInAnotherContext) {
  const auto loaded = load_llama_model(UMA_SHIPPED_MODEL, {}).value();
  const std::vector<Token> tokens = loaded->vocab().tokenize("What is a session? A session is", false).value();
  const auto length = static_cast<std::int32_t>(tokens.size());
  for (const KvTypes types : {KvTypes::both(KvType::q4_0), KvTypes{KvType::q8_0, KvType::q5_1}}) {
    SCOPED_TRACE(kv_types_text(types));
    const auto with = [&] {
      return loaded->new_context({.cells = 1024, .sequences = 2, .threads = 1, .layout = KvLayout::split, .kv_types = types})
          .value();
    };
    const auto from = with();
    const auto to = with();
    feed(*from, 0, tokens);
    Bytes state;
    ASSERT_TRUE(from->save_state(0, 0, length, state));
    ASSERT_TRUE(loaded->check_state(state));
    ASSERT_TRUE(to->load_state(1, 0, length, to->fit_state(state)));
    const std::vector<Token> next{tokens.back()};
    feed(*from, 0, next);
    feed(*to, 1, next);
    EXPECT_EQ(last_logits(*from, 1), last_logits(*to, 1));
  }
}

TEST(LlamaContext, RopeOptionsChangeTheLogitsAndTheIdentity) {
  const std::vector<Token> tokens = tokens_of("the quick brown fox jumps over the lazy dog");
  const auto with = [](const RopeOptions& rope) {
    return model()->new_context({.cells = 1024, .sequences = 2, .threads = 1, .layout = KvLayout::split, .rope = rope}).value();
  };
  const auto logits_of = [&](Context& context) {
    feed(context, 0, tokens);
    return last_logits(context, static_cast<std::int32_t>(tokens.size()));
  };
  const auto plain = with({});
  EXPECT_FALSE(plain->state_identity().contains("rope"));
  EXPECT_EQ(plain->shape().rope_tokens, 0);
  std::set<std::string> identities{plain->state_identity()};
  std::set<std::vector<float>> logits{logits_of(*plain)};
  for (const RopeOptions& rope :
       {RopeOptions{.scaling = RopeScaling::linear, .scale = 4}, RopeOptions{.scaling = RopeScaling::yarn, .scale = 4},
        RopeOptions{.scaling = RopeScaling::yarn, .scale = 4, .yarn_orig_ctx = 128}, RopeOptions{.freq_base = 500}}) {
    SCOPED_TRACE(rope_text(rope));
    const auto other = with(rope);
    EXPECT_TRUE(identities.insert(other->state_identity()).second);
    EXPECT_TRUE(logits.insert(logits_of(*other)).second);
  }
  const auto half = with({.scaling = RopeScaling::linear, .scale = 2});
  const auto same = with({.scaling = RopeScaling::linear, .freq_scale = 0.5});
  EXPECT_EQ(logits_of(*half), logits_of(*same));
  // The library rotates by the base of the file where it is stated again.
  EXPECT_EQ(logits_of(*with({.freq_base = 10'000})), logits_of(*with({})));
}

TEST(LlamaContext, ScalingRaisesTheLimitOfASequence) {
  const std::int32_t trained = model()->facts().train_tokens;
  const auto limit = [](const RopeOptions& rope, std::int32_t wanted) {
    return model()->new_context({.sequence_cells = wanted, .sequences = 1, .threads = 1, .rope = rope}).value()->shape();
  };
  EXPECT_EQ(limit({}, 4 * trained).sequence_cells_max, trained);
  const RopeOptions yarn{.scaling = RopeScaling::yarn, .scale = 2};
  EXPECT_EQ(limit(yarn, 4 * trained).sequence_cells_max, 2 * trained);
  EXPECT_EQ(limit(yarn, 4 * trained).rope_tokens, 2 * trained);
  EXPECT_EQ(limit(yarn, 0).sequence_cells_max, 2 * trained) << "without n_ctx, too";
  EXPECT_EQ(limit({.freq_base = 1e6}, 2 * trained).sequence_cells_max, 2 * trained);
}

TEST(LlamaContext, QuantizedKeysThatDoNotFitTheModelAreAnErrorThatSaysWhy) {
  const auto refused = model()->new_context({.cells = 1024, .sequences = 2, .kv_types = KvTypes::both(KvType::q8_0)});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("does not divide"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("kv.type f16"), std::string::npos);
}

TEST(LlamaModel, ACopyWithoutTheFileComputesTheSame) {
  const std::vector<Token> tokens = tokens_of("one two three");
  const auto copy = load_llama_model(model_path(), {.shares_file = false}).value();
  EXPECT_EQ(copy->facts().identity, model_identity(model_path()).value());
  const auto a = context(KvLayout::split);
  const auto b = copy->new_context({.cells = 2048, .sequences = 4, .threads = 1, .layout = KvLayout::split}).value();
  feed(*a, 0, tokens);
  feed(*b, 0, tokens);
  EXPECT_EQ(last_logits(*a, tokens.size()), last_logits(*b, tokens.size()));
}

// A moved sequence continues with the logits of the original.
TEST(LlamaContext, StateMovesBetweenContextsWithEqualLogits) {
  const std::vector<Token> tokens = tokens_of("the quick brown fox jumps over the lazy dog and runs away");
  const std::vector<Token> next = tokens_of("!");
  for (const KvLayout layout : {KvLayout::split, KvLayout::unified}) {
    const auto from = context(layout);
    feed(*from, 1, tokens);
    const auto length = static_cast<std::int32_t>(tokens.size());
    const auto to = context(layout);
    if (layout == KvLayout::unified) {
      for (std::int32_t begin = 0; begin < length; begin += 5) {
        const std::int32_t end = std::min(length, begin + 5);
        Bytes piece;
        ASSERT_TRUE(from->save_state(1, begin, end, piece));
        ASSERT_TRUE(to->load_state(3, begin, end, to->fit_state(piece))) << begin;
      }
    } else {
      Bytes whole;
      ASSERT_TRUE(from->save_state(1, 0, length, whole));
      ASSERT_TRUE(to->load_state(3, 0, length, to->fit_state(whole)));
    }
    EXPECT_EQ(from->state_identity(), to->state_identity());
    feed(*from, 1, next);
    feed(*to, 3, next);
    EXPECT_EQ(last_logits(*from, next.size()), last_logits(*to, next.size()));
  }
}

// A prefill context of one sequence computes prompts for a context of several sequences.
TEST(LlamaContext, SplitStateMovesBetweenContextsWithOtherNumbersOfSequences) {
  const std::vector<Token> tokens = tokens_of("the quick brown fox jumps over the lazy dog");
  const std::vector<Token> next = tokens_of("!");
  const auto length = static_cast<std::int32_t>(tokens.size());
  const auto of_four = context(KvLayout::split, 2048, 4);
  for (const std::int32_t sequences : {1, 2, 3, 6}) {
    for (const std::int32_t source : {0, 2, 3}) {
      const auto other = context(KvLayout::split, 512 * sequences, sequences);
      EXPECT_EQ(of_four->state_identity(), other->state_identity());
      feed(*of_four, source, tokens);
      Bytes state;
      ASSERT_TRUE(of_four->save_state(source, 0, length, state));
      ASSERT_TRUE(other->load_state(sequences - 1, 0, length, other->fit_state(state))) << sequences << " " << source;
      ASSERT_TRUE(other->save_state(sequences - 1, 0, length, state));
      const std::int32_t target = source == 1 ? 2 : 1;
      ASSERT_TRUE(of_four->load_state(target, 0, length, of_four->fit_state(state))) << sequences << " " << source;
      feed(*of_four, source, next);
      const std::vector<float> stayed = last_logits(*of_four, next.size());
      feed(*of_four, target, next);
      EXPECT_EQ(stayed, last_logits(*of_four, next.size()));
      feed(*other, sequences - 1, next);
      EXPECT_EQ(stayed, last_logits(*other, next.size()));
      ASSERT_TRUE(of_four->truncate(source, 0) && of_four->truncate(target, 0));
    }
  }
}

TEST(LlamaContext, AStateThatTheLibraryRefusesLeavesAnEmptySequence) {
  const auto target = context(KvLayout::split);
  for (const std::size_t size : {0u, 11u, 100u}) {
    for (const std::byte value : {std::byte{0x5a}, std::byte{0}}) {
      Bytes garbage(size, value);
      EXPECT_FALSE(target->load_state(0, 0, 10, target->fit_state(garbage)));
      EXPECT_EQ(target->sequence_length(0), 0);
    }
  }
}

TEST(LlamaContext, SharedCellsContinueLikeTheOriginal) {
  const std::vector<Token> tokens = tokens_of("one two three");
  const auto length = static_cast<std::int32_t>(tokens.size());
  const auto target = context(KvLayout::unified);
  feed(*target, 0, tokens);
  const std::vector<float> expected = last_logits(*target, length);
  target->share(0, 2, length - 1);
  EXPECT_EQ(target->sequence_length(2), length - 1);
  feed(*target, 2, std::span(tokens).last(1));
  const std::vector<float> logits = last_logits(*target, 1);
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-3);
  ASSERT_TRUE(target->truncate(2, 0));
  EXPECT_EQ(target->sequence_length(2), 0);
  EXPECT_EQ(target->sequence_length(0), length);
}

TEST(LlamaContext, RunningOutOfCellsKeepsNothing) {
  const auto target = context(KvLayout::unified, 256, 2);
  const std::vector<Token> fill(200, 5);
  feed(*target, 0, fill);
  std::vector<BatchRow> rows;
  for (std::int32_t i = 0; i < 100; ++i) rows.push_back({5, i, 1, i == 99});
  EXPECT_EQ(target->decode(rows, nullptr).value(), DecodeStatus::out_of_cells);
  EXPECT_EQ(target->sequence_length(1), 0);
}

TEST(LlamaContext, AnInterruptedDecodeReportsIt) {
  const auto target = context(KvLayout::split);
  class : public CallMonitor {
   public:
    bool wants_end() override { return true; }
  } interrupt;
  std::vector<BatchRow> rows;
  for (std::int32_t i = 0; i < 100; ++i) rows.push_back({5, i, 0, i == 99});
  EXPECT_EQ(target->decode(rows, &interrupt).value(), DecodeStatus::interrupted);
  EXPECT_LT(target->sequence_length(0), 100);
}

TEST(LlamaContext, APositionThatLeavesAGapIsAnErrorNotACrash) {
  const auto target = context(KvLayout::split);
  const std::vector<BatchRow> rows{{5, 0, 0, true}};
  ASSERT_TRUE(target->decode(rows, nullptr));
  const std::vector<BatchRow> gap{{5, 7, 0, true}};
  EXPECT_FALSE(target->decode(gap, nullptr));
  EXPECT_EQ(target->sequence_length(0), 1);
}

}  // namespace
}  // namespace uma::llm
