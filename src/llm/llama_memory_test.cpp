// Tests of the three kinds of memory that cannot be truncated at any token: a window (tiny-swa; tiny-gpt-oss, with attention
// sinks and experts), a state (tiny-recurrent), both a cache and a state (tiny-hybrid), compared with a plain cache (tiny). The
// first part tests our Context. The second part tests the library itself, to notice a new version that behaves differently
// (docs/decisions/0016). The models are random, made by the build.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <format>

#include <gtest/gtest.h>
#include <llama.h>

#include "base/random.h"
#include "llm/llama_model.h"
#include "llm/sampling/logits.h"

namespace uma::llm {
namespace {

constexpr std::int32_t kLength = 200;  // Length of the sequences.
constexpr std::int32_t kWindow = 32;   // The window of tiny-swa and tiny-gpt-oss.
// Other batch shapes sum in another order: logits then differ by less than this (logits_distance(): at most 0.0033 on seven of
// ggml's CPU variants), and by more if the memory is wrong (0.044 and more).
constexpr double kClose = 0.012;
constexpr double kFar = 0.024;

std::string path_of(const std::string& name) {
  const char* path = std::getenv("UMA_TEST_MODEL");
  const std::filesystem::path tiny = path != nullptr ? path : "build/release/models/tiny.gguf";
  return (tiny.parent_path() / (name + ".gguf")).string();
}

std::vector<Token> random_tokens(std::uint64_t seed, std::int32_t count) {
  Random random(seed);
  std::vector<Token> tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(300 + random.next_below(1000)));
  return tokens;
}

std::vector<Token> part(const std::vector<Token>& tokens, std::int32_t begin, std::int32_t end = kLength) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

std::vector<Token> joined(std::vector<Token> tokens, const std::vector<Token>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  return logits_distance(a, b);
}

// --- Our Context

struct Case {
  std::string model;
  KvLayout layout;
};
void PrintTo(const Case& made, std::ostream* out) {
  *out << made.model << (made.layout == KvLayout::split ? ", split" : ", unified");
}

class Memory : public ::testing::TestWithParam<Case> {
 protected:
  static std::string kind() { return GetParam().model; }
  static bool is_unified() { return GetParam().layout == KvLayout::unified; }
  static bool has_window() { return kind() == "tiny-swa" || kind() == "tiny-gpt-oss"; }
  static bool has_state() { return kind() == "tiny-recurrent" || kind() == "tiny-hybrid"; }

  std::unique_ptr<Context> context(std::int32_t sequences = 4) const {
    return model_
        ->new_context({.cells = is_unified() ? 2048 : 512 * sequences,
                       .sequences = sequences,
                       .threads = 1,
                       .layout = GetParam().layout,
                       .ubatch_rows = 64})
        .value();
  }

  // Appends `tokens` and returns the logits of the last one.
  static std::vector<float> feed(Context& target, std::int32_t sequence, const std::vector<Token>& tokens) {
    std::vector<BatchRow> rows;
    const std::int32_t begin = target.sequence_length(sequence);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      rows.push_back({tokens[i], begin + static_cast<std::int32_t>(i), sequence, i + 1 == tokens.size()});
    }
    EXPECT_EQ(target.decode(rows, nullptr).value(), DecodeStatus::done);
    const std::span<const float> logits = target.logits(static_cast<std::int32_t>(rows.size()) - 1);
    return {logits.begin(), logits.end()};
  }

  std::vector<float> fresh(const std::vector<Token>& tokens, const std::vector<Token>& next) const {
    const auto target = context();
    feed(*target, 0, tokens);
    return feed(*target, 0, next);
  }

  const std::shared_ptr<const Model> model_ = load_llama_model(path_of(GetParam().model), {}).value();
  const std::vector<Token> tokens_ = random_tokens(1, kLength);
  const std::vector<Token> next_ = random_tokens(2, 5);
};

TEST_P(Memory, TheShapeReportsWhichTruncationsWork) {
  const auto target = context();
  EXPECT_EQ(target->shape().can_truncate, kind() == "tiny");
  EXPECT_EQ(target->shape().can_shift, kind() == "tiny");
}

// YaRN stretches keys, so the library cannot shift them; linear scaling does not.
TEST_P(Memory, RopeOptionsNeedRotaryPositionsAndYarnForbidsShifts) {
  const auto with = [&](const RopeOptions& rope) {
    return model_->new_context({.cells = 1024, .sequences = 2, .threads = 1, .layout = GetParam().layout, .rope = rope});
  };
  const RopeOptions yarn{.scaling = RopeScaling::yarn, .scale = 4};
  if (has_state()) {  // These models have no rotary positions.
    const auto refused = with(yarn);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::model_load);
    EXPECT_NE(refused.error().message.find("scaling yarn, scale 4"), std::string::npos) << refused.error().message;
    return;
  }
  EXPECT_FALSE(with(yarn).value()->shape().can_shift);
  RopeOptions unstretched = yarn;
  unstretched.yarn_ext_factor = 0;
  EXPECT_EQ(with(unstretched).value()->shape().can_shift, kind() == "tiny");
  unstretched.yarn_attn_factor = 1.5;
  EXPECT_FALSE(with(unstretched).value()->shape().can_shift);
  EXPECT_EQ(with({.scaling = RopeScaling::linear, .scale = 4}).value()->shape().can_shift, kind() == "tiny");
}

TEST_P(Memory, WhatIsForgottenMatters) {
  const std::vector<float> whole = fresh(tokens_, next_);
  EXPECT_GT(distance(whole, fresh(joined(random_tokens(7, 100), part(tokens_, 100)), next_)), kFar);
  EXPECT_GT(distance(whole, fresh(joined(random_tokens(7, 180), part(tokens_, 180)), next_)), kFar);
}

// After any successful truncation, later results are right.
TEST_P(Memory, ATruncationThatSucceedsForgetsExactlyThat) {
  const std::vector<float> expected = fresh(tokens_, next_);
  for (const bool is_restored : {false, true}) {
    for (const std::int32_t cut : {0, 1, 2, 3, 20, kWindow - 1, kWindow, kWindow + 1, 100, 168, 199, 200}) {
      const auto target = context();
      feed(*target, 1, tokens_);
      if (is_restored) {
        Bytes state;
        ASSERT_TRUE(target->save_state(1, 0, kLength, state));
        ASSERT_TRUE(target->truncate(1, 0));
        ASSERT_TRUE(target->load_state(1, 0, kLength, target->fit_state(state)));
      }
      const bool did_forget = target->truncate(1, kLength - cut);
      const std::int32_t length = did_forget ? kLength - cut : kLength;
      ASSERT_EQ(target->sequence_length(1), length) << cut;
      EXPECT_LT(distance(feed(*target, 1, joined(part(tokens_, length), next_)), expected), kClose)
          << cut << (is_restored ? " of a restored sequence" : "");
      if (has_state()) {
        EXPECT_EQ(did_forget, cut == 0 || cut == kLength) << cut;
      } else {
        // A saved window has one token more than the next token needs.
        EXPECT_EQ(did_forget, kind() == "tiny" || !is_restored || cut < 2 || cut == kLength) << cut;
      }
    }
  }
}

TEST_P(Memory, ManyTruncationsInARowAreRight) {
  const std::vector<Token> tokens = random_tokens(3, 480);
  const std::vector<float> expected = fresh(tokens, next_);
  const auto target = context();
  Random random(11);
  feed(*target, 2, part(tokens, 0, 300));
  feed(*target, 0, random_tokens(4, 100));
  for (int i = 0; i < 20; ++i) {
    const std::int32_t length = target->sequence_length(2);
    const auto begin = static_cast<std::int32_t>(random.next_below(static_cast<std::uint64_t>(length) + 1));
    ASSERT_TRUE(target->truncate(2, begin) || target->truncate(2, 0));
    const std::int32_t end = std::min(480, begin + 1 + static_cast<std::int32_t>(random.next_below(480)));
    if (target->sequence_length(2) < end) feed(*target, 2, part(tokens, target->sequence_length(2), end));
    ASSERT_TRUE(target->truncate(0, 40) || target->truncate(0, 0));
    feed(*target, 0, random_tokens(5, 60));
  }
  if (target->sequence_length(2) < 480) feed(*target, 2, part(tokens, target->sequence_length(2), 480));
  EXPECT_LT(distance(feed(*target, 2, next_), expected), kClose);
}

TEST_P(Memory, ASavedSequenceGoesOnWithTheSameBits) {
  const auto from = context();
  feed(*from, 1, tokens_);
  Bytes saved;
  ASSERT_TRUE(from->save_state(1, 0, kLength, saved));
  const std::vector<float> stayed = feed(*from, 1, next_);
  for (const std::int32_t sequences : {1, 2, 4, 6}) {
    for (const std::int32_t target : {0, sequences - 1}) {
      const auto to = context(sequences);
      EXPECT_EQ(to->state_identity(), from->state_identity());
      Bytes state = saved;
      const bool is_loaded = to->load_state(target, 0, kLength, to->fit_state(state)).has_value();
      // With several caches, the library refuses a split state of a context with another number of sequences.
      const bool has_several = has_window() || kind() == "tiny-hybrid";
      EXPECT_EQ(is_loaded, is_unified() || sequences == 4 || !has_several) << sequences << " " << target;
      EXPECT_EQ(to->sequence_length(target), is_loaded ? kLength : 0);
      if (is_loaded) {
        EXPECT_EQ(feed(*to, target, next_), stayed) << sequences << " " << target;
      }
    }
  }
}

// Models that accept states from other sources (ContextShape::checks_states).
class OneCache : public Memory {};
class UnifiedCache : public Memory {};  // Sequences share its cells: their states can be in pieces, and cells can be moved.

// States may come from files with a valid checksum and any content.
TEST_P(OneCache, RefusesForgedStatesAndKeepsNothingOfThem) {
  constexpr std::int32_t kCells = 6;
  constexpr std::size_t kWords = 36;  // The head, the cells and the beginning of the layers.
  const std::vector<Token> tokens = part(tokens_, 0, kCells);
  const auto target = context();
  feed(*target, 1, tokens);
  Bytes saved;
  ASSERT_TRUE(target->save_state(1, 0, kCells, saved));
  const std::vector<float> expected = fresh(tokens, next_);
  for (std::size_t word = 0; word < kWords; ++word) {
    for (const std::uint32_t value : {0U, 1U, 2U, 5U, 6U, 7U, 255U, 0x7fff'ffffU, 0x8000'0000U, 0xffff'ffffU}) {
      Bytes state = saved;
      std::memcpy(state.data() + word * sizeof value, &value, sizeof value);
      const bool is_loaded = target->load_state(2, 0, kCells, state).has_value();
      EXPECT_EQ(target->sequence_length(2), is_loaded ? kCells : 0) << word << " " << value;
      ASSERT_TRUE(target->truncate(2, 0));
    }
  }
  for (std::size_t size = 0; size < saved.size(); size += 3) {
    EXPECT_FALSE(target->load_state(2, 0, kCells, std::span(saved).first(size))) << size;
    ASSERT_EQ(target->sequence_length(2), 0) << size;
  }
  feed(*target, 2, tokens);
  EXPECT_LT(distance(feed(*target, 2, next_), expected), kClose) << "what was refused left cells behind";
}

TEST_P(UnifiedCache, RefusesForgedPiecesAndKeepsNothingOfThem) {
  constexpr std::int32_t kBegin = 3;
  constexpr std::int32_t kCells = 6;
  const std::vector<Token> tokens = part(tokens_, 0, kCells);
  const auto target = context();
  feed(*target, 1, tokens);
  Bytes saved;
  ASSERT_TRUE(target->save_state(1, kBegin, kCells, saved));
  const std::vector<float> expected = feed(*target, 1, next_);
  for (std::size_t word = 0; word < 24; ++word) {
    for (const std::uint32_t value : {0U, 1U, 4U, 6U, 0x7fff'ffffU, 0x8000'0000U, 0xffff'ffffU}) {
      feed(*target, 2, part(tokens_, 0, kBegin));
      Bytes state = saved;
      std::memcpy(state.data() + word * sizeof value, &value, sizeof value);
      const bool is_loaded = target->load_state(2, kBegin, kCells, state).has_value();
      EXPECT_EQ(target->sequence_length(2), is_loaded ? kCells : 0) << word << " " << value;
      ASSERT_TRUE(target->truncate(2, 0));
    }
  }
  feed(*target, 2, part(tokens_, 0, kBegin));
  ASSERT_TRUE(target->load_state(2, kBegin, kCells, saved)) << "the scratch sequence is empty again";
  EXPECT_LT(distance(feed(*target, 2, next_), expected), kClose);
}

TEST_P(UnifiedCache, MovedCellsKeepTheirValues) {
  const auto target = context();
  ASSERT_TRUE(target->shape().can_move_cells());
  using Range = std::pair<std::int32_t, std::int32_t>;
  for (const auto& [begin, end] : {Range(0, kLength), Range(70, 130), Range(kLength - 1, kLength)}) {
    feed(*target, 1, random_tokens(7, 150));
    feed(*target, 2, tokens_);
    ASSERT_TRUE(target->truncate(1, 0));
    Bytes bytes;
    ASSERT_TRUE(target->move_cells(2, begin, end, bytes));
    EXPECT_EQ(target->sequence_length(2), kLength);
    feed(*target, 1, random_tokens(8, 150));  // Takes what has become free.
    EXPECT_LT(distance(feed(*target, 2, next_), fresh(tokens_, next_)), kClose) << begin << " " << end;
    ASSERT_TRUE(target->truncate(1, 0));
    ASSERT_TRUE(target->truncate(2, 0));
  }
}

// In the library's format, for every type of keys and values.
TEST_P(OneCache, FindsEveryNumberThatIsNotFinite) {
  constexpr std::int32_t kCells = 6;
  constexpr std::size_t kHeadBytes = 256;  // The upper bound of the bytes before the first key.
  const auto model = load_llama_model(path_of("tiny-register"), {}).value();  // A model whose heads can be quantized.
  struct Storage {
    KvTypes types;
    FlashAttention flash = FlashAttention::on;
  };
  std::vector<Storage> kinds{{KvTypes(), FlashAttention::off}, {{KvType::q8_0, KvType::q4_1}}};
  for (const KvTypeFacts& facts : kKvTypes) kinds.push_back({KvTypes::both(facts.type)});
  for (const Storage kind : kinds) {
    SCOPED_TRACE(kv_types_text(kind.types));
    const auto target = model
                            ->new_context({.cells = 2048,
                                           .sequences = 4,
                                           .threads = 1,
                                           .layout = GetParam().layout,
                                           .ubatch_rows = 64,
                                           .flash_attention = kind.flash,
                                           .kv_types = kind.types})
                            .value();
    feed(*target, 1, part(tokens_, 0, kCells));
    Bytes saved;
    ASSERT_TRUE(target->save_state(1, 0, kCells, saved));
    const auto checked = model->check_state(saved);
    ASSERT_TRUE(checked) << checked.error().message;
    EXPECT_FALSE(model->check_state(std::span(saved).first(saved.size() - 1)));
    Bytes longer = saved;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(model->check_state(longer));
    std::size_t found = 0;
    std::size_t tried = 0;
    for (std::size_t at = kHeadBytes; at + 2 <= saved.size(); at += 2, ++tried) {
      Bytes state = saved;
      state[at] = state[at + 1] = std::byte{0xff};
      found += model->check_state(state) ? 0 : 1;
    }
    // A quantized block has a scale, maybe a least number, and other bytes, which may have any value.
    const auto checked_bytes = [](KvType type) {
      const bool has_least = type == KvType::q5_1 || type == KvType::q4_1;
      return type == KvType::f16 ? facts_of(type).block_bytes : std::int64_t{has_least ? 4 : 2};
    };
    const std::int64_t block = facts_of(kind.types.keys).block_bytes + facts_of(kind.types.values).block_bytes;
    const std::int64_t known = checked_bytes(kind.types.keys) + checked_bytes(kind.types.values);
    EXPECT_GE(found, kind.types.is_quantized() ? tried * static_cast<std::size_t>(known) / static_cast<std::size_t>(block) - 16
                                               : tried);
  }
}

TEST_P(Memory, SequencesOfOneCallDoNotTouchEachOther) {
  std::vector<std::vector<float>> expected;
  for (std::int32_t i = 0; i < 3; ++i) {
    expected.push_back(fresh(random_tokens(20 + static_cast<std::uint64_t>(i), 50), random_tokens(30, 7 + i)));
  }
  const auto target = context();
  std::vector<BatchRow> rows;
  std::vector<std::int32_t> last;
  for (std::int32_t i = 0; i < 3; ++i) {
    feed(*target, i, random_tokens(20 + static_cast<std::uint64_t>(i), 50));
    for (std::int32_t k = 0; k < 7 + i; ++k) {
      rows.push_back({random_tokens(30, 7 + i)[static_cast<std::size_t>(k)], 50 + k, i, k == 6 + i});
    }
    last.push_back(static_cast<std::int32_t>(rows.size()) - 1);
  }
  ASSERT_EQ(target->decode(rows, nullptr).value(), DecodeStatus::done);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::span<const float> logits = target->logits(last[i]);
    EXPECT_LT(distance({logits.begin(), logits.end()}, expected[i]), kClose) << i;
  }
}

TEST_P(Memory, ACopyAndItsOriginalGoTheirOwnWays) {
  const auto target = context();
  feed(*target, 0, tokens_);
  if (target->shape().is_unified) {
    target->share(0, 2, kLength);
  } else {
    Bytes state;
    ASSERT_TRUE(target->save_state(0, 0, kLength, state));
    ASSERT_TRUE(target->load_state(2, 0, kLength, target->fit_state(state)));
  }
  const std::vector<Token> other = random_tokens(8, 9);
  const std::vector<float> of_copy = feed(*target, 2, other);
  EXPECT_LT(distance(feed(*target, 0, next_), fresh(tokens_, next_)), kClose);
  EXPECT_LT(distance(of_copy, fresh(tokens_, other)), kClose);
}

// Moved tokens are rotated to their new positions, in one step or two, and no interruption prevents it.
TEST_P(Memory, AShiftForgetsTheMiddleAndMovesTheRest) {
  class EndsAtOnce final : public CallMonitor {
   public:
    bool wants_end() override { return true; }
  };
  const auto target = context();
  if (!target->shape().can_shift) return;  // Asserted above.
  feed(*target, 0, random_tokens(4, 60));
  feed(*target, 1, tokens_);
  target->shift(1, 10, 60);
  EXPECT_EQ(target->sequence_length(1), kLength - 50);
  const std::vector<float> at_once = feed(*target, 1, next_);
  EXPECT_EQ(target->sequence_length(1), kLength - 50 + 5);

  const auto twice = context();
  feed(*twice, 1, tokens_);
  twice->shift(1, 10, 30);
  twice->shift(1, 10, 40);
  EXPECT_LT(distance(feed(*twice, 1, next_), at_once), kClose);

  const auto interrupted = context();
  feed(*interrupted, 1, tokens_);
  interrupted->shift(1, 10, 60);
  EndsAtOnce monitor;
  std::vector<BatchRow> rows;
  for (std::size_t i = 0; i < next_.size(); ++i) {
    rows.push_back({next_[i], interrupted->sequence_length(1) + static_cast<std::int32_t>(i), 1, i + 1 == next_.size()});
  }
  ASSERT_EQ(interrupted->decode(rows, &monitor).value(), DecodeStatus::done) << "the keys are turned in this call";
  const std::span<const float> logits = interrupted->logits(static_cast<std::int32_t>(rows.size()) - 1);
  EXPECT_EQ(distance({logits.begin(), logits.end()}, at_once), 0);
  for (BatchRow& row : rows) row.position += static_cast<std::int32_t>(next_.size());
  EXPECT_EQ(interrupted->decode(rows, &monitor).value(), DecodeStatus::interrupted);

  EXPECT_GT(distance(at_once, fresh(tokens_, next_)), kFar) << "it has forgotten";
  EXPECT_LT(distance(feed(*target, 0, next_), fresh(random_tokens(4, 60), next_)), kClose) << "others do not notice";
  // Truncated before the moved tokens, the sequence is as good as new.
  ASSERT_TRUE(target->truncate(1, 10));
  EXPECT_LT(distance(feed(*target, 1, next_), fresh(part(tokens_, 0, 10), next_)), kClose);
}

TEST_P(Memory, AfterAnInterruptionTheLengthIsTrue) {
  class EndsAfter final : public CallMonitor {
   public:
    explicit EndsAfter(int questions) : left_(questions) {}
    bool wants_end() override { return left_-- <= 0; }

   private:
    std::atomic<int> left_;
  };
  const std::vector<float> expected = fresh(tokens_, next_);
  for (const int questions : {0, 5, 20, 60, 75, 100, 150}) {
    const auto target = context();
    feed(*target, 0, part(tokens_, 0, 10));
    feed(*target, 1, next_);
    EndsAfter monitor(questions);
    std::vector<BatchRow> rows;
    for (std::int32_t i = 10; i < kLength; ++i) rows.push_back({tokens_[static_cast<std::size_t>(i)], i, 0, false});
    if (target->decode(rows, &monitor).value() == DecodeStatus::done) continue;
    const std::int32_t length = target->sequence_length(0);
    ASSERT_LT(length, kLength);
    EXPECT_LT(distance(feed(*target, 0, joined(part(tokens_, length), next_)), expected), kClose) << questions;
    EXPECT_EQ(target->sequence_length(1), 5) << "not of the call";
  }
}

std::vector<Case> cases_of(KvLayout layout) {
  return {
      {"tiny", layout}, {"tiny-swa", layout}, {"tiny-gpt-oss", layout}, {"tiny-recurrent", layout}, {"tiny-hybrid", layout}};
}

std::string name_of(const ::testing::TestParamInfo<Case>& made) {
  std::string name = made.param.model;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Split, Memory, ::testing::ValuesIn(cases_of(KvLayout::split)), name_of);
INSTANTIATE_TEST_SUITE_P(Unified, Memory, ::testing::ValuesIn(cases_of(KvLayout::unified)), name_of);
INSTANTIATE_TEST_SUITE_P(Plain, OneCache, ::testing::Values(Case{"tiny", KvLayout::split}, Case{"tiny", KvLayout::unified}),
                         [](const auto& made) { return made.param.layout == KvLayout::split ? "split" : "unified"; });
INSTANTIATE_TEST_SUITE_P(Plain, UnifiedCache, ::testing::Values(Case{"tiny", KvLayout::unified}));

// --- The library itself

struct ModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};
using RawContext = std::unique_ptr<llama_context, ContextFree>;

class LibraryMemory : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { init_llama(); }
  static std::string kind() { return GetParam(); }

  RawContext context(bool swa_full = true, llama_rope_scaling_type scaling = LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED) const {
    llama_context_params params = llama_context_default_params();
    params.rope_scaling_type = scaling;
    if (scaling != LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED) params.rope_freq_scale = 0.25F;
    EXPECT_TRUE(params.swa_full) << "the default that we use";
    EXPECT_EQ(params.n_rs_seq, 0U);
    params.n_ctx = 1024;
    params.n_ubatch = 64;
    params.n_seq_max = 2;
    params.n_threads = params.n_threads_batch = 1;
    params.kv_unified = false;
    params.swa_full = swa_full;
    params.no_perf = true;
    return RawContext(llama_init_from_model(model_.get(), params));
  }

  static llama_memory_t memory(const RawContext& context) { return llama_get_memory(context.get()); }
  static std::int32_t length(const RawContext& context) { return llama_memory_seq_pos_max(memory(context), 0) + 1; }

  static std::vector<float> feed(const RawContext& context, const std::vector<Token>& tokens) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    llama_batch batch = llama_batch_init(count, 0, 1);
    const std::int32_t begin = length(context);
    batch.n_tokens = count;
    for (std::int32_t i = 0; i < count; ++i) {
      batch.token[i] = tokens[static_cast<std::size_t>(i)];
      batch.pos[i] = begin + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = static_cast<std::int8_t>(i + 1 == count);
    }
    EXPECT_EQ(llama_decode(context.get(), batch), 0);
    llama_batch_free(batch);
    const float* logits = llama_get_logits_ith(context.get(), count - 1);
    return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context.get())))};
  }

  std::vector<float> fresh(const std::vector<Token>& tokens, const std::vector<Token>& next) const {
    const RawContext target = context();
    feed(target, tokens);
    return feed(target, next);
  }

  static std::vector<std::uint8_t> save(const RawContext& context, llama_state_seq_flags flags) {
    std::vector<std::uint8_t> bytes(llama_state_seq_get_size_ext(context.get(), 0, flags));
    EXPECT_EQ(llama_state_seq_get_data_ext(context.get(), bytes.data(), bytes.size(), 0, flags), bytes.size());
    return bytes;
  }

  const std::unique_ptr<llama_model, ModelFree> model_{
      llama_model_load_from_file(path_of(GetParam()).c_str(), llama_model_default_params())};
  const std::vector<Token> tokens_ = random_tokens(1, kLength);
  const std::vector<Token> next_ = random_tokens(2, 5);
};

TEST_P(LibraryMemory, ReportsItsKind) {
  EXPECT_EQ(llama_model_is_recurrent(model_.get()), kind() == "tiny-recurrent");
  EXPECT_EQ(llama_model_is_hybrid(model_.get()), kind() == "tiny-hybrid");
  EXPECT_EQ(llama_model_n_swa(model_.get()), kind() == "tiny-swa" || kind() == "tiny-gpt-oss" ? kWindow : 0);
}

// A PARTIAL_ONLY checkpoint restores a sequence as long as the earlier tokens are still cached.
TEST_P(LibraryMemory, APartialStateIsACheckpoint) {
  const std::vector<Token> other = random_tokens(9, 50);
  const std::vector<float> expected = fresh(joined(part(tokens_, 0, 100), other), next_);
  const RawContext target = context();
  feed(target, part(tokens_, 0, 100));
  const std::vector<std::uint8_t> partial = save(target, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
  const std::vector<std::uint8_t> whole = save(target, LLAMA_STATE_SEQ_FLAGS_NONE);
  EXPECT_EQ(partial.size() < whole.size(), kind() != "tiny-recurrent");
  EXPECT_EQ(partial.size() < 16, kind() == "tiny") << "nothing but a header";
  feed(target, part(tokens_, 100));
  const std::vector<std::uint8_t> later = save(target, LLAMA_STATE_SEQ_FLAGS_NONE);
  const RawContext elsewhere = context();
  ASSERT_EQ(llama_state_seq_set_data(elsewhere.get(), later.data(), later.size(), 0), later.size());
  for (const RawContext* place : {&target, &elsewhere}) {
    EXPECT_EQ(llama_state_seq_set_data_ext(place->get(), partial.data(), partial.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY),
              partial.size());
    EXPECT_TRUE(llama_memory_seq_rm(memory(*place), 0, 100, -1));
    ASSERT_EQ(length(*place), 100);
    feed(*place, other);
    EXPECT_LT(distance(feed(*place, next_), expected), kClose);
  }
}

TEST_P(LibraryMemory, ShiftingIsOfferedWhereItDoesNotForget) {
  const RawContext target = context();
  EXPECT_TRUE(llama_memory_can_shift(memory(target)));
  const std::vector<float> unshifted = fresh(tokens_, next_);
  feed(target, tokens_);
  EXPECT_TRUE(llama_memory_seq_rm(memory(target), 0, 10, 60)) << "also where a state cannot forget them";
  llama_memory_seq_add(memory(target), 0, 60, -1, -50);
  EXPECT_EQ(length(target), 150);
  const float change = distance(feed(target, next_), unshifted);
  if (kind() == "tiny-recurrent") {
    EXPECT_EQ(change, 0) << "the state still has all of it";
  } else {
    EXPECT_GT(change, kFar);
  }
}

class LibraryKeys : public LibraryMemory {};

// This is the reason for keeps_magnitude() (llama_context.cpp): moved to and fro, the tokens are where they were.
TEST_P(LibraryKeys, AreStretchedByAShiftUnderYarn) {
  for (const auto scaling : {LLAMA_ROPE_SCALING_TYPE_LINEAR, LLAMA_ROPE_SCALING_TYPE_YARN}) {
    const RawContext undisturbed = context(true, scaling);
    feed(undisturbed, tokens_);
    const std::vector<float> expected = feed(undisturbed, next_);
    const RawContext target = context(true, scaling);
    feed(target, tokens_);
    llama_memory_seq_add(memory(target), 0, 60, -1, 7);
    llama_memory_seq_add(memory(target), 0, 67, -1, -7);
    ASSERT_EQ(length(target), kLength);
    const double change = distance(feed(target, next_), expected);
    if (scaling == LLAMA_ROPE_SCALING_TYPE_LINEAR) {
      EXPECT_LT(change, kClose);
    } else {
      EXPECT_GT(change, kFar);
    }
  }
}

// This is the reason why context_lengths() (llama_context.cpp) reads the metadata.
TEST_P(LibraryKeys, AYarnContextChangesTheLengthOfItsModel) {
  const std::int32_t before = llama_model_n_ctx_train(model_.get());
  const RawContext target = context(true, LLAMA_ROPE_SCALING_TYPE_YARN);
  EXPECT_EQ(llama_model_n_ctx_train(model_.get()), 4 * before);
}

class LibraryWindow : public LibraryMemory {};

// This is the reason for the check in truncate().
TEST_P(LibraryWindow, ThatIsGoneIsNotNoticed) {
  const std::vector<float> expected = fresh(tokens_, next_);
  const RawContext target = context();
  feed(target, tokens_);
  EXPECT_EQ(llama_memory_seq_pos_min(memory(target), 0), 0);
  const std::vector<std::uint8_t> state = save(target, LLAMA_STATE_SEQ_FLAGS_NONE);
  EXPECT_TRUE(llama_memory_seq_rm(memory(target), 0, -1, -1));
  EXPECT_EQ(llama_state_seq_set_data(target.get(), state.data(), state.size(), 0), state.size());
  EXPECT_EQ(llama_memory_seq_pos_min(memory(target), 0), kLength - kWindow);
  EXPECT_TRUE(llama_memory_seq_rm(memory(target), 0, 150, -1)) << "it returns true";
  EXPECT_GT(distance(feed(target, joined(part(tokens_, 150), next_)), expected), kFar) << "and is wrong";
}

// With swa_full = false the window's cache is smaller than the others, so older tokens are dropped as the sequence grows.
TEST_P(LibraryWindow, InASmallCacheForgetsAsItGrowsAndCannotShift) {
  const RawContext target = context(false);
  EXPECT_FALSE(llama_memory_can_shift(memory(target)));
  feed(target, random_tokens(6, 480));
  EXPECT_GT(llama_memory_seq_pos_min(memory(target), 0), 0);
  EXPECT_LE(llama_memory_seq_pos_min(memory(target), 0), 480 - kWindow);
}

const auto underscored = [](const auto& made) {
  std::string name = made.param;
  std::ranges::replace(name, '-', '_');
  return name;
};

INSTANTIATE_TEST_SUITE_P(Models, LibraryMemory,
                         ::testing::Values("tiny", "tiny-swa", "tiny-gpt-oss", "tiny-recurrent", "tiny-hybrid"), underscored);

INSTANTIATE_TEST_SUITE_P(Models, LibraryWindow, ::testing::Values("tiny-swa", "tiny-gpt-oss"), underscored);

INSTANTIATE_TEST_SUITE_P(Models, LibraryKeys, ::testing::Values("tiny"));

}  // namespace
}  // namespace uma::llm
