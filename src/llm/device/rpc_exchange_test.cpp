#include "llm/device/rpc_exchange.h"

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/device/rpc_address.h"
#include "llm/device/rpc_test_support.h"

namespace uma::llm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr RpcVersion kThird{8, 0, 3};

RpcData zeros(std::size_t count) {
  return RpcData(count);
}

// Takes everything that is for the library; `step` bytes at once.
RpcData taken_by_library(RpcExchange& exchange, std::size_t step = 1u << 20) {
  RpcData all;
  while (!exchange.for_library().empty()) {
    const auto bytes = exchange.for_library();
    const auto part = bytes.first(std::min(step, bytes.size()));
    all.insert(all.end(), part.begin(), part.end());
    exchange.sent_to_library(part.size());
  }
  return all;
}

RpcData taken_by_server(RpcExchange& exchange) {
  const RpcData all(exchange.for_server().begin(), exchange.for_server().end());
  exchange.sent_to_server(all.size());
  return all;
}

RpcData get_tensor_of(std::uint64_t bytes) {
  return rpc_request(RpcCommand::get_tensor, rpc_joined({zeros(296), rpc_number(64), rpc_number(bytes)}));
}

TEST(RpcAddress, IsAHostAndAPort) {
  EXPECT_EQ(rpc_name_of("rpc://machine-2.local:50052"), (RpcName{{"machine-2.local", 50052}, std::nullopt}));
  EXPECT_EQ(rpc_name_of("rpc://[::1]:1"), (RpcName{{"::1", 1}, std::nullopt}));
  EXPECT_EQ(rpc_name_of("rpc://a:1#12"), (RpcName{{"a", 1}, 12}));
  EXPECT_EQ(rpc_name_of("rpc://[::1]:1")->address.text(), "[::1]:1");
  EXPECT_EQ(rpc_name_of("rpc://10.0.0.7:65535")->address.text(), "10.0.0.7:65535");
  for (const char* wrong :
       {"", "rpc://", "rpc://a", "rpc://a:", "rpc://:1", "rpc://a:0", "rpc://a:65536", "rpc://a:1x", "rpc://a b:1",
        "rpc://::1:50052", "rpc://[]:1", "rpc://a/b:1", "rpc://a:1#", "rpc://a:1#x", "rpc://a#1", "Vulkan0", "RPC://a:1"}) {
    EXPECT_EQ(rpc_name_of(wrong), std::nullopt) << wrong;
  }
}

TEST(RpcExchange, AnswersTheFirstRequestItselfWithoutOtherTransports) {
  RpcExchange exchange(kThird);
  const RpcData wishes(kRpcHelloBytes, std::byte{0xff});  // Another transport, around the relay.
  exchange.from_library(rpc_request(RpcCommand::hello, wishes));
  EXPECT_EQ(taken_by_library(exchange),
            rpc_answer(rpc_joined({rpc_number(8, 1), rpc_number(0, 1), rpc_number(3, 1), zeros(25)})));
  EXPECT_TRUE(exchange.for_server().empty());
  EXPECT_FALSE(exchange.awaits());
}

TEST(RpcExchange, ForwardsRequestsAndAnswersInPiecesOfAnySize) {
  const RpcData requests =
      rpc_joined({rpc_request(RpcCommand::device_count, {}), rpc_request(RpcCommand::set_tensor, zeros(5000)),
                  rpc_request(RpcCommand::graph_recompute, rpc_number(0, 4)), get_tensor_of(100),
                  rpc_request(RpcCommand::free_buffer, rpc_number(7))});
  const RpcData answers = rpc_joined({rpc_answer(rpc_number(2, 4)), rpc_answer(RpcData(100, std::byte{9}))});
  for (const std::size_t step : {1, 7, 4096, 100'000}) {
    RpcExchange exchange(kThird);
    RpcData to_server;
    RpcData to_library;
    for (std::size_t at = 0; at < requests.size(); at += step) {
      exchange.from_library(std::span(requests).subspan(at, std::min(step, requests.size() - at)));
      to_server = rpc_joined({to_server, taken_by_server(exchange)});
    }
    EXPECT_TRUE(exchange.awaits());
    for (std::size_t at = 0; at < answers.size(); at += step) {
      EXPECT_EQ(exchange.from_server(std::span(answers).subspan(at, std::min(step, answers.size() - at))), std::nullopt);
      to_library = rpc_joined({to_library, taken_by_library(exchange)});
    }
    EXPECT_EQ(to_server, requests) << step;
    EXPECT_EQ(to_library, answers) << step;
    EXPECT_FALSE(exchange.awaits());
  }
}

TEST(RpcExchange, NoticesAnswersThatTheLibraryWouldNotSurvive) {
  RpcExchange exchange(kThird);
  EXPECT_THAT(*exchange.from_server(rpc_number(4)), HasSubstr("answer no request"));
  exchange.from_library(get_tensor_of(100));
  EXPECT_THAT(*exchange.from_server(rpc_number(99)), HasSubstr("99 bytes instead of 100"));
  EXPECT_EQ(taken_by_library(exchange), RpcData()) << "nothing of a wrong answer is forwarded";
  exchange.lose();
  EXPECT_EQ(taken_by_library(exchange), rpc_answer(zeros(100)));
}

TEST(RpcExchange, CompletesAnAnswerThatALostServerHasBegun) {
  for (std::size_t received = 0; received < 108; ++received) {
    RpcExchange exchange(kThird);
    exchange.from_library(get_tensor_of(100));
    const RpcData whole = rpc_answer(RpcData(100, std::byte{9}));
    EXPECT_EQ(exchange.from_server(std::span(whole).first(received)), std::nullopt);
    exchange.lose();
    RpcData expected = rpc_answer(zeros(100));
    for (std::size_t i = 8; i < received; ++i) expected[i] = std::byte{9};
    EXPECT_EQ(taken_by_library(exchange, 5), expected) << received;
  }
}

TEST(RpcExchange, AnswersEveryRequestInPlaceOfALostServer) {
  RpcExchange exchange(kThird);
  exchange.from_library(get_tensor_of(3'000'000));  // Outstanding at the loss.
  exchange.lose();
  EXPECT_EQ(taken_by_library(exchange), rpc_answer(zeros(3'000'000)));
  EXPECT_TRUE(exchange.for_server().empty());

  const auto answer_to = [&](RpcCommand command, const RpcData& data) {
    exchange.from_library(rpc_request(command, data));
    return taken_by_library(exchange);
  };
  using enum RpcCommand;
  for (const RpcCommand command :
       {free_buffer, buffer_clear, set_tensor, graph_compute, init_tensor, graph_recompute, memset_tensor}) {
    EXPECT_EQ(answer_to(command, zeros(20)), RpcData()) << static_cast<int>(command);
  }
  EXPECT_EQ(answer_to(alloc_buffer, zeros(12)), rpc_answer(zeros(16))) << "no buffer";
  EXPECT_EQ(answer_to(get_alignment, zeros(4)), rpc_answer(rpc_number(128)));
  EXPECT_EQ(answer_to(get_max_size, zeros(4)), rpc_answer(rpc_number(~std::uint64_t{0})));
  EXPECT_NE(answer_to(buffer_get_base, zeros(8)), rpc_answer(zeros(8))) << "the library asserts that it is not null";
  EXPECT_EQ(answer_to(set_tensor_hash, zeros(312)), rpc_answer(rpc_number(1, 1))) << "so that the weights are not sent";
  EXPECT_EQ(answer_to(copy_tensor, zeros(592)), rpc_answer(rpc_number(1, 1)));
  EXPECT_EQ(answer_to(get_device_memory, zeros(4)).size(), 8 + 16u);
  EXPECT_EQ(answer_to(device_count, {}), rpc_answer(zeros(4)));
  EXPECT_EQ(answer_to(hello, zeros(24)).size(), 8 + kRpcHelloAnswerBytes);
  EXPECT_EQ(answer_to(get_tensor, rpc_joined({zeros(304), rpc_number(0)})), rpc_answer({}));
  EXPECT_TRUE(exchange.for_server().empty());
  EXPECT_FALSE(exchange.awaits());
}

TEST(RpcExchange, CountsTheBuffersOfEachDevice) {
  RpcExchange exchange(kThird);
  const auto allocate = [&](std::uint32_t device, std::uint64_t bytes, std::uint64_t place) {
    exchange.from_library(rpc_request(RpcCommand::alloc_buffer, rpc_joined({rpc_number(device, 4), rpc_number(bytes)})));
    EXPECT_EQ(exchange.from_server(rpc_answer(rpc_joined({rpc_number(place), rpc_number(bytes)}))), std::nullopt);
  };
  allocate(0, 1000, 77);
  allocate(1, 500, 78);
  allocate(1, 30, 79);
  allocate(1, 1u << 30, 0);  // The server has no memory for it.
  EXPECT_EQ(exchange.bytes_allocated(0), 1000u);
  EXPECT_EQ(exchange.bytes_allocated(1), 530u);
  EXPECT_EQ(exchange.bytes_allocated(2), 0u);
  const std::uint64_t before = exchange.allocations_count();
  exchange.from_library(rpc_request(RpcCommand::free_buffer, rpc_number(78)));
  EXPECT_EQ(exchange.bytes_allocated(1), 30u);
  EXPECT_GT(exchange.allocations_count(), before);
}

TEST(RpcExchange, GivesATensorOfALostServerAtLeastItsSize) {
  RpcExchange exchange(kThird);
  exchange.lose();
  // Device, id, type, buffer, four extents, four strides.
  const RpcData tensor = rpc_joined({rpc_number(0, 4), rpc_number(1), rpc_number(0, 4), rpc_number(0), rpc_number(10, 4),
                                     rpc_number(3, 4), rpc_number(1, 4), rpc_number(1, 4), rpc_number(4, 4), rpc_number(40, 4),
                                     rpc_number(120, 4), rpc_number(120, 4)});
  exchange.from_library(rpc_request(RpcCommand::get_alloc_size, rpc_joined({tensor, zeros(3000)})));
  EXPECT_EQ(taken_by_library(exchange), rpc_answer(rpc_number(120)));
}

TEST(RpcExchange, SwallowsTheRestOfARequestThatWasArrivingAtTheLoss) {
  RpcExchange exchange(kThird);
  const RpcData request = get_tensor_of(16);
  exchange.from_library(std::span(request).first(100));
  EXPECT_EQ(taken_by_server(exchange).size(), 100u);
  exchange.lose();
  exchange.from_library(std::span(request).subspan(100));
  EXPECT_EQ(taken_by_library(exchange), rpc_answer(zeros(16)));
  EXPECT_TRUE(exchange.for_server().empty());
}

}  // namespace
}  // namespace uma::llm
