// The way back of one generation over HTTP, whatever the API: a sink that has its events written by an encoder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/event.h"
#include "core/request.h"
#include "core/service.h"
#include "server/outbox.h"

namespace uma::server {

// Names an answer among all of all time, well enough: 16 hexadecimal digits.
[[nodiscard]] std::string random_name();

// Of the one that answers.
[[nodiscard]] std::string model_name(const Service& service, const std::string& asked);

// Writes the events of one generation: as a stream (the first ones, text as often as there is some, the last ones) or as one
// object. Used by one thread at a time.
class AnswerEncoder {
 public:
  virtual ~AnswerEncoder() = default;
  // Before all other calls, where the generation is a response.
  virtual void set_place(const ResponseBegunEvent&) {}
  virtual void append_first(std::string& out) = 0;
  virtual void append_text(std::string& out, const TokenEvent& token) = 0;
  // Only where the request asked for parts.
  virtual void append_part(std::string& /*out*/, const ReplyPart& /*part*/) {}
  virtual void append_last(std::string& out, const EosEvent& eos) = 0;
  // Empty where other generations of the answer have not ended.
  [[nodiscard]] virtual std::string whole(const EosEvent& eos) = 0;
};

// What is generated for a prompt of a request, and how the part of the answer is written that each generation is.
struct HttpGeneration {
  GenerateRequest request;
  std::vector<std::unique_ptr<AnswerEncoder>> encoders;
};

// Engine threads own it too, and may outlive the connection: then the outbox is sealed.
class GenerationSink final : public EventSink {
 public:
  // `id` is what the outbox calls the generation when it has ended.
  GenerationSink(std::string id, std::shared_ptr<Outbox> outbox, std::unique_ptr<AnswerEncoder> encoder, bool stream);

  bool deliver(const Event& event) override;

  // --- After the outbox said that the generation has ended.

  // What went wrong; null: nothing did.
  [[nodiscard]] const Error* failure() const { return failed_ ? &*failed_->error : nullptr; }
  // The end of a stream that this failure cuts. Requires a failure.
  void append_failure(std::string& out) { encoder_->append_last(out, *failed_); }

 private:
  void end(const EosEvent& eos);

  const std::string id_;
  const std::shared_ptr<Outbox> outbox_;
  const std::unique_ptr<AnswerEncoder> encoder_;  // the engine's, which delivers one event at a time, until the end
  const bool stream_;
  bool has_text_ = false;           // likewise
  std::optional<EosEvent> failed_;  // written before the outbox hears of the end, read after
};

}  // namespace uma::server
