#include "fetch/curl_image_fetcher.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <format>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <new>
#include <optional>
#include <string_view>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/system/descriptors.h"
#include "base/system/thread_name.h"
#include "base/text.h"
#include "base/thrown.h"
#include "fetch/image_url.h"

namespace uma::fetch {
namespace {

constexpr std::size_t kBatchesMax = 64;  // Each has one connection.
constexpr std::chrono::minutes kBatchTimeMax{1};
constexpr std::size_t kHeaderBytesMax = 16'384;
constexpr std::size_t kAddressesMax = 4;  // Addresses of a host that are tried.

using Easy = std::unique_ptr<CURL, decltype([](CURL* easy) { curl_easy_cleanup(easy); })>;
using HeaderList = std::unique_ptr<curl_slist, decltype([](curl_slist* list) { curl_slist_free_all(list); })>;

Error refused(std::string_view why) {
  return {ErrorCode::proto_field, std::format("the image cannot be fetched: {}", why)};
}

Error late(std::string_view why) {
  return {ErrorCode::limit_wait, std::format("{}: try again later", why)};
}

Error given_up() {
  return late("the image cannot be fetched");
}

Error stopping() {
  return {ErrorCode::limit_wait, "the daemon is stopping and fetches no more images"};
}

CURLM* open_multi() {
  UMA_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
  CURLM* const multi = curl_multi_init();
  UMA_CHECK(multi != nullptr);
  return multi;
}

HeaderList request_headers() {
  HeaderList list;
  for (const char* line :
       {"Accept: image/png, image/jpeg, image/gif, image/bmp", "Accept-Encoding: identity", "Connection: close"}) {
    curl_slist* const longer = curl_slist_append(list.get(), line);
    if (longer == nullptr) throw std::bad_alloc();
    (void)list.release();
    list.reset(longer);
  }
  return list;
}

// The values of a header field in the response.
std::vector<std::string> header_values(CURL* easy, const char* name) {
  std::vector<std::string> values;
  curl_header* found = nullptr;
  while (curl_easy_header(easy, name, values.size(), CURLH_HEADER, -1, &found) == CURLHE_OK) values.emplace_back(found->value);
  return values;
}

AddressBytes bytes_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return {reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr), sizeof(in_addr)};
  }
  if (address.sa_family == AF_INET6) {
    return {reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr),
            sizeof(in6_addr)};
  }
  return {};
}

// The addresses of this machine, and in IPv6 those of its links: machines behind the same firewall. A failure of the system is
// an exception, so that nothing is fetched.
std::vector<Network> own_networks() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) throw std::system_error(errno, std::generic_category(), "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(found, ::freeifaddrs);
  std::vector<Network> networks;
  for (const ifaddrs* each = all.get(); each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const AddressBytes address = bytes_of(*each->ifa_addr);
    if (address.empty()) continue;
    Network& network = networks.emplace_back(std::vector(address.begin(), address.end()), 8 * address.size());
    if (address.size() != sizeof(in6_addr) || each->ifa_netmask == nullptr) continue;
    network.bits = 0;
    for (const unsigned char byte : bytes_of(*each->ifa_netmask)) network.bits += static_cast<unsigned>(std::popcount(byte));
  }
  return networks;
}

}  // namespace

// The URLs of one request, fetched one after the other with one handle. Runs on the fetcher's thread.
class CurlImageFetcher::Batch {
 public:
  // The constructor may run on any thread.
  Batch(CurlImageFetcher& fetcher, std::vector<std::string> urls, TimePoint deadline, std::stop_token stop,
        RequestShare request, Done done)
      : fetcher_(fetcher),
        rules_(fetcher.rules_),
        urls_(std::move(urls)),
        deadline_(std::min(deadline, TimePoint::clock::now() + kBatchTimeMax)),
        request_(std::move(request)),
        share_(fetcher.budget_),
        easy_(curl_easy_init()),
        headers_(request_headers()),
        stop_(std::move(stop)),
        on_stop_(stop_, Wake{fetcher.multi_.get()}),
        done_(std::move(done)) {
    if (!easy_) throw std::bad_alloc();
  }
  ~Batch() { leave(); }

  // Starts the next image. False: the batch has ended, because all images are done or the next one is not allowed.
  [[nodiscard]] bool begin_image() {
    if (files_.size() == urls_.size()) return end(std::move(files_));
    began_ = TimePoint::clock::now();
    redirects_ = 0;
    return ask(parse_image_url(urls_[files_.size()]));
  }
  // Handles the library's result for the last URL. False: the batch has ended.
  [[nodiscard]] bool on_result(CURLcode result) {
    if (has_ended()) return false;
    const std::optional<Error> problem = problem_of(result);
    leave();
    if (problem) return give_up(*problem);
    if (answer_.location) {
      if (redirects_++ < kImageRedirectsMax) return ask(redirected(url_, *answer_.location));
      return give_up(refused(std::format("more than {} redirects", kImageRedirectsMax)));
    }
    log_debug("an image of {} bytes was fetched in {:.1f} ms", answer_.body.size(), to_ms(TimePoint::clock::now() - began_));
    files_.push_back(std::move(answer_.body));
    return begin_image();
  }

  // Delivers the result once, unless the request was cancelled. Always returns false.
  bool end(Fetched result) {
    if (!has_ended()) std::exchange(done_, nullptr)(std::move(result));
    return false;
  }
  bool give_up(Error error) { return end(std::unexpected(FetchFailure{files_.size(), std::move(error)})); }
  // The result was delivered, or the request was cancelled.
  [[nodiscard]] bool has_ended() const { return !done_ || stop_.stop_requested(); }
  // The thread that looks up a name cannot be stopped.
  [[nodiscard]] bool is_looking_up() const { return !answer_.is_looked_up; }
  // The time limit of the current image.
  [[nodiscard]] TimePoint time_end() const { return std::min(began_ + rules_.time_max, deadline_); }
  void time_out() {
    give_up(time_end() == deadline_ ? late("the images were not fetched before the deadline")
                                    : refused(std::format("it took longer than {} ms", rules_.time_max.count())));
  }

 private:
  struct Wake {
    CURLM* multi;
    void operator()() const noexcept { curl_multi_wakeup(multi); }
  };
  struct Answer {
    bool is_looked_up = false;  // The addresses of the host are known.
    std::size_t addresses_tried = 0;
    std::size_t header_bytes = 0;
    bool has_header = false;
    std::optional<std::string> location;  // Target of a redirect.
    std::size_t bytes_max = 0;            // Reserved bytes for the body.
    Bytes body;
    std::optional<Error> problem;  // The reason why the rest is not read.
  };

  [[nodiscard]] bool ask(Expected<ImageUrl> url) {
    if (!url) return give_up(std::move(url.error()));
    if (auto allowed = check_allowed(*url, rules_); !allowed) return give_up(std::move(allowed.error()));
    url_ = *std::move(url);
    answer_ = {};
    set_options();
    if (curl_multi_add_handle(fetcher_.multi_.get(), easy_.get()) != CURLM_OK) throw std::bad_alloc();
    return true;
  }
  void leave() { curl_multi_remove_handle(fetcher_.multi_.get(), easy_.get()); }

  template <class T>
  void set(CURLoption option, T value) {
    const CURLcode code = curl_easy_setopt(easy_.get(), option, value);
    if (code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
    UMA_CHECK(code == CURLE_OK);
  }
  void set_options();

  // --- Callbacks of the library. It is C, so exceptions end here.
  static curl_socket_t on_open_socket(void* user, curlsocktype, curl_sockaddr* address) {
    bool is_allowed = false;
    run_noting([&] { is_allowed = static_cast<Batch*>(user)->may_connect(address->addr); });
    if (!is_allowed) return CURL_SOCKET_BAD;
    return open_socket(address->family, address->socktype, address->protocol).release();
  }
  // False: abort the transfer.
  template <bool (Batch::*Take)(std::string_view)>
  static std::size_t on_bytes(char* bytes, std::size_t, std::size_t size, void* user) {
    bool goes_on = false;
    run_noting([&] { goes_on = (static_cast<Batch*>(user)->*Take)({bytes, size}); });
    return goes_on ? size : CURL_WRITEFUNC_ERROR;
  }
  [[nodiscard]] bool may_connect(const sockaddr& address) {
    answer_.is_looked_up = true;
    return !has_ended() && is_allowed_at(url_, bytes_of(address), rules_, own_networks()) &&
           ++answer_.addresses_tried <= kAddressesMax;
  }
  [[nodiscard]] bool take_header(std::string_view line);
  [[nodiscard]] bool take_body(std::string_view piece);
  [[nodiscard]] std::optional<Error> read_header();

  [[nodiscard]] std::optional<Error> problem_of(CURLcode result) const;
  [[nodiscard]] Error unconnected() const;
  [[nodiscard]] Error too_long() const { return refused(std::format("the file has more than {} bytes", rules_.bytes_max)); }
  [[nodiscard]] Error broken(std::string_view why) const {
    return refused(std::format("the connection to {} failed: {}", url_.authority(), why));
  }

  CurlImageFetcher& fetcher_;
  const ImageUrlRules& rules_;
  const std::vector<std::string> urls_;
  const TimePoint deadline_;
  const RequestShare request_;  // The tenant's share of the requests.
  ByteBudget::Share share_;     // The reserved memory for files.
  const Easy easy_;
  const HeaderList headers_;
  const std::stop_token stop_;
  const std::stop_callback<Wake> on_stop_;
  Done done_;
  std::vector<Bytes> files_;
  // State of the current image.
  TimePoint began_{};
  int redirects_ = 0;
  ImageUrl url_;
  Answer answer_;
};

// libcurl's defaults hold for the rest: certificates are verified; redirects are not followed and nothing is decompressed; no
// .netrc, no cookies.
void CurlImageFetcher::Batch::set_options() {
  curl_easy_reset(easy_.get());
  const char* const scheme = url_.is_secure ? "https" : "http";
  set(CURLOPT_URL, std::format("{}://{}{}", scheme, url_.authority(), url_.target).c_str());
  set(CURLOPT_PROTOCOLS_STR, scheme);
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_HTTPHEADER, headers_.get());
  set(CURLOPT_USERAGENT, "umad");
  set(CURLOPT_PROXY, "");  // An empty proxy also ignores those of the environment.
  // Every image has a new connection, because its address is looked up and checked for it.
  set(CURLOPT_FRESH_CONNECT, 1L);
  set(CURLOPT_FORBID_REUSE, 1L);
  set(CURLOPT_DNS_CACHE_TIMEOUT, 0L);
  set(CURLOPT_OPENSOCKETFUNCTION, &Batch::on_open_socket);
  set(CURLOPT_OPENSOCKETDATA, this);
  set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  set(CURLOPT_SSL_SESSIONID_CACHE, 0L);
  // OpenSSL reads these variables itself; libcurl does not.
  if (const char* file = std::getenv("SSL_CERT_FILE")) set(CURLOPT_CAINFO, file);
  if (const char* folder = std::getenv("SSL_CERT_DIR")) set(CURLOPT_CAPATH, folder);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_QUICK_EXIT, 1L);  // The daemon does not wait for a name server when it stops.
  set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(rules_.bytes_max));
  set(CURLOPT_HEADERFUNCTION, &Batch::on_bytes<&Batch::take_header>);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_WRITEFUNCTION, &Batch::on_bytes<&Batch::take_body>);
  set(CURLOPT_WRITEDATA, this);
  set(CURLOPT_PRIVATE, this);
}

bool CurlImageFetcher::Batch::take_header(std::string_view line) {
  answer_.header_bytes += line.size();
  if (answer_.header_bytes > kHeaderBytesMax) {
    answer_.problem = broken(std::format("the response header has more than {} bytes", kHeaderBytesMax));
  } else if (!answer_.has_header && line.find_first_not_of("\r\n") == std::string_view::npos) {
    long status = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    if (status >= 100 && status < 200) return true;  // The header of an interim response.
    answer_.has_header = true;                       // Later lines belong to the trailer.
    answer_.problem = read_header();
  }
  return !answer_.problem && !answer_.location;
}

// Reads the whole header and reserves memory for the body. Nothing: the response is a file or a redirect.
std::optional<Error> CurlImageFetcher::Batch::read_header() {
  long status = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
  if (std::ranges::contains(std::array<long, 5>{301, 302, 303, 307, 308}, status)) {
    auto locations = header_values(easy_.get(), "Location");
    if (locations.size() != 1) return refused("a redirect has no single target");
    answer_.location = std::move(locations.front());
    return std::nullopt;
  }
  if (status != 200) return refused(std::format("{} answered with status {}", url_.authority(), status));
  const auto transfer = header_values(easy_.get(), "Transfer-Encoding");
  const auto is_not = [](std::string_view plain) {
    return [plain](const std::string& value) { return lower_ascii(value) != plain; };
  };
  // libcurl would decompress a transfer encoding that was not requested.
  if (std::ranges::any_of(header_values(easy_.get(), "Content-Encoding"), is_not("identity")) ||
      std::ranges::any_of(transfer, is_not("chunked"))) {
    return refused("the response is compressed, although this was not requested");
  }
  answer_.bytes_max = rules_.bytes_max;
  for (const std::string& length : header_values(easy_.get(), "Content-Length")) {
    if (transfer.empty()) std::from_chars(length.data(), length.data() + length.size(), answer_.bytes_max);
  }
  if (answer_.bytes_max > rules_.bytes_max) return too_long();
  if (share_.grow(answer_.bytes_max)) return std::nullopt;
  return late(
      std::format("images in transfer hold {} of {} bytes", fetcher_.budget_->bytes_used(), fetcher_.budget_->bytes_max()));
}

bool CurlImageFetcher::Batch::take_body(std::string_view piece) {
  if (piece.size() > answer_.bytes_max - answer_.body.size()) {
    answer_.problem = too_long();
    return false;
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(piece.data());
  answer_.body.insert(answer_.body.end(), bytes, bytes + piece.size());
  return true;
}

// Nothing: the response is complete, or a redirect.
std::optional<Error> CurlImageFetcher::Batch::problem_of(CURLcode result) const {
  if (answer_.problem || answer_.location || result == CURLE_OK) return answer_.problem;
  switch (result) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      return unconnected();
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return refused(std::format("the certificate of {} is invalid: {}", url_.authority(), curl_easy_strerror(result)));
    case CURLE_FILESIZE_EXCEEDED:
      return too_long();
    case CURLE_PARTIAL_FILE:
      return refused("the response ended too early");
    case CURLE_OUT_OF_MEMORY:
    case CURLE_WRITE_ERROR:  // A callback failed.
      return given_up();
    default:
      return broken(curl_easy_strerror(result));
  }
}

Error CurlImageFetcher::Batch::unconnected() const {
  // An unknown name has the same error, so that clients cannot find out names of the local network.
  if (answer_.addresses_tried == 0) {
    return refused(std::format("{} has no public address, and is not in vision.url_hosts", url_.authority()));
  }
  long reason = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &reason);
  return refused(
      std::format("cannot connect to {}: {}", url_.authority(), std::generic_category().message(static_cast<int>(reason))));
}

CurlImageFetcher::CurlImageFetcher(ImageUrlRules rules, std::uint64_t bytes_max)
    : rules_(std::move(rules)),
      requests_(std::make_shared<TenantBudget>(kBatchesMax, "requests with image transfers", "the fetcher")),
      budget_(std::make_shared<ByteBudget>(bytes_max)),
      multi_(open_multi()) {
  batches_.reserve(kBatchesMax);
  thread_ = std::thread([this] { run(); });
}

CurlImageFetcher::~CurlImageFetcher() {
  stop();
}

void CurlImageFetcher::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
  }
  curl_multi_wakeup(multi_.get());
  thread_.join();
}

void CurlImageFetcher::fetch(const TenantId& tenant, std::vector<std::string> urls, TimePoint deadline, std::stop_token stop,
                             Done done) {
  if (stop.stop_requested()) return;
  auto request = requests_->open(tenant);
  if (!request->grow(1)) {
    return done(std::unexpected(FetchFailure{
        0, late(std::format(
               "{} requests are fetching images; the limit is {}, and a tenant may use at most as many as it leaves free",
               requests_->bytes_used(), kBatchesMax))}));
  }
  auto batch = std::make_unique<Batch>(*this, std::move(urls), deadline, std::move(stop), std::move(request), std::move(done));
  {
    const MutexLock lock(mutex_);
    if (!is_closed_) arrivals_.push_back(std::move(batch));
  }
  if (batch) {
    batch->give_up(stopping());
  } else {
    curl_multi_wakeup(multi_.get());
  }
}

bool CurlImageFetcher::take_arrivals() {
  std::vector<std::unique_ptr<Batch>> arrived;
  bool goes_on = true;
  {
    const MutexLock lock(mutex_);
    arrived.swap(arrivals_);
    goes_on = !is_closed_;
  }
  for (auto& batch : arrived) {
    Batch& begun = *batch;
    batches_.push_back(std::move(batch));
    advance(begun, [&] { return begun.begin_image(); });
  }
  return goes_on;
}

// A step returns false if the batch has ended; an exception also ends it.
template <class Step>
void CurlImageFetcher::advance(Batch& batch, Step step) {
  bool goes_on = false;
  run_noting([&] { goes_on = step(); });
  if (goes_on) return;
  run_noting([&] { batch.give_up(given_up()); });
  std::erase_if(batches_, [&](const auto& one) { return one.get() == &batch; });
}

// Ends batches after their time limit and removes ended ones. A batch stays while its name is being looked up, so that there
// are never more lookups than batches. Returns the time until the next limit.
int CurlImageFetcher::sweep() {
  const TimePoint now = TimePoint::clock::now();
  TimePoint wake = now + kBatchTimeMax;
  for (const auto& batch : batches_) {
    if (now >= batch->time_end()) run_noting([&] { batch->time_out(); });
    if (!batch->has_ended()) wake = std::min(wake, batch->time_end());
  }
  std::erase_if(batches_, [](const auto& batch) { return batch->has_ended() && !batch->is_looking_up(); });
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wake - now).count());
}

void CurlImageFetcher::run() {
  set_thread_name("uma-fetch");
  while (take_arrivals()) {
    int count = 0;
    if (const CURLMcode result = curl_multi_perform(multi_.get(), &count); result != CURLM_OK) {
      give_up_all({ErrorCode::io_failed, std::format("fetching images failed: {}", curl_multi_strerror(result))});
    }
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &count)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode result = message->data.result;
      Batch* batch = nullptr;
      UMA_CHECK(curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &batch) == CURLE_OK);
      advance(*batch, [&] { return batch->on_result(result); });
    }
    constexpr std::chrono::milliseconds kAfterFault(10);
    if (curl_multi_poll(multi_.get(), nullptr, 0, sweep(), nullptr) != CURLM_OK) std::this_thread::sleep_for(kAfterFault);
  }
  give_up_all(stopping());
}

void CurlImageFetcher::give_up_all(const Error& error) {
  for (const auto& batch : batches_) {
    run_noting([&] { batch->give_up(error); });
  }
  batches_.clear();
}

}  // namespace uma::fetch
