#include "uma-cli/models/http.h"

#include <array>
#include <curl/curl.h>
#include <format>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

constexpr int kRedirectsMax = 5;
constexpr int kTickMs = 100;
constexpr long kConnectTimeoutS = 20;
constexpr long kBufferBytes = 256 << 10;

struct FreeEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

std::string header(CURL* easy, const char* name) {
  curl_header* found = nullptr;
  return curl_easy_header(easy, name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK ? found->value : "";
}

HttpHead read_head(CURL* easy, const Url& url) {
  HttpHead head;
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  head.status = static_cast<int>(status);
  head.url = url.text;
  head.content_type = header(easy, "Content-Type");
  head.content_range = header(easy, "Content-Range");
  head.content_encoding = header(easy, "Content-Encoding");
  head.etag = header(easy, "ETag");
  head.last_modified = header(easy, "Last-Modified");
  head.link = header(easy, "Link");
  curl_off_t length = -1;
  curl_easy_getinfo(easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  const bool is_chunked = !header(easy, "Transfer-Encoding").empty();
  if (length >= 0 && !is_chunked) head.content_length = static_cast<std::uint64_t>(length);
  head.is_delimited = head.content_length.has_value() || is_chunked;
  curl_off_t retry_after = 0;
  curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after);
  head.retry_after_s = retry_after;
  return head;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Errors that another attempt would meet again.
bool is_final(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

// One request and its answer, as libcurl's callbacks see them.
struct Http::Hop {
  CURL* easy;
  const Url& url;
  HttpHandler& handler;
  HttpHead head{};
  std::string redirect{};
  std::optional<Failure> failure{};
  bool is_stopped = false;
  std::uint64_t bytes = 0;  // Size of the body received so far.

  // Called at the first byte of the body, or at the end of an answer without one. Returns false to skip the rest of the body.
  bool begin() {
    head = read_head(easy, url);
    const char* target = nullptr;
    if (is_redirect(head.status)) curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &target);
    if (target != nullptr) {
      redirect = target;
      is_stopped = true;
      return false;
    }
    auto flow = handler.on_head(head);
    if (!flow) failure = flow.error();
    is_stopped = !flow || *flow == Flow::stop;
    return !is_stopped;
  }

  static std::size_t on_body(char* data, std::size_t, std::size_t size, void* user) {
    Hop& hop = *static_cast<Hop*>(user);
    if (hop.head.status == 0 && !hop.begin()) return CURL_WRITEFUNC_ERROR;
    hop.bytes += size;
    if (auto taken = hop.handler.on_body({data, size}); !taken) {
      hop.failure = taken.error();
      hop.is_stopped = true;
      return CURL_WRITEFUNC_ERROR;
    }
    return size;
  }
};

Http::Http(Credentials credentials, int stall_timeout_s, Interrupts& interrupts)
    : credentials_(std::move(credentials)), stall_timeout_s_(stall_timeout_s), interrupts_(interrupts) {
  UMA_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
  multi_ = curl_multi_init();
  UMA_CHECK(multi_ != nullptr);
}

Http::~Http() {
  curl_multi_cleanup(multi_);
  curl_global_cleanup();
}

Result<HttpEnd> Http::get(const Url& url, const std::vector<std::string>& headers, HttpHandler& handler) {
  Url at = url;
  for (int hops = 0; hops <= kRedirectsMax; ++hops) {
    std::string redirect;
    auto end = get_once(at, headers, handler, redirect);
    if (!end || redirect.empty()) return end;
    auto next = parse_url(redirect);
    if (!next)
      return fail(ExitCode::server,
                  std::format("{} redirects to an address that pull refuses: {}", at.host, next.error().message));
    if (!may_follow(at, *next))
      return fail(ExitCode::server, std::format("{} redirects from https to http, which pull refuses", at.host));
    at = std::move(*next);
  }
  return fail(ExitCode::server, std::format("{} has more than {} redirects", shown_url(url.text), kRedirectsMax));
}

Result<HttpEnd> Http::get_once(const Url& url, std::vector<std::string> headers, HttpHandler& handler, std::string& redirect) {
  const std::unique_ptr<CURL, FreeEasy> easy(curl_easy_init());
  UMA_CHECK(easy != nullptr);
  if (!credentials_.token.empty() && url.origin == credentials_.origin)
    headers.push_back("Authorization: Bearer " + credentials_.token);
  std::unique_ptr<curl_slist, FreeList> list;
  for (const std::string& line : headers) {
    curl_slist* const shorter = list.release();
    list.reset(curl_slist_append(shorter, line.c_str()));
    UMA_CHECK(list != nullptr);
  }
  Hop hop{.easy = easy.get(), .url = url, .handler = handler};
  std::array<char, CURL_ERROR_SIZE> reason{};
  const auto set = [&](CURLoption option, auto value) { UMA_CHECK(curl_easy_setopt(easy.get(), option, value) == CURLE_OK); };
  set(CURLOPT_URL, url.text.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  // HTTP/2 would only add its flow control to a single stream.
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_HTTPHEADER, list.get());
  set(CURLOPT_USERAGENT, "uma-cli");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_WRITEFUNCTION, &Hop::on_body);
  set(CURLOPT_WRITEDATA, &hop);

  UMA_CHECK(curl_multi_add_handle(multi_, easy.get()) == CURLM_OK);
  bool is_interrupted = false;
  bool is_stalled = false;
  const SteadyClock clock;
  TimePoint moved_at = clock.now();
  for (int running = 1; running > 0;) {
    const std::uint64_t bytes_before = hop.bytes;
    UMA_CHECK(curl_multi_perform(multi_, &running) == CURLM_OK);
    handler.on_tick();
    if (hop.bytes != bytes_before) moved_at = clock.now();
    is_interrupted = interrupts_.pending();
    is_stalled = running > 0 && clock.now() - moved_at >= std::chrono::seconds(stall_timeout_s_);
    if (is_interrupted || is_stalled) break;
    // A signal ends the poll, unless it arrives just before; then it is handled one tick later.
    if (running > 0) curl_multi_poll(multi_, nullptr, 0, kTickMs, nullptr);
  }
  CURLcode code = CURLE_OK;
  int queued = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &queued)) {
    if (message->msg == CURLMSG_DONE) code = message->data.result;
  }
  if (!is_interrupted && !is_stalled && code == CURLE_OK && hop.head.status == 0) (void)hop.begin();
  curl_multi_remove_handle(multi_, easy.get());

  if (hop.failure) return std::unexpected(*hop.failure);
  if (is_interrupted) return interrupted();
  redirect = hop.redirect;
  HttpEnd end{.head = std::move(hop.head), .broken = {}};
  if (is_stalled) end.broken = std::format("no data for {} s", stall_timeout_s_);
  if (hop.is_stopped || code == CURLE_OK) return end;
  end.broken = reason[0] != '\0' ? reason.data() : curl_easy_strerror(code);
  if (is_final(code))
    return fail(ExitCode::server, std::format("cannot download from {}: {}", url.host, printable_line(end.broken)));
  return end;
}

}  // namespace uma::cli
