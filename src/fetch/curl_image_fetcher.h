// Fetches images by http and https with libcurl (docs/decisions/0034, 0049). One thread ("uma-fetch") does all the work, so
// that neither the router nor the image encoder waits for another server. fetch/image_url.h decides which URLs and addresses
// are allowed, for every redirect and for the actual address of each connection. Requests do not identify the client: no proxy,
// no cookies, no user agent.
#pragma once

#include <cstdint>
#include <curl/curl.h>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "core/image.h"
#include "core/image_fetcher.h"
#include "core/work/tenant_budget.h"

namespace uma::fetch {

class CurlImageFetcher final : public ImageFetcher {
 public:
  // Fetched files that are not delivered yet take at most `bytes_max`. Certificates are checked against those of the system, or
  // against the files in SSL_CERT_FILE and SSL_CERT_DIR.
  CurlImageFetcher(ImageUrlRules rules, std::uint64_t bytes_max);
  // Calls stop().
  ~CurlImageFetcher() override;

  void fetch(const TenantId& tenant, std::vector<std::string> urls, TimePoint deadline, std::stop_token stop,
             Done done) override;
  void stop() override;

 private:
  class Batch;
  struct FreeMulti {
    void operator()(CURLM* multi) const {
      curl_multi_cleanup(multi);
      curl_global_cleanup();
    }
  };

  void run();
  // False: the fetcher is stopped.
  [[nodiscard]] bool take_arrivals();
  [[nodiscard]] int sweep();
  void give_up_all(const Error& error);
  template <class Step>
  void advance(Batch& batch, Step step);

  const ImageUrlRules rules_;
  const std::shared_ptr<TenantBudget> requests_;  // The number of requests; shared with them.
  const std::shared_ptr<ByteBudget> budget_;      // Shared with the running transfers.
  const std::unique_ptr<CURLM, FreeMulti> multi_;
  std::vector<std::unique_ptr<Batch>> batches_;  // Owned by the fetcher's thread.
  Mutex mutex_;
  std::vector<std::unique_ptr<Batch>> arrivals_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;  // The fetcher's thread ends earlier batches.
  std::thread thread_;
};

}  // namespace uma::fetch
