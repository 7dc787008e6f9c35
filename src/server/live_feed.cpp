#include "server/live_feed.h"

#include <algorithm>
#include <chrono>
#include <format>
#include <string_view>

#include "base/system/thread_name.h"
#include "base/thrown.h"

namespace uma::server {
namespace {

// Lanes publish what they do within this time after they were asked. Clients that come one after the other get no sample
// sooner.
constexpr Duration kFirstSampleAfter = std::chrono::milliseconds(60);
// Without changes, a snapshot comes after this time as a sign of life.
constexpr Duration kSignOfLife = std::chrono::seconds(2);
// A sample may be a little early for a watcher with the same interval.
constexpr Duration kEarly = std::chrono::milliseconds(20);
// Samples whose calls are kept, for watchers that come less often than others.
constexpr std::size_t kPastMax = wire::LiveRequest::kIntervalMax / wire::LiveRequest::kIntervalMin + 2;
// How often calls are read at least: between two reads a thread must not record more spans than are kept (TraceTail). At 2,000
// spans a second it would be eight seconds.
constexpr Duration kReadEvery = std::chrono::seconds(2);

double unix_ms_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view lane_name(std::string_view thread) {
  constexpr std::string_view kPrefix = "uma-";
  return thread.starts_with(kPrefix) ? thread.substr(kPrefix.size()) : thread;
}

}  // namespace

LiveFeed::~LiveFeed() {
  close();
}

void LiveFeed::start() {
  thread_ = std::thread([this] {
    set_thread_name("uma-live");
    run();
  });
}

void LiveFeed::close() {
  std::vector<std::function<void()>> wakes;
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
    for (const auto& [watcher, wake] : watchers_) wakes.push_back(wake);
  }
  changed_.notify_all();
  for (const auto& wake : wakes) wake();
  if (thread_.joinable()) thread_.join();
}

Expected<std::unique_ptr<LiveWatcher>> LiveFeed::watch(wire::LiveAudience audience, wire::LiveRequest request,
                                                       std::function<void()> wake) {
  std::unique_ptr<LiveWatcher> watcher(new LiveWatcher(*this, std::move(audience), request));
  if (auto added = add(*watcher, std::move(wake)); !added) return std::unexpected(std::move(added.error()));
  changed_.notify_all();
  return watcher;
}

Expected<Unit> LiveFeed::add(const LiveWatcher& watcher, std::function<void()> wake) {
  const MutexLock lock(mutex_);
  if (is_closed_) return fail(ErrorCode::limit_wait, "the daemon is stopping and can no longer be watched");
  std::size_t count = 0;
  std::size_t of_tenant = 0;
  const bool is_administrator = watcher.audience_.is_administrator;
  for (const auto& [other, other_wake] : watchers_) {
    count += is_administrator || !other->audience_.is_administrator ? 1 : 0;
    of_tenant += other->audience_ == watcher.audience_ ? 1 : 0;
  }
  const std::size_t count_max = is_administrator ? kWatchersMax : kWatchersMax - kAdministratorPlaces;
  if (watchers_.size() >= kWatchersMax || count >= count_max || of_tenant >= kTenantWatchersMax) {
    return fail(ErrorCode::limit_wait,
                std::format("{} clients watch this daemon, {} of them of this tenant; the limits are {} and {}: close one",
                            count, of_tenant, count_max, kTenantWatchersMax));
  }
  watchers_.emplace(&watcher, std::move(wake));
  is_new_ = true;
  return Unit{};
}

void LiveFeed::remove(const LiveWatcher* watcher) {
  // Destroyed without the lock.
  std::function<void()> wake;
  std::shared_ptr<const Sample> old;
  const MutexLock lock(mutex_);
  if (const auto found = watchers_.find(watcher); found != watchers_.end()) {
    wake = std::move(found->second);
    watchers_.erase(found);
  }
  if (watchers_.empty()) old = std::exchange(latest_, nullptr);
}

std::shared_ptr<const LiveFeed::Sample> LiveFeed::latest() const {
  const MutexLock lock(mutex_);
  return latest_;
}

// --- The feed's thread

void LiveFeed::run() {
  for (Turn turn = next_turn(); !turn.is_last; turn = next_turn()) run_noting([&] { take_turn(turn); });
}

// Waits for the next thing to do.
LiveFeed::Turn LiveFeed::next_turn() {
  const MutexLock lock(mutex_);
  while (!is_closed_) {
    Turn turn{.now = clock_.now()};
    if (watchers_.empty()) sample_due_ = kNever;
    if (std::exchange(is_new_, false) && !watchers_.empty()) {
      turn.begins = sample_due_ == kNever;
      const TimePoint soon = (turn.begins ? turn.now : sampled_at_) + kFirstSampleAfter;
      sample_due_ = std::min(sample_due_, std::max(turn.now, soon));
    }
    turn.samples = turn.now >= sample_due_;
    if (turn.samples) sampled_at_ = turn.now;
    turn.adds_point = turn.now >= history_due_;
    if (turn.samples) sample_due_ = turn.now + period();
    if (turn.adds_point) history_due_ = turn.now + LiveHistory::kStep;
    for (const auto& [watcher, wake] : watchers_) turn.audiences.insert(watcher->audience_);
    const bool reads = turn.now >= read_due_;
    if (turn.begins || turn.samples || turn.adds_point || reads) {
      read_due_ = turn.now + kReadEvery;
      return turn;
    }
    changed_.wait_until(mutex_, std::min({history_due_, sample_due_, read_due_}));
  }
  return {.is_last = true};
}

Duration LiveFeed::period() const {
  Duration period = wire::LiveRequest::kIntervalMax;
  for (const auto& [watcher, wake] : watchers_) period = std::min<Duration>(period, watcher->request_.interval);
  return period;
}

void LiveFeed::take_turn(const Turn& turn) {
  read_calls();
  if (turn.begins) (void)service_.activity();  // From now on the lanes say what they do.
  if (turn.begins || turn.audiences.empty()) {
    calls_.clear();
    calls_left_out_ = 0;
  }
  if (!turn.samples && !turn.adds_point) return;
  // After the calls were read, so that none of them begins after the snapshot.
  const wire::LiveMoment moment{.at = clock_.now(), .unix_ms = unix_ms_now()};
  wire::LiveState state{.moment = moment, .metrics = service_.metrics(), .activity = {}, .models = {}};
  if (turn.adds_point) {
    const MutexLock lock(mutex_);
    history_.add(turn.now, state.moment.unix_ms, state.metrics, std::exchange(pause_ms_, std::nullopt));
  }
  if (!turn.samples) return;
  state.activity = service_.activity();
  state.models = service_.models();
  publish(state, turn.audiences);
}

void LiveFeed::read_calls() {
  tail_.read([&](const std::string& thread, const std::string& owner, const TraceSpan& span) {
    if (!wire::is_live_call(*span.kind)) return;
    if (const auto pause_ms = wire::pause_ms_of(span)) pause_ms_ = std::max(pause_ms_.value_or(0), *pause_ms);
    calls_.push_back({.lane = std::string(lane_name(thread)), .model = owner, .span = span});
  });
  calls_left_out_ += wire::keep_longest_calls(calls_);
}

void LiveFeed::publish(const wire::LiveState& state, const std::set<wire::LiveAudience>& audiences) {
  const std::shared_ptr<const Sample> before = latest();
  const auto sample = std::make_shared<Sample>();
  const auto calls = std::make_shared<Calls>();
  sample->number = calls->number = ++number_;
  sample->moment = state.moment;
  calls->calls = std::exchange(calls_, {});
  calls->left_out = std::exchange(calls_left_out_, 0);
  const bool has_calls = !calls->calls.empty();
  sample->calls = wire::live_calls_text(calls->calls, calls->left_out, state.moment);
  if (before) sample->past = before->past;
  sample->past.push_back(calls);
  if (sample->past.size() > kPastMax) sample->past.pop_front();
  for (const wire::LiveAudience& audience : audiences) {
    Page& page = sample->pages[audience];
    page.text = std::make_shared<const wire::LiveText>(wire::live_text(state, audience));
    page.changed = sample->number;
    if (!before || has_calls) continue;
    const auto last = before->pages.find(audience);
    if (last != before->pages.end() && last->second.text->body == page.text->body) page.changed = last->second.changed;
  }
  std::vector<std::function<void()>> wakes;
  {
    const MutexLock lock(mutex_);
    if (!watchers_.empty()) latest_ = sample;
    for (const auto& [watcher, wake] : watchers_) wakes.push_back(wake);
  }
  for (const auto& wake : wakes) wake();
}

// --- A watcher

LiveWatcher::News LiveWatcher::take() {
  News news;
  std::vector<wire::LivePoint> points;
  std::shared_ptr<const LiveFeed::Sample> sample;
  const bool wants_history = !std::exchange(has_history_, true);
  {
    const MutexLock lock(feed_.mutex_);
    news.is_end = feed_.is_closed_;
    sample = feed_.latest_;
    if (wants_history) points = feed_.history_.last(feed_.clock_.now(), request_.history);
  }
  if (wants_history) news.history = wire::history_json(points);
  if (!sample || sample->number == seen_) return news;
  const auto page = sample->pages.find(audience_);
  if (page == sample->pages.end()) return news;  // It was made before this watcher came.
  const Duration wanted_after =
      page->second.changed > seen_ ? Duration(request_.interval) : std::max<Duration>(request_.interval, kSignOfLife);
  if (seen_ != 0 && sample->moment.at - taken_at_ + kEarly < wanted_after) return news;
  news.snapshot = write(*sample, page->second);
  seen_ = sample->number;
  taken_at_ = sample->moment.at;
  return news;
}

std::string LiveWatcher::write(const LiveFeed::Sample& sample, const LiveFeed::Page& page) const {
  std::string out;
  if (seen_ == 0 || seen_ + 1 == sample.number) {
    wire::append_snapshot(out, *page.text, sample.calls);
    return out;
  }
  std::vector<wire::LiveCall> calls;
  std::size_t left_out = 0;
  for (const auto& past : sample.past) {
    if (past->number <= seen_) continue;
    calls.insert(calls.end(), past->calls.begin(), past->calls.end());
    left_out += past->left_out;
  }
  wire::append_snapshot(out, *page.text, wire::live_calls_text(calls, left_out, sample.moment));
  return out;
}

}  // namespace uma::server
