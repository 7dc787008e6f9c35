// Holds back the events of a reply until the reply's input is on disk: a client never reads a reply to input that a crash can
// lose. The router's thread calls release(), the lane's calls deliver().
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "core/event.h"

namespace uma::engine {

class HeldSink final : public EventSink {
 public:
  explicit HeldSink(std::shared_ptr<EventSink> client) : client_(std::move(client)) {}

  bool deliver(const Event& event) override {
    const MutexLock lock(mutex_);
    if (is_released_) return forward(event);
    held_.push_back(Held{.event = event, .text = {}, .logprobs = {}});
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      held_.back().text = token->text;
      held_.back().logprobs.assign(token->logprobs.begin(), token->logprobs.end());
    }
    return true;
  }

  // Sends the held events to the client; later events are sent at once.
  void release() {
    const MutexLock lock(mutex_);
    for (Held& held : held_) {
      if (auto* token = std::get_if<TokenEvent>(&held.event)) {
        token->text = held.text;
        token->logprobs = held.logprobs;
      }
      (void)forward(held.event);
    }
    held_.clear();
    is_released_ = true;
  }

  // Drops the held events. The client gets no later ones.
  void close() {
    const MutexLock lock(mutex_);
    held_.clear();
    is_released_ = true;
    keeps_up_ = false;
  }

  // False: the client has refused an event, and gets no later ones.
  [[nodiscard]] bool keeps_up() const {
    const MutexLock lock(mutex_);
    return keeps_up_;
  }

 private:
  [[nodiscard]] bool forward(const Event& event) REQUIRES_LOCK(mutex_) {
    keeps_up_ = keeps_up_ && client_->deliver(event);
    return keeps_up_;
  }

  // An event, with copies of the data that a TokenEvent only refers to.
  struct Held {
    Event event;
    std::string text;
    std::vector<TokenLogprobs> logprobs;
  };

  const std::shared_ptr<EventSink> client_;  // Shared with the listener and the request.
  mutable Mutex mutex_;
  bool is_released_ GUARDED_BY(mutex_) = false;
  bool keeps_up_ GUARDED_BY(mutex_) = true;
  std::vector<Held> held_ GUARDED_BY(mutex_);
};

// After the scope the client gets no events of the sink.
class HeldSinkScope {
 public:
  HeldSinkScope() = default;
  explicit HeldSinkScope(std::shared_ptr<HeldSink> sink) : sink_(std::move(sink)) {}
  HeldSinkScope(HeldSinkScope&&) = default;
  HeldSinkScope& operator=(HeldSinkScope&&) = default;
  ~HeldSinkScope() {
    if (sink_) sink_->close();
  }
  [[nodiscard]] const std::shared_ptr<HeldSink>& sink() const { return sink_; }

 private:
  std::shared_ptr<HeldSink> sink_;  // Shared with the lane and the task that stores the input; null: nothing is held.
};

}  // namespace uma::engine
