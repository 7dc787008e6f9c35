#include "llm/device/device_timer.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "llm/device/devices.h"
#include "llm/device/llama_rpc.h"

namespace uma::llm {
namespace {

struct ProcessTimes {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<BusyTime>> by_device GUARDED_BY(mutex);
};

// Never freed: threads may compute until the process ends.
ProcessTimes& process_times() {
  static auto* const times = new ProcessTimes();
  return *times;
}

}  // namespace

void BusyTime::advance(TimePoint now) {
  now = std::max(now, last_);
  if (running_ > 0) busy_ += now - last_;
  last_ = now;
  if (now - newest_.at >= kWindow) oldest_ = std::exchange(newest_, {.at = now, .busy = busy_});
}

void BusyTime::begin(TimePoint now) {
  const MutexLock lock(mutex_);
  advance(now);
  ++running_;
}

void BusyTime::end(TimePoint now) {
  const MutexLock lock(mutex_);
  UMA_CHECK(running_ > 0);
  advance(now);
  --running_;
}

BusyTime::Reading BusyTime::read(TimePoint now) {
  const MutexLock lock(mutex_);
  advance(now);
  const double passed_ms = to_ms(now - oldest_.at);
  return {.busy_s = to_ms(busy_) / 1000, .ratio = passed_ms > 0 ? to_ms(busy_ - oldest_.busy) / passed_ms : 0};
}

DeviceTimer::DeviceTimer(DeviceList devices) {
  ProcessTimes& times = process_times();
  const MutexLock lock(times.mutex);
  for (ggml_backend_dev_t device : devices) {
    std::shared_ptr<BusyTime>& time = times.by_device[device_name(device)];
    if (time == nullptr) time = std::make_shared<BusyTime>(SteadyClock().now());
    times_.push_back(time);
  }
}

DeviceTimer::Call::Call(const std::vector<std::shared_ptr<BusyTime>>& times) : times_(times) {
  for (const auto& time : times_) time->begin(SteadyClock().now());
}

DeviceTimer::Call::~Call() {
  for (const auto& time : times_) time->end(SteadyClock().now());
}

std::vector<DeviceBusy> device_busy() {
  std::vector<DeviceBusy> all;
  ProcessTimes& times = process_times();
  const MutexLock lock(times.mutex);
  for (const auto& [device, time] : times.by_device) {
    const BusyTime::Reading reading = time->read(SteadyClock().now());
    all.push_back({.name = device, .busy_s = reading.busy_s, .ratio = reading.ratio, .is_used = time.use_count() > 1});
  }
  return all;
}

}  // namespace uma::llm
