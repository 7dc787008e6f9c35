// Chats with images through router, image encoder and lane, with a projector whose rows show their tokens.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/move_only_function.h"
#include "engine/engine_test_support.h"
#include "engine/router/image_intake.h"
#include "image/message_images.h"
#include "kv/disk/session_file.h"
#include "llm/media/image_tokens.h"
#include "testing/image_bytes.h"

namespace uma::engine {
namespace {

namespace fs = std::filesystem;
using testing::fake_continuation;
using testing::image_of_one_pixel;

struct ImagesCase {
  bool is_unified = false;
  bool has_grids = false;
};

class Images : public ::testing::TestWithParam<ImagesCase>, protected EngineBench {
 protected:
  Images() : EngineBench({.cells = 2'048, .sequences = 4, .batch_rows_max = 64, .has_chat_template = true}) {
    folder_ = fs::temp_directory_path() / ("uma-images-test-" + std::to_string(::getpid()));
    step_takes_ = std::chrono::milliseconds(1);
    options_.unified = GetParam().is_unified;
    options_.has_grids = GetParam().has_grids;
    options_.clock = &clock_;
    forget_states();
    serve();
  }
  ~Images() override { fs::remove_all(folder_); }

  void forget_states() {
    router_.reset();
    lanes_.clear();
    store_ = std::make_unique<kv::StateStore>(kv::StoreOptions{.warm_bytes_max = 1 << 20}, nullptr, clock_);
    store_->open({});
  }
  // Starts a daemon with the catalog and the folder as they are.
  void serve(bool has_prefill_lane = false) {
    model_ = std::make_shared<FakeModel>(options_);
    kept_images_ = std::make_shared<image::KeptImages>(folder_.string(), 1 << 20);
    RouterOptions router;
    router.on_images_free = [this](const std::vector<std::string>& ids, const auto& is_used) {
      kept_images_->remove(ids, is_used);
    };
    start_router(router);
    encoder_ = std::make_shared<image::ImageEncoder>(
        std::make_unique<testing::FakeProjector>(options_.has_grids),
        image::ImageEncoderOptions{.allowed_dirs = {}, .cache_bytes_max = 1000, .kept = kept_images_}, clock_);
    LaneOptions lane;
    lane.store = store_.get();
    lane.stored_tokens_min = 1;
    lane.encode = [encoder = encoder_](const TenantId& tenant, const std::string& image, std::stop_token end,
                                       MoveOnlyFunction<void(Expected<image::EncodedPtr>)> then) {
      encoder->post(tenant, [encoder, tenant, image, end = std::move(end), then = std::move(then)]() mutable {
        then(encoder->encode(tenant, image, end));
      });
    };
    FakeOptions alone = options_;
    alone.sequences = 1;
    alone.cells = options_.unified ? options_.cells : options_.cells / options_.sequences;
    add_lane(std::move(lane), has_prefill_lane ? std::make_unique<FakeContext>(alone) : nullptr);
    serve_lanes();
  }
  void step_without_encoding(int steps) {
    encoder_runs_ = false;
    for (int i = 0; i < steps; ++i) step();
    encoder_runs_ = true;
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
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  Bytes exported(const std::string& session, bool with_kv) {
    const auto made = wait_for(router_->transfer().export_session(kTenant, session, with_kv));
    EXPECT_TRUE(made) << made.error().message;
    Bytes bytes;
    for (const std::span<const std::byte> part : made->file.parts) bytes.insert(bytes.end(), part.begin(), part.end());
    return bytes;
  }
  Expected<ImportedSession> imported(const Bytes& file) {
    return wait_for(router_->transfer().import_session(kTenant, {.name = "", .file = file_of(file)}));
  }
  // Expects that the generated tokens of the chain are the model's continuation of the rest.
  void expect_true_to_the_model(const std::string& session, const RecordingSink& sink) const {
    const std::vector<Token>& chain = kept(session)->chain;
    const std::size_t said = sink.tokens.size();
    ASSERT_GE(chain.size(), said);
    const std::vector<Token> before(chain.begin(), chain.end() - static_cast<std::ptrdiff_t>(said));
    EXPECT_EQ(sink.tokens, fake_continuation(options_, before, static_cast<std::int32_t>(said)));
  }
  // Images encoded since the daemon started.
  [[nodiscard]] std::uint64_t encoded() const { return encoder_->stats().images_encoded_total.value(); }

  fs::path folder_;
  std::shared_ptr<image::KeptImages> kept_images_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, Images,
                         ::testing::Values(ImagesCase{false, false}, ImagesCase{true, false}, ImagesCase{false, true},
                                           ImagesCase{true, true}),
                         [](const auto& layout) {
                           return std::string(layout.param.is_unified ? "unified" : "split") +
                                  (layout.param.has_grids ? "_with_grids" : "");
                         });

TEST_P(Images, CountAndAreNotReadForARequestThatHasEnded) {
  std::stop_source end;
  const auto counted = wait_for(router_->generations().count_tokens(kTenant, ask("what?", {'r'}), end.get_token()));
  ASSERT_TRUE(counted) << counted.error().message;
  EXPECT_GT(*counted, wait_for(router_->generations().count_tokens(kTenant, ask("what?", {}), {})).value());
  (void)end.request_stop();
  EXPECT_FALSE(wait_for(router_->generations().count_tokens(kTenant, ask("what?", {'g'}), end.get_token())));
}

TEST_P(Images, StandInTheChainWhereTheMessageHasThem) {
  const std::string session = begin_chat();
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

// The picture is where the tool has put it, and stays there in the session.
TEST_P(Images, StandInResultsOfTools) {
  const std::string session = begin_chat();
  GenerateRequest request = ask("look", {}, session);
  request.input.messages.push_back(
      {"assistant", "", R"({"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]})"});
  request.input.messages.push_back({"tool", "ab", R"({"tool_call_id":"c"})"});
  request.input.images.push_back({.message = 2, .at = 1, .source = image_of_one_pixel('t')});
  const auto sink = generate(request);
  ASSERT_TRUE(sink->has_eos()) << sink->error().message;
  EXPECT_EQ(sink->eos().usage.unseen_images, 0);
  expect_true_to_the_model(session, *sink);
  const std::vector<Token>& chain = kept(session)->chain;
  EXPECT_EQ(std::ranges::count_if(chain, llm::is_image_token), 5);
  const auto first = std::ranges::find_if(chain, llm::is_image_token);
  EXPECT_EQ(*(first - 2), 'a');
  EXPECT_EQ(*(first + 7), 'b');
  const ChatMessage result = kept(session)->messages[2];
  EXPECT_EQ(result.content, "ab");
  EXPECT_TRUE(result.extra.starts_with(R"({"tool_call_id":"c","images":[{"at":1,"sha256":")")) << result.extra;
  expect_true_to_the_model(session, *generate(ask("more", {}, session)));
  const auto copy = imported(exported(session, true));
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_EQ(kept(copy->info.id.value)->messages[2], result);
}

// A file that cannot be read would end the conversation for good, because it stays in the history.
TEST_P(Images, ThatCannotBeReadAreALineOfTextInResultsOfTools) {
  GenerateRequest request = ask("look", {});
  request.input.messages.push_back({"tool", "ab", R"({"tool_call_id":"c"})"});
  ImageSource cut = image_of_one_pixel('c');
  cut.text.resize(cut.text.size() / 2);
  request.input.images.push_back({.message = 1, .at = 1, .source = cut});
  request.input.images.push_back({.message = 1, .at = 2, .source = image_of_one_pixel('t')});
  const std::string session = begin_chat();
  request.session = {session};
  const auto sink = generate(request);
  ASSERT_TRUE(sink->has_eos()) << sink->error().message;
  EXPECT_EQ(sink->eos().usage.unseen_images, 1);
  const ChatMessage result = kept(session)->messages[1];
  EXPECT_TRUE(result.content.starts_with("a\n(There is an image here, which cannot be read: ")) << result.content;
  EXPECT_TRUE(result.content.ends_with(".)\nb"));
  EXPECT_EQ(std::ranges::count_if(kept(session)->chain, llm::is_image_token), 5);
  expect_true_to_the_model(session, *sink);
  request.input.images[0].message = 0;
  EXPECT_EQ(generate(request)->error().code, ErrorCode::proto_field) << "one of a user stays an error";
}

TEST(UnseenImages, AreALineOfTextInResultsOfTools) {
  Input input{.text = "", .messages = {{"user", "look"}, {"tool", "ab"}, {"tool", ""}}};
  for (const auto& [message, at] : {std::pair<std::size_t, std::size_t>{0, 4}, {1, 0}, {1, 1}, {1, 2}, {2, 0}}) {
    input.images.push_back({.message = message, .at = at, .source = image_of_one_pixel()});
  }
  EXPECT_EQ(leave_out_unseen(nullptr, input), 4);
  const std::string line = "(There is an image here, which this model cannot see.)";
  EXPECT_EQ(input.messages[0].content, "look");
  EXPECT_EQ(input.messages[1].content, line + "\na\n" + line + "\nb\n" + line);
  EXPECT_EQ(input.messages[2].content, line);
  ASSERT_EQ(input.images.size(), 1u) << "one of a user stays, and is an error";
  EXPECT_EQ(input.images[0].message, 0u);
}

TEST_P(Images, OfToolsDoNotEndAConversationWithAModelThatSeesNone) {
  encoder_.reset();
  serve_lanes();
  GenerateRequest request = ask("look", {});
  request.input.messages.push_back({"tool", "a", R"({"tool_call_id":"c"})"});
  request.input.images.push_back({.message = 1, .at = 1, .source = image_of_one_pixel('t')});
  const auto sink = generate(request);
  ASSERT_TRUE(sink->has_eos()) << sink->error().message;
  EXPECT_EQ(sink->eos().usage.unseen_images, 1);
  request.input.images[0].message = 0;
  EXPECT_EQ(generate(request)->error().code, ErrorCode::model_capability);
}

TEST_P(Images, OfAOneShotRequestLeaveNothing) {
  const auto sink = generate(ask("what?", {'a'}));
  EXPECT_EQ(sink->tokens.size(), 6u);
  EXPECT_NE(sink->tokens, generate(ask("what?", {'b'}))->tokens);
  EXPECT_EQ(sink->tokens, generate(ask("what?", {'a'}))->tokens);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_P(Images, AreNotEncodedWhereTheirKvIsFound) {
  const std::string session = begin_chat();
  generate(ask("one", {'a'}, session));
  const auto second = generate(ask("two", {}, session));
  EXPECT_GT(second->eos().usage.reused_tokens, 8);
  expect_true_to_the_model(session, *second);
  EXPECT_EQ(encoded(), 1u);
}

TEST_P(Images, ASessionResumesAfterARestartWithoutEncodingAgain) {
  const std::string session = begin_chat();
  generate(ask("one", {'a'}, session));
  close_lanes();
  serve();
  const auto second = generate(ask("two", {}, session));
  EXPECT_EQ(second->eos().usage.tier, Tier::warm);
  expect_true_to_the_model(session, *second);
  EXPECT_EQ(encoded(), 0u);
}

TEST_P(Images, ASessionWhoseKvIsGoneIsComputedFromTheKeptFile) {
  const std::string session = begin_chat();
  generate(ask("one", {'a'}, session));
  forget_states();
  serve();
  const auto second = generate(ask("two", {}, session));
  EXPECT_EQ(second->eos().usage.reused_tokens, 0);
  expect_true_to_the_model(session, *second);
  EXPECT_EQ(encoded(), 1u);
}

TEST_P(Images, ALostFileEndsTheReplyAndNothingElse) {
  const std::string session = begin_chat();
  generate(ask("one", {'a'}, session));
  forget_states();
  serve();
  fs::remove_all(folder_);
  const auto second = generate(ask("two", {}, session));
  EXPECT_EQ(second->error().code, ErrorCode::io_failed);
  EXPECT_EQ(generate(ask("else", {}))->tokens.size(), 6u);
}

TEST_P(Images, BeingEncodedDoNotHoldUpStreams) {
  const auto stream = begin(ask("tell me", {}));
  const auto seeing = begin(ask("what?", {'a'}));
  step();  // This step reads the image.
  step_without_encoding(200);
  ASSERT_TRUE(stream->terminal) << "its tokens come while nobody encodes";
  EXPECT_FALSE(seeing->terminal);
  settle();
  EXPECT_EQ(seeing->eos().reason, FinishReason::length);
}

TEST_P(Images, ARequestCanBeCancelledWhileItsImageIsEncoded) {
  const auto sink = begin(ask("what?", {'a'}));
  step_without_encoding(20);
  (void)router_->cancel(last_id_);
  step_without_encoding(2);
  settle();
  EXPECT_EQ(sink->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(encoded(), 0u) << "nobody waits for it";
  EXPECT_EQ(generate(ask("else", {'a'}))->tokens.size(), 6u);
}

TEST_P(Images, AnEncodingEndsWhenItsLastRequestHasEnded) {
  const auto first = begin(ask("what?", {'a'}));
  const RequestId first_id = last_id_;
  step();
  const auto second = begin(ask("who?", {'a'}));
  step_without_encoding(20);
  (void)router_->cancel(first_id);
  settle();
  EXPECT_EQ(first->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(second->tokens.size(), 6u);
  EXPECT_EQ(encoded(), 1u);
}

TEST_P(Images, ARequestAsksAgainForAnEncodingThatHasEnded) {
  const auto first = begin(ask("what?", {'a'}));
  step();
  step_without_encoding(20);
  (void)router_->cancel(last_id_);
  step_without_encoding(20);
  const auto second = begin(ask("who?", {'a'}));
  settle();
  EXPECT_EQ(first->eos().reason, FinishReason::cancelled);
  EXPECT_EQ(second->tokens.size(), 6u);
  EXPECT_EQ(encoded(), 1u);
}

TEST_P(Images, AreComputedInThePrefillLaneToo) {
  options_.row_cost = std::chrono::milliseconds(20);  // Slow enough to be offloaded.
  serve(true);
  const std::string session = begin_chat();
  const auto sink = generate(ask(std::string(150, 'q'), {'a', 'b'}, session));
  ASSERT_EQ(sink->eos().reason, FinishReason::length);
  expect_true_to_the_model(session, *sink);
  EXPECT_GT(lane().stats().handover.count(), 0u);
}

TEST_P(Images, TogetherInOneContextDoNotTouchEachOther) {
  std::vector<std::string> sessions;
  std::vector<SinkPtr> sinks;
  for (int i = 0; i < 6; ++i) sessions.push_back(begin_chat());
  for (int i = 0; i < 6; ++i) {
    const auto colour = static_cast<char>('a' + i % 3);
    sinks.push_back(begin(ask("question " + std::to_string(i), {colour}, sessions[static_cast<std::size_t>(i)])));
  }
  settle();
  for (std::size_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(sinks[i]->terminal);
    expect_true_to_the_model(sessions[i], *sinks[i]);
  }
  EXPECT_EQ(encoded(), 3u);
}

TEST_P(Images, TextOfAUserIsNoImage) {
  const std::string session = begin_chat();
  generate(ask("one", {'a'}, session));
  const std::string id = image::images_of(kept(session)->messages[0]).at(0).id;
  const auto before = std::ranges::count_if(kept(session)->chain, llm::is_image_token);
  generate(ask("image" + id + " \x02" + id + "\x03 <__media__>", {}, session));
  EXPECT_EQ(std::ranges::count_if(kept(session)->chain, llm::is_image_token), before);
}

TEST_P(Images, ForksAndRewindsHaveThem) {
  const std::string session = begin_chat();
  generate(ask("one", {'a'}, session));
  const std::string fork = EngineBench::fork(session)->id.value;
  const auto sink = generate(ask("two", {'b'}, fork));
  expect_true_to_the_model(fork, *sink);
  ASSERT_TRUE(rewind(fork, 0));
  expect_true_to_the_model(fork, *generate(ask("three", {}, fork)));
}

TEST_P(Images, AreKeptForAsLongAsASessionHasThem) {
  const std::string session = begin_chat();
  generate(ask("one", {'a', 'b'}, session));
  EXPECT_EQ(files(), 2);
  const std::string fork = EngineBench::fork(session)->id.value;
  generate(ask("two", {'c'}, fork));
  EXPECT_EQ(files(), 3);
  end(session);
  EXPECT_EQ(files(), 3) << "the fork has them";
  EXPECT_TRUE(rewind(fork, 0));
  EXPECT_EQ(files(), 2) << "the last turn's is gone with it";
  serve();
  EXPECT_EQ(router_->image_ids().size(), 2u) << "a later life knows them";
  end(fork);
  EXPECT_EQ(files(), 0);
}

TEST_P(Images, OfRequestsThatCameToNothingAreNotKept) {
  const std::string session = begin_chat();
  GenerateRequest bad = ask("one", {'a', 'b'}, session);
  bad.input.images.push_back({.message = 0, .at = 2, .source = {.kind = ImageSource::Kind::data, .text = "bm8="}});
  EXPECT_EQ(generate(bad)->error().code, ErrorCode::proto_field);
  EXPECT_EQ(files(), 0) << "those before the one that is none";
  const auto cancelled = begin(ask("one", {'a', 'b'}, session));
  router_->step();
  work_.step();
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(router_->cancel(last_id_));
  settle();
  EXPECT_EQ(files(), 0);
  EXPECT_EQ(encoder_->stats().waiting_bytes.value(), 0);
  const Bytes file = [&] {
    const std::string other = begin_chat();
    generate(ask("one", {'a'}, other));
    Bytes bytes = exported(other, false);
    end(other);
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

// After any drop, every remaining image is whole and belongs to a remaining message.
TEST_P(Images, GoWithTheirTurnsWhenTheContextIsFull) {
  options_.cells = options_.unified ? 400 : 1'600;
  for (const std::int32_t n_keep : {0, 30, 150}) {
    // One case has prompts in a prefill lane.
    options_.row_cost = n_keep == 30 ? std::chrono::milliseconds(20) : FakeOptions().row_cost;
    serve(n_keep == 30);
    CreateSessionRequest chat;
    chat.mode = SessionMode::chat;
    chat.system = "be brief";
    chat.on_full = OnFull::shift;
    chat.n_keep = n_keep;
    const std::string session = create(chat)->id.value;
    std::int32_t dropped = 0;
    for (int i = 0; i < 60; ++i) {
      std::vector<char> colours;
      for (int j = 0; j < i % 4; ++j) colours.push_back(static_cast<char>('a' + (i + j) % 5));
      GenerateRequest request = ask(std::string(static_cast<std::size_t>(5 + 7 * (i % 9)), 'q'), colours, session);
      request.options.max_tokens = 4 + 9 * (i % 5);
      const auto sink = generate(std::move(request));
      ASSERT_TRUE(sink->has_eos()) << i << ": " << sink->error().message;
      dropped += sink->eos().usage.dropped_turns;
      const kv::RecordPtr record = kept(session);
      std::vector<std::string> ids;
      std::size_t shown = 0;
      for (const ChatMessage& message : record->messages) {
        for (image::MessageImage& image : image::images_of(message)) {
          ids.push_back(std::move(image.id));
          ++shown;
        }
      }
      const auto runs = image::find_image_runs(record->chain, ids, encoder_->identity());
      ASSERT_TRUE(runs) << i << ": " << runs.error().message;
      std::int32_t rows = 0;
      for (const image::ImageRun& run : *runs) rows += run.count;
      EXPECT_EQ(rows, static_cast<std::int32_t>(5 * shown)) << i;
      EXPECT_LE(record->chain.size(), 400u);
    }
    EXPECT_GT(dropped, 20) << n_keep;
    // A fresh context computes the same from the remaining tokens.
    forget_states();
    serve();
    GenerateRequest last = ask("q", {}, session);
    last.options.max_tokens = 1;  // So that no turn is dropped during the reply.
    expect_true_to_the_model(session, *generate(std::move(last)));
  }
}

TEST_P(Images, OfAResponseAreThereForTheNextOne) {
  GenerateRequest first = ask("xy", {'a'});
  first.response.emplace().id = "1111111111111111";
  const auto told = generate(first);
  ASSERT_EQ(told->eos().reason, FinishReason::length);
  ASSERT_EQ(catalog_.kept.size(), 1u);
  const std::string session = catalog_.load().front().id.value;
  expect_true_to_the_model(session, *told);
  EXPECT_EQ(image::images_of(kept(session)->messages[0]).size(), 1u);

  forget_states();  // So that the image is read from its file.
  serve();
  GenerateRequest second = ask("z", {'b'}, session);
  second.response.emplace().id = "2222222222222222";
  second.response->previous = "1111111111111111";
  const auto sink = generate(second);
  ASSERT_TRUE(sink->has_eos()) << sink->error().message;
  expect_true_to_the_model(session, *sink);
  EXPECT_EQ(std::ranges::count_if(kept(session)->chain, llm::is_image_token), 10);
  EXPECT_EQ(encoded(), 2u);
}

// Exports a session and imports it in a daemon without any of its data.
TEST_P(Images, TravelWithTheirSession) {
  const std::string session = begin_chat();
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
    ASSERT_TRUE(sink->has_eos()) << sink->error().message;
    expect_true_to_the_model(copy, *sink);
    EXPECT_EQ(encoded(), made->kv == ImportedKv::kept ? 1u : 2u) << with_kv;
  }
}

TEST_P(Images, OfAFileAreReadAgainWhereItsTokensAreNot) {
  const std::string session = begin_chat();
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
  const std::string session = begin_chat();
  generate(ask("xy", {'a', 'b'}, session));
  const Bytes file = exported(session, false);
  const std::size_t end = kv::conversation_bytes(std::span(file).first<kv::kSessionPrefixBytes>());
  const std::size_t sessions = catalog_.kept.size();
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
  EXPECT_EQ(catalog_.kept.size(), sessions);
}

TEST_P(Images, ThatNeedMoreRowsThanACallHasAreRefused) {
  options_.batch_rows_max = 2;
  serve();
  const auto sink = generate(ask("what?", {'a'}));
  EXPECT_EQ(sink->error().code, ErrorCode::limit_prompt);
  const char* setting = options_.has_grids ? "vision.image_tokens_max to 2" : "scheduler.ubatch 3";
  EXPECT_TRUE(sink->error().message.contains(setting)) << sink->error().message;
}

TEST_P(Images, AppendedInputHasThem) {
  const std::string session = begin_chat();
  GenerateRequest request = ask("one", {'a'}, session);
  ASSERT_TRUE(wait_for(sessions().append(kTenant, {.session = session, .input = request.input})));
  GenerateRequest go_on;
  go_on.session = session;
  go_on.options.max_tokens = 4;
  const auto sink = generate(go_on);
  expect_true_to_the_model(session, *sink);
  EXPECT_EQ(encoded(), 1u);
}

}  // namespace
}  // namespace uma::engine
