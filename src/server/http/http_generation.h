// The output of one generation over HTTP, for every API: a sink whose events are written by an encoder.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/move_only_function.h"
#include "base/mutex.h"
#include "core/error.h"
#include "core/event.h"
#include "core/request.h"
#include "server/answer_bytes.h"
#include "server/awaitable.h"
#include "server/outbox.h"

namespace uma::server {

// Runs work that takes as long as its bytes where it delays no other tenant (Service::run_apart). Any thread.
using RunApart = std::function<void(std::size_t bytes, MoveOnlyFunction<void()> work)>;

// A random id of 16 hexadecimal digits for an answer, practically unique.
[[nodiscard]] std::string random_name();

// Writes the events of one generation, either as a stream (first events, texts, last events) or as one object. Used by one
// thread at a time.
class AnswerEncoder {
 public:
  virtual ~AnswerEncoder() = default;
  // Called before all other functions if the generation is a response.
  virtual void set_place(const ResponseBegunEvent&) {}
  // Called before append_first, unless the generation ends before its prompt is ready.
  virtual void set_prompt(const PromptReadyEvent&) {}
  virtual void append_first(std::string& out) = 0;
  virtual void append_text(std::string& out, const TokenEvent& token) = 0;
  // Called only if the request asked for parts.
  virtual void append_part(std::string& /*out*/, const ReplyPart& /*part*/) {}
  virtual void append_last(std::string& out, const EosEvent& eos) = 0;
  // Returns an empty string while other generations of the answer have not ended.
  [[nodiscard]] virtual std::string whole(const EosEvent& eos) = 0;
  // Called when the generation has failed, in place of whole(), or before append_last().
  virtual void note_failure(const EosEvent& /*eos*/) {}
  // About the size of what append_last(), whole() or note_failure() will write; called once before them. They are called apart
  // if it is large.
  [[nodiscard]] virtual std::size_t end_bytes(const EosEvent& eos) { return answer_bytes(eos); }
  // Appends an event that changes nothing, between append_first and append_last: clients end a stream that is silent for long.
  virtual void append_keep_alive(std::string& out) { out += ": keep-alive\n\n"; }
  // Like append_keep_alive(), before append_first.
  virtual void append_waiting(std::string& out) { out += ": waiting\n\n"; }
  // The id of the session that the generation is part of, after set_place(); empty: none.
  [[nodiscard]] virtual std::string session() const { return {}; }
  // The content type of the stream; static storage.
  [[nodiscard]] virtual std::string_view stream_type() const { return "text/event-stream"; }
};

// Where the output of a request's generations goes.
class GenerationOutput {
 public:
  virtual ~GenerationOutput() = default;
  // Called in place of write() if a generation failed before there was any output. `field` caused it; empty: none. Returns
  // whether the connection goes on.
  virtual Awaitable<bool> refuse(const Error& error, std::string_view field) = 0;
  // Writes whole events, or the whole answer. Returns whether the connection goes on.
  virtual Awaitable<bool> write(std::string bytes, bool is_last) = 0;
};

// One generation of a request, and the encoder for its part of the answer.
struct HttpGeneration {
  GenerateRequest request;
  std::vector<std::unique_ptr<AnswerEncoder>> encoders;
};

// Engine threads share ownership, so a sink may outlive the connection; its outbox is sealed then. The end of a generation may
// repeat the whole reply, and comes on a thread that all requests share: a long one is written apart, without the lock.
class GenerationSink final : public EventSink, public std::enable_shared_from_this<GenerationSink> {
 public:
  // `id` is the generation's id in the outbox. `apart` is null where every end is written at once. `share` is charged for a
  // whole answer that waits to be written; null: nothing is.
  GenerationSink(std::string id, std::shared_ptr<Outbox> outbox, std::unique_ptr<AnswerEncoder> encoder, bool stream,
                 RunApart apart = nullptr, RequestShare share = nullptr);

  bool deliver(const Event& event) override;

  // Appends something that keeps the stream alive, also before its first event. Any thread.
  void keep_alive();
  // The id of the session that the generation is part of; empty: none, or not known yet. Any thread.
  [[nodiscard]] std::string session();
  // The facts that are known of the prompt; nothing before it is ready. Any thread.
  [[nodiscard]] PromptReadyEvent prompt();

  // --- After the outbox said that the generation has ended.

  // The error of the generation, or null.
  [[nodiscard]] const Error* failure() const { return failed_ ? &*failed_->error : nullptr; }
  // Appends the end of a stream that failed. Requires failure().
  void append_failure(std::string& out) const { out += failure_; }
  // From now on the answer itself is counted.
  void give_back_share();

 private:
  // The end of the generation, which one thread writes: what precedes it in a stream, and who writes it.
  struct Ending {
    std::unique_ptr<AnswerEncoder> encoder;
    EosEvent eos;
    std::string bytes{};
    std::size_t bytes_max = 0;  // See AnswerEncoder::end_bytes().
  };

  [[nodiscard]] bool deliver_locked(const Event& event) REQUIRES_LOCK(mutex_);
  void begin_event() REQUIRES_LOCK(mutex_);
  bool send_event() REQUIRES_LOCK(mutex_);
  void begin(std::string& out) REQUIRES_LOCK(mutex_);
  [[nodiscard]] Ending take_ending(EosEvent eos) REQUIRES_LOCK(mutex_);
  void end(Ending ending);
  void write_end(Ending ending);
  void give_up(const Error& error);

  const std::string id_;
  const std::shared_ptr<Outbox> outbox_;
  const bool stream_;
  const RunApart apart_;
  const RequestShare answer_share_;
  Mutex mutex_;                                                // Locked before the outbox.
  std::unique_ptr<AnswerEncoder> encoder_ GUARDED_BY(mutex_);  // Null once the generation has ended.
  std::string session_ GUARDED_BY(mutex_);
  bool has_begun_ GUARDED_BY(mutex_) = false;       // The encoder has written the stream's first event.
  std::string refused_first_ GUARDED_BY(mutex_);    // That event, while the outbox has not taken it.
  std::string bytes_ GUARDED_BY(mutex_);            // The bytes of one event; keeps its memory.
  std::size_t first_bytes_ GUARDED_BY(mutex_) = 0;  // The part of bytes_ that is the first event.
  PromptReadyEvent prompt_ GUARDED_BY(mutex_);
  // --- Written before the outbox learns of the end, read after that.
  RequestShare share_;              // EosEvent::share, held until the answer is written.
  std::optional<EosEvent> failed_;  // Nullopt: it has not failed.
  std::string failure_;             // The end of a stream that failed.
};

}  // namespace uma::server
