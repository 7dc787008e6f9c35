// The engine with its real threads, on FakeModel; the thread sanitizer checks these tests.
#include "engine/engine.h"

#include <cstdlib>
#include <filesystem>
#include <format>
#include <future>
#include <stop_token>
#include <thread>

#include <gtest/gtest.h>

#include "base/log.h"
#include "engine/engine_test_support.h"
#include "image/kept_images.h"
#include "kv/catalog/sqlite_catalog.h"
#include "testing/fake_model.h"
#include "testing/fake_shared_store.h"

namespace uma::engine {
namespace {

using testing::FakeModel;
using testing::FakeOptions;

constexpr FakeOptions kOptions{.cells = 4096, .sequences = 8, .batch_rows_max = 64};

class FakeSource final : public ModelLoader {
 public:
  explicit FakeSource(int workers, bool fails = false) : workers_(workers), fails_(fails) {}
  ~FakeSource() override { stop(); }
  [[nodiscard]] Expected<std::string> resolve(const std::string& name) const override { return name.empty() ? "fake" : name; }
  [[nodiscard]] std::vector<ModelInfo> list() const override { return {{.name = "fake"}}; }
  void add_metrics(MetricsSnapshot&) const override {}
  void start(LoaderDelegate& host) override { host_ = &host; }
  void load(const std::string& model) override {
    threads_.emplace_back([this, model] {
      host_->on_load_progress(model, 0.5);
      if (fails_) return host_->on_loaded(model, fail(ErrorCode::model_load, "a load that fails"));
      LoadedWorkers loaded;
      loaded.model = std::make_shared<FakeModel>(kOptions);
      for (int i = 0; i < workers_; ++i) loaded.workers.emplace_back(loaded.model->new_context({}).value());
      loaded.reservation = reservation;
      host_->on_loaded(model, std::move(loaded));
    });
  }
  void unload(const std::string&, Promise<Unit> reply) override { reply(Unit{}); }
  void cancel_load(const std::string&) override {}
  void report_backlog(const std::string&) override { queues.fetch_add(1); }
  void report_lost(const std::string&) override {}
  void stop() override {
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
  }

  std::shared_ptr<int> reservation = std::make_shared<int>();
  std::atomic<int> queues = 0;  // Number of report_backlog() calls.
  [[nodiscard]] LoaderDelegate& host() { return *host_; }

 private:
  int workers_;
  bool fails_;
  LoaderDelegate* host_ = nullptr;
  std::vector<std::thread> threads_;  // Filled by the router's thread, until it ends.
};

// Collects a stream. The future is ready with the terminal event; the recorded events may be read then.
class CollectingSink final : public testing::RecordingSink {
 public:
  bool deliver(const Event& event) override {
    const bool is_taken = RecordingSink::deliver(event);
    if (std::holds_alternative<TokenEvent>(event)) {
      if (tokens.size() == 1) first_token.set_value();
      // A real sink never blocks. This one keeps the lane from finishing before the test has acted.
      if (hold.valid()) hold.wait();
    }
    if (is_terminal(event)) ended.set_value(event);
    return is_taken;
  }
  std::promise<void> first_token;
  std::shared_future<void> hold;
  std::promise<Event> ended;
};

GenerateRequest request(std::string prompt, std::int32_t max_tokens) {
  GenerateRequest made;
  made.input.text = std::move(prompt);
  made.options.max_tokens = max_tokens;
  return made;
}

std::vector<Token> expected(const std::string& prompt, std::int32_t tokens_max) {
  std::vector<Token> chain{testing::kFakeBos};
  for (const char c : prompt) chain.push_back(static_cast<unsigned char>(c));
  return fake_continuation(kOptions, std::move(chain), tokens_max);
}

// Waits for a reply and returns its value.
template <class T, class Call>
Expected<T> ask(Call&& call) {
  std::promise<Expected<T>> promise;
  auto future = promise.get_future();
  call(Promise<T>([&promise](Expected<T> value) { promise.set_value(std::move(value)); }));
  return future.get();
}

class EngineTest : public ::testing::TestWithParam<int> {
 protected:
  EngineTest() { engine_.start(); }
  SteadyClock clock_;
  Engine engine_{{}, std::make_unique<FakeSource>(GetParam()), std::make_unique<kv::MemoryCatalog>(), nullptr, clock_};
};

INSTANTIATE_TEST_SUITE_P(Workers, EngineTest, ::testing::Values(1, 2), ::testing::PrintToStringParamName());

TEST_P(EngineTest, ServesManyClientsAtOnceEachItsOwnText) {
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int round = 0; round < 10; ++round) {
        const std::string prompt = std::format("client {} round {}", client, round);
        auto sink = std::make_shared<CollectingSink>();
        engine_.generate(kTenant, request(prompt, 20), {sink});
        (void)engine_.metrics();
        const Event terminal = sink->ended.get_future().get();
        EXPECT_TRUE(std::holds_alternative<EosEvent>(terminal));
        EXPECT_EQ(sink->tokens, expected(prompt, 20));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(engine_.metrics().tokens_total, 4u * 10 * 20);
}

TEST(EngineReadiness, IsReadyWhenItsFirstModelIsLoadedAndWarm) {
  const SteadyClock clock;
  std::promise<void> has_loaded;
  EngineOptions options;
  options.warms_up = true;
  options.on_loaded = [&](const Expected<ModelInfo>&) { has_loaded.set_value(); };
  Engine engine(options, std::make_unique<FakeSource>(2), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  EXPECT_FALSE(engine.is_ready()) << "before the load, which was not even begun";
  engine.start();
  has_loaded.get_future().wait();
  EXPECT_TRUE(engine.is_ready());
}

TEST(EngineReadiness, IsNotReadyWhenTheLoadHasFailed) {
  const SteadyClock clock;
  std::promise<void> has_ended;
  EngineOptions options;
  options.on_loaded = [&](const Expected<ModelInfo>& loaded) {
    EXPECT_FALSE(loaded);
    has_ended.set_value();
  };
  Engine engine(options, std::make_unique<FakeSource>(1, true), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  engine.start();
  has_ended.get_future().wait();
  EXPECT_FALSE(engine.is_ready());
}

TEST_P(EngineTest, TellsProgressAndTimesInBuckets) {
  MetricsSnapshot before = engine_.metrics();
  EXPECT_EQ(before.requests_open, 0);
  EXPECT_EQ(before.progress.last_tick_s, std::nullopt);
  for (int round = 0; round < 3; ++round) {
    auto sink = std::make_shared<CollectingSink>();
    engine_.generate(kTenant, request(std::format("round {}", round), 5), {sink});
    sink->ended.get_future().wait();
  }
  const MetricsSnapshot after = engine_.metrics();
  EXPECT_TRUE(after.progress.last_tick_s.has_value());
  EXPECT_TRUE(after.progress.last_decode_s.has_value());
  EXPECT_EQ(after.ttft.count, 3U);
  EXPECT_EQ(after.queue_wait.count, 3U);
  EXPECT_EQ(after.inter_token.count, 3U * 4);
  EXPECT_TRUE(std::ranges::is_sorted(after.ttft.at_most));
  EXPECT_EQ(after.ttft.at_most.back(), after.ttft.count) << "none took minutes";
  EXPECT_GT(after.ttft.sum_s, 0);
}

TEST_P(EngineTest, ASessionGoesOnWhereItWas) {
  CreateSessionRequest named;
  named.name = "s";
  const auto session = ask<SessionInfo>([&](auto reply) { engine_.create_session(kTenant, named, std::move(reply)); });
  ASSERT_TRUE(session);
  for (int turn = 0; turn < 3; ++turn) {
    auto sink = std::make_shared<CollectingSink>();
    GenerateRequest next = request("more", 10);
    next.session = "s";
    engine_.generate(kTenant, std::move(next), {sink});
    const Event terminal = sink->ended.get_future().get();
    const auto& usage = std::get<EosEvent>(terminal).usage;
    EXPECT_EQ(usage.reused_tokens > 0, turn > 0);
    EXPECT_EQ(usage.tier, turn > 0 ? Tier::hot : Tier::none);
  }
  const auto detail = ask<SessionDetail>([&](auto reply) { engine_.get_session(kTenant, "s", std::move(reply)); });
  EXPECT_EQ(detail->info.turns, 3);
  EXPECT_EQ(detail->info.tier, Tier::hot);
  EXPECT_TRUE(ask<Unit>([&](auto reply) { engine_.end_session(kTenant, "s", std::move(reply)); }));
  EXPECT_EQ(ask<SessionDetail>([&](auto reply) { engine_.get_session(kTenant, "s", std::move(reply)); }).error().code,
            ErrorCode::session_unknown);
}

TEST_P(EngineTest, CancelEndsAStreamAndASecondCancelFindsNothing) {
  auto sink = std::make_shared<CollectingSink>();
  auto terminal = sink->ended.get_future();
  std::promise<void> release;
  sink->hold = release.get_future().share();
  const RequestId id = engine_.generate(kTenant, request("long", 400), {sink});
  sink->first_token.get_future().wait();
  EXPECT_TRUE(ask<bool>([&](auto reply) { engine_.cancel(id, std::move(reply)); }).value());
  release.set_value();
  EXPECT_EQ(std::get<EosEvent>(terminal.get()).reason, FinishReason::cancelled);
  EXPECT_FALSE(ask<bool>([&](auto reply) { engine_.cancel(id, std::move(reply)); }).value());
}

TEST_P(EngineTest, StoppingEndsWhatRuns) {
  auto sink = std::make_shared<CollectingSink>();
  auto terminal = sink->ended.get_future();
  engine_.generate(kTenant, request("long", 400), {sink});
  sink->first_token.get_future().wait();
  engine_.stop();
  EXPECT_TRUE(is_terminal(terminal.get()));
  EXPECT_TRUE(engine_.is_idle());
}

TEST_P(EngineTest, DrainingRefusesNewGenerations) {
  engine_.drain();
  auto sink = std::make_shared<CollectingSink>();
  auto terminal = sink->ended.get_future();
  engine_.generate(kTenant, request("too late", 4), {sink});
  EXPECT_EQ(std::get<FailureEvent>(terminal.get()).error.code, ErrorCode::limit_wait);
}

TEST(Engine, ARequestThatWaitsForTheModelHearsOfItsLoad) {
  const SteadyClock clock;
  Engine engine({}, std::make_unique<FakeSource>(1), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  auto sink = std::make_shared<CollectingSink>();
  auto terminal = sink->ended.get_future();
  GenerateRequest asked = request("hello", 4);
  asked.options.progress = true;
  engine.generate(kTenant, std::move(asked), {sink});
  engine.start();
  EXPECT_TRUE(std::holds_alternative<EosEvent>(terminal.get()));
  ASSERT_FALSE(sink->stages.empty());
  EXPECT_EQ(sink->stages.front(), ProgressStage::loading);
}

// stop() ends replies early; each is a turn up to there, and is committed before stop() returns.
TEST(Engine, SessionsAreKeptWhenItStopsInTheMiddleOfTheirReplies) {
  std::string folder = std::filesystem::temp_directory_path() / "uma_engine_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto open = [&] { return kv::SqliteCatalog::open(folder + "/catalog.db").value(); };
  const SteadyClock clock;
  std::vector<std::string> ids;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::promise<void> stopping;
  {
    Engine engine({}, std::make_unique<FakeSource>(2), open(), nullptr, clock);
    engine.start();
    for (int i = 0; i < 6; ++i) {
      ids.push_back(ask<SessionInfo>([&](auto reply) { engine.create_session(kTenant, {}, std::move(reply)); })->id.value);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      if (i == 0) sinks[0]->hold = stopping.get_future().share();
      GenerateRequest asked = request(std::format("session {}", i), 400);
      asked.session = ids[i];
      engine.generate(kTenant, std::move(asked), {sinks.back()});
    }
    sinks[0]->first_token.get_future().wait();
    stopping.set_value();
    engine.stop();
  }
  Engine engine({}, std::make_unique<FakeSource>(1), open(), nullptr, clock);
  engine.start();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto detail = ask<SessionDetail>([&](auto reply) { engine.get_session(kTenant, ids[i], std::move(reply)); });
    ASSERT_TRUE(detail);
    const std::string input = std::format("session {}", i);
    EXPECT_EQ(detail->info.tokens == 0, sinks[i]->tokens.empty()) << "a reply that began is a turn";
    EXPECT_EQ(detail->info.tokens + detail->info.pending_tokens,
              sinks[i]->tokens.size() + (detail->info.tokens + detail->info.pending_tokens == 0 ? 0 : 1 + input.size()));
  }
  engine.stop();
  std::filesystem::remove_all(folder);
}

TEST(Engine, ImagesAreReadInOrderAndCountedForTheirTenant) {
  std::string folder = std::filesystem::temp_directory_path() / "uma_engine_images_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const SteadyClock clock;
  EngineOptions options;
  options.limits.queue_bytes_max = 10'000;
  const auto kept = std::make_shared<image::KeptImages>(folder, 1 << 20);
  options.image_encoder.kept = kept;
  Engine engine(options, std::make_unique<FakeSource>(1), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  engine.start();
  std::vector<std::string> ids;
  std::vector<image::KeptImages::Use> uses;
  for (const char byte : {'a', 'b', 'c'}) {
    const Bytes file(600, static_cast<std::byte>(byte));
    ids.push_back(image::file_hash(file));
    uses.push_back(kept->keep(kTenant, ids.back(), file).value());
  }
  ids.insert(ids.begin() + 1, std::string(64, '0'));  // It is not there.
  const auto read = [&](std::size_t bytes_max, std::stop_token end = {}) {
    return ask<ImageFiles>([&](auto reply) { engine.read_images(kTenant, ids, bytes_max, end, std::move(reply)); });
  };
  {
    const auto all = read(1200);
    ASSERT_TRUE(all) << all.error().message;
    ASSERT_EQ(all->files.size(), 4u);
    EXPECT_EQ(all->files[0], Bytes(600, std::byte{'a'}));
    EXPECT_TRUE(all->files[1].empty());
    EXPECT_EQ(all->files[2], Bytes(600, std::byte{'b'}));
    EXPECT_TRUE(all->files[3].empty()) << "it would exceed the limit";
    EXPECT_EQ(engine.metrics().request_bytes, 1200u * 8 / 3);
  }
  EXPECT_EQ(engine.metrics().request_bytes, 0u);
  std::stop_source ended;
  ended.request_stop();
  EXPECT_FALSE(read(1200, ended.get_token())) << "nobody waits";
  const RequestShare held = engine.open_share(kTenant);
  ASSERT_TRUE(held->grow(4000));
  EXPECT_EQ(read(1200).error().code, ErrorCode::limit_wait);
  engine.stop();
  std::filesystem::remove_all(folder);
}

TEST(Engine, AFailedLoadFailsWhatWaitedForIt) {
  const SteadyClock clock;
  Engine engine({}, std::make_unique<FakeSource>(1, true), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  auto sink = std::make_shared<CollectingSink>();
  auto terminal = sink->ended.get_future();
  engine.generate(kTenant, request("hello", 4), {sink});
  engine.start();
  EXPECT_EQ(std::get<FailureEvent>(terminal.get()).error.code, ErrorCode::model_load);
}

TEST(Engine, ARetiredModelIsFreedAndItsSessionsGoOn) {
  const SteadyClock clock;
  auto made = std::make_unique<FakeSource>(2);
  FakeSource& source = *made;
  EngineOptions options;
  options.store.warm_bytes_max = 1 << 20;
  Engine engine(options, std::move(made), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  engine.start();
  CreateSessionRequest named;
  named.name = "s";
  ASSERT_TRUE(ask<SessionInfo>([&](auto reply) { engine.create_session(kTenant, named, std::move(reply)); }));
  const auto say = [&](std::string text) {
    auto sink = std::make_shared<CollectingSink>();
    GenerateRequest next = request(std::move(text), 10);
    next.session = "s";
    auto terminal = sink->ended.get_future();
    engine.generate(kTenant, std::move(next), {sink});
    return std::get<EosEvent>(terminal.get()).usage;
  };
  say(std::string(300, 'x'));
  EXPECT_EQ(source.reservation.use_count(), 2);
  // The turn's last steps may still be under way.
  while (!source.host().retire("fake")) std::this_thread::yield();
  EXPECT_EQ(source.reservation.use_count(), 1);
  EXPECT_EQ(engine.models().front().state, ModelState::unloaded);
  const std::uint64_t tokens_before = engine.metrics().tokens_total;
  EXPECT_EQ(tokens_before, 10u);
  const Usage usage = say("more");
  EXPECT_EQ(usage.tier, Tier::warm);
  EXPECT_GT(usage.reused_tokens, 300);
  EXPECT_EQ(engine.metrics().tokens_total, tokens_before + 10) << "counters go on";
  EXPECT_EQ(engine.models().front().state, ModelState::ready);
}

TEST(Engine, WorkersComeAndGoAndTheSessionsStay) {
  const SteadyClock clock;
  auto made = std::make_unique<FakeSource>(1);
  FakeSource& source = *made;
  EngineOptions options;
  options.store.warm_bytes_max = 1 << 20;
  Engine engine(options, std::move(made), std::make_unique<kv::MemoryCatalog>(), nullptr, clock);
  engine.start();
  const auto say_in_all = [&] {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    std::vector<std::future<Event>> terminals;
    for (int i = 0; i < 24; ++i) {
      GenerateRequest next = request(std::string(40, static_cast<char>('a' + i)), 20);
      next.session = std::format("s{}", i);
      sinks.push_back(std::make_shared<CollectingSink>());
      terminals.push_back(sinks.back()->ended.get_future());
      engine.generate(kTenant, std::move(next), {sinks.back()});
    }
    std::int64_t tokens = 0;
    for (auto& terminal : terminals) tokens += std::get<EosEvent>(terminal.get()).usage.prompt_tokens;
    return tokens;
  };
  for (int i = 0; i < 24; ++i) {
    CreateSessionRequest named;
    named.name = std::format("s{}", i);
    ASSERT_TRUE(ask<SessionInfo>([&](auto reply) { engine.create_session(kTenant, named, std::move(reply)); }));
  }
  EXPECT_EQ(say_in_all(), 24 * 41);
  EXPECT_GT(source.queues, 0) << "24 requests, 8 places";
  LoadedWorkers more;
  more.model = std::make_shared<FakeModel>(kOptions);
  more.workers.emplace_back(more.model->new_context({}).value());
  const auto reservation = std::make_shared<int>();
  more.reservation = reservation;
  source.host().add_workers("fake", std::move(more));
  EXPECT_EQ(engine.models().front().workers, 2);
  EXPECT_EQ(say_in_all(), 24 * 101);
  EXPECT_GT(engine.metrics().workers.at(1).tokens_total, 0u);
  while (!source.host().shrink_workers("fake", 1)) std::this_thread::yield();
  EXPECT_EQ(reservation.use_count(), 1);
  EXPECT_EQ(engine.models().front().workers, 1);
  EXPECT_EQ(say_in_all(), 24 * 161) << "with what was said on the other worker";
  EXPECT_FALSE(source.host().shrink_workers("other", 1));
}

TEST(Engine, EndsAndGivesItsSessionsFreeThoughTheSharedStoreHangs) {
  struct Catalog final : kv::MemoryCatalog {
    explicit Catalog(std::atomic<bool>& closed) : is_closed(closed) {}
    void close() override { is_closed = true; }
    std::atomic<bool>& is_closed;
  };
  std::promise<void> hangs;
  std::promise<void> returns;
  const auto content = std::make_shared<testing::FakeSharedStore::Content>();
  content->on_part = [&, is_first = true]() mutable {
    if (!std::exchange(is_first, false)) return;
    hangs.set_value();
    returns.get_future().wait();
  };
  const SteadyClock clock;
  std::atomic<bool> is_closed = false;
  EngineOptions options;
  options.publish_limit = options.shared_call_limit = std::chrono::milliseconds(1);
  Engine engine(options, std::make_unique<FakeSource>(1), std::make_unique<Catalog>(is_closed), nullptr, clock,
                std::make_unique<kv::SharedStates>(std::make_unique<testing::FakeSharedStore>(content),
                                                   std::make_unique<testing::FakeSharedStore>(content), clock));
  engine.start();
  const auto sink = std::make_shared<CollectingSink>();
  auto ended = sink->ended.get_future();
  engine.generate(kTenant, request("a", 1), {sink});
  (void)ended.get();          // The model is there.
  hangs.get_future().wait();  // In the first cleaning.
  engine.stop();
  EXPECT_TRUE(engine.is_left_hanging());
  EXPECT_TRUE(is_closed);
  returns.set_value();
}

}  // namespace
}  // namespace uma::engine
