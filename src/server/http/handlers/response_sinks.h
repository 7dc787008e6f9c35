// How the events of a response reach its readers: those of the request that began it (ResponseWriter), or nobody's but those
// who ask for them (BackgroundSink). Both keep the events in the response's log.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "core/event.h"
#include "core/ids.h"
#include "core/work/promise.h"
#include "core/work/tenant_budget.h"
#include "server/http/handlers/live_responses.h"
#include "server/http/http_generation.h"
#include "server/server_state.h"
#include "wire/openai/response_encoder.h"

namespace uma::server {

// Writes a response for the connection that waits for it. One that is part of a session can be read by others meanwhile; if it
// is not a stream, they get its items at its end.
class ResponseWriter final : public AnswerEncoder {
 public:
  ResponseWriter(wire::ResponseEncoder encoder, std::shared_ptr<LiveResponses> live, TenantId tenant, bool is_stream)
      : live_(std::move(live)), tenant_(std::move(tenant)), is_stream_(is_stream), encoder_(std::move(encoder)) {}
  ~ResponseWriter() override { leave(); }
  ResponseWriter(const ResponseWriter&) = delete;
  ResponseWriter& operator=(const ResponseWriter&) = delete;

  void set_place(const ResponseBegunEvent& place) override;
  void append_first(std::string& out) override;
  void append_text(std::string& out, const TokenEvent& token) override;
  void append_part(std::string& out, const ReplyPart& part) override;
  void append_last(std::string& out, const EosEvent& eos) override;
  std::string whole(const EosEvent& eos) override;
  [[nodiscard]] std::string session() const override { return encoder_.session(); }
  // Codex counts events, not comments, as signs of life.
  void append_keep_alive(std::string& out) override;
  void note_failure(const EosEvent& eos) override { end_for_others(eos); }
  // The last event repeats the whole reply.
  std::size_t end_bytes(const EosEvent& eos) override { return answer_bytes(eos) + encoder_.bytes() + reply_bytes_; }

 private:
  template <class WriteT>
  void append(std::string& out, WriteT&& write);
  void end_for_others(const EosEvent& eos);
  void leave();

  const std::shared_ptr<LiveResponses> live_;  // Shared with the server.
  const TenantId tenant_;
  const bool is_stream_;
  wire::ResponseEncoder encoder_;
  std::optional<wire::ResponseEncoder> streamed_;  // The encoder of the log, if the answer is not a stream.
  bool has_first_ = false;                         // The first event was written.
  std::size_t reply_bytes_ = 0;                    // Texts of the stream so far.
  std::shared_ptr<ReplyLog> log_;                  // Null: others do not see the response.
};

struct BegunResponse {
  std::string session;  // Its id; empty: the response is part of none.
  std::string json;
};

// A response without a connection. `on_begun` gets the response as soon as it has a place, or the error that it ended with
// before.
class BackgroundSink final : public EventSink, public std::enable_shared_from_this<BackgroundSink> {
 public:
  // Until the generation has ended, `busy` counts it, and `share` is charged for it. A long end is written by `apart`.
  BackgroundSink(std::shared_ptr<LiveResponses> live, std::shared_ptr<ReplyLog> log, std::shared_ptr<BusyCount> busy,
                 RequestShare share, TenantId tenant, wire::ResponseEncoder encoder, RunApart apart,
                 Promise<BegunResponse> on_begun);
  ~BackgroundSink() override {
    log_->end();  // Also where its terminal event could not be written.
    busy_->add(-1);
  }
  BackgroundSink(const BackgroundSink&) = delete;
  BackgroundSink& operator=(const BackgroundSink&) = delete;

  bool deliver(const Event& event) override;

 private:
  template <class WriteT>
  void append(WriteT&& write);
  void begin(const ResponseBegunEvent& place);
  void end(EosEvent eos);
  void write_end(const EosEvent& eos);

  const std::shared_ptr<LiveResponses> live_;  // Shared with the server.
  const std::shared_ptr<ReplyLog> log_;        // Shared with the readers.
  const std::shared_ptr<BusyCount> busy_;      // Shared with the server.
  const RequestShare share_;
  const TenantId tenant_;
  wire::ResponseEncoder encoder_;
  const RunApart apart_;
  Promise<BegunResponse> on_begun_;
  std::size_t reply_bytes_ = 0;  // Texts of the reply so far.
  std::string bytes_;            // Empty between events; keeps its memory.
  bool has_begun_ = false;
};

}  // namespace uma::server
