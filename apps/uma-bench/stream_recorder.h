// Fills a StreamRecord from the events of one generation; used by the clients of both protocols.
#pragma once

#include "uma-bench/client.h"
#include "uma-bench/events.h"
#include "uma-bench/measure.h"

namespace uma::bench {

class StreamRecorder {
 public:
  StreamRecorder(const Job& job, double start_ms) : job_(job) {
    record_.session_id = job.session_id;
    record_.interactive = job.interactive;
    record_.start_ms = start_ms;
  }

  void add(const ServerEvent& event, double arrived_ms) {
    record_.end_ms = arrived_ms;
    if (event.usage) {
      record_.prompt_tokens = event.usage->prompt_tokens;
      record_.reused_tokens = event.usage->reused_tokens;
      record_.completion_tokens = event.usage->completion_tokens;
    }
    if (event.is_token) {
      record_.token_ms.push_back(arrived_ms);
      record_.reply += event.text;
      if (job_.on_token) {
        job_.on_token();
      }
    }
  }

  void fail(Failure failure, double now_ms) {
    record_.failure = std::move(failure);
    record_.end_ms = now_ms;
    record_.completion_tokens = static_cast<int>(record_.token_ms.size());
  }

  // An answer shorter than requested would make the server look fast.
  [[nodiscard]] StreamRecord take() {
    if (!record_.failure && record_.completion_tokens != job_.tokens) {
      record_.failure = Failure{Failure::Kind::server, "generated " + std::to_string(record_.completion_tokens) + " of " +
                                                           std::to_string(job_.tokens) + " tokens"};
    }
    return std::move(record_);
  }

 private:
  const Job& job_;
  StreamRecord record_;
};

}  // namespace uma::bench
