// Chats with images through router, vision and lane, on a projector whose rows say which token they stand for.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/log.h"
#include "capability/message_images.h"
#include "engine/router/router.h"
#include "engine/router_test_support.h"
#include "engine/worker_source_test_support.h"
#include "kv/session_file.h"
#include "llm/image_tokens.h"
#include "testing/fake_model.h"
#include "testing/image_bytes.h"
#include "testing/sim_clock.h"

namespace uma::engine {
namespace {

namespace fs = std::filesystem;
using testing::fake_continuation;
using testing::FakeContext;
using testing::FakeModel;
using testing::FakeOptions;
using testing::image_of_one_pixel;

class ImagesSink final : public EventSink {
 public:
  bool deliver(const Event& event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) tokens.push_back(token->token);
    if (is_terminal(event)) terminal = event;
    return true;
  }
  [[nodiscard]] const EosEvent& eos() const { return std::get<EosEvent>(*terminal); }
  [[nodiscard]] const Error& error() const { return std::get<FailureEvent>(*terminal).error; }

  std::vector<Token> tokens;
  std::optional<Event> terminal;
};

class Images : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    init_log(LogLevel::error);
    folder_ = fs::temp_directory_path() / ("uma-images-test-" + std::to_string(::getpid()));
    options_.unified = GetParam();
    forget_states();
    serve();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void forget_states() {
    lane_.reset();
    router_.reset();
    store_ = std::make_unique<kv::StateStore>(kv::StoreOptions{.warm_bytes_max = 1 << 20}, nullptr, clock_);
    store_->open({});
  }
  // Begins a life: with what the catalog and the folder have kept.
  void serve(bool has_prefill_lane = false) {
    router_.reset();
    lane_.reset();
    options_.clock = &clock_;
    model_ = std::make_shared<FakeModel>(options_);
    kept_ = std::make_shared<KeptImages>(folder_.string(), 1 << 20);
    RouterOptions router;
    router.on_images_free = [this](const std::vector<std::string>& ids, const auto& is_used) { kept_->remove(ids, is_used); };
    router_ = std::make_unique<Router>(router, source_, catalog_, *store_, preparer_, clock_);
    vision_ = std::make_shared<Vision>(std::make_unique<testing::FakeProjector>(),
                                       VisionOptions{.allowed_dirs = {}, .cache_bytes_max = 1000, .kept = kept_}, clock_);
    LaneOptions lane;
    lane.store = store_.get();
    lane.stored_tokens_min = 1;
    lane.encode = [vision = vision_](const TenantId& tenant, const std::string& image,
                                     std::move_only_function<void(Expected<EncodedPtr>)> then) {
      vision->post(tenant, [vision, image, then = std::move(then)]() mutable { then(vision->encode(image)); });
    };
    auto context = std::make_unique<FakeContext>(options_);
    context_ = context.get();
    FakeOptions alone = options_;
    alone.sequences = 1;
    alone.cells = options_.unified ? options_.cells : options_.cells / options_.sequences;
    lane_ = std::make_unique<Lane>(
        std::move(lane), std::move(context), has_prefill_lane ? std::make_unique<FakeContext>(alone) : nullptr, model_->vocab(),
        clock_, [this](GenerationResult result) {
          router_->post([this, result = std::move(result)]() mutable { router_->generations().on_result(std::move(result)); });
        });
    router_->on_loaded("fake", chat_model(model_, {lane_.get()}, vision_));
  }

  bool step(bool sees = true) {
    bool worked = router_->step();
    worked |= preparer_.step();
    if (sees) worked |= vision_->step();
    worked |= lane_->step().did_work;
    lane_->check_invariants();
    if (PrefillLane* prefill = lane_->prefill_lane()) worked |= prefill->step().did_work;
    worked |= store_->step();
    router_->check_invariants();
    return worked;
  }
  void run() {
    for (int quiet = 0; quiet < 3;) {
      quiet = step() ? 0 : quiet + 1;
      clock_.advance(std::chrono::milliseconds(1));
    }
  }

  static GenerateRequest ask(const std::string& question, const std::vector<char>& colours, const std::string& session = "") {
    GenerateRequest request;
    request.session = session;
    request.input.messages = {{"user", question}};
    for (const char colour : colours) {
      request.input.images.push_back({.message = 0, .at = request.input.images.size(), .source = image_of_one_pixel(colour)});
    }
    request.options.max_tokens = 6;
    return request;
  }
  std::shared_ptr<ImagesSink> start(GenerateRequest request) {
    auto sink = std::make_shared<ImagesSink>();
    router_->generations().start(RequestId{++last_request_}, kTenant, std::move(request), {sink});
    return sink;
  }
  std::shared_ptr<ImagesSink> generate(GenerateRequest request) {
    auto sink = start(std::move(request));
    run();
    EXPECT_TRUE(sink->terminal);
    return sink;
  }
  std::string begin_session(OnFull on_full = OnFull::error) {
    std::string id;
    CreateSessionRequest request;
    request.mode = SessionMode::chat;
    request.on_full = on_full;
    router_->tasks().answer([&](Expected<SessionInfo> made) { id = made.value().id.value; },
                            router_->sessions().create(kTenant, request));
    run();
    return id;
  }
  void end_session(const std::string& session) {
    router_->tasks().answer([](const Expected<Unit>& ended) { EXPECT_TRUE(ended); }, router_->sessions().end(kTenant, session));
    run();
  }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  [[nodiscard]] kv::RecordPtr kept(const std::string& session) const { return catalog_.find(SessionId{session}); }
  Bytes exported(const std::string& session, bool with_kv) {
    Bytes bytes;
    router_->tasks().answer(
        [&](Expected<ExportedSession> made) {
          ASSERT_TRUE(made) << made.error().message;
          for (const std::span<const std::byte> part : made->file.parts) bytes.insert(bytes.end(), part.begin(), part.end());
        },
        router_->transfer().export_session(kTenant, session, with_kv));
    run();
    return bytes;
  }
  Expected<ImportedSession> imported(const Bytes& file) {
    Expected<ImportedSession> result = fail(ErrorCode::io_short_write, "nothing was replied");
    router_->tasks().answer([&](Expected<ImportedSession> made) { result = std::move(made); },
                            router_->transfer().import_session(kTenant, {.name = "", .file = file_of(file)}));
    run();
    return result;
  }
  // What the chain says was generated is what the model says after the rest of it.
  void expect_true_to_the_model(const std::string& session, const ImagesSink& sink) const {
    const std::vector<Token>& chain = kept(session)->chain;
    const std::size_t said = sink.tokens.size();
    ASSERT_GE(chain.size(), said);
    const std::vector<Token> before(chain.begin(), chain.end() - static_cast<std::ptrdiff_t>(said));
    EXPECT_EQ(sink.tokens, fake_continuation(options_, before, static_cast<std::int32_t>(said)));
  }
  // Since the life began.
  [[nodiscard]] std::uint64_t encoded() const { return vision_->stats().images_encoded_total.value(); }

  testing::SimClock clock_;
  fs::path folder_;
  FakeOptions options_{.cells = 2'048, .sequences = 4, .batch_rows_max = 64, .has_chat_template = true};
  std::shared_ptr<const FakeModel> model_;
  NamedModels source_;
  kv::MemoryCatalog catalog_;
  std::unique_ptr<kv::StateStore> store_;
  Preparer preparer_;
  std::shared_ptr<KeptImages> kept_;
  std::shared_ptr<Vision> vision_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Lane> lane_;
  FakeContext* context_ = nullptr;
  std::uint64_t last_request_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Layouts, Images, ::testing::Bool(),
                         [](const auto& layout) { return layout.param ? "unified" : "split"; });

TEST_P(Images, StandInTheChainWhereTheMessageHasThem) {
  const std::string session = begin_session();
  const auto sink = generate(ask("xy", {'a', 'b'}, session));
  ASSERT_EQ(sink->eos().reason, FinishReason::length);
  expect_true_to_the_model(session, *sink);
  const std::vector<Token>& chain = kept(session)->chain;
  EXPECT_EQ(std::ranges::count_if(chain, llm::is_image_token), 10);
  // <|im_start|>user\n[aaa,aa]x[bbb,bb]y
  const auto first = std::ranges::find(chain, '[') - chain.begin();
  EXPECT_EQ(chain[static_cast<std::size_t>(first) + 8], 'x');
  EXPECT_EQ(chain[static_cast<std::size_t>(first) + 9], '[');
  EXPECT_EQ(chain[static_cast<std::size_t>(first) + 17], 'y');
  EXPECT_EQ(encoded(), 2u);
  EXPECT_TRUE(kept(session)->messages[0].extra.contains("\"sha256\""));
  EXPECT_EQ(kept(session)->messages[0].content, "xy");
}

TEST_P(Images, OfAOneShotRequestLeaveNothing) {
  const auto sink = generate(ask("what?", {'a'}));
  EXPECT_EQ(sink->tokens.size(), 6u);
  EXPECT_NE(sink->tokens, generate(ask("what?", {'b'}))->tokens);
  EXPECT_EQ(sink->tokens, generate(ask("what?", {'a'}))->tokens);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_P(Images, AreNotEncodedWhereTheirKvIsFound) {
  const std::string session = begin_session();
  generate(ask("one", {'a'}, session));
  const auto second = generate(ask("two", {}, session));
  EXPECT_GT(second->eos().usage.reused_tokens, 8);
  expect_true_to_the_model(session, *second);
  EXPECT_EQ(encoded(), 1u);
}

TEST_P(Images, ASessionResumesAfterARestartWithoutEncodingAgain) {
  const std::string session = begin_session();
  generate(ask("one", {'a'}, session));
  lane_->close();
  lane_->cancel_all();  // what is cached goes to the store
  serve();
  const auto second = generate(ask("two", {}, session));
  EXPECT_EQ(second->eos().usage.tier, Tier::warm);
  expect_true_to_the_model(session, *second);
  EXPECT_EQ(encoded(), 0u);
}

TEST_P(Images, ASessionWhoseKvIsGoneIsComputedFromTheKeptFile) {
  const std::string session = begin_session();
  generate(ask("one", {'a'}, session));
  forget_states();
  serve();
  const auto second = generate(ask("two", {}, session));
  EXPECT_EQ(second->eos().usage.reused_tokens, 0);
  expect_true_to_the_model(session, *second);
  EXPECT_EQ(encoded(), 1u);
}

TEST_P(Images, ALostFileEndsTheReplyAndNothingElse) {
  const std::string session = begin_session();
  generate(ask("one", {'a'}, session));
  forget_states();
  serve();
  fs::remove_all(folder_);
  const auto second = generate(ask("two", {}, session));
  EXPECT_EQ(second->error().code, ErrorCode::io_short_write);
  EXPECT_EQ(generate(ask("else", {}))->tokens.size(), 6u);
}

TEST_P(Images, BeingEncodedDoNotHoldUpStreams) {
  const auto stream = start(ask("tell me", {}));
  const auto seeing = start(ask("what?", {'a'}));
  step();  // which reads the image
  for (int i = 0; i < 200 && !stream->terminal; ++i) step(false);
  ASSERT_TRUE(stream->terminal) << "its tokens come while nobody encodes";
  EXPECT_FALSE(seeing->terminal);
  run();
  EXPECT_EQ(seeing->eos().reason, FinishReason::length);
}

TEST_P(Images, ARequestCanBeCancelledWhileItsImageIsEncoded) {
  const auto sink = start(ask("what?", {'a'}));
  step();  // which reads it
  for (int i = 0; i < 20; ++i) step(false);
  (void)router_->cancel(RequestId{last_request_});
  run();
  EXPECT_EQ(sink->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(generate(ask("else", {'a'}))->tokens.size(), 6u);
}

TEST_P(Images, AreComputedInThePrefillLaneToo) {
  options_.row_cost = std::chrono::milliseconds(20);  // long enough to go there
  serve(true);
  const std::string session = begin_session();
  const auto sink = generate(ask(std::string(150, 'q'), {'a', 'b'}, session));
  ASSERT_EQ(sink->eos().reason, FinishReason::length);
  expect_true_to_the_model(session, *sink);
  EXPECT_GT(lane_->stats().handover.count(), 0u);
}

TEST_P(Images, TogetherInOneContextDoNotTouchEachOther) {
  std::vector<std::string> sessions;
  std::vector<std::shared_ptr<ImagesSink>> sinks;
  for (int i = 0; i < 6; ++i) sessions.push_back(begin_session());
  for (int i = 0; i < 6; ++i) {
    const auto colour = static_cast<char>('a' + i % 3);
    sinks.push_back(start(ask("question " + std::to_string(i), {colour}, sessions[static_cast<std::size_t>(i)])));
  }
  run();
  for (std::size_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(sinks[i]->terminal);
    expect_true_to_the_model(sessions[i], *sinks[i]);
  }
  EXPECT_EQ(encoded(), 3u);
}

TEST_P(Images, TextOfAUserIsNoImage) {
  const std::string session = begin_session();
  generate(ask("one", {'a'}, session));
  const std::string id = capability::images_of(kept(session)->messages[0]).at(0).id;
  const auto before = std::ranges::count_if(kept(session)->chain, llm::is_image_token);
  generate(ask("image" + id + " \x02" + id + "\x03 <__media__>", {}, session));
  EXPECT_EQ(std::ranges::count_if(kept(session)->chain, llm::is_image_token), before);
}

TEST_P(Images, ForksAndRewindsHaveThem) {
  const std::string session = begin_session();
  generate(ask("one", {'a'}, session));
  std::string fork;
  router_->tasks().answer([&](Expected<SessionInfo> made) { fork = made.value().id.value; },
                          router_->sessions().fork(kTenant, session, ""));
  run();
  const auto sink = generate(ask("two", {'b'}, fork));
  expect_true_to_the_model(fork, *sink);
  bool is_rewound = false;
  router_->tasks().answer([&](const Expected<SessionInfo>& made) { is_rewound = made.has_value(); },
                          router_->sessions().rewind(kTenant, fork, 0));
  run();
  ASSERT_TRUE(is_rewound);
  expect_true_to_the_model(fork, *generate(ask("three", {}, fork)));
}

TEST_P(Images, AreKeptForAsLongAsASessionHasThem) {
  const std::string session = begin_session();
  generate(ask("one", {'a', 'b'}, session));
  EXPECT_EQ(files(), 2);
  std::string fork;
  router_->tasks().answer([&](Expected<SessionInfo> made) { fork = made.value().id.value; },
                          router_->sessions().fork(kTenant, session, ""));
  run();
  generate(ask("two", {'c'}, fork));
  EXPECT_EQ(files(), 3);
  end_session(session);
  EXPECT_EQ(files(), 3) << "the fork has them";
  router_->tasks().answer([](const Expected<SessionInfo>& made) { EXPECT_TRUE(made); },
                          router_->sessions().rewind(kTenant, fork, 0));
  run();
  EXPECT_EQ(files(), 2) << "the last turn's is gone with it";
  serve();
  EXPECT_EQ(router_->image_ids().size(), 2u) << "a later life knows them";
  end_session(fork);
  EXPECT_EQ(files(), 0);
}

TEST_P(Images, OfRequestsThatCameToNothingAreNotKept) {
  const std::string session = begin_session();
  GenerateRequest bad = ask("one", {'a', 'b'}, session);
  bad.input.images.push_back({.message = 0, .at = 2, .source = {.kind = ImageSource::Kind::data, .text = "bm8="}});
  EXPECT_EQ(generate(bad)->error().code, ErrorCode::proto_field);
  EXPECT_EQ(files(), 0) << "those before the one that is none";
  const auto cancelled = start(ask("one", {'a', 'b'}, session));
  router_->step();
  vision_->step();
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(router_->cancel(RequestId{last_request_}));
  run();
  EXPECT_EQ(files(), 0);
  EXPECT_EQ(vision_->stats().waiting_bytes.value(), 0);
  const Bytes file = [&] {
    const std::string other = begin_session();
    generate(ask("one", {'a'}, other));
    Bytes bytes = exported(other, false);
    end_session(other);
    return bytes;
  }();
  EXPECT_EQ(files(), 0);
  Bytes damaged = file;
  damaged.resize(damaged.size() - 1);
  EXPECT_FALSE(imported(damaged));
  EXPECT_EQ(files(), 0);
  ASSERT_TRUE(imported(file));
  EXPECT_EQ(files(), 1);
}

TEST_P(Images, AreRefusedWhereTheyCannotBe) {
  EXPECT_EQ(generate(ask("one", {'a'}, "unknown"))->error().code, ErrorCode::session_unknown);
  GenerateRequest bad = ask("one", {'a'});
  bad.input.images[0].source.text = "aGVsbG8=";
  bad.input.images[0].field = "messages[0].content[0]";
  const auto refused = generate(bad);
  EXPECT_EQ(refused->error().code, ErrorCode::proto_field);
  EXPECT_TRUE(refused->error().message.starts_with("field \"messages[0].content[0]\": ")) << refused->error().message;
}

// Whatever was dropped, every image that is left is whole, and is one of the messages that are left.
TEST_P(Images, GoWithTheirTurnsWhenTheContextIsFull) {
  options_.cells = options_.unified ? 400 : 1'600;
  for (const std::int32_t n_keep : {0, 30, 150}) {
    // Once with prompts that are computed in a lane of their own.
    options_.row_cost = n_keep == 30 ? std::chrono::milliseconds(20) : FakeOptions().row_cost;
    serve(n_keep == 30);
    std::string session;
    CreateSessionRequest create;
    create.mode = SessionMode::chat;
    create.system = "be brief";
    create.on_full = OnFull::shift;
    create.n_keep = n_keep;
    router_->tasks().answer([&](Expected<SessionInfo> made) { session = made.value().id.value; },
                            router_->sessions().create(kTenant, create));
    run();
    std::int32_t dropped = 0;
    for (int i = 0; i < 60; ++i) {
      std::vector<char> colours;
      for (int j = 0; j < i % 4; ++j) colours.push_back(static_cast<char>('a' + (i + j) % 5));
      GenerateRequest request = ask(std::string(static_cast<std::size_t>(5 + 7 * (i % 9)), 'q'), colours, session);
      request.options.max_tokens = 4 + 9 * (i % 5);
      const auto sink = generate(std::move(request));
      ASSERT_TRUE(std::holds_alternative<EosEvent>(*sink->terminal)) << i << ": " << sink->error().message;
      dropped += sink->eos().usage.dropped_turns;
      const kv::RecordPtr record = kept(session);
      std::vector<std::string> ids;
      std::size_t shown = 0;
      for (const ChatMessage& message : record->messages) {
        for (capability::MessageImage& image : capability::images_of(message)) {
          ids.push_back(std::move(image.id));
          ++shown;
        }
      }
      const auto runs = find_image_runs(record->chain, ids, vision_->identity());
      ASSERT_TRUE(runs) << i << ": " << runs.error().message;
      std::int32_t rows = 0;
      for (const ImageRun& run : *runs) rows += run.count;
      EXPECT_EQ(rows, static_cast<std::int32_t>(5 * shown)) << i;
      EXPECT_LE(record->chain.size(), 400u);
    }
    EXPECT_GT(dropped, 20) << n_keep;
    // What is left is what a fresh context computes too.
    forget_states();
    serve();
    GenerateRequest last = ask("q", {}, session);
    last.options.max_tokens = 1;  // none is dropped in the middle of it
    expect_true_to_the_model(session, *generate(std::move(last)));
  }
}

TEST_P(Images, OfAResponseAreThereForTheNextOne) {
  GenerateRequest first = ask("xy", {'a'});
  first.response.emplace().id = "1111111111111111";
  const auto told = generate(first);
  ASSERT_EQ(told->eos().reason, FinishReason::length);
  ASSERT_EQ(catalog_.size(), 1u);
  const std::string session = catalog_.load().front().id.value;
  expect_true_to_the_model(session, *told);
  EXPECT_EQ(capability::images_of(kept(session)->messages[0]).size(), 1u);

  forget_states();  // and everything in memory: the image is read from its file
  serve();
  GenerateRequest second = ask("z", {'b'}, session);
  second.response.emplace().id = "2222222222222222";
  second.response->previous = "1111111111111111";
  const auto sink = generate(second);
  ASSERT_TRUE(std::holds_alternative<EosEvent>(*sink->terminal)) << sink->error().message;
  expect_true_to_the_model(session, *sink);
  EXPECT_EQ(std::ranges::count_if(kept(session)->chain, llm::is_image_token), 10);
  EXPECT_EQ(encoded(), 2u);
}

// A session's file, to a daemon that has nothing of it.
TEST_P(Images, TravelWithTheirSession) {
  const std::string session = begin_session();
  generate(ask("xy", {'a', 'b'}, session));
  generate(ask("two", {'a'}, session));
  for (const bool with_kv : {false, true}) {
    const Bytes file = exported(session, with_kv);
    fs::remove_all(folder_);
    forget_states();
    serve();
    const auto made = imported(file);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_TRUE(made->are_tokens_kept);
    const std::string copy = made->info.id.value;
    EXPECT_EQ(kept(copy)->chain, kept(session)->chain);
    EXPECT_EQ(kept(copy)->messages, kept(session)->messages);
    const auto sink = generate(ask("three", {'b'}, copy));
    ASSERT_TRUE(std::holds_alternative<EosEvent>(*sink->terminal)) << sink->error().message;
    expect_true_to_the_model(copy, *sink);
    EXPECT_EQ(encoded(), made->kv == ImportedKv::kept ? 1u : 2u) << with_kv;
  }
}

TEST_P(Images, OfAFileAreReadAgainWhereItsTokensAreNot) {
  const std::string session = begin_session();
  generate(ask("xy", {'a', 'b'}, session));
  const Bytes file = exported(session, false);
  const std::size_t end = kv::conversation_bytes(std::span(file).first<kv::kSessionPrefixBytes>());
  kv::SessionFile changed = kv::decode_session_file(std::span(file).first(end)).value();
  changed.vocabulary.low ^= 1;
  Bytes foreign = kv::encode_session_file(changed);
  foreign.insert(foreign.end(), file.begin() + static_cast<std::ptrdiff_t>(end), file.end());
  fs::remove_all(folder_);
  const auto made = imported(foreign);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_FALSE(made->are_tokens_kept);
  const std::string copy = made->info.id.value;
  EXPECT_EQ(std::ranges::count_if(kept(copy)->chain, llm::is_image_token), 10);
  expect_true_to_the_model(copy, *generate(ask("three", {}, copy)));
}

TEST_P(Images, OfAFileThatIsDamagedLeaveNoSession) {
  const std::string session = begin_session();
  generate(ask("xy", {'a', 'b'}, session));
  const Bytes file = exported(session, false);
  const std::size_t end = kv::conversation_bytes(std::span(file).first<kv::kSessionPrefixBytes>());
  const std::size_t sessions = catalog_.size();
  for (std::size_t size = end; size < file.size(); ++size) {
    const auto made = imported(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
    ASSERT_FALSE(made) << size;
    EXPECT_EQ(made.error().code, ErrorCode::proto_field) << size;
  }
  for (const std::size_t at : {end, end + 8, end + 15, end + 16, end + 23, file.size() - 4}) {
    Bytes damaged = file;
    damaged[at] ^= std::byte{0x41};
    const auto made = imported(damaged);
    ASSERT_FALSE(made) << at;
    EXPECT_EQ(made.error().code, ErrorCode::proto_field) << at;
  }
  EXPECT_EQ(catalog_.size(), sessions);
}

TEST_P(Images, ThatNeedMoreRowsThanACallHasAreRefused) {
  options_.batch_rows_max = 2;
  serve();
  const auto sink = generate(ask("what?", {'a'}));
  EXPECT_EQ(sink->error().code, ErrorCode::limit_prompt);
  EXPECT_TRUE(sink->error().message.contains("scheduler.ubatch 3")) << sink->error().message;
}

TEST_P(Images, AppendedInputHasThem) {
  const std::string session = begin_session();
  GenerateRequest request = ask("one", {'a'}, session);
  bool is_appended = false;
  router_->tasks().answer([&](const Expected<SessionInfo>& made) { is_appended = made.has_value(); },
                          router_->sessions().append(kTenant, {.session = session, .input = request.input}));
  run();
  ASSERT_TRUE(is_appended);
  GenerateRequest go_on;
  go_on.session = session;
  go_on.options.max_tokens = 4;
  const auto sink = generate(go_on);
  expect_true_to_the_model(session, *sink);
  EXPECT_EQ(encoded(), 1u);
}

}  // namespace
}  // namespace uma::engine
