#include "server/unix/unix_server.h"

#include <format>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "server/unix/client_requests.h"
#include "server/unix/unix_server_test_support.h"

namespace uma::server {
namespace {

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

TEST_F(UnixServerTest, LongFramesAreDecodedApartInTheirOrder) {
  start();
  TestClient client(path());
  const auto generate = [](std::string_view id, std::size_t bytes) {
    return std::format(R"({{"id":"{}","type":"generate","prompt":"{}"}})", id, std::string(bytes, 'x'));
  };
  client.send_json(generate("long", 100'000));
  client.send_json(generate("short", 10));
  EXPECT_EQ(service_.next_generation().request.input.text.size(), 100'000u);
  EXPECT_EQ(service_.next_generation().request.input.text.size(), 10u);
  EXPECT_EQ(service_.apart().size(), 1u);
  client.send_json(std::format(R"({{"id":"a","type":"nonsense","text":"{}"}})", std::string(100'000, 'x')));
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_004");
}

TEST_F(UnixServerTest, WorkOfAConnectionThatHasEndedIsNobodys) {
  start();
  service_.hold_apart();
  std::optional<TestClient> client(path());
  client->send_json(std::format(R"({{"id":"a","type":"generate","prompt":"{}"}})", std::string(100'000, 'x')));
  ASSERT_TRUE(becomes([&] { return service_.apart().size() == 1; }));
  client.reset();
  server_.reset();
  EXPECT_GE(service_.request_bytes(), 100'000u) << "the frame waits";
  for (auto& work : service_.take_held()) work();
  EXPECT_EQ(service_.request_bytes(), 0u);
}

TEST_F(UnixServerTest, LongAnswersAreEncodedApart) {
  start();
  service_.hold_apart();
  TestClient client(path());
  client.send_json(R"({"id":"long","type":"get_session","session_id":"s"})");
  ASSERT_TRUE(becomes([&] { return service_.apart().size() == 1; }));
  EXPECT_EQ(service_.apart()[0].first, (TenantId{"uid:" + std::to_string(::geteuid())}));
  EXPECT_GE(service_.apart()[0].second, 1'000'000u);
  EXPECT_GE(service_.request_bytes(), 1'000'000u) << "what waits is counted";
  client.send_json(R"({"id":"short","type":"list_sessions"})");
  EXPECT_EQ(client.receive_field("id"), "short") << "it is encoded where it is answered";
  for (auto& work : service_.take_held()) work();
  const auto answer = client.receive().value();
  EXPECT_EQ(answer.at("id").as_string(), "long");
  EXPECT_EQ(answer.at("text").as_string().size(), 1'000'000u);
  EXPECT_TRUE(becomes([&] { return service_.request_bytes() == 0; }));
  EXPECT_EQ(service_.apart().size(), 1u);
}

TEST_F(UnixServerTest, EveryAnswerThatGrowsWithItsRequestIsEncodedApart) {
  start();
  service_.hold_apart();
  TestClient client(path());
  client.send_json(R"({"id":"e","type":"embed","texts":["a"]})");
  service_.next_embedding().reply(
      EmbedResult{.model = "fake", .dimensions = 1000, .values = std::vector<float>(10'000, 0.5f), .tokens = 1});
  client.send_json(std::format(R"({{"id":"r","type":"rerank","query":"q","documents":["{}"],"return_documents":true}})",
                               std::string(65'420, 'd')));  // The request is short.
  service_.next_reranking().reply(RerankResult{.model = "fake", .scores = std::vector<RerankScore>(2), .tokens = 1});
  client.send_json(R"({"id":"g","type":"generate","prompt":"hi","stream":false})");
  service_.next_generation().sink->deliver(EosEvent{FinishReason::stop, {}, std::string(100'000, 'x'), std::nullopt});
  const std::vector<TokenLogprobs> places(100, {.chosen = {.token = 1, .bytes = "x"}, .top = std::vector<TokenLogprob>(20)});
  client.send_json(R"({"id":"l","type":"generate","prompt":"hi","stream":false})");
  service_.next_generation().sink->deliver(EosEvent{.usage = {}, .text = "x", .error = std::nullopt, .logprobs = places});
  EXPECT_EQ(service_.apart().size(), 4u);
  for (auto& work : service_.take_held()) work();
  EXPECT_EQ(client.receive_field("event"), "embedding");
  EXPECT_EQ(client.receive_field("event"), "rerank");
  EXPECT_EQ(client.receive_field("text").size(), 100'000u);
  EXPECT_EQ(client.receive().value().at("logprobs").as_array().size(), 100u);
}

TEST_F(UnixServerTest, ALongEndComesBehindTheTokensOfItsRequest) {
  start();
  service_.hold_apart();
  TestClient client(path());
  client.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  EXPECT_TRUE(generation.sink->deliver(token("first")));
  EXPECT_TRUE(generation.sink->deliver(EosEvent{FinishReason::stop, {}, std::string(100'000, 'x'), std::nullopt}));
  EXPECT_EQ(client.receive_field("text"), "first");
  client.send_json(generate_frame("a"));
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_005") << "it has not ended";
  for (auto& work : service_.take_held()) work();
  EXPECT_EQ(client.receive_field("event"), "eos");
  client.send_json(generate_frame("a"));
  service_.next_generation().sink->deliver(eos());
  EXPECT_EQ(client.receive_field("event"), "eos");
}

TEST_F(UnixServerTest, LongAnswersForWhichThereIsNoRoomAreRefused) {
  start();
  const RequestShare own = service_.open_share(TenantId{"uid:" + std::to_string(::geteuid())});
  ASSERT_TRUE(own->grow(1ul << 29));
  TestClient client(path());
  client.send_json(R"({"id":"long","type":"get_session","session_id":"s"})");
  EXPECT_EQ(client.receive_field("code"), "E_LIMIT_003");
  client.send_json(R"({"id":"g","type":"generate","prompt":"hi","stream":false})");
  service_.next_generation().sink->deliver(EosEvent{FinishReason::stop, {}, std::string(100'000, 'x'), std::nullopt});
  EXPECT_EQ(client.receive_field("text").size(), 100'000u) << "what was computed is told";
  EXPECT_EQ(service_.apart().size(), 1u);
}

TEST_F(UnixServerTest, NothingIsEncodedForAClientThatHasLeft) {
  start();
  service_.hold_apart();
  std::optional<TestClient> client(path());
  client->send_json(R"({"id":"long","type":"get_session","session_id":"s"})");
  client->send_json(R"({"id":"e","type":"embed","texts":["a"]})");
  client->send_json(R"({"id":"g","type":"generate","prompt":"hi","stream":false})");
  FakeService::Embedding embedding = service_.next_embedding();
  const FakeService::Generation generation = service_.next_generation();
  client.reset();
  ASSERT_TRUE(becomes([&] { return server_->connections_count() == 0; }));
  embedding.reply(EmbedResult{.model = "fake", .dimensions = 1000, .values = std::vector<float>(10'000, 0.5f), .tokens = 1});
  generation.sink->deliver(EosEvent{FinishReason::stop, {}, std::string(100'000, 'x'), std::nullopt});
  EXPECT_EQ(service_.apart().size(), 1u) << "the session's, which began before";
  for (auto& work : service_.take_held()) work();
  EXPECT_EQ(service_.request_bytes(), 0u);
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
  client.send_bytes(std::string_view("\xe9\x03\0\0", 4));  // 1001 bytes are announced; none come.
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
  client.send_bytes(std::string_view("\x01\0\0\x01", 4));  // 16 MiB and one byte are announced.
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_002");
  EXPECT_TRUE(client.has_ended());
}

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
  for (int i = 0; i < static_cast<int>(kRequestsInFlightMax); ++i) client.send_json(generate_frame(std::to_string(i)));
  client.send_json(generate_frame("one more"));
  const auto refused = client.receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->at("id").as_string(), "one more");
  EXPECT_EQ(refused->at("code").as_string(), "E_LIMIT_003");
  client.send_json(R"({"id":"c","type":"cancel","target":"0"})");
  EXPECT_EQ(client.receive_field("cancelled"), "true");
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
  EXPECT_EQ(answer(R"("type":"fork_session","session_id":"n","turn":-1)").at("fork_turn").as_int64(), 0);
  EXPECT_EQ(answer(R"("type":"update_session","session_id":"n","name":"m")").at("name").as_string(), "m");
  EXPECT_EQ(answer(R"("type":"update_session","session_id":"n","name":"taken")").at("code").as_string(), "E_PROTO_003");
  EXPECT_EQ(answer(R"("type":"rewind_session","session_id":"n","turn":3)").at("turns").as_int64(), 4);
  EXPECT_EQ(answer(R"("type":"get_session","session_id":"n")").at("text").as_string().size(), 1'000'000u);
  EXPECT_EQ(answer(R"("type":"list_sessions")").at("sessions").as_array().size(), 1u);
  EXPECT_EQ(answer(R"("type":"models")").at("models").as_array().at(0).at("name").as_string(), "fake");
  EXPECT_EQ(answer(R"("type":"metrics")").at("metrics").at("model").as_string(), "fake");
  client.send_json(R"({"id":"x","type":"touch","session_id":"n"})");
  service_.next_touch()(FakeService::session_named("n"));
  EXPECT_EQ(client.receive_field("event"), "ack");
}

}  // namespace
}  // namespace uma::server
