// The view of people who watch the daemon: samples of its state, made by a thread of its own ("uma-live") and shared by all who
// watch, on both servers. While nobody watches it looks at the counters every ten seconds, for the history, and no lane makes
// anything for it.
//
// Thread-safe. Invariants: (1) Each sample is written once for each audience, however many watch. (2) A watcher gets the newest
// sample or none: nothing is queued for it. (3) Lanes and servers wait for this object for a copy of pointers at most.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "core/error.h"
#include "core/service.h"
#include "server/live_history.h"
#include "wire/own/live_json.h"

namespace uma::server {

class LiveWatcher;

class LiveFeed {
 public:
  static constexpr std::size_t kWatchersMax = 128;
  static constexpr std::size_t kTenantWatchersMax = 32;    // Watchers of one tenant; its administrators count apart.
  static constexpr std::size_t kAdministratorPlaces = 16;  // Part of kWatchersMax, for administrators only.

  // `service` outlives the feed.
  explicit LiveFeed(Service& service) : service_(service) {}
  ~LiveFeed();
  LiveFeed(const LiveFeed&) = delete;
  LiveFeed& operator=(const LiveFeed&) = delete;

  // Starts the thread.
  void start();
  // Ends the thread and tells all watchers that it is over.
  void close();
  // Begins to watch. `wake` is called, from any thread and without a lock, when LiveWatcher::take() may have something. The
  // feed outlives the watcher. Errors: E_LIMIT_003 beyond the limits above, or after close().
  [[nodiscard]] Expected<std::unique_ptr<LiveWatcher>> watch(wire::LiveAudience audience, wire::LiveRequest request,
                                                             std::function<void()> wake);

 private:
  friend class LiveWatcher;

  // The calls of one sample. Shared by the samples that follow, for watchers that come less often.
  struct Calls {
    std::uint64_t number = 0;
    std::vector<wire::LiveCall> calls;  // The longest ones.
    std::size_t left_out = 0;
  };
  // The part of a sample that one audience sees.
  struct Page {
    std::shared_ptr<const wire::LiveText> text;  // Shared by the watchers that write it.
    std::uint64_t changed = 0;                   // The number of the last sample that differs from the one before.
  };
  struct Sample {
    std::uint64_t number = 0;
    wire::LiveMoment moment;
    std::map<wire::LiveAudience, Page> pages;
    std::string calls;                              // Calls since the last sample.
    std::deque<std::shared_ptr<const Calls>> past;  // Calls of this sample and of earlier ones.
  };
  // The work that the thread has to do.
  struct Turn {
    bool is_last = false;
    bool begins = false;  // Somebody watches, and nobody did before.
    bool samples = false;
    bool adds_point = false;
    TimePoint now{};
    std::set<wire::LiveAudience> audiences{};
  };
  void run();
  [[nodiscard]] Turn next_turn();
  void take_turn(const Turn& turn);
  void read_calls();
  void publish(const wire::LiveState& state, const std::set<wire::LiveAudience>& audiences);
  [[nodiscard]] std::shared_ptr<const Sample> latest() const;
  [[nodiscard]] Duration period() const REQUIRES_LOCK(mutex_);
  [[nodiscard]] Expected<Unit> add(const LiveWatcher& watcher, std::function<void()> wake);
  void remove(const LiveWatcher* watcher);

  Service& service_;
  const SteadyClock clock_;

  std::thread thread_;  // Owned by the thread that calls start() and close().

  // Owned by the feed's thread.
  TraceTail tail_;
  std::vector<wire::LiveCall> calls_;  // The longest since the last sample.
  std::size_t calls_left_out_ = 0;     // The others.
  std::optional<double> pause_ms_;     // The longest since the last point of the history.
  std::uint64_t number_ = 0;           // Number of the last sample.
  TimePoint read_due_{};
  TimePoint history_due_ = clock_.now();
  TimePoint sample_due_ = kNever;  // kNever: nobody watches.
  TimePoint sampled_at_{};

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<const LiveWatcher*, std::function<void()>> watchers_ GUARDED_BY(mutex_);
  std::shared_ptr<const Sample> latest_ GUARDED_BY(mutex_);  // Shared with readers; null: nobody watches.
  LiveHistory history_ GUARDED_BY(mutex_);
  bool is_new_ GUARDED_BY(mutex_) = false;  // A watcher has come since the last sample.
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

// One client that watches. Used by one thread, which calls take() after each wake-up.
class LiveWatcher {
 public:
  ~LiveWatcher() { feed_.remove(this); }
  LiveWatcher(const LiveWatcher&) = delete;
  LiveWatcher& operator=(const LiveWatcher&) = delete;

  // JSON values that are to be written now. Empty texts: there is nothing new.
  struct News {
    std::string history;
    std::string snapshot;
    bool is_end = false;  // The daemon stops: nothing more will come.
  };
  [[nodiscard]] News take();

 private:
  friend class LiveFeed;
  LiveWatcher(LiveFeed& feed, wire::LiveAudience audience, wire::LiveRequest request)
      : feed_(feed), audience_(std::move(audience)), request_(request) {}

  [[nodiscard]] std::string write(const LiveFeed::Sample& sample, const LiveFeed::Page& page) const;

  LiveFeed& feed_;
  const wire::LiveAudience audience_;
  const wire::LiveRequest request_;
  bool has_history_ = false;
  std::uint64_t seen_ = 0;  // The number of the last sample that was taken; 0: none.
  TimePoint taken_at_{};    // When that was made.
};

}  // namespace uma::server
