// A connection to a Redis or Valkey server (libhiredis). One thread. Calls block for bounded times, if the names of hosts are
// found in bounded times. Errors: E_IO_001, which name the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kv/shared/redis_address.h"

struct redisContext;
struct redisReply;

namespace uma::kv {

struct RedisOptions {
  RedisAddress address;
  std::string password{};  // Empty: none is sent.
  std::chrono::milliseconds connect_limit{1000};
  std::chrono::milliseconds call_limit{2000};  // Without a byte that could be sent or received.
};

using RedisReplyPtr = std::unique_ptr<redisReply, void (*)(redisReply*)>;

class RedisConnection {
 public:
  explicit RedisConnection(RedisOptions options);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;

  // Runs a command, which may run twice if the connection ends in it. Connects if necessary.
  [[nodiscard]] Expected<RedisReplyPtr> call(std::span<const std::string_view> command);
  [[nodiscard]] Expected<RedisReplyPtr> call(std::initializer_list<std::string_view> command) {
    return call(std::span(command.begin(), command.size()));
  }
  // Runs commands in one round trip. Returns the first error, also of the server; the others may have run.
  [[nodiscard]] Expected<Unit> call_all(std::span<const std::vector<std::string>> commands);
  // Calls give up as soon as this returns true, however slowly the server answers.
  void give_up_when(std::function<bool()> is_over) { is_over_ = std::move(is_over); }
  [[nodiscard]] std::string text() const { return options_.address.text(); }

 private:
  [[nodiscard]] Expected<Unit> connect();
  [[nodiscard]] Expected<RedisReplyPtr> call_once(std::span<const std::string_view> command);
  void append(std::span<const std::string_view> command);
  [[nodiscard]] Expected<RedisReplyPtr> next_reply(std::string_view command);
  [[nodiscard]] std::unexpected<Error> lose(std::string_view command);
  [[nodiscard]] std::unexpected<Error> failed(std::string_view what) const;

  const RedisOptions options_;
  std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
  std::function<bool()> is_over_;
  bool is_late_ = false;  // The last call had no answer in time.
};

}  // namespace uma::kv
