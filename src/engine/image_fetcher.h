// Fetches the images that requests name by a URL, over http and https (docs/decisions/0034). One thread ("uma-fetch") does all
// of it, so that neither the router nor who encodes images waits for somebody's server. What is asked, and where:
// capability/image_url.h, for every redirect anew and for the very address that is connected to. No proxy, no cookie, no name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>

#include "base/byte_budget.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "capability/image_url.h"
#include "core/error.h"
#include "core/image.h"
#include "core/tenant_budget.h"

namespace uma::engine {

// Which one of several failed.
struct FetchFailure {
  std::size_t index = 0;
  Error error;
};
using Fetched = std::expected<std::vector<Bytes>, FetchFailure>;

class ImageFetcher {
 public:
  using Done = std::move_only_function<void(Fetched)>;

  // What is fetched and not yet given away takes `bytes_max` at most.
  ImageFetcher(ImageUrlRules rules, std::uint64_t bytes_max);
  // As stop().
  ~ImageFetcher();

  // Any thread. Fetches the files, one after the other, and calls `done` once, on the fetcher's thread or at once; not any more
  // when `stop` was requested before. All of them take a minute at most. Errors: E_PROTO_003 for a URL that may not be asked
  // for or gave no file; E_LIMIT_003 where too many are being fetched, of all or for the tenant, and past the deadline.
  void fetch(const TenantId& tenant, std::vector<std::string> urls, TimePoint deadline, std::stop_token stop, Done done);
  // Not the fetcher's thread. Ends what runs with E_LIMIT_003. A name that is being looked up is waited for.
  void stop();

 private:
  class Batch;
  template <class T>
  using Awaitable = boost::asio::awaitable<T>;
  struct Answer;
  using BatchPtr = std::shared_ptr<Batch>;  // shared: by its coroutine and who may cancel it

  Awaitable<void> run(BatchPtr batch);
  Awaitable<Expected<Bytes>> fetch_one(Batch& batch, const std::string& text);
  Awaitable<Expected<Unit>> connect(Batch& batch, const capability::ImageUrl& url);
  template <class StreamT>
  Awaitable<Expected<Answer>> ask(Batch& batch, StreamT& stream, const capability::ImageUrl& url);
  Awaitable<Expected<Answer>> ask_securely(Batch& batch, const capability::ImageUrl& url);

  const ImageUrlRules rules_;
  const std::shared_ptr<TenantBudget> requests_;  // how many; shared with them
  const std::shared_ptr<ByteBudget> budget_;      // shared with what is being fetched
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::ssl::context tls_;
  Mutex mutex_;
  bool is_closed_ GUARDED_BY(mutex_) = false;  // what is posted runs in any case
  std::set<BatchPtr> batches_;                 // the fetcher's thread
  std::thread thread_;
};

// Whether images of the input are to be fetched, their addresses, and what came in their place. Errors: E_PROTO_003 with the
// field.
[[nodiscard]] std::vector<std::string> urls_of(const std::vector<InputImage>& images);
[[nodiscard]] Expected<Unit> put_fetched(std::vector<InputImage>& images, Fetched fetched);
[[nodiscard]] std::vector<std::string> urls_of(const std::vector<ImageSource>& images);
[[nodiscard]] Expected<Unit> put_fetched(std::vector<ImageSource>& images, Fetched fetched);

}  // namespace uma::engine
