#include "engine/image_fetcher.h"

#include <algorithm>
#include <array>
#include <exception>
#include <format>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/log.h"
#include "base/thread_name.h"
#include "base/thrown.h"

namespace uma::engine {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using capability::ImageUrl;

constexpr std::size_t kBatchesMax = 64;  // each has one connection
constexpr std::chrono::minutes kBatchTimeMax{1};
constexpr std::size_t kHeaderBytesMax = 16'384;
constexpr std::size_t kAddressesMax = 4;  // of a host, that are tried

std::unexpected<Error> refuse(std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the image could not be fetched: {}", why));
}

// Also of what nobody hears any more.
Error given_up() {
  return {ErrorCode::limit_wait, "the image could not be fetched: try again later"};
}

Error stopping() {
  return {ErrorCode::limit_wait, "the daemon stops, no image is fetched any more"};
}

}  // namespace

// The URLs of one request. The fetcher's thread.
class ImageFetcher::Batch : public std::enable_shared_from_this<Batch> {
 public:
  Batch(asio::io_context& io, std::vector<std::string> given, TimePoint deadline, const std::shared_ptr<ByteBudget>& budget,
        std::shared_ptr<TenantBudget::Share> request, Done done)
      : urls(std::move(given)),
        resolver(io),
        socket(io),
        share(budget),
        request_(std::move(request)),
        deadline_(std::min(deadline, TimePoint::clock::now() + kBatchTimeMax)),
        timer_(io),
        done_(std::move(done)) {}

  // The result, once. What the coroutine still waits for ends; a name that is being looked up ends later.
  void end(Fetched result) {
    if (!drop()) return;
    std::exchange(done_, nullptr)(std::move(result));
  }
  // Without a word. False: it had ended.
  bool drop() {
    if (has_ended_) return false;
    has_ended_ = true;
    timer_.cancel();
    resolver.cancel();
    error_code ignored;
    socket.close(ignored);
    return true;
  }
  [[nodiscard]] bool has_ended() const { return has_ended_; }

  // For the next image.
  void limit(std::chrono::milliseconds time_max) {
    const TimePoint image_end = TimePoint::clock::now() + time_max;
    timer_.expires_at(std::min(image_end, deadline_));
    timer_.async_wait([weak = weak_from_this(), time_max, is_last = deadline_ <= image_end](const error_code& problem) {
      const auto batch = weak.lock();
      if (problem || !batch) return;
      const Error error = is_last ? Error{ErrorCode::limit_wait, "the images could not be fetched in time: try again later"}
                                  : refuse(std::format("it took longer than {} ms", time_max.count())).error();
      batch->end(std::unexpected(FetchFailure{batch->files.size(), error}));
    });
  }

  const std::vector<std::string> urls;
  std::vector<Bytes> files;
  tcp::resolver resolver;
  tcp::socket socket;
  ByteBudget::Share share;
  std::optional<std::stop_callback<std::function<void()>>> on_stop;

 private:
  const std::shared_ptr<TenantBudget::Share> request_;  // one of the tenant's
  const TimePoint deadline_;
  asio::steady_timer timer_;
  Done done_;
  bool has_ended_ = false;
};

struct ImageFetcher::Answer {
  std::optional<std::string> location;  // of a redirect
  Bytes body;
};

ImageFetcher::ImageFetcher(ImageUrlRules rules, std::uint64_t bytes_max)
    : rules_(std::move(rules)),
      requests_(std::make_shared<TenantBudget>(kBatchesMax, "requests whose images are fetched", "the fetcher")),
      budget_(std::make_shared<ByteBudget>(bytes_max)),
      io_(1),
      work_(io_.get_executor()),
      tls_(asio::ssl::context::tls_client) {
  error_code problem;
  tls_.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1,
                   problem);
  tls_.set_verify_mode(asio::ssl::verify_peer, problem);
  tls_.set_default_verify_paths(problem);
  if (problem) log_warning("images: the system's certificates cannot be read: {}", problem.message());
  thread_ = std::thread([this] {
    set_thread_name("uma-fetch");
    run_to_end(io_);
  });
}

ImageFetcher::~ImageFetcher() {
  stop();
}

void ImageFetcher::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
  }
  asio::post(io_, [this] {
    for (const BatchPtr& batch : std::set<BatchPtr>(batches_)) {
      batch->end(std::unexpected(FetchFailure{batch->files.size(), stopping()}));
    }
    work_.reset();
  });
  thread_.join();
}

void ImageFetcher::fetch(const TenantId& tenant, std::vector<std::string> urls, TimePoint deadline, std::stop_token stop,
                         Done done) {
  auto begin = [this, request = requests_->open(tenant), urls = std::move(urls), deadline,
                stop = std::move(stop)](Done told) mutable {
    if (stop.stop_requested()) return;
    if (!request->grow(1)) {
      return told(std::unexpected(FetchFailure{
          0,
          {ErrorCode::limit_wait, std::format("images of {} requests are being fetched, {} are possible, of a tenant as many "
                                              "as it leaves free: try again later",
                                              batches_.size(), kBatchesMax)}}));
    }
    auto batch = std::make_shared<Batch>(io_, std::move(urls), deadline, budget_, std::move(request), std::move(told));
    batches_.insert(batch);
    // Called where stop was requested, or at once.
    batch->on_stop.emplace(std::move(stop), [this, weak = std::weak_ptr(batch)] {
      asio::post(io_, [weak] {
        if (const auto stopped = weak.lock()) (void)stopped->drop();
      });
    });
    asio::co_spawn(io_, run(batch), [this, batch](const std::exception_ptr& failure) {
      if (failure) batch->end(std::unexpected(FetchFailure{batch->files.size(), given_up()}));
      batch->on_stop.reset();
      batches_.erase(batch);
    });
  };
  {
    const MutexLock lock(mutex_);
    if (!is_closed_) {
      asio::post(io_, [begin = std::move(begin), done = std::move(done)]() mutable { begin(std::move(done)); });
      return;
    }
  }
  done(std::unexpected(FetchFailure{0, stopping()}));
}

ImageFetcher::Awaitable<void> ImageFetcher::run(BatchPtr batch) {
  while (!batch->has_ended() && batch->files.size() < batch->urls.size()) {
    batch->limit(rules_.time_max);
    const TimePoint began = TimePoint::clock::now();
    auto file = co_await fetch_one(*batch, batch->urls[batch->files.size()]);
    if (batch->has_ended()) break;
    if (file) {
      log_debug("an image of {} bytes was fetched in {:.1f} ms", file->size(), to_ms(TimePoint::clock::now() - began));
      batch->files.push_back(std::move(*file));
    } else {
      batch->end(std::unexpected(FetchFailure{batch->files.size(), std::move(file.error())}));
    }
  }
  if (!batch->has_ended()) batch->end(std::move(batch->files));
}

ImageFetcher::Awaitable<Expected<Bytes>> ImageFetcher::fetch_one(Batch& batch, const std::string& text) {
  auto url = capability::parse_image_url(text);
  for (int redirects = 0; url; ++redirects) {
    // Its end closes the socket; what was done at that very moment would open it again.
    if (batch.has_ended()) co_return std::unexpected(given_up());
    if (auto allowed = capability::check_allowed(*url, rules_); !allowed) co_return std::unexpected(allowed.error());
    if (auto connected = co_await connect(batch, *url); !connected) co_return std::unexpected(connected.error());
    auto answer = url->is_secure ? co_await ask_securely(batch, *url) : co_await ask(batch, batch.socket, *url);
    if (!answer) co_return std::unexpected(answer.error());
    if (!answer->location) co_return std::move(answer->body);
    if (redirects == capability::kImageRedirectsMax) {
      co_return refuse(std::format("more than {} redirects", capability::kImageRedirectsMax));
    }
    error_code ignored;
    batch.socket.close(ignored);
    url = capability::redirected(*url, *answer->location);
  }
  co_return std::unexpected(url.error());
}

// Looks the host up and connects to the first of its addresses that is allowed and takes it.
ImageFetcher::Awaitable<Expected<Unit>> ImageFetcher::connect(Batch& batch, const ImageUrl& url) {
  error_code problem;
  std::vector<tcp::endpoint> endpoints;
  if (const auto address = asio::ip::make_address(url.host, problem); !problem) {
    endpoints.emplace_back(address, url.port);
  } else {
    const auto found = co_await batch.resolver.async_resolve(url.host, std::to_string(url.port), tcp::resolver::numeric_service,
                                                             asio::redirect_error(asio::use_awaitable, problem));
    if (batch.has_ended()) co_return std::unexpected(given_up());
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());  // none: the name is not known
  }
  std::erase_if(endpoints, [&](const tcp::endpoint& end) { return !capability::is_allowed_at(url, end.address(), rules_); });
  if (endpoints.empty()) {
    // The same for a name that is not known: clients do not learn which names this machine's network has.
    co_return refuse(std::format("no public address of {} is known, and it is not among vision.url_hosts", url.authority()));
  }
  if (endpoints.size() > kAddressesMax) endpoints.resize(kAddressesMax);
  for (const tcp::endpoint& endpoint : endpoints) {
    batch.socket.close(problem);
    co_await batch.socket.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, problem));
    if (batch.has_ended()) co_return std::unexpected(given_up());
    if (!problem) co_return Unit{};
  }
  co_return refuse(std::format("{} cannot be connected to: {}", url.authority(), problem.message()));
}

ImageFetcher::Awaitable<Expected<ImageFetcher::Answer>> ImageFetcher::ask_securely(Batch& batch, const ImageUrl& url) {
  asio::ssl::stream<tcp::socket&> stream(batch.socket, tls_);
  error_code problem;
  (void)asio::ip::make_address(url.host, problem);
  if (problem) {  // it is a name, which the server may need to know
    std::string name = url.host;
    SSL_ctrl(stream.native_handle(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
  }
  stream.set_verify_callback(asio::ssl::host_name_verification(url.host), problem);
  co_await stream.async_handshake(asio::ssl::stream_base::client, asio::redirect_error(asio::use_awaitable, problem));
  if (problem) co_return refuse(std::format("{} is not who it should be: {}", url.authority(), problem.message()));
  co_return co_await ask(batch, stream, url);
}

template <class StreamT>
ImageFetcher::Awaitable<Expected<ImageFetcher::Answer>> ImageFetcher::ask(Batch& batch, StreamT& stream, const ImageUrl& url) {
  error_code problem;
  const std::string host = url.has_usual_port() ? url.authority().substr(0, url.authority().rfind(':')) : url.authority();
  const std::string request = std::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: umad\r\nAccept: image/png, image/jpeg, image/gif, image/bmp\r\n"
      "Accept-Encoding: identity\r\nConnection: close\r\n\r\n",
      url.target, host);
  co_await asio::async_write(stream, asio::buffer(request), asio::redirect_error(asio::use_awaitable, problem));
  const auto broken = [&] { return refuse(std::format("{} broke off: {}", url.authority(), problem.message())); };
  if (problem) co_return broken();

  http::response_parser<http::string_body> parser;
  parser.header_limit(kHeaderBytesMax);
  parser.body_limit(rules_.bytes_max);
  boost::beast::flat_buffer buffer(kHeaderBytesMax + 65'536);
  co_await http::async_read_header(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, problem));
  const auto too_long = [&] { return refuse(std::format("it has more than {} bytes", rules_.bytes_max)); };
  if (problem == http::error::body_limit) co_return too_long();
  if (problem) co_return broken();
  const auto& head = parser.get();
  constexpr std::array<unsigned, 5> kRedirects = {301, 302, 303, 307, 308};
  if (std::ranges::contains(kRedirects, head.result_int())) {
    if (head.count(http::field::location) != 1) co_return refuse("a redirect leads nowhere");
    co_return Answer{.location = std::string(head[http::field::location]), .body = {}};
  }
  if (head.result_int() != 200) {
    co_return refuse(std::format("{} answered with status {}", url.authority(), head.result_int()));
  }
  if (head.count(http::field::content_encoding) > 0 &&
      !boost::beast::iequals(head[http::field::content_encoding], "identity")) {
    co_return refuse("it came compressed, which was not asked for");
  }
  if (!batch.share.grow(parser.content_length().value_or(rules_.bytes_max))) {
    co_return fail(ErrorCode::limit_wait, std::format("images that are fetched hold {} of {} bytes: try again later",
                                                      budget_->bytes_used(), budget_->bytes_max()));
  }
  co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, problem));
  if (problem == http::error::body_limit) co_return too_long();
  if (problem == http::error::partial_message) co_return refuse("it ended before it was whole");
  if (problem) co_return broken();
  const auto body = std::as_bytes(std::span(parser.get().body()));
  co_return Answer{.location = std::nullopt, .body = Bytes(body.begin(), body.end())};
}

// --- Images of requests
// ---------------------------------------------------------------------------------------------------------

namespace {

const ImageSource* source_of(const ImageSource& image) {
  return &image;
}
const ImageSource* source_of(const InputImage& image) {
  return &image.source;
}
void set_source(ImageSource& image, ImageSource source) {
  image = std::move(source);
}
void set_source(InputImage& image, ImageSource source) {
  image.source = std::move(source);
}
std::string name_of(const ImageSource&, std::size_t index) {
  return std::format("images[{}]", index);
}
std::string name_of(const InputImage& image, std::size_t) {
  return image.field;
}

template <class ImageT>
std::vector<std::string> addresses(const std::vector<ImageT>& images) {
  std::vector<std::string> urls;
  for (const ImageT& image : images) {
    if (source_of(image)->kind == ImageSource::Kind::url) urls.push_back(source_of(image)->text);
  }
  return urls;
}

template <class ImageT>
Expected<Unit> put(std::vector<ImageT>& images, Fetched fetched) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (source_of(images[i])->kind != ImageSource::Kind::url) continue;
    if (!fetched && next == fetched.error().index) {
      Error error = std::move(fetched.error().error);
      const std::string name = name_of(images[i], i);
      if (!name.empty()) error.message = std::format("field \"{}\": {}", name, error.message);
      error.field = name;
      return std::unexpected(std::move(error));
    }
    if (fetched) {
      const Bytes& file = (*fetched)[next];
      set_source(images[i], {.kind = ImageSource::Kind::file,
                             .text = std::string(reinterpret_cast<const char*>(file.data()), file.size())});
    }
    ++next;
  }
  return Unit{};
}

}  // namespace

std::vector<std::string> urls_of(const std::vector<InputImage>& images) {
  return addresses(images);
}
std::vector<std::string> urls_of(const std::vector<ImageSource>& images) {
  return addresses(images);
}
Expected<Unit> put_fetched(std::vector<InputImage>& images, Fetched fetched) {
  return put(images, std::move(fetched));
}
Expected<Unit> put_fetched(std::vector<ImageSource>& images, Fetched fetched) {
  return put(images, std::move(fetched));
}

}  // namespace uma::engine
