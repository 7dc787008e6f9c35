#include "server/http/peer_user.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <functional>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace uma::server {
namespace {

using ::testing::HasSubstr;

union LoopbackAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

// `is_mapped`: an IPv4 address, for an IPv6 socket. The port is in the byte order of the network.
LoopbackAddress loopback_address(int family, bool is_mapped = false, in_port_t port = 0) {
  LoopbackAddress address{};
  if (family == AF_INET) {
    address.v4 = {.sin_family = AF_INET, .sin_port = port, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    return address;
  }
  address.v6.sin6_family = AF_INET6;
  address.v6.sin6_port = port;
  EXPECT_EQ(::inet_pton(AF_INET6, is_mapped ? "::ffff:127.0.0.1" : "::1", &address.v6.sin6_addr), 1);
  return address;
}

// Both ends of a connection.
class Connected {
 public:
  // `reached_at` is given the port and says where to connect to; `before_connect` may change the client's socket.
  Connected(
      const LoopbackAddress& listens, const std::function<LoopbackAddress(in_port_t)>& reached_at,
      const std::function<void(int)>& before_connect = [](int) {})
      : listener_(::socket(listens.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    socklen_t size = sizeof(listens);
    LoopbackAddress bound = listens;
    UMA_CHECK(::bind(listener_.get(), &listens.any, size) == 0 && ::listen(listener_.get(), 8) == 0);
    UMA_CHECK(::getsockname(listener_.get(), &bound.any, &size) == 0);
    const LoopbackAddress target = reached_at(bound.v4.sin_port);  // The port is at the same place in both kinds.
    client = UniqueFd(::socket(target.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    before_connect(client.get());
    UMA_CHECK(::connect(client.get(), &target.any, sizeof(target)) == 0);
    served = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    UMA_CHECK(served.is_open());
  }
  explicit Connected(int family = AF_INET)
      : Connected(loopback_address(family), [&](in_port_t port) { return loopback_address(family, false, port); }) {}

  UniqueFd client;
  UniqueFd served;

 private:
  UniqueFd listener_;
};

std::string said_of(const Expected<uid_t>& user) {
  return user ? "uid " + std::to_string(*user) : user.error().message;
}

TEST(PeerUsers, KnowsItsOwnUser) {
  const Connected ends;
  EXPECT_EQ(said_of(PeerUsers().user_of(ends.served.get())), said_of(::geteuid()));
}

TEST(PeerUsers, KnowsItsOwnUserOverIpv6) {
  const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const LoopbackAddress address = loopback_address(AF_INET6);
  if (::bind(probe.get(), &address.any, sizeof(address)) != 0) GTEST_SKIP() << "this system has no ::1";
  PeerUsers users;
  for (int connection = 0; connection < 2; ++connection) {
    const Connected ends(AF_INET6);
    EXPECT_EQ(said_of(users.user_of(ends.served.get())), said_of(::geteuid()));
  }
}

TEST(PeerUsers, KnowsMappedAddressesAtEitherEnd) {
  PeerUsers users;
  LoopbackAddress every_address = loopback_address(AF_INET6);
  every_address.v6.sin6_addr = IN6ADDR_ANY_INIT;
  const Connected to_both(every_address, [](in_port_t port) { return loopback_address(AF_INET, false, port); });
  EXPECT_EQ(said_of(users.user_of(to_both.served.get())), said_of(::geteuid()));
  const Connected to_v4(loopback_address(AF_INET), [](in_port_t port) { return loopback_address(AF_INET6, true, port); });
  EXPECT_EQ(said_of(users.user_of(to_v4.served.get())), said_of(::geteuid()));
}

TEST(PeerUsers, KnowsWhoIsBoundToTheLoopbackDevice) {
  const auto bind_to_device = [](int client) {
    EXPECT_EQ(::setsockopt(client, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2), 0) << std::strerror(errno);
  };
  const Connected ends(
      loopback_address(AF_INET), [](in_port_t port) { return loopback_address(AF_INET, false, port); }, bind_to_device);
  EXPECT_EQ(said_of(PeerUsers().user_of(ends.served.get())), said_of(::geteuid()));
}

TEST(PeerUsers, KnowsWhoHasEndedTheSendingSideOnly) {
  const Connected ends;
  ASSERT_EQ(::shutdown(ends.client.get(), SHUT_WR), 0);
  EXPECT_EQ(said_of(PeerUsers().user_of(ends.served.get())), said_of(::geteuid()));
}

// A closed socket may linger without an owner, and would pass for root's.
TEST(PeerUsers, DoesNotKnowWhoHasClosed) {
  Connected ends;
  ASSERT_EQ(::send(ends.client.get(), "x", 1, 0), 1);
  ends.client.reset();
  EXPECT_THAT(said_of(PeerUsers().user_of(ends.served.get())), HasSubstr("closed"));
}

TEST(PeerUsers, DoesNotKnowWhoHasResetTheConnection) {
  Connected ends;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(ends.client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  ends.client.reset();
  EXPECT_THAT(said_of(PeerUsers().user_of(ends.served.get())), HasSubstr("closed"));
}

TEST(PeerUsers, TakesNoListenerForAnEnd) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  LoopbackAddress address = loopback_address(AF_INET);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener.get(), &address.any, size), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  ASSERT_EQ(::getsockname(listener.get(), &address.any, &size), 0);
  const in6_addr localhost = loopback_address(AF_INET6, true).v6.sin6_addr;
  const TcpEnd listening{.address = localhost, .port = address.v4.sin_port};
  const TcpEnd nobodys{.address = localhost, .port = htons(1)};
  EXPECT_THAT(said_of(PeerUsers().user_at(listening, nobodys)), HasSubstr("closed"));
  EXPECT_THAT(said_of(PeerUsers().user_at(nobodys, listening)), HasSubstr("network namespace"));
}

TEST(PeerUsers, DoesNotKnowWhoIsConnectedToNothing) {
  const UniqueFd idle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_THAT(said_of(PeerUsers().user_of(idle.get())), HasSubstr("closed"));
}

TEST(PeerUsers, KnowsOtherUsersButNotWhoStandsForMany) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  PeerUsers users;
  for (const auto& [uid, known] : {std::pair{12'345, "uid 12345"}, std::pair{65'534, "represents"}}) {
    std::thread([&] {
      // The raw call changes this thread alone, the library's would change the process.
      ASSERT_EQ(::syscall(SYS_setresuid, uid, uid, uid), 0);
      const Connected ends;
      EXPECT_THAT(said_of(users.user_of(ends.served.get())), HasSubstr(known));
    }).join();
  }
}

}  // namespace
}  // namespace uma::server
