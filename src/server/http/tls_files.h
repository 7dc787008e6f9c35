// Reads the files of the HTTP listener's TLS.
#pragma once

#include <string>

#include <boost/asio/ssl/context.hpp>

#include "core/error.h"

namespace uma::server {

// Loads a PEM file with the certificate chain and one with its key. Errors: E_IO_001 with the path, also for a key of another
// certificate.
[[nodiscard]] Expected<Unit> load_tls_files(boost::asio::ssl::context& context, const std::string& certificate,
                                            const std::string& key);

// The days until the certificate ends; negative if it has ended. Errors: those of load_tls_files().
[[nodiscard]] Expected<double> tls_days_left(const std::string& certificate, const std::string& key);

}  // namespace uma::server
