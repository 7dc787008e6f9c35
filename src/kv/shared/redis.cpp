#include "kv/shared/redis.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <format>
#include <hiredis/hiredis.h>
#include <sys/time.h>
#include <utility>
#include <vector>

// Defined by the build if libhiredis has TLS.
#ifdef UMA_REDIS_TLS
#include <hiredis/hiredis_ssl.h>
#include <openssl/ssl.h>
#endif

namespace uma::kv {
namespace {

timeval timeval_of(std::chrono::milliseconds duration) {
  return {.tv_sec = duration.count() / 1000, .tv_usec = duration.count() % 1000 * 1000};
}

void free_reply(redisReply* reply) {
  freeReplyObject(reply);
}

#ifdef UMA_REDIS_TLS
// Begins TLS, and checks the server's certificate and its name against the system's certificates. Returns an error, or nothing.
std::string begin_tls(redisContext* connected, const std::string& host) {
  using ContextPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
  const ContextPtr context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (!context || SSL_CTX_set_default_verify_paths(context.get()) != 1) return "the system's certificates cannot be read";
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL* const ssl = SSL_new(context.get());  // The connection takes it.
  if (ssl == nullptr) return "there is no memory for TLS";
  // An address is compared with the certificate's addresses, a name with its names.
  const bool is_address = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  // The call behind the macro SSL_set_tlsext_host_name, which has a cast that does not compile here. The name is copied.
  const auto send_name = [&](std::string name) {
    return SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data()) == 1;
  };
  if (!is_address && (SSL_set1_host(ssl, host.c_str()) != 1 || !send_name(host))) {
    SSL_free(ssl);
    return "the host has no name that TLS could check";
  }
  if (redisInitiateSSL(connected, ssl) == REDIS_OK) return "";
  const long verified = SSL_get_verify_result(ssl);
  std::string problem = verified == X509_V_OK ? connected->errstr : X509_verify_cert_error_string(verified);
  SSL_free(ssl);
  return std::format("TLS: {}", problem);
}
#endif

}  // namespace

bool redis_has_tls() {
#ifdef UMA_REDIS_TLS
  return true;
#else
  return false;
#endif
}

RedisConnection::RedisConnection(RedisOptions options) : options_(std::move(options)), context_(nullptr, &redisFree) {}

RedisConnection::~RedisConnection() = default;

std::unexpected<Error> RedisConnection::failed(std::string_view what) const {
  return fail(ErrorCode::io_failed, std::format("{}: {}", text(), what));
}

Expected<Unit> RedisConnection::connect() {
  if (context_) return Unit{};
  const RedisAddress& address = options_.address;
  context_.reset(redisConnectWithTimeout(address.host.c_str(), address.port, timeval_of(options_.connect_limit)));
  if (!context_) return failed("there is no memory for a connection");
  const auto give_up = [&](std::string_view what) -> std::unexpected<Error> {
    auto error = failed(what);
    context_.reset();
    return error;
  };
  if (context_->err != 0) return give_up(context_->errstr);
  if (redisSetTimeout(context_.get(), timeval_of(options_.call_limit)) != REDIS_OK) return give_up("its timeout cannot be set");
  (void)redisEnableKeepAlive(context_.get());
  if (address.is_encrypted) {
#ifdef UMA_REDIS_TLS
    if (const std::string problem = begin_tls(context_.get(), address.host); !problem.empty()) return give_up(problem);
#else
    return give_up("this umad was built with a libhiredis without TLS");
#endif
  }
  if (!options_.password.empty()) {
    std::vector<std::string_view> command = {"AUTH"};
    if (!address.user.empty()) command.emplace_back(address.user);
    command.emplace_back(options_.password);
    if (auto accepted = call_once(command); !accepted) {
      context_.reset();
      return std::unexpected(accepted.error());
    }
  }
  if (address.database != 0) {
    const std::string database = std::to_string(address.database);
    if (auto selected = call_once(std::vector<std::string_view>{"SELECT", database}); !selected) {
      context_.reset();
      return std::unexpected(selected.error());
    }
  }
  return Unit{};
}

Expected<RedisReplyPtr> RedisConnection::call(std::span<const std::string_view> command) {
  const bool was_connected = context_ != nullptr;
  if (auto connected = connect(); !connected) return std::unexpected(connected.error());
  auto reply = call_once(command);
  // The server ends connections that were idle for long, and when it starts again.
  if (reply || context_ || !was_connected || is_late_) return reply;
  if (auto connected = connect(); !connected) return std::unexpected(connected.error());
  return call_once(command);
}

Expected<RedisReplyPtr> RedisConnection::call_once(std::span<const std::string_view> command) {
  append(command);
  return next_reply(command[0]);
}

Expected<Unit> RedisConnection::call_all(std::span<const std::vector<std::string>> commands) {
  if (auto connected = connect(); !connected) return connected;
  for (const auto& command : commands) append(std::vector<std::string_view>(command.begin(), command.end()));
  Expected<Unit> done;
  for (const auto& command : commands) {
    auto reply = next_reply(command[0]);
    if (!reply && done) done = std::unexpected(reply.error());
    if (!context_) break;
  }
  return done;
}

// Only a lack of memory is an error here, and the reply says so.
void RedisConnection::append(std::span<const std::string_view> command) {
  std::vector<const char*> texts;
  std::vector<std::size_t> lengths;
  for (const std::string_view part : command) {
    texts.push_back(part.data());
    lengths.push_back(part.size());
  }
  (void)redisAppendCommandArgv(context_.get(), static_cast<int>(texts.size()), texts.data(), lengths.data());
}

// The reply to the first command that has none yet.
Expected<RedisReplyPtr> RedisConnection::next_reply(std::string_view command) {
  is_late_ = false;
  void* received = nullptr;
  bool is_sent = false;
  while (received == nullptr) {
    is_late_ = is_over_ && is_over_();
    if (is_late_) return lose(command);
    int is_all = 1;
    int status = is_sent ? REDIS_OK : redisBufferWrite(context_.get(), &is_all);
    if (status == REDIS_OK && is_all != 0) {
      status = is_sent ? redisBufferRead(context_.get()) : REDIS_OK;
      is_sent = true;
      // Replies of several commands may have come together.
      if (status == REDIS_OK) status = redisGetReplyFromReader(context_.get(), &received);
    }
    if (status != REDIS_OK) return lose(command);
  }
  RedisReplyPtr reply(static_cast<redisReply*>(received), &free_reply);
  if (reply->type == REDIS_REPLY_ERROR) {
    return failed(std::format("{}: {}", command, std::string_view(reply->str, std::min<std::size_t>(reply->len, 200))));
  }
  return reply;
}

// A connection without an answer is closed: the next answer would be this one's.
std::unexpected<Error> RedisConnection::lose(std::string_view command) {
  const bool has_timed_out = context_->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);
  auto error = failed(is_late_        ? std::format("no answer to {} in the time for the whole call", command)
                      : has_timed_out ? std::format("no answer to {} within {} ms", command, options_.call_limit.count())
                                      : std::string(context_->errstr));
  is_late_ = is_late_ || has_timed_out;
  context_.reset();
  return error;
}

}  // namespace uma::kv
