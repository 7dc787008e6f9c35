#include "server/socket_file.h"

#include <fcntl.h>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/socket_test_support.h"

namespace uma::server {
namespace {

TEST(SocketFile, IsPrivateWhateverTheUmask) {
  const TempFolder folder;
  const mode_t before = ::umask(0);
  const auto listening = listen_at(folder.file("s"), 8);
  ::umask(before);
  ASSERT_TRUE(listening.has_value()) << listening.error().message;
  struct stat status{};
  ASSERT_EQ(::stat(folder.file("s").c_str(), &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(SocketFile, IsRemovedAtItsEnd) {
  const TempFolder folder;
  {
    ASSERT_TRUE(listen_at(folder.file("s"), 8).has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("s")));
}

TEST(SocketFile, ReplacesASocketThatNobodyListensOn) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  {
    // What a killed daemon leaves: a bound name without its process.
    const UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto listening = listen_at(path, 8);
  ASSERT_TRUE(listening.has_value()) << listening.error().message;
  EXPECT_TRUE(connect_to(path).is_open());
}

TEST(SocketFile, AStrangersLockOfTheFolderDelaysItOnly) {
  const TempFolder folder;
  const UniqueFd stranger(::open(folder.file(".").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(stranger.get(), LOCK_EX), 0);
  {
    const auto listening = listen_at(folder.file("s"), 8);
    ASSERT_TRUE(listening.has_value()) << listening.error().message;
    EXPECT_TRUE(connect_to(folder.file("s")).is_open());
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("s")));
}

TEST(SocketFile, LeavesALiveSocketAlone) {
  const TempFolder folder;
  const auto first = listen_at(folder.file("s"), 8);
  ASSERT_TRUE(first.has_value());
  const auto second = listen_at(folder.file("s"), 8);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().message, "another daemon answers on " + folder.file("s") + ": stop it, or choose another --socket");
  EXPECT_TRUE(connect_to(folder.file("s")).is_open());
}

TEST(SocketFile, OneOfManyThatStartAtOnceWins) {
  const TempFolder folder;
  std::vector<Expected<ListeningSocket>> results;
  for (int i = 0; i < 8; ++i) results.emplace_back(fail(ErrorCode::io_failed, "not started"));
  std::vector<std::thread> starters;
  for (auto& result : results) {
    starters.emplace_back([&] {
      auto listening = listen_at(folder.file("s"), 8);
      if (listening) {
        result.emplace(std::move(*listening));
      } else {
        result = std::unexpected(listening.error());
      }
    });
  }
  for (std::thread& starter : starters) starter.join();
  int winners = 0;
  for (const auto& result : results) {
    if (result) {
      ++winners;
    } else {
      EXPECT_TRUE(result.error().message.starts_with("another daemon answers on")) << result.error().message;
    }
  }
  EXPECT_EQ(winners, 1);
  EXPECT_TRUE(connect_to(folder.file("s")).is_open());
}

TEST(SocketFile, NeverRemovesWhatIsNoSocket) {
  const TempFolder folder;
  std::ofstream(folder.file("notes")) << "precious";
  std::filesystem::create_directory(folder.file("folder"));
  std::filesystem::create_symlink("nowhere", folder.file("link"));
  for (const char* name : {"notes", "folder", "link"}) {
    const auto listening = listen_at(folder.file(name), 8);
    ASSERT_FALSE(listening.has_value()) << name;
    EXPECT_EQ(listening.error().message,
              folder.file(name) + " exists and is not a socket: remove it, or choose another --socket");
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(folder.file(name)))) << name;
  }
}

TEST(SocketFile, LeavesAnotherFileThatTookItsName) {
  const TempFolder folder;
  {
    const auto listening = listen_at(folder.file("s"), 8);
    ASSERT_TRUE(listening.has_value());
    std::filesystem::remove(folder.file("s"));
    std::ofstream(folder.file("s")) << "somebody else's";
  }
  EXPECT_TRUE(std::filesystem::exists(folder.file("s")));
}

TEST(SocketFile, SaysWhatIsWrongWithAPath) {
  const TempFolder folder;
  EXPECT_EQ(listen_at("", 8).error().message, "the socket path is empty: give --socket PATH");
  EXPECT_EQ(listen_at("/" + std::string(107, 'x'), 8).error().message,
            "the socket path has 108 bytes, but the limit is 107: choose a shorter --socket");
  const auto no_folder = listen_at(folder.file("none/s"), 8);
  ASSERT_FALSE(no_folder.has_value());
  EXPECT_EQ(no_folder.error().message,
            "cannot open the socket's folder " + folder.file("none") + ": No such file or directory");
}

}  // namespace
}  // namespace uma::server
