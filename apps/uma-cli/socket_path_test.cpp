#include "uma-cli/socket_path.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::cli {
namespace {

using testing::ElementsAre;

class SocketPath : public ::testing::Test {
 protected:
  SocketPath() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    places_ = {.from_flag = "",
               .from_environment = "",
               .runtime_folder = "/run/user/7",
               .user = ::geteuid(),
               .default_path = folder_ + "/uma.sock"};
  }
  ~SocketPath() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = (std::filesystem::temp_directory_path() / "uma_cli_test.XXXXXX").string();
  SocketPlaces places_;
};

TEST_F(SocketPath, IsWhatIsSaidAndNothingElse) {
  places_.from_environment = "/from/environment";
  EXPECT_THAT(sockets_to_try(places_), ElementsAre("/from/environment"));
  places_.from_flag = "/from/flag";
  EXPECT_THAT(sockets_to_try(places_), ElementsAre("/from/flag"));
}

TEST_F(SocketPath, IsOfADaemonStartedByHandThenOfTheServices) {
  std::ofstream(places_.default_path) << "as if it were a socket";
  EXPECT_THAT(sockets_to_try(places_),
              ElementsAre(places_.default_path, "/run/user/7/uma-serve/umad.sock", "/run/uma-serve/umad.sock"));
}

TEST_F(SocketPath, OfADaemonStartedByHandIsInTheRuntimeFolderFirst) {
  places_.runtime_folder = folder_ + "/run";
  std::filesystem::create_directory(places_.runtime_folder);
  std::ofstream(places_.default_path) << "of a daemon without a runtime folder";
  std::ofstream(places_.runtime_folder + "/uma.sock") << "as if it were a socket";
  EXPECT_THAT(sockets_to_try(places_),
              ElementsAre(places_.runtime_folder + "/uma.sock", places_.default_path,
                          places_.runtime_folder + "/uma-serve/umad.sock", "/run/uma-serve/umad.sock"));
}

TEST_F(SocketPath, IsInTheUsersRuntimeFolderWhereTheEnvironmentNamesNone) {
  places_.user = 1234;
  for (const char* absent : {"", "relative"}) {
    places_.runtime_folder = absent;
    EXPECT_THAT(sockets_to_try(places_), ::testing::Contains("/run/user/1234/uma-serve/umad.sock"));
  }
}

TEST_F(SocketPath, IsNotInARuntimeFolderWhoseNameIsTooLongForASocket) {
  places_.runtime_folder = "/" + std::string(200, 'x');
  EXPECT_THAT(sockets_to_try(places_), ElementsAre("/run/uma-serve/umad.sock"));
}

// Whoever makes the file after it was found absent would be asked.
TEST_F(SocketPath, IsTheDefaultPathOnlyWhereTheUsersFileIsThere) {
  EXPECT_THAT(sockets_to_try(places_), ::testing::Not(::testing::Contains(places_.default_path)));
}

TEST_F(SocketPath, IsNotWhatAnotherUserMadeAtTheDefaultPath) {
  std::ofstream(places_.default_path) << "as if it were a socket";
  EXPECT_THAT(sockets_to_try(places_), ::testing::Contains(places_.default_path));
  places_.user = ::geteuid() + 1;
  EXPECT_THAT(sockets_to_try(places_), ::testing::Not(::testing::Contains(places_.default_path)));
}

}  // namespace
}  // namespace uma::cli
