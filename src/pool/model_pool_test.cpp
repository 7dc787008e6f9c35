// The pool with real, tiny models and an engine that does what the test says.
#include "pool/model_pool.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <format>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "pool/host_test_support.h"

namespace uma::pool {
namespace {

namespace fs = std::filesystem;

// Writes down what it is told, and refuses models by the names of their files.
class FakeGuard final : public LoadGuard {
 public:
  Expected<Unit> check_model(const std::string& path, const LoadControl&, const std::function<void()>& on_loadable) override {
    note("check", path);
    if (!refused_late.empty() && path.ends_with(refused_late)) {
      on_loadable();
      return fail(ErrorCode::model_load, "it is slow");
    }
    if (!refused.empty() && path.ends_with(refused)) return fail(ErrorCode::model_load, "it is bad");
    return Unit{};
  }
  Expected<Unit> check_load(const engine::LoadWorkersOptions&, const LoadControl&) override { return Unit{}; }
  Expected<Unit> check_adapter(const engine::LoadWorkersOptions&, const llm::AdapterSource&, const LoadControl&) override {
    return Unit{};
  }
  void begin(const engine::LoadWorkersOptions& options) override { note("begin", options.path); }
  void end(const engine::LoadWorkersOptions& options, bool is_loaded) override {
    note(is_loaded ? "end" : "pause", options.path);
  }
  [[nodiscard]] std::vector<std::string> taken() {
    const MutexLock lock(mutex_);
    return std::exchange(notes_, {});
  }

  std::string refused;
  std::string refused_late;  // After the library has read it.

 private:
  void note(std::string_view what, const std::string& path) {
    const MutexLock lock(mutex_);
    notes_.push_back(std::format("{} {}", what, fs::path(path).stem().string()));
  }

  Mutex mutex_;
  std::vector<std::string> notes_ GUARDED_BY(mutex_);
};

class ModelPoolTest : public ::testing::Test {
 protected:
  ModelPoolTest() : folder_(fs::path(::testing::TempDir()) / ("uma-pool-" + std::to_string(::getpid()))) {
    init_log(LogLevel::error);
    fs::create_directories(folder_);
  }
  ~ModelPoolTest() override {
    if (pool_) pool_->stop();
    fs::remove_all(folder_);
  }

  // Another name of a file is another model.
  void add(const std::string& name, const std::string& source = "tiny") const {
    const char* model = std::getenv("UMA_TEST_MODEL");
    ASSERT_NE(model, nullptr);
    fs::copy_file(fs::path(model).parent_path() / (source + ".gguf"), folder_ / (name + ".gguf"));
  }
  void start() {
    PoolOptions options;
    options.governor.usable_fraction = 1;
    options.maintenance = std::chrono::milliseconds(20);
    options.min_loaded = Duration(0);
    options.prepare = [this](const RegisteredModel& model) -> Expected<engine::LoadWorkersOptions> {
      engine::LoadWorkersOptions load;
      load.path = model.path;
      load.projector_path = model.projector_path;
      load.context.cells = 1024;
      load.context.sequences = 2;
      load.draft_path = draft_path_;
      load.lanes = has_lanes_;
      return load;
    };
    options.memory = [this] {
      MemoryInfo machine;
      machine.total = memory_;
      return machine;
    };
    options.guard = guard_;
    options.default_model = default_model_;
    options.own_folder = own_folder_;
    options.shipped_models = {"shipped"};
    options.unknown = unknown_;
    RegistryOptions registry;
    registry.folders = {folder_.string()};
    pool_.emplace(std::move(options), ModelRegistry::read(registry).value(), clock_);
    pool_->start(host_);
  }
  static void until(const std::function<bool()>& condition, const std::string& what) {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120); !condition();) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "never happened: " << what;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  void load(const std::string& name) {
    host_.set_uses(name, 0);
    pool_->load(name);
  }
  void load_and_wait(const std::string& name) {
    load(name);
    until([&] { return host_.has(name) || !host_.error_of(name).empty(); }, name + " is loaded");
    ASSERT_EQ(host_.error_of(name), "");
  }
  Expected<Unit> unload(const std::string& name) {
    auto answer = std::make_shared<std::atomic<int>>(0);
    auto said = std::make_shared<Expected<Unit>>();
    pool_->unload(name, [answer, said](Expected<Unit> done) {
      *said = std::move(done);
      *answer = 1;
    });
    until([&] { return *answer == 1; }, "an answer");
    return *said;
  }
  Expected<Unit> remove(const std::string& name) {
    auto answer = std::make_shared<std::atomic<int>>(0);
    auto said = std::make_shared<Expected<Unit>>();
    pool_->remove(name, [answer, said](Expected<Unit> done) {
      *said = std::move(done);
      *answer = 1;
    });
    until([&] { return *answer == 1; }, "an answer");
    return *said;
  }
  [[nodiscard]] std::uint64_t held(const std::string& name, MemoryKind kind) const {
    return pool_->governor().held_by(name, kHostMemory)[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::uint64_t weights(const std::string& name) const { return held(name, MemoryKind::weights); }
  [[nodiscard]] std::uint64_t contexts(const std::string& name) const { return held(name, MemoryKind::context); }
  [[nodiscard]] std::uint64_t reserved() const { return pool_->governor().use().front().reserved(); }

  const fs::path folder_;
  const SteadyClock clock_;
  std::atomic<std::uint64_t> memory_{std::uint64_t{1} << 40};
  std::string draft_path_;
  bool has_lanes_ = false;
  LoadGuard* guard_ = nullptr;
  std::string default_model_;
  std::string own_folder_ = folder_.string();
  UnknownModel unknown_ = UnknownModel::automatic;
  FakeHost host_;
  std::optional<ModelPool> pool_;
};

TEST_F(ModelPoolTest, ARoughEstimateIsCorrectedWhenTheLoadHasEnded) {
  add("a");
  start();
  load_and_wait("a");
  const std::uint64_t roughly = reserved();
  const std::uint64_t taken = contexts("a") + weights("a");
  EXPECT_EQ(roughly, taken);
  ASSERT_TRUE(unload("a"));
  memory_ = 2 * roughly;  // Too little for a rough estimate, so a dry run measures the need.
  load_and_wait("a");
  EXPECT_EQ(contexts("a") + weights("a"), taken);
}

TEST_F(ModelPoolTest, AnUnknownNameMeansTheOnlyModel) {
  add("mine");
  add("shipped");
  add("vectors", "tiny-embed");
  start();
  EXPECT_EQ(pool_->choose("anything", Capability::chat).value_or(""), "mine");
  EXPECT_EQ(pool_->choose("shipped", Capability::chat).value_or(""), "shipped");
  EXPECT_EQ(pool_->choose("anything", Capability::text_embedding).value_or(""), "vectors");
  EXPECT_FALSE(pool_->choose("anything", Capability::rerank));
  EXPECT_FALSE(pool_->resolve("anything")) << "loading and unloading take known names only";
}

TEST_F(ModelPoolTest, AnUnknownNameMeansTheModelWhoseImagesAndTextsShareASpace) {
  add("eyes", "tiny-grid");
  add("mmproj-eyes", "mmproj-tiny-grid");
  add("vectors", "tiny-grid-embed");
  start();
  EXPECT_EQ(pool_->choose("anything", Capability::vision).value_or(""), "eyes");
  add("mmproj-vectors", "mmproj-tiny-grid");
  EXPECT_EQ(pool_->choose("anything", Capability::vision).value_or(""), "vectors");
  const std::vector<ModelInfo> infos = pool_->list();
  ASSERT_EQ(infos.size(), 2u);
  EXPECT_EQ(infos[0].image_vectors, ImageVectors::projector);
  EXPECT_EQ(infos[1].image_vectors, ImageVectors::shared);
}

TEST_F(ModelPoolTest, AnEmbeddingModelReservesItsProjector) {
  add("a", "tiny-grid-embed");
  add("mmproj-a", "mmproj-tiny-grid");
  add("b", "tiny-grid-embed");
  start();
  load_and_wait("a");
  load_and_wait("b");
  EXPECT_GT(weights("a"), weights("b"));
  EXPECT_GT(contexts("a"), 0u);
}

TEST_F(ModelPoolTest, AmongSeveralModelsOnlyAnotherVendorsNameMeansTheDefault) {
  add("a");
  add("b");
  default_model_ = "b";
  start();
  EXPECT_EQ(pool_->choose("gpt-5", Capability::chat).value_or(""), "b");
  EXPECT_EQ(pool_->choose("", Capability::chat).value_or(""), "b");
  const auto typo = pool_->choose("c", Capability::chat);
  ASSERT_FALSE(typo);
  EXPECT_EQ(typo.error().code, ErrorCode::model_unknown);
}

TEST_F(ModelPoolTest, AnotherVendorsNameMeansOneOfSeveralModels) {
  add("shipped");
  add("m0");
  for (int i = 1; i <= 20; ++i) {
    add("m" + std::to_string(i));
    if (i != 1 && i != 2 && i != 20) continue;
    default_model_ = "shipped";
    start();
    EXPECT_EQ(pool_->choose("gpt-5", Capability::chat).value_or(""), "m0") << "the first of " << i + 1;
    EXPECT_EQ(pool_->choose("claude-sonnet-4-5", Capability::chat).value_or(""), "m0");
    if (i < 20) pool_->stop();
  }
  load_and_wait("m1");
  EXPECT_EQ(pool_->choose("gpt-5", Capability::chat).value_or(""), "m1") << "one that is loaded";
}

TEST_F(ModelPoolTest, ANameOfAnotherRegistryMeansItsModel) {
  add("Llama-3.2-3B-Instruct-Q4_K_M");
  add("Llama-3.2-1B-Instruct-Q4_K_M");
  add("other");
  start();
  const auto chosen = [&](const std::string& name) { return pool_->choose(name, Capability::chat).value_or(""); };
  EXPECT_EQ(chosen("llama3.2:3b"), "Llama-3.2-3B-Instruct-Q4_K_M");
  EXPECT_EQ(chosen("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"), "Llama-3.2-1B-Instruct-Q4_K_M");
  EXPECT_EQ(chosen("llama3.2"), "") << "it may be either";
}

TEST_F(ModelPoolTest, ARefusalSaysWhatWouldMendIt) {
  add("assistant-small");
  add("assistant-large");
  start();
  const std::string unknown = pool_->choose("assistnt-small", Capability::chat).error().message;
  for (const std::string_view part : {"assistant-small", "models.unknown: default", "--model NAME"})
    EXPECT_TRUE(unknown.contains(part)) << unknown;
  const std::string vectors = pool_->choose("text-embedding-3-small", Capability::text_embedding).error().message;
  EXPECT_TRUE(vectors.contains("no model that makes vectors of texts is registered")) << vectors;
}

TEST_F(ModelPoolTest, TheSettingDecidesWhatAnUnknownNameMeans) {
  add("a");
  add("b");
  default_model_ = "b";
  unknown_ = UnknownModel::use_default;
  start();
  EXPECT_EQ(pool_->choose("c", Capability::chat).value_or(""), "b");
  pool_->stop();
  unknown_ = UnknownModel::refuse;
  start();
  EXPECT_FALSE(pool_->choose("gpt-5", Capability::chat));
}

TEST_F(ModelPoolTest, WhatALoadTookIsReservedUntilItIsUnloaded) {
  add("a");
  start();
  load_and_wait("a");
  EXPECT_GT(weights("a"), 0u);
  EXPECT_GT(contexts("a"), 0u);
  EXPECT_EQ(reserved(), weights("a") + contexts("a"));
  EXPECT_GT(host_.limit.in_all, host_.limit.at_rest) << "of it, some is for states under way";
  EXPECT_TRUE(unload("a"));
  EXPECT_EQ(reserved(), 0u);
  EXPECT_FALSE(unload("a")) << "it is not loaded";
}

TEST_F(ModelPoolTest, AModelThatHasLostADeviceIsUnloadedWhenNoRequestUsesIt) {
  add("a");
  start();
  load_and_wait("a");
  host_.set_uses("a", 1);
  pool_->report_lost("a");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(host_.has("a"));
  host_.set_uses("a", 0);
  until([&] { return !host_.has("a") && reserved() == 0; }, "it is unloaded");
  load_and_wait("a");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(host_.has("a")) << "the next load has nothing to do with it";
}

TEST_F(ModelPoolTest, AModelIsUnloadedBeforeItIsDeleted) {
  add("a");
  add("b");
  start();
  load_and_wait("a");
  host_.set_uses("a", 1);
  const auto used = remove("a");
  ASSERT_FALSE(used);
  EXPECT_EQ(used.error().code, ErrorCode::session_busy);
  EXPECT_TRUE(fs::exists(folder_ / "a.gguf"));
  host_.set_uses("a", 0);
  EXPECT_TRUE(remove("a"));
  EXPECT_FALSE(fs::exists(folder_ / "a.gguf"));
  EXPECT_EQ(reserved(), 0u);
  EXPECT_FALSE(pool_->resolve("a"));
  EXPECT_TRUE(remove("b")) << "one that was never loaded";
  EXPECT_EQ(remove("b").error().code, ErrorCode::model_unknown);
}

TEST_F(ModelPoolTest, OnlyFilesOfItsOwnFolderAreDeleted) {
  add("a");
  own_folder_ = (folder_ / "pulled").string();
  fs::create_directories(own_folder_);
  start();
  EXPECT_EQ(remove("a").error().code, ErrorCode::model_capability);
  EXPECT_TRUE(fs::exists(folder_ / "a.gguf"));
}

TEST_F(ModelPoolTest, AModelWhoseFileIsGoneIsUnloadedOnceItIsIdle) {
  add("a");
  add("b");
  start();
  load_and_wait("a");
  host_.set_uses("a", 1);
  fs::remove(folder_ / "a.gguf");
  until([&] { return pool_->list().size() == 1; }, "the file is missed");
  EXPECT_GT(weights("a"), 0u);
  host_.set_uses("a", 0);
  until([&] { return reserved() == 0; }, "its memory is free");
}

TEST_F(ModelPoolTest, TheGuardHearsOfEveryLoadAndMayRefuseIt) {
  FakeGuard guard;
  guard.refused = "bad.gguf";
  guard_ = &guard;
  add("bad");
  add("good");
  start();
  load("bad");
  until([&] { return !host_.error_of("bad").empty(); }, "an answer");
  EXPECT_EQ(host_.error_of("bad"), "it is bad");
  EXPECT_EQ(guard.taken(), std::vector<std::string>{"check bad"});
  load_and_wait("good");
  EXPECT_EQ(guard.taken(), (std::vector<std::string>{"check good", "begin good", "pause good", "begin good", "end good"}));
  pool_->stop();
}

TEST_F(ModelPoolTest, AModelThatIsRefusedWhileItIsLoadedIsNotUsed) {
  FakeGuard guard;
  guard.refused_late = "slow.gguf";
  guard_ = &guard;
  add("slow");
  start();
  load("slow");
  until([&] { return !host_.error_of("slow").empty(); }, "an answer");
  EXPECT_EQ(host_.error_of("slow"), "it is slow");
  EXPECT_EQ(reserved(), 0U);
  pool_->stop();
}

TEST_F(ModelPoolTest, WhatAModelCanDoWithoutIsLeftOutWhereMemoryIsShort) {
  add("a");
  has_lanes_ = true;
  start();
  load_and_wait("a");
  const std::uint64_t whole = reserved();
  const std::uint64_t state = host_.limit.in_all;
  ASSERT_GT(state, 0u);
  EXPECT_TRUE(unload("a"));

  memory_ = whole - 1;
  load_and_wait("a");
  EXPECT_EQ(reserved(), whole - state) << "without room for the longest state";
  EXPECT_EQ(host_.limit.in_all, 0u);
  EXPECT_TRUE(unload("a"));

  memory_ = whole - state - 1;
  load_and_wait("a");
  EXPECT_LT(reserved(), whole - state) << "without the second context";
  EXPECT_EQ(host_.limit.in_all, state) << "which is more than a state takes";
  const std::uint64_t least = reserved() - state;
  EXPECT_TRUE(unload("a"));

  memory_ = whole;
  load_and_wait("a");
  EXPECT_EQ(reserved(), whole) << "it has all again";
  EXPECT_TRUE(unload("a"));

  memory_ = least - 1;
  load("a");
  until([&] { return !host_.error_of("a").empty(); }, "it is refused");
  EXPECT_EQ(reserved(), 0u);
}

TEST_F(ModelPoolTest, ALoadThatFailsHoldsNothing) {
  add("vectors", "tiny-embed");
  add("draft");
  draft_path_ = (folder_ / "draft.gguf").string();
  start();
  load("vectors");
  until([&] { return !host_.error_of("vectors").empty(); }, "the load fails");
  EXPECT_NE(host_.error_of("vectors").find("draft"), std::string::npos) << host_.error_of("vectors");
  EXPECT_EQ(reserved(), 0u);
  EXPECT_EQ(host_.limit.in_all, 0u);
}

TEST_F(ModelPoolTest, ALoadThatIsEndedWhileItWaitsHoldsNothing) {
  add("a");
  add("b");
  start();
  load_and_wait("a");
  host_.set_uses("a", 1);
  const std::uint64_t one = reserved();
  memory_ = one + one / 2;
  load("b");
  until([&] { return host_.queued_bytes("b") > 0; }, "b waits for memory");
  pool_->cancel_load("b");
  until([&] { return !host_.error_of("b").empty(); }, "it has ended");
  EXPECT_EQ(reserved(), one);
}

TEST_F(ModelPoolTest, WeightsThatWereUnloadedWhileTheirLoadWaitedAreReservedAgain) {
  add("a");
  add("b");
  start();
  load_and_wait("a");
  load_and_wait("b");
  const std::uint64_t w = weights("a");
  const std::uint64_t c = contexts("a");
  host_.set_uses("b", 1);
  memory_ = 2 * w + c + c / 2;
  until([&] { return !host_.has("a"); }, "the contexts of a are freed");
  EXPECT_EQ(weights("a"), w) << "its weights are kept";
  load("a");
  until([&] { return host_.queued_bytes("a") == c; }, "a waits for memory for its contexts");
  EXPECT_TRUE(unload("a"));
  EXPECT_EQ(weights("a"), 0u);
  host_.set_uses("b", 0);
  until([&] { return host_.has("a"); }, "a has the place of b");
  EXPECT_EQ(weights("a"), w);
  EXPECT_EQ(contexts("a"), c);
}

TEST_F(ModelPoolTest, TwoThatWaitWithKeptWeightsDoNotHoldEachOther) {
  add("a");
  add("b");
  start();
  load_and_wait("a");
  load_and_wait("b");
  const std::uint64_t w = weights("a");
  const std::uint64_t c = contexts("a");
  memory_ = 2 * w + c - w / 2;
  until([&] { return !host_.has("a") && !host_.has("b"); }, "the contexts of both are freed");
  EXPECT_EQ(weights("a"), w);
  EXPECT_EQ(weights("b"), w);
  // Who is loaded first stays until the test says otherwise.
  host_.set_uses("a", 1);
  host_.set_uses("b", 1);
  pool_->load("a");
  pool_->load("b");
  until([&] { return host_.has("a") || host_.has("b"); }, "one of them has the other's memory");
  const std::string first = host_.has("a") ? "a" : "b";
  const std::string second = first == "a" ? "b" : "a";
  EXPECT_EQ(weights(first), w);
  EXPECT_LE(reserved(), memory_.load());
  host_.set_uses(first, 0);
  until([&] { return host_.has(second); }, "the other one is loaded after it");
  EXPECT_EQ(weights(second), w);
  EXPECT_LE(reserved(), memory_.load());
}

TEST_F(ModelPoolTest, BackgroundRequestsAreHeldBackForALoadThatWaits) {
  add("a");
  add("b");
  add("c");
  start();
  load_and_wait("b");
  load_and_wait("c");
  memory_ = reserved() + (weights("b") + contexts("b")) / 2;
  host_.set_uses("b", 2, true);
  host_.set_uses("c", 1);
  load("a");
  until([&] { return host_.is_held("b"); }, "b takes no new background requests");
  EXPECT_FALSE(host_.is_held("c")) << "somebody waits for what it says";
  EXPECT_FALSE(host_.has("a"));
  host_.set_uses("b", 0);
  until([&] { return host_.has("a"); }, "a has the place of b");
  EXPECT_FALSE(host_.has("b"));
  EXPECT_TRUE(host_.has("c"));
  until([&] { return !host_.is_held("b"); }, "b may come back");
}

TEST_F(ModelPoolTest, UnusedMemoryOfStatesGivesWayToALoadWithoutAWord) {
  add("a");
  host_.stored_max = std::uint64_t{1} << 40;
  memory_ = std::uint64_t{64} << 20;
  start();
  until([&] { return held(WarmMemory::kName, MemoryKind::warm_kv) > memory_ * 9 / 10; }, "states may have nearly all");
  load_and_wait("a");
  EXPECT_GT(contexts("a"), 0u);
  EXPECT_LE(reserved(), memory_.load());
  EXPECT_EQ(pool_->governor().decisions_total(), 0u);
}

}  // namespace
}  // namespace uma::pool
