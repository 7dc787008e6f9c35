// Clients that come, vanish or idle, other users, sockets that are passed, and the end of the server.
#include <chrono>
#include <filesystem>
#include <format>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/mutex.h"
#include "server/unix/unix_server_test_support.h"
#include "server/unix_listener.h"

namespace uma::server {
namespace {

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
  start({.idle_timeout = milliseconds(300)});
  TestClient busy(path());
  busy.send_json(generate_frame("a"));
  const FakeService::Generation generation = service_.next_generation();
  TestClient idle(path());
  TestClient stuck(path());
  stuck.send_bytes("\x05");  // A frame that never goes on.
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
    ASSERT_TRUE(client.has_ended());  // The server has closed its side.
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

class PassedSocketTest : public UnixServerTest {
 protected:
  // Opens the socket as a service manager does; start_passed() hands a copy to the server.
  void SetUp() override {
    auto made = listen_at(path(), 8);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    managers_.emplace(std::move(*made));
  }
  void start_passed(Limits limits = {}) {
    ListeningSocket listening{.fd = UniqueFd(::dup(managers_->fd.get())), .file = std::nullopt, .serves_other_users = true};
    auto server = UnixServer::start({.path = path(), .limits = limits}, std::move(listening), service_);
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(*server);
  }
  // A client of another user. Requires: this process is root's.
  [[nodiscard]] TestClient another_user() {
    EXPECT_EQ(::chmod(path().c_str(), 0666), 0);
    EXPECT_EQ(::chmod(folder_.file("").c_str(), 0755), 0);
    std::optional<TestClient> other;
    std::thread([&] {
      EXPECT_EQ(::syscall(SYS_setresuid, 65'534, 65'534, 65'534), 0);
      other.emplace(path());
    }).join();
    return std::move(*other);
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
  start_passed();
  TestClient other = another_user();
  other.send_json(generate_frame("a"));
  EXPECT_EQ(service_.next_generation().tenant, TenantId{"uid:65534"});
  other.send_json(R"({"id":"u","type":"unload_model","model":"m"})");
  EXPECT_EQ(other.receive_field("code"), "E_AUTH_001") << "another user may ask, but not take a model away";
  other.send_json(R"({"id":"t","type":"trace"})");
  EXPECT_EQ(other.receive_field("code"), "E_AUTH_001") << "nor see what others do";
  TestClient own(path());
  own.send_json(generate_frame("b"));
  EXPECT_EQ(service_.next_generation().tenant, TenantId{"uid:0"});
}

TEST_F(PassedSocketTest, AnImportOfOneUserLeavesMemoryForThoseOfOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  start_passed({.transfer_bytes_max = 3'000'000});
  const auto data_frame = [](std::size_t bytes) {
    return std::format(R"({{"id":"d","type":"import_data","target":"i","data":"{}"}})", std::string(bytes / 3 * 4, 'A'));
  };
  const auto import = [&](TestClient& client) {
    client.send_json(R"({"id":"i","type":"import_session"})");
    client.send_json(data_frame(3));
    return client.receive().value();
  };
  TestClient own(path());
  own.send_json(R"({"id":"i","type":"import_session"})");
  for (int part = 0; part < 4; ++part) {
    own.send_json(data_frame(750'000));
    ASSERT_EQ(own.receive_field("event"), "ack");
  }
  TestClient own_too(path());
  EXPECT_EQ(import(own_too).at("code").as_string(), "E_LIMIT_003") << "a file may be as large as all files of a user";
  TestClient other = another_user();
  EXPECT_EQ(import(other).at("event").as_string(), "ack");
  own.close();
  ASSERT_TRUE(becomes([&] { return server_->connections_count() == 2; }));
  EXPECT_EQ(own_too.receive_field("id"), "d") << "the frame is refused besides its import";
  EXPECT_EQ(import(own_too).at("event").as_string(), "ack");
}

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
  Promise<SessionInfo> reply = service_.next_touch();
  server_->stop();
  EXPECT_EQ(service_.cancelled(), std::vector<RequestId>{generation.id});
  EXPECT_TRUE(client.has_ended());
  server_.reset();
  generation.sink->deliver(eos(FinishReason::cancelled));  // The engine may be late: nothing is there, nothing breaks.
  reply(FakeService::session_named("n"));
}

TEST_F(UnixServerTest, MayBeStoppedTwiceAndInAnyOrder) {
  start();
  server_->stop();
  server_->stop();
  server_->stop_accepting();
  EXPECT_TRUE(server_->wait_idle(milliseconds(0)));
}

// Holds the server's thread up when a client arrives.
class HoldingService final : public FakeService {
 public:
  RequestShare open_share(TenantId tenant) override {
    is_held.set_value();
    released.wait();
    return FakeService::open_share(std::move(tenant));
  }
  std::promise<void> is_held;
  std::promise<void> release;
  const std::shared_future<void> released{release.get_future()};
};

TEST_F(UnixServerTest, StopsAlsoWhenItShouldLookForIdleConnectionsAtThatMoment) {
  HoldingService service;
  auto server = UnixServer::start({.path = path(), .idle_timeout = milliseconds(1)}, service);
  ASSERT_TRUE(server);
  const TestClient client(path());
  service.is_held.get_future().wait();
  std::thread stopping([&] { (*server)->stop(); });
  const SteadyClock clock;
  for (const TimePoint due = clock.now() + milliseconds(5); clock.now() < due;) std::this_thread::yield();
  service.release.set_value();
  stopping.join();
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
