// A server on a socket in a folder of its own, before a FakeService.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "server/service_test_support.h"
#include "server/socket_test_support.h"
#include "server/unix/unix_server.h"

namespace uma::server {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline std::string generate_frame(const std::string& id) {
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

}  // namespace uma::server
