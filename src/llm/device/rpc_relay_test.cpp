#include "llm/device/rpc_relay.h"

#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/system/unique_fd.h"
#include "llm/device/rpc_test_support.h"

namespace uma::llm {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using RelayTime = std::chrono::steady_clock;

constexpr RpcVersion kSpoken{8, 0, 0};
// A bound of every wait that takes milliseconds.
constexpr int kRelayWaitMs = 20'000;
constexpr RpcLimits kRelayLimits{.connect = milliseconds(2'000), .handshake = milliseconds(300), .answer = milliseconds(300)};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  place.sin_port = htons(port);
  return place;
}

bool receive(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, kRelayWaitMs) != 1) return false;
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

void send_bytes(int fd, const RpcData& bytes) {
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

void send_answer(int fd, const RpcData& data) {
  send_bytes(fd, rpc_answer(data));
}

struct RpcTestRequest {
  RpcCommand command{};
  RpcData data;
};

std::optional<RpcTestRequest> next_request(int fd) {
  std::array<std::byte, 9> start{};
  if (!receive(fd, start)) return std::nullopt;
  std::uint64_t size = 0;
  std::memcpy(&size, start.data() + 1, sizeof size);
  RpcTestRequest request{static_cast<RpcCommand>(start[0]), RpcData(size)};
  if (!receive(fd, request.data)) return std::nullopt;
  return request;
}

// Answers what a relay asks at its connection. False: another request, or none.
bool answer_checks(int fd, const RpcTestRequest& request, RpcVersion version = kSpoken) {
  switch (request.command) {
    case RpcCommand::hello: {
      RpcData hello(kRpcHelloAnswerBytes, std::byte{0xff});  // With a transport that must not be used.
      hello[0] = static_cast<std::byte>(version.major);
      hello[1] = static_cast<std::byte>(version.minor);
      hello[2] = static_cast<std::byte>(version.patch);
      send_answer(fd, hello);
      return true;
    }
    case RpcCommand::device_count:
      send_answer(fd, rpc_number(1, 4));
      return true;
    case RpcCommand::get_device_memory: {
      RpcData memory = rpc_number(1u << 20);
      const RpcData total = rpc_number(2u << 20);
      memory.insert(memory.end(), total.begin(), total.end());
      send_answer(fd, memory);
      return true;
    }
    case RpcCommand::get_alignment:
      send_answer(fd, rpc_number(64));
      return true;
    case RpcCommand::get_max_size:
      send_answer(fd, rpc_number(~std::uint64_t{0}));
      return true;
    default:
      return false;
  }
}

// Accepts connections one after the other, like a server, and serves each with `serve`.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int)> serve) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in place = loopback(0);
    socklen_t size = sizeof place;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&place), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&place), &size), 0);
    port_ = ntohs(place.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      for (;;) {
        const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!client.is_open()) return;
        serve(client.get());
      }
    });
  }
  ~FakeServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  [[nodiscard]] RpcAddress address() const { return {"127.0.0.1", port_}; }

 private:
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

// Answers the relay's questions, and then each request with `answer`, which may end the connection by false.
std::function<void(int)> serving(std::function<bool(int, const RpcTestRequest&)> answer) {
  return [answer = std::move(answer)](int fd) {
    while (const auto request = next_request(fd)) {
      if (!answer_checks(fd, *request) && !answer(fd, *request)) return;
    }
  };
}

std::unique_ptr<RpcRelay> relay_to(const RpcAddress& address, RpcLimits limits = kRelayLimits) {
  auto relay = RpcRelay::open(address, kSpoken, limits);
  EXPECT_TRUE(relay);
  return *std::move(relay);
}

// Stands for the library.
class Library {
 public:
  explicit Library(const RpcRelay& relay) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto port = static_cast<std::uint16_t>(std::stoi(relay.endpoint().substr(relay.endpoint().find(':') + 1)));
    const sockaddr_in place = loopback(port);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place), 0);
    RpcData wishes(kRpcHelloBytes, std::byte{0xff});
    const RpcData hello = ask(RpcCommand::hello, wishes);
    RpcData expected(kRpcHelloAnswerBytes);
    expected[0] = std::byte{8};
    EXPECT_EQ(hello, expected) << "the version, and no other transport";
  }

  void tell(RpcCommand command, const RpcData& data) { send_bytes(fd_.get(), rpc_request(command, data)); }
  RpcData ask(RpcCommand command, const RpcData& data) {
    tell(command, data);
    return next_answer();
  }
  // Of a tensor of so many bytes.
  RpcData get_tensor(std::uint64_t bytes) {
    RpcData data(304);
    const RpcData size = rpc_number(bytes);
    data.insert(data.end(), size.begin(), size.end());
    return ask(RpcCommand::get_tensor, data);
  }
  RpcData next_answer() {
    std::uint64_t size = 0;
    EXPECT_TRUE(receive(fd_.get(), std::as_writable_bytes(std::span(&size, 1))));
    RpcData answer(size);
    EXPECT_TRUE(receive(fd_.get(), answer));
    return answer;
  }

 private:
  UniqueFd fd_;
};

std::string reason_of(const RpcRelay& relay) {
  EXPECT_TRUE(relay.is_lost());
  const Error error = relay.loss(ErrorCode::runtime_decode);
  EXPECT_EQ(error.code, ErrorCode::runtime_decode);
  EXPECT_THAT(error.message, HasSubstr("the RPC server " + relay.address().text() + " is lost: "));
  return error.message;
}

std::string connection_error(const RpcAddress& address) {
  const auto connected = relay_to(address)->connect();
  if (connected) return "connected";
  EXPECT_EQ(connected.error().code, ErrorCode::model_load);
  EXPECT_THAT(connected.error().message, HasSubstr("rpc://" + address.text()));
  return connected.error().message;
}

TEST(RpcRelay, ForwardsWhatTheLibraryAndTheServerSay) {
  const FakeServer server(serving([](int fd, const RpcTestRequest& request) {
    if (request.command == RpcCommand::get_tensor) send_answer(fd, RpcData(500'000, std::byte{7}));
    return true;
  }));
  const auto relay = relay_to(server.address());
  const auto devices = relay->connect();
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 1u);
  EXPECT_EQ(devices->front().memory_total, 2u << 20);
  EXPECT_EQ(devices->front().memory_free, 1u << 20);
  EXPECT_EQ(devices->front().alignment, 64u);
  Library library(*relay);
  library.tell(RpcCommand::set_tensor, RpcData(3'000'000));
  EXPECT_EQ(library.get_tensor(500'000), RpcData(500'000, std::byte{7}));
  EXPECT_FALSE(relay->is_lost());
}

TEST(RpcRelay, ServesTheLibraryAgainAfterAnotherCheck) {
  const FakeServer server(serving([](int, const RpcTestRequest&) { return true; }));
  const auto relay = relay_to(server.address());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(relay->connect());
    Library library(*relay);
    EXPECT_EQ(library.ask(RpcCommand::get_alignment, RpcData(4)), rpc_number(64));
  }
  EXPECT_FALSE(relay->is_lost());
}

TEST(RpcRelay, AnswersForAServerThatClosesWithRequestsOutstanding) {
  const FakeServer server(
      serving([](int, const RpcTestRequest& request) { return request.command != RpcCommand::get_tensor; }));
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  Library library(*relay);
  EXPECT_EQ(library.get_tensor(1000), RpcData(1000));
  EXPECT_THAT(reason_of(*relay), HasSubstr("it closed the connection"));
  library.tell(RpcCommand::graph_compute, RpcData(10'000));
  EXPECT_EQ(library.get_tensor(2'000'000), RpcData(2'000'000)) << "later requests are answered, too";
}

TEST(RpcRelay, NoticesThatAServerClosesWhileNothingIsAsked) {
  const FakeServer server(
      serving([](int, const RpcTestRequest& request) { return request.command != RpcCommand::free_buffer; }));
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  Library library(*relay);
  library.tell(RpcCommand::free_buffer, RpcData(8));
  const auto deadline = RelayTime::now() + milliseconds(kRelayWaitMs);
  while (!relay->is_lost() && RelayTime::now() < deadline) std::this_thread::yield();
  EXPECT_THAT(reason_of(*relay), HasSubstr("it closed the connection"));
}

TEST(RpcRelay, GivesUpAServerThatNeverAnswers) {
  const FakeServer server(serving([](int, const RpcTestRequest&) { return true; }));
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  Library library(*relay);
  const auto begin = RelayTime::now();
  EXPECT_EQ(library.get_tensor(100), RpcData(100));
  EXPECT_GE(RelayTime::now() - begin, kRelayLimits.answer);
  EXPECT_THAT(reason_of(*relay), HasSubstr("it did not answer within 0.3 s"));
}

TEST(RpcRelay, GivesUpAServerThatNeverReads) {
  std::promise<void> end;
  const FakeServer server([ended = end.get_future().share()](int fd) {
    for (int i = 0; i < 5; ++i) {  // The questions of the check.
      if (const auto request = next_request(fd)) answer_checks(fd, *request);
    }
    ended.wait();
  });
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  {
    Library library(*relay);
    library.tell(RpcCommand::set_tensor, RpcData(100'000'000));
    EXPECT_EQ(library.get_tensor(100), RpcData(100));
  }
  EXPECT_THAT(reason_of(*relay), HasSubstr("it did not answer within"));
  end.set_value();
}

TEST(RpcRelay, DoesNotHurryAServerThatHasNothingToAnswer) {
  const FakeServer server(serving([](int fd, const RpcTestRequest& request) {
    if (request.command == RpcCommand::get_tensor) send_answer(fd, RpcData(8));
    return true;
  }));
  const auto relay = relay_to(
      server.address(), {.connect = kRelayLimits.connect, .handshake = kRelayLimits.handshake, .answer = milliseconds(50)});
  ASSERT_TRUE(relay->connect());
  Library library(*relay);
  (void)::poll(nullptr, 0, 120);  // The silence is what is tested.
  EXPECT_EQ(library.get_tensor(8), RpcData(8));
  EXPECT_FALSE(relay->is_lost());
}

TEST(RpcRelay, GivesUpAServerWhoseAnswersHaveAnotherSize) {
  const FakeServer server(serving([](int fd, const RpcTestRequest&) {
    send_answer(fd, RpcData(7, std::byte{1}));
    return true;
  }));
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  Library library(*relay);
  EXPECT_EQ(library.get_tensor(100), RpcData(100));
  EXPECT_THAT(reason_of(*relay), HasSubstr("7 bytes instead of 100"));
}

TEST(RpcRelay, ALostServerStaysLost) {
  const FakeServer server(
      serving([](int, const RpcTestRequest& request) { return request.command != RpcCommand::get_tensor; }));
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  {
    EXPECT_EQ(Library(*relay).get_tensor(10), RpcData(10));
  }
  Library again(*relay);
  EXPECT_EQ(again.get_tensor(10), RpcData(10));
  EXPECT_TRUE(relay->is_lost());
}

TEST(RpcRelay, WithoutACheckedConnectionTheLibraryIsAnsweredAllTheSame) {
  const auto relay = relay_to({"127.0.0.1", 1});
  Library library(*relay);
  EXPECT_EQ(library.ask(RpcCommand::alloc_buffer, RpcData(12)), RpcData(16));
  EXPECT_TRUE(relay->is_lost());
}

TEST(RpcRelay, SaysWhyItCannotConnect) {
  EXPECT_THAT(connection_error({"127.0.0.1", 1}), HasSubstr("cannot connect: Connection refused"));
  EXPECT_THAT(connection_error({"nothing.invalid", 1}), HasSubstr("cannot find the host"));
  const FakeServer closes([](int) {});
  EXPECT_THAT(connection_error(closes.address()), HasSubstr("connection"));
  const FakeServer is_web_server([](int fd) {
    if (next_request(fd)) send_bytes(fd, RpcData(400, std::byte{'H'}));
  });
  EXPECT_THAT(connection_error(is_web_server.address()), HasSubstr("it is not an RPC server of ggml"));
  const FakeServer is_old([](int fd) {
    while (const auto request = next_request(fd)) answer_checks(fd, *request, {7, 0, 0});
  });
  EXPECT_THAT(connection_error(is_old.address()),
              HasSubstr("it speaks version 7.0.0 of the RPC protocol, and this machine 8.0.0"));
  const FakeServer has_other_operations([](int fd) {
    while (const auto request = next_request(fd)) answer_checks(fd, *request, {8, 0, 1});
  });
  EXPECT_THAT(connection_error(has_other_operations.address()), HasSubstr("version 8.0.1"));
}

TEST(RpcRelay, DoesNotWaitForAServerThatIsSilentOrServesAnother) {
  const FakeServer says_nothing([](int fd) {
    pollfd polled{.fd = fd, .events = POLLRDHUP, .revents = 0};
    (void)::poll(&polled, 1, kRelayWaitMs);
  });
  const auto begin = RelayTime::now();
  EXPECT_THAT(connection_error(says_nothing.address()), HasSubstr("it did not answer within 0.3 s"));
  EXPECT_LT(RelayTime::now() - begin, milliseconds(kRelayWaitMs));
}

TEST(RpcRelay, RefusesFiguresThatTheLibraryWouldDivideBy) {
  const FakeServer server([](int fd) {
    while (const auto request = next_request(fd)) {
      if (request->command == RpcCommand::get_alignment) {
        send_answer(fd, rpc_number(0));
      } else {
        answer_checks(fd, *request);
      }
    }
  });
  EXPECT_THAT(connection_error(server.address()), HasSubstr("alignment of 0"));
}

TEST(RpcRelay, ServesOnlyItsOwnProcess) {
  const FakeServer server(serving([](int, const RpcTestRequest&) { return true; }));
  const auto relay = relay_to(server.address());
  ASSERT_TRUE(relay->connect());
  const auto port = static_cast<std::uint16_t>(std::stoi(relay->endpoint().substr(relay->endpoint().find(':') + 1)));
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in place = loopback(port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0) ::_exit(2);
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    std::byte byte{};
    const bool is_closed = ::poll(&polled, 1, kRelayWaitMs) == 1 && ::recv(fd, &byte, 1, 0) == 0;
    ::_exit(is_closed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Library library(*relay);
  EXPECT_EQ(library.ask(RpcCommand::get_alignment, RpcData(4)), rpc_number(64))
      << "the connection to the server is still for the library";
}

}  // namespace
}  // namespace uma::llm
