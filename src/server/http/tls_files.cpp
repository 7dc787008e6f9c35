#include "server/http/tls_files.h"

#include <format>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace uma::server {

namespace ssl = boost::asio::ssl;

Expected<Unit> load_tls_files(ssl::context& context, const std::string& certificate, const std::string& key) {
  boost::system::error_code problem;
  const auto bad = [&](const std::string& path) {
    return fail(ErrorCode::io_failed, std::format("http: TLS: {}: {}", path, problem.message()));
  };
  context.use_certificate_chain_file(certificate, problem);
  if (problem) return bad(certificate);
  context.use_private_key_file(key, ssl::context::pem, problem);
  if (problem) return bad(key);
  return Unit{};
}

Expected<double> tls_days_left(const std::string& certificate, const std::string& key) {
  ssl::context context(ssl::context::tls_server);
  if (auto loaded = load_tls_files(context, certificate, key); !loaded) return std::unexpected(loaded.error());
  int days = 0;
  int seconds = 0;
  const X509* const loaded = ::SSL_CTX_get0_certificate(context.native_handle());
  if (loaded == nullptr || ::ASN1_TIME_diff(&days, &seconds, nullptr, ::X509_get0_notAfter(loaded)) != 1) {
    return fail(ErrorCode::io_failed, std::format("http: TLS: {}: the end of the certificate cannot be read", certificate));
  }
  return days + seconds / 86'400.0;
}

}  // namespace uma::server
