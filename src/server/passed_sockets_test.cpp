#include "server/passed_sockets.h"

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/socket_test_support.h"
#include "server/tcp_listener.h"

namespace uma::server {
namespace {

using testing::HasSubstr;

UniqueFd unix_socket(const std::string& path, int type = SOCK_STREAM) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0) << std::strerror(errno);
  return fd;
}

UniqueFd listening(UniqueFd fd) {
  EXPECT_EQ(::listen(fd.get(), 8), 0) << std::strerror(errno);
  return fd;
}

UniqueFd listening_tcp() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
  return listening(std::move(fd));
}

template <class... FdsT>
Expected<PassedSockets> sort(FdsT... fds) {
  std::vector<UniqueFd> list;
  (list.push_back(std::move(fds)), ...);
  return sort_passed_sockets(std::move(list));
}

std::string problem_of(const Expected<PassedSockets>& sockets) {
  return sockets ? "(none)" : sockets.error().message;
}

TEST(PassedSockets, TellsTheDaemonsSocketFromTheOneForHttp) {
  const TempFolder folder;
  const auto sockets = sort(listening_tcp(), listening(unix_socket(folder.file("s"))));
  ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
  ASSERT_TRUE(sockets->unix_socket.has_value());
  EXPECT_EQ(sockets->unix_socket->path, folder.file("s"));
  ASSERT_TRUE(sockets->tcp.has_value());
  EXPECT_EQ(sockets->tcp->address, "127.0.0.1");
  EXPECT_NE(sockets->tcp->port, 0);
}

TEST(PassedSockets, MayBeNone) {
  const auto sockets = sort();
  ASSERT_TRUE(sockets.has_value());
  EXPECT_FALSE(sockets->unix_socket.has_value());
  EXPECT_FALSE(sockets->tcp.has_value());
}

TEST(PassedSockets, NeedNoFileAnyMore) {
  const TempFolder folder;
  UniqueFd fd = listening(unix_socket(folder.file("s")));
  std::filesystem::remove(folder.file("s"));
  const auto sockets = sort(std::move(fd));
  ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
  EXPECT_EQ(sockets->unix_socket->path, folder.file("s"));
}

TEST(PassedSockets, RefusesWhatDoesNotListen) {
  const TempFolder folder;
  EXPECT_THAT(problem_of(sort(unix_socket(folder.file("s")))), HasSubstr("which is not listening"));
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd other(pair[1]);
  EXPECT_THAT(problem_of(sort(UniqueFd(pair[0]))), HasSubstr("Accept=no"));
}

TEST(PassedSockets, RefusesWhatIsNoStreamSocket) {
  const TempFolder folder;
  EXPECT_THAT(problem_of(sort(unix_socket(folder.file("d"), SOCK_DGRAM))), HasSubstr("not a stream socket"));
  EXPECT_THAT(problem_of(sort(listening(unix_socket(folder.file("q"), SOCK_SEQPACKET)))), HasSubstr("not a stream socket"));
}

TEST(PassedSockets, RefusesWhatIsNoSocket) {
  UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = file.get();
  EXPECT_EQ(problem_of(sort(std::move(file))),
            std::format("the service manager passed descriptor {}, which is not a socket: remove its directive from the unit",
                        number));
}

TEST(PassedSockets, RefusesAUnixSocketWithoutPermissions) {
  const std::string name = std::string(1, '\0') + "uma-passed-" + std::to_string(::getpid());
  EXPECT_THAT(problem_of(sort(listening(unix_socket(name)))), HasSubstr("without a file"));
}

TEST(PassedSockets, RefusesASecondSocketOfAKind) {
  const TempFolder folder;
  EXPECT_THAT(problem_of(sort(listening(unix_socket(folder.file("a"))), listening(unix_socket(folder.file("b"))))),
              HasSubstr("the Unix socket " + folder.file("b") + ", but also " + folder.file("a")));
  EXPECT_THAT(problem_of(sort(listening_tcp(), listening_tcp())), HasSubstr("HTTP is served on one"));
}

TEST(PassedSockets, BothLoopbackAddressesAreOneSocketForHttp) {
  const auto twin = [](std::uint16_t port) { return listen_at_twin(port, 1).value_or(UniqueFd()); };
  UniqueFd six = twin(0);
  if (!six.is_open()) GTEST_SKIP() << "this system has no IPv6";
  const std::uint16_t port = sort(std::move(six))->tcp->port;
  for (const bool twin_first : {false, true}) {
    UniqueFd four = listen_at_address("127.0.0.1", port, 1).value();
    const auto sockets = twin_first ? sort(twin(port), std::move(four)) : sort(std::move(four), twin(port));
    ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
    EXPECT_EQ(sockets->tcp->address, "127.0.0.1");
    EXPECT_TRUE(sockets->tcp_twin.is_open());
  }
  EXPECT_THAT(problem_of(sort(listening_tcp(), twin(port))), HasSubstr("HTTP is served on one")) << "another port";
}

TEST(PassedSockets, TheNameTellsASocketForHttp) {
  const TempFolder folder;
  std::vector<UniqueFd> list;
  list.push_back(listening(unix_socket(folder.file("http.sock"))));
  list.push_back(listening(unix_socket(folder.file("s"))));
  const auto sockets = sort_passed_sockets(std::move(list), {std::string(kHttpSocketName), "umad.socket"});
  ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
  EXPECT_EQ(sockets->http_socket->path, folder.file("http.sock"));
  EXPECT_EQ(sockets->unix_socket->path, folder.file("s"));
}

// The variables are this process's: each test unsets what it set.
class TakePassedSockets : public testing::Test {
 protected:
  static void announce(const std::string& pid, const std::string& count) {
    ::setenv("LISTEN_PID", pid.c_str(), 1);
    ::setenv("LISTEN_FDS", count.c_str(), 1);
  }
  ~TakePassedSockets() override {
    ::unsetenv("LISTEN_PID");
    ::unsetenv("LISTEN_FDS");
  }
};

TEST_F(TakePassedSockets, LeavesThoseOfAnotherProcessAlone) {
  announce(std::to_string(::getppid()), "1");
  const auto sockets = take_passed_sockets();
  ASSERT_TRUE(sockets.has_value()) << sockets.error().message;
  EXPECT_FALSE(sockets->unix_socket.has_value());
}

TEST_F(TakePassedSockets, SaysWhatIsWrongWithTheirNumber) {
  announce(std::to_string(::getpid()), "many");
  EXPECT_THAT(problem_of(take_passed_sockets()), HasSubstr("LISTEN_FDS=many"));
  announce(std::to_string(::getpid()), "9999");
  EXPECT_THAT(problem_of(take_passed_sockets()), HasSubstr("Bad file descriptor"));
}

}  // namespace
}  // namespace uma::server
