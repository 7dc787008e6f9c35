// The page at /: its files, with the rules that a browser shall keep while it shows them.
#include <format>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/http/field.hpp>

#include "server/http/handlers/page_files.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "server/http/rules.h"

namespace uma::server {
namespace {

namespace http = boost::beast::http;

// Nothing from elsewhere, no text as a program, no frame around the page, and no other page that loads its files.
constexpr std::string_view kSafety =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Vary: Accept, Accept-Encoding\r\n";

handlers::Answer respond_file(HttpConnection& connection, const HttpRequest& request, const PageFile& file) {
  std::string header = std::format("{}ETag: {}\r\nCache-Control: {}\r\n", kSafety, file.etag,
                                   file.is_permanent ? "public, max-age=31536000, immutable" : "no-cache");
  if (request.head[http::field::if_none_match] == file.etag) {
    co_return co_await connection.respond(304, file.content_type, "", request.keep_alive, header);
  }
  const bool is_compressed = !file.gzip.empty() && lists_value(request.head[http::field::accept_encoding], "gzip");
  if (is_compressed) header += "Content-Encoding: gzip\r\n";
  co_return co_await connection.respond(200, file.content_type, is_compressed ? file.gzip : file.bytes, request.keep_alive,
                                        header);
}

}  // namespace

// Browsers get the page. Ollama's clients ask for the path to see whether there is a server, and look for this text.
handlers::Answer handlers::get_root(HttpConnection& connection, const HttpRequest& request) {
  const PageFile* page = connection.server().options.page.find("/");
  if (page != nullptr && lists_value(request.head[http::field::accept], "text/html")) {
    return respond_file(connection, request, *page);
  }
  return connection.respond(200, "text/plain", "Ollama is running", request.keep_alive, "Vary: Accept\r\n");
}

handlers::Answer handlers::get_page_file(HttpConnection& connection, const HttpRequest& request) {
  const PageFile* file = connection.server().options.page.find(request.path);
  if (file != nullptr) co_return co_await respond_file(connection, request, *file);
  co_return co_await connection.respond_error(
      404, {ErrorCode::proto_type, "no such file: this daemon serves no page, or another version of it"}, request.keep_alive);
}

}  // namespace uma::server
