#include "server/unix_server.h"

#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/base64.h"
#include "base/mutex.h"
#include "server/service_test_support.h"
#include "server/socket_test_support.h"
#include "server/unix_listener.h"

namespace uma::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string generate_frame(const std::string& id) {
  return R"({"id":")" + id + R"(","type":"generate","prompt":"hi"})";
}

class UnixServerTest : public ::testing::Test {
 protected:
  void start(UnixServerOptions options = {}) {
    options.path = path();
    auto server = UnixServer::start(options, service_);
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
  }
  [[nodiscard]] std::string path() const { return folder_.file("uma.sock"); }

  TempFolder folder_;
  FakeService service_;
  std::unique_ptr<UnixServer> server_;
};

// --- frames

TEST_F(UnixServerTest, AnswersAPingThatArrivesByteByByte) {
  start();
  TestClient client(path());
  std::string frame;
  wire::append_frame(frame, R"({"id":"p","type":"ping"})");
  for (const char byte : frame) client.send_bytes({&byte, 1});
  EXPECT_EQ(client.receive_field("event"), "pong");
}

TEST_F(UnixServerTest, AnswersManyRequestsOfOneWrite) {
  start();
  TestClient client(path());
  std::string frames;
  for (int i = 0; i < 500; ++i) wire::append_frame(frames, R"({"id":")" + std::to_string(i) + R"(","type":"ping"})");
  client.send_bytes(frames);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(client.receive_field("id"), std::to_string(i));
}

TEST_F(UnixServerTest, LargeFramesThatAreComingAreCounted) {
  start();
  TestClient one(path());
  one.send_bytes(std::string("\x00\x00\x08\x00", 4) + std::string(400'000, ' '));
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() >= 400'000; }));
  one.close();
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));

  const RequestShare others = service_.open_share(TenantId{"others"});
  ASSERT_TRUE(others->grow((1ul << 29) - 1));
  const RequestShare own = service_.open_share(TenantId{"uid:" + std::to_string(::geteuid())});
  ASSERT_TRUE(own->grow(1ul << 28));
  TestClient refused(path());
  refused.send_bytes(std::string("\x00\x00\x08\x00", 4) + std::string(100'000, ' '));
  EXPECT_EQ(refused.receive_field("code"), "E_LIMIT_003");
  EXPECT_TRUE(refused.has_ended());
}

TEST_F(UnixServerTest, KeepsTheConnectionAfterABadRequest) {
  start();
  TestClient client(path());
  client.send_json("not json");
  EXPECT_EQ(boost::json::serialize(*client.receive()),
            R"({"id":null,"event":"error","code":"E_PROTO_001","message":"the frame is not JSON: syntax error"})");
  client.send_json(R"({"id":"a","type":"generate","prompt":5})");
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_003");
  client.send_json(R"({"id":"a","type":"nonsense"})");
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_004");
  client.send_json(R"({"id":"a","type":"ping"})");
  EXPECT_EQ(client.receive_field("event"), "pong");
}

TEST_F(UnixServerTest, AnswersEmbeddingsAndReranking) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"e","type":"embed","texts":["a"]})");
  client.send_json(R"({"id":"r","type":"rerank","query":"q","documents":["a"]})");
  FakeService::Embedding embedding = service_.next_embedding();
  FakeService::Reranking reranking = service_.next_reranking();
  EXPECT_NE(embedding.request.options.client, 0U);
  EXPECT_EQ(embedding.request.options.client, reranking.request.options.client);
  reranking.reply(RerankResult{.model = "fake", .scores = {{0, 1}}, .tokens = 1});
  EXPECT_EQ(client.receive_field("event"), "rerank");
  EmbedResult result;
  result.dimensions = 1;
  result.values = {1};
  embedding.reply(result);
  EXPECT_EQ(client.receive_field("event"), "embedding");
}

TEST_F(UnixServerTest, CancelsEmbeddingsByTheirIdAndWithTheConnection) {
  start();
  std::optional<TestClient> client(path());
  client->send_json(R"({"id":"e","type":"embed","texts":["a"]})");
  FakeService::Embedding first = service_.next_embedding();
  client->send_json(R"({"id":"c","type":"cancel","target":"e"})");
  EXPECT_EQ(client->receive_field("cancelled"), "true");
  client->send_json(R"({"id":"r","type":"rerank","query":"q","documents":["a"]})");
  const FakeService::Reranking second = service_.next_reranking();
  first.reply(fail(ErrorCode::limit_wait, "the request was cancelled"));
  EXPECT_EQ(client->receive_field("code"), "E_LIMIT_003");
  client.reset();
  EXPECT_TRUE(service_.wait_cancelled(2));
  EXPECT_EQ(service_.cancelled(), (std::vector<RequestId>{first.id, second.id}));
}

TEST_F(UnixServerTest, RefusesTooLongAFrameFromItsHeaderAndCloses) {
  start({.limits = {.max_frame_bytes = 1000}});
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation running = service_.next_generation();
  client.send_bytes(std::string_view("\xe9\x03\0\0", 4));  // 1001 bytes are announced; none come
  const auto error = client.receive();
  ASSERT_TRUE(error.has_value());
  EXPECT_TRUE(error->at("id").is_null());
  EXPECT_EQ(error->at("code").as_string(), "E_PROTO_002");
  EXPECT_TRUE(client.has_ended());
  EXPECT_TRUE(service_.wait_cancelled(1)) << "what ran on the connection ends with it";
  EXPECT_EQ(service_.cancelled(), std::vector<RequestId>{running.id});
}

TEST_F(UnixServerTest, TooLongAFrameIsAnsweredAlsoWhenItsBodyComes) {
  start({.limits = {.max_frame_bytes = 1000}});
  TestClient client(path());
  client.send_json(std::string(2'000'000, 'x'));
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_002");
  EXPECT_TRUE(client.has_ended());
}

TEST_F(UnixServerTest, AFrameWithImagesMayBeLonger) {
  service_.reads_images.store(true);
  start({.limits = {.max_frame_bytes = 1000}});
  TestClient client(path());
  client.send_json(R"({"id":"i","type":"embed_image","data":")" + std::string(2'000'000, 'A') + "\"}");
  EXPECT_EQ(client.receive_field("event"), "embedding");
  client.send_bytes(std::string_view("\x01\0\0\x01", 4));  // 16 MiB and one byte are announced
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_002");
  EXPECT_TRUE(client.has_ended());
}

// --- generations

TEST_F(UnixServerTest, StreamsTheEventsOfAGeneration) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"g","type":"generate","prompt":"Once","max_tokens":3})");
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_EQ(generation.request.input.text, "Once");
  EXPECT_EQ(generation.request.options.max_tokens, 3);
  EXPECT_EQ(generation.tenant.value, "uid:" + std::to_string(::geteuid()));
  EXPECT_TRUE(generation.sink->deliver(token(" upon")));
  EXPECT_TRUE(generation.sink->deliver(token(" a")));
  EXPECT_TRUE(generation.sink->deliver(eos()));
  EXPECT_EQ(client.receive_field("text"), " upon");
  EXPECT_EQ(client.receive_field("text"), " a");
  EXPECT_EQ(client.receive_field("reason"), "stop");
}

TEST_F(UnixServerTest, InterleavesManyGenerationsOfOneConnection) {
  start();
  TestClient client(path());
  std::vector<FakeService::Generation> generations;
  for (const char* id : {"a", "b", "c"}) {
    client.send_json(generate_frame(id));
    generations.push_back(service_.next_generation());
  }
  for (int round = 0; round < 3; ++round) {
    for (const auto& generation : generations) generation.sink->deliver(token("x"));
  }
  for (int round = 0; round < 3; ++round) {
    for (const char* id : {"a", "b", "c"}) EXPECT_EQ(client.receive_field("id"), id);
  }
}

TEST_F(UnixServerTest, RefusesAnIdThatIsInFlightUntilItsEnd) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation first = service_.next_generation();
  client.send_json(generate_frame("a"));
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_005");
  first.sink->deliver(eos());
  EXPECT_EQ(client.receive_field("event"), "eos");
  client.send_json(generate_frame("a"));
  service_.next_generation().sink->deliver(eos());
  EXPECT_EQ(client.receive_field("event"), "eos");
}

TEST_F(UnixServerTest, TheSameIdMayRunOnTwoConnections) {
  start();
  TestClient one(path());
  TestClient two(path());
  one.send_json(generate_frame("a"));
  const FakeService::Generation first = service_.next_generation();
  two.send_json(generate_frame("a"));
  service_.next_generation().sink->deliver(token("two"));
  first.sink->deliver(token("one"));
  EXPECT_EQ(one.receive_field("text"), "one");
  EXPECT_EQ(two.receive_field("text"), "two");
}

TEST_F(UnixServerTest, BoundsTheRequestsInFlight) {
  start();
  TestClient client(path());
  for (int i = 0; i < 1024; ++i) client.send_json(generate_frame(std::to_string(i)));
  client.send_json(generate_frame("one more"));
  const auto refused = client.receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->at("id").as_string(), "one more");
  EXPECT_EQ(refused->at("code").as_string(), "E_LIMIT_003");
}

TEST_F(UnixServerTest, CancelsByTheClientsIdOfTheRequest) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  client.send_json(R"({"id":"c","type":"cancel","target":"a"})");
  EXPECT_EQ(client.receive_field("cancelled"), "true");
  EXPECT_EQ(service_.cancelled(), std::vector<RequestId>{generation.id});
  client.send_json(R"({"id":"c","type":"cancel","target":"unknown"})");
  EXPECT_EQ(client.receive_field("cancelled"), "false");
  TestClient other(path());
  other.send_json(R"({"id":"c","type":"cancel","target":"a"})");
  EXPECT_EQ(other.receive_field("cancelled"), "false") << "a target is of this connection";
}

TEST_F(UnixServerTest, DropsTokensOfASlowConsumerAndStillTakesItsEnd) {
  start({.limits = {.tx_bytes_max = 10'000}});
  TestClient slow(path());
  TestClient other(path());
  slow.send_json(generate_frame("slow"));
  const FakeService::Generation generation = service_.next_generation();
  const std::string text(1000, 'x');
  int taken = 0;
  while (generation.sink->deliver(token(text))) {
    ++taken;
    ASSERT_LT(taken, 100'000) << "the cap never came";
  }
  EXPECT_TRUE(generation.sink->deliver(eos(FinishReason::slow_consumer)));
  other.send_json(R"({"id":"p","type":"ping"})");
  EXPECT_EQ(other.receive_field("event"), "pong") << "others are not held up";
  for (int i = 0; i < taken; ++i) ASSERT_EQ(slow.receive_field("event"), "token");
  EXPECT_EQ(slow.receive_field("reason"), "slow_consumer");
}

TEST_F(UnixServerTest, StartsNoMoreRequestsOfAClientThatDoesNotRead) {
  start({.limits = {.tx_bytes_max = 10'000}});
  TestClient client(path());
  // Each answer is a megabyte; the frames are all in the socket before the first answer is read.
  std::string frames;
  for (int i = 0; i < 50; ++i) wire::append_frame(frames, R"({"id":"s","type":"get_session","session_id":"s"})");
  wire::append_frame(frames, generate_frame("last"));
  client.send_bytes(frames);
  // Only one runs at a time, so that no id is ever in flight twice: the reads wait for the writes.
  for (int i = 0; i < 50; ++i) ASSERT_EQ(client.receive_field("event"), "session") << i;
  service_.next_generation().sink->deliver(eos());
  EXPECT_EQ(client.receive_field("id"), "last");
}

// --- sessions and the rest

TEST_F(UnixServerTest, AnswersEveryCommand) {
  start();
  TestClient client(path());
  const auto answer = [&](const std::string& fields) {
    client.send_json(R"({"id":"x",)" + fields + "}");
    return client.receive().value();
  };
  EXPECT_EQ(answer(R"("type":"create_session","name":"n")").at("session_id").as_string(), "id-of-n");
  EXPECT_EQ(answer(R"("type":"append_input","session_id":"n","text":"t")").at("pending_tokens").as_int64(), 7);
  EXPECT_EQ(answer(R"("type":"append_input","session_id":"unknown","text":"t")").at("code").as_string(), "E_SESSION_001");
  EXPECT_EQ(answer(R"("type":"cancel","session_id":"busy")").at("cancelled").as_bool(), true);
  EXPECT_EQ(answer(R"("type":"cancel","session_id":"quiet")").at("cancelled").as_bool(), false);
  EXPECT_EQ(answer(R"("type":"end_session","session_id":"n")").at("event").as_string(), "ack");
  EXPECT_EQ(answer(R"("type":"fork_session","session_id":"n","name":"m")").at("event").as_string(), "session");
  EXPECT_EQ(answer(R"("type":"rewind_session","session_id":"n","turn":3)").at("turns").as_int64(), 4);
  EXPECT_EQ(answer(R"("type":"get_session","session_id":"n")").at("text").as_string().size(), 1'000'000u);
  EXPECT_EQ(answer(R"("type":"list_sessions")").at("sessions").as_array().size(), 1u);
  EXPECT_EQ(answer(R"("type":"models")").at("models").as_array().at(0).at("name").as_string(), "fake");
  EXPECT_EQ(answer(R"("type":"metrics")").at("metrics").at("model").as_string(), "fake");
  client.send_json(R"({"id":"x","type":"touch","session_id":"n"})");
  service_.next_touch()(FakeService::session_named("n"));
  EXPECT_EQ(client.receive_field("event"), "ack");
}

// --- ends

std::string data_frame(std::string_view id, std::size_t bytes, bool is_last) {
  std::string text;
  append_base64(text, Bytes(bytes, std::byte{'x'}));
  return std::format(R"({{"id":"{}","type":"import_data","target":"i","data":"{}","last":{}}})", id, text, is_last);
}

TEST_F(UnixServerTest, AnExportedFileComesInParts) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"e","type":"export_session","session_id":"tale"})");
  Bytes file;
  auto frame = client.receive();
  for (; frame && frame->at("event") == "data"; frame = client.receive()) {
    EXPECT_EQ(frame->at("id").as_string(), "e");
    const auto part = decode_base64(std::string_view(frame->at("data").as_string()));
    ASSERT_TRUE(part);
    file.insert(file.end(), part->begin(), part->end());
  }
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->at("event").as_string(), "exported");
  EXPECT_EQ(frame->at("bytes").as_int64(), 1'000'000);
  EXPECT_EQ(frame->at("name").as_string(), "tale");
  EXPECT_EQ(file, Bytes(1'000'000, std::byte{'s'}));
}

TEST_F(UnixServerTest, AnImportedFileIsTakenInPartsAndAnsweredOnce) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"i","type":"import_session","name":"copy"})");
  client.send_json(R"({"id":"other","type":"import_session"})");
  EXPECT_EQ(client.receive_field("code"), "E_LIMIT_003") << "one at a time on a connection";
  client.send_json(data_frame("1", 500'000, false));
  EXPECT_EQ(client.receive_field("received_bytes"), "500000");
  client.send_json(data_frame("i", 1, false));
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_005");
  client.send_json(data_frame("2", 7, true));
  EXPECT_EQ(client.receive_field("received_bytes"), "500007");
  const auto imported = client.receive();
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->at("id").as_string(), "i");
  EXPECT_EQ(imported->at("name").as_string(), "500007");
  EXPECT_FALSE(imported->at("tokens_kept").as_bool());
  client.send_json(data_frame("3", 1, true));
  EXPECT_EQ(client.receive_field("message"), "field \"target\" is not the id of an import_session whose file is coming");
  client.send_json(R"({"id":"i","type":"import_session","name":"bad"})");
  client.send_json(data_frame("4", 0, true));
  EXPECT_EQ(client.receive_field("event"), "ack");
  EXPECT_EQ(client.receive_field("message"), "no session file");
}

TEST_F(UnixServerTest, AnExportIsDrawnAsItsClientReads) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"e","type":"export_session","session_id":"tale","kv":true})");
  EXPECT_EQ(client.receive_field("event"), "data");
  // What else the client asks for does not wait for the end of the file.
  client.send_json(R"({"id":"p","type":"ping"})");
  std::size_t received = 1;
  auto frame = client.receive();
  for (; frame && frame->at("event") == "data"; frame = client.receive()) ++received;
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->at("event").as_string(), "pong");
  EXPECT_LT(received, 600u) << "of about 1400";
  EXPECT_FALSE(service_.exported().expired());
  client.close();
  EXPECT_TRUE(server_->wait_idle(kPatience));
  EXPECT_TRUE(service_.exported().expired()) << "who leaves holds nothing";
}

TEST_F(UnixServerTest, AFileThatIsTooLongOrEndsTooEarlyEndsItsImport) {
  constexpr std::size_t kImportMax = 3'000'000;
  start({.limits = {.transfer_bytes_max = kImportMax}});
  TestClient client(path());
  client.send_json(R"({"id":"i","type":"import_session"})");
  const std::string part = data_frame("d", 700'000, false);
  for (std::size_t sent = 700'000; sent <= kImportMax; sent += 700'000) {
    client.send_json(part);
    ASSERT_EQ(client.receive_field("event"), "ack");
  }
  client.send_json(part);
  for (const char* id : {"i", "d"}) {
    const auto refused = client.receive();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->at("id").as_string(), id);
    EXPECT_EQ(refused->at("code").as_string(), "E_LIMIT_001");
  }
  client.send_json(R"({"id":"i","type":"import_session"})");
  client.end_sending();
  EXPECT_EQ(client.receive_field("message"), "the end of the session file did not come");
  EXPECT_TRUE(client.has_ended());
}

TEST_F(UnixServerTest, AFileWhoseClientStopsHoldsNoMemory) {
  constexpr std::size_t kMax = 3'000'000;
  start({.idle_timeout = milliseconds(20), .limits = {.transfer_bytes_max = kMax}});
  TestClient sends(path());
  sends.send_json(R"({"id":"i","type":"import_session"})");
  sends.send_json(data_frame("d", 700'000, false));
  TestClient reads(path());
  reads.send_json(R"({"id":"e","type":"export_session","session_id":"tale","kv":true})");
  EXPECT_EQ(reads.receive_field("event"), "data");
  EXPECT_FALSE(service_.exported().expired());
  EXPECT_EQ(sends.receive_field("event"), "ack");
  EXPECT_TRUE(sends.has_ended());
  EXPECT_TRUE(server_->wait_idle(kPatience)) << "nothing is under way for either";
  EXPECT_TRUE(service_.exported().expired());
}

TEST_F(UnixServerTest, AClientThatVanishesCancelsWhatItRan) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  client.send_json(generate_frame("b"));
  const FakeService::Generation first = service_.next_generation();
  (void)service_.next_generation();
  client.close();
  EXPECT_TRUE(service_.wait_cancelled(2));
  EXPECT_TRUE(server_->wait_idle(kPatience));
  EXPECT_TRUE(first.sink->deliver(token("into the void"))) << "late events lead nowhere and hurt nobody";
  EXPECT_TRUE(first.sink->deliver(eos(FinishReason::cancelled)));
}

TEST_F(UnixServerTest, AClientThatEndsItsSendingSideStillGetsItsAnswers) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  client.end_sending();
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(token("still here"));
  EXPECT_EQ(client.receive_field("text"), "still here");
  generation.sink->deliver(eos());
  EXPECT_EQ(client.receive_field("event"), "eos");
  EXPECT_TRUE(client.has_ended());
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(UnixServerTest, AClientThatVanishesAfterEndingItsSendingSideCancels) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  client.end_sending();
  const FakeService::Generation generation = service_.next_generation();
  generation.sink->deliver(token("x"));
  EXPECT_EQ(client.receive_field("text"), "x");
  client.close();
  EXPECT_TRUE(service_.wait_cancelled(1)) << "noticed without another write";
}

TEST_F(UnixServerTest, AClientThatVanishesWithoutReadingCancels) {
  start({.limits = {.tx_bytes_max = 10'000}});
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  const std::string text(1000, 'x');
  while (generation.sink->deliver(token(text))) {
  }
  client.close();
  EXPECT_TRUE(service_.wait_cancelled(1));
}

TEST_F(UnixServerTest, ClosesIdleConnectionsButNotBusyOnes) {
  start({.idle_timeout = milliseconds(20)});
  TestClient busy(path());
  busy.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  TestClient idle(path());
  TestClient stuck(path());
  stuck.send_bytes("\x05");  // a frame that never goes on
  EXPECT_TRUE(idle.has_ended());
  EXPECT_TRUE(stuck.has_ended());
  generation.sink->deliver(token("x"));
  EXPECT_EQ(busy.receive_field("text"), "x");
  generation.sink->deliver(eos());
  EXPECT_EQ(busy.receive_field("event"), "eos");
  EXPECT_TRUE(busy.has_ended()) << "idle now";
}

std::size_t descriptors_count() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST_F(UnixServerTest, AThousandConnectionsLeaveNoDescriptorBehind) {
  start();
  TestClient streaming(path());
  streaming.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  const std::size_t before = descriptors_count();
  for (int i = 0; i < 1000; ++i) {
    TestClient client(path());
    client.send_json(R"({"id":"p","type":"ping"})");
    client.end_sending();
    ASSERT_EQ(client.receive_field("event"), "pong");
    ASSERT_TRUE(client.has_ended());  // the server has closed its side
    if (i % 100 == 0) {
      generation.sink->deliver(token("x"));
      ASSERT_EQ(streaming.receive_field("text"), "x");
    }
  }
  EXPECT_EQ(descriptors_count(), before);
  EXPECT_EQ(server_->connections_count(), 1u);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kUnderAddressSanitizer = true;
#elif defined(__has_feature)
constexpr bool kUnderAddressSanitizer = __has_feature(address_sanitizer);
#else
constexpr bool kUnderAddressSanitizer = false;
#endif

TEST_F(UnixServerTest, AcceptsAgainWhenDescriptorsWereShort) {
  if (kUnderAddressSanitizer) GTEST_SKIP() << "UBSan's checks need a free descriptor of their own";
  start();
  TestClient first(path());
  first.send_json(R"({"id":"p","type":"ping"})");
  ASSERT_EQ(first.receive_field("event"), "pong");
  const UniqueFd waiting(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path().data(), path().size());
  const int connected = ::connect(waiting.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // The connected client still works, and by then the listener has tried and failed.
  for (int i = 0; i < 3; ++i) {
    first.send_json(R"({"id":"p","type":"ping"})");
    EXPECT_EQ(first.receive_field("event"), "pong");
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(connected, 0);
  std::string frame;
  wire::append_frame(frame, R"({"id":"p","type":"ping"})");
  ASSERT_EQ(::send(waiting.get(), frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  pollfd state{.fd = waiting.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&state, 1, kPatienceMs), 1) << "accepted once there is a descriptor again";
}

// --- peers

TEST(PeerCheck, AllowsTheOwnUserAndRootOnly) {
  EXPECT_TRUE(is_peer_allowed(1000, 1000));
  EXPECT_TRUE(is_peer_allowed(0, 1000));
  EXPECT_FALSE(is_peer_allowed(1001, 1000));
  EXPECT_FALSE(is_peer_allowed(1000, 0));
}

TEST_F(UnixServerTest, RefusesAnotherUserEvenWhereTheFileIsOpen) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  start();
  ASSERT_EQ(::chmod(path().c_str(), 0666), 0);
  ASSERT_EQ(::chmod(folder_.file("").c_str(), 0755), 0);
  std::thread other([&] {
    // The raw call changes this thread alone, the library's would change the process.
    ASSERT_EQ(::syscall(SYS_setresuid, 65'534, 65'534, 65'534), 0);
    TestClient client(path());
    EXPECT_TRUE(client.has_ended());
  });
  other.join();
  TestClient own(path());
  own.send_json(R"({"id":"p","type":"ping"})");
  EXPECT_EQ(own.receive_field("event"), "pong");
}

// --- a socket that somebody else opened

class PassedSocketTest : public UnixServerTest {
 protected:
  // Opens the socket as a service manager does; start_passed() hands a copy to the server.
  void SetUp() override {
    auto made = listen_at(path(), 8);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    managers_.emplace(std::move(*made));
  }
  void start_passed() {
    ListeningSocket listening{.fd = UniqueFd(::dup(managers_->fd.get())), .file = std::nullopt, .serves_other_users = true};
    auto server = UnixServer::start({.path = path()}, std::move(listening), service_);
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
  }

  std::optional<ListeningSocket> managers_;
};

TEST_F(PassedSocketTest, StaysWhenTheServerEnds) {
  start_passed();
  server_->stop_accepting();
  EXPECT_TRUE(std::filesystem::exists(path()));
  TestClient waiting(path());
  waiting.send_json(R"({"id":"p","type":"ping"})");
  server_.reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
  start_passed();
  EXPECT_EQ(waiting.receive_field("event"), "pong") << "the next daemon serves who came in between";
}

TEST_F(PassedSocketTest, ServesEachUserAsATenantOfHisOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  ASSERT_EQ(::chmod(path().c_str(), 0666), 0);
  ASSERT_EQ(::chmod(folder_.file("").c_str(), 0755), 0);
  start_passed();
  std::optional<TestClient> other;
  std::thread([&] {
    ASSERT_EQ(::syscall(SYS_setresuid, 65'534, 65'534, 65'534), 0);
    other.emplace(path());
  }).join();
  other->send_json(generate_frame("a"));
  EXPECT_EQ(service_.next_generation().tenant, TenantId{"uid:65534"});
  TestClient own(path());
  own.send_json(generate_frame("b"));
  EXPECT_EQ(service_.next_generation().tenant, TenantId{"uid:0"});
}

// --- stopping

TEST_F(UnixServerTest, StopsInGoodOrder) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  server_->stop_accepting();
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_FALSE(connect_to(path()).is_open());
  EXPECT_FALSE(server_->wait_idle(milliseconds(0))) << "a generation is in flight";
  client.send_json(generate_frame("b"));
  EXPECT_EQ(client.receive_field("code"), "E_LIMIT_003") << "new generations are refused";
  client.send_json(R"({"id":"c","type":"cancel","target":"unknown"})");
  EXPECT_EQ(client.receive_field("event"), "ack") << "the rest still works";
  generation.sink->deliver(eos());
  EXPECT_TRUE(server_->wait_idle(kPatience));
  server_->stop();
  EXPECT_EQ(client.receive_field("event"), "eos");
  EXPECT_TRUE(client.has_ended());
  EXPECT_EQ(server_->connections_count(), 0u);
  EXPECT_TRUE(service_.cancelled().empty());
}

TEST_F(UnixServerTest, StopCancelsWhatStillRuns) {
  start();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  client.send_json(R"({"id":"t","type":"touch","session_id":"n"})");
  Reply<SessionInfo> reply = service_.next_touch();
  server_->stop();
  EXPECT_EQ(service_.cancelled(), std::vector<RequestId>{generation.id});
  EXPECT_TRUE(client.has_ended());
  server_.reset();
  generation.sink->deliver(eos(FinishReason::cancelled));  // the engine may be late: nothing is there, nothing breaks
  reply(FakeService::session_named("n"));
}

TEST_F(UnixServerTest, MayBeStoppedTwiceAndInAnyOrder) {
  start();
  server_->stop();
  server_->stop();
  server_->stop_accepting();
  EXPECT_TRUE(server_->wait_idle(milliseconds(0)));
}

TEST_F(UnixServerTest, ASecondServerOnTheSamePathIsRefused) {
  start();
  const auto second = UnixServer::start({.path = path()}, service_);
  ASSERT_FALSE(second.has_value());
  TestClient client(path());
  client.send_json(R"({"id":"p","type":"ping"})");
  EXPECT_EQ(client.receive_field("event"), "pong");
}

TEST_F(UnixServerTest, ManyThreadsMayDeliverWhileClientsComeAndGo) {
  start();
  std::vector<std::thread> engine;
  for (int thread = 0; thread < 4; ++thread) {
    engine.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        const FakeService::Generation generation = service_.next_generation();
        for (int tokens = 0; tokens < 20; ++tokens) generation.sink->deliver(token("x"));
        generation.sink->deliver(eos());
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    TestClient leaver(path());
    leaver.send_json(generate_frame("a"));
    TestClient reader(path());
    reader.send_json(generate_frame("a"));
    leaver.close();
    for (int tokens = 0; tokens < 20; ++tokens) ASSERT_EQ(reader.receive_field("event"), "token");
    ASSERT_EQ(reader.receive_field("event"), "eos");
  }
  for (std::thread& thread : engine) thread.join();
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

}  // namespace
}  // namespace uma::server
