#include "server/http/http_generation.h"

#include <format>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/random.h"
#include "core/work/promise.h"

namespace uma::server {

std::string random_name() {
  return std::format("{:016x}", secure_u64());
}

GenerationSink::GenerationSink(std::string id, std::shared_ptr<Outbox> outbox, std::unique_ptr<AnswerEncoder> encoder,
                               bool stream, RunApart apart, RequestShare share)
    : id_(std::move(id)),
      outbox_(std::move(outbox)),
      stream_(stream),
      apart_(std::move(apart)),
      answer_share_(std::move(share)),
      encoder_(std::move(encoder)) {}

bool GenerationSink::deliver(const Event& event) {
  Ending ending;
  {
    const MutexLock lock(mutex_);
    if (encoder_ == nullptr) return true;  // Nothing follows the end.
    if (const auto* eos = std::get_if<EosEvent>(&event)) {
      ending = take_ending(*eos);
    } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
      ending = take_ending({.reason = FinishReason::error, .usage = {}, .text = "", .error = failure->error});
    } else {
      return deliver_locked(event);
    }
  }
  end(std::move(ending));
  return true;
}

bool GenerationSink::deliver_locked(const Event& event) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    if (token->text.empty()) return true;
    begin_event();
    encoder_->append_text(bytes_, *token);
    return send_event();
  }
  if (const auto* part = std::get_if<ReplyPart>(&event)) {
    begin_event();
    encoder_->append_part(bytes_, *part);
    return send_event();
  }
  if (const auto* prompt = std::get_if<PromptReadyEvent>(&event)) {
    encoder_->set_prompt(*prompt);
    prompt_ = *prompt;
    if (!stream_) return true;
    begin_event();
    return send_event();
  }
  if (const auto* place = std::get_if<ResponseBegunEvent>(&event)) {
    encoder_->set_place(*place);
    session_ = encoder_->session();
  }
  return true;
}

// Writes what the stream begins with, unless the outbox has it.
void GenerationSink::begin(std::string& out) {
  out += std::exchange(refused_first_, {});
  if (!std::exchange(has_begun_, true)) encoder_->append_first(out);
}

// An event is written to bytes_ between begin_event() and send_event(). The encoder gets every event, also where the outbox
// takes no more: a response has other readers than this connection.
void GenerationSink::begin_event() {
  bytes_.clear();
  begin(bytes_);
  first_bytes_ = bytes_.size();
}

bool GenerationSink::send_event() {
  if (outbox_->append_unless_full([bytes = std::string_view(bytes_)](std::string& out) { out += bytes; })) return true;
  refused_first_ = bytes_.substr(0, first_bytes_);
  return false;
}

void GenerationSink::keep_alive() {
  const MutexLock lock(mutex_);
  if (encoder_ == nullptr) return;  // The end is being written.
  if (has_begun_) {
    begin_event();
    encoder_->append_keep_alive(bytes_);
  } else {
    bytes_.clear();
    encoder_->append_waiting(bytes_);
  }
  outbox_->append([bytes = std::string_view(bytes_)](std::string& out) { out += bytes; });
}

std::string GenerationSink::session() {
  const MutexLock lock(mutex_);
  return session_;
}

PromptReadyEvent GenerationSink::prompt() {
  const MutexLock lock(mutex_);
  return prompt_;
}

void GenerationSink::give_back_share() {
  share_ = nullptr;
  if (answer_share_ != nullptr) answer_share_->give_back();
}

// --- the end

GenerationSink::Ending GenerationSink::take_ending(EosEvent eos) {
  Ending ending{.encoder = nullptr, .eos = std::move(eos)};
  if (stream_) begin(ending.bytes);
  ending.bytes_max = encoder_->end_bytes(ending.eos);
  ending.encoder = std::move(encoder_);
  return ending;
}

void GenerationSink::end(Ending ending) {
  const std::size_t bytes = ending.bytes_max;
  if (bytes < kApartBytes || apart_ == nullptr) return write_end(std::move(ending));
  // The logprobs have a share, and so has a stream.
  if (!stream_ && answer_share_ != nullptr && ending.eos.share == nullptr && !ending.eos.error) {
    if (const auto held = answer_share_->grow(2 * bytes); !held) {
      ending.eos = {.reason = FinishReason::error, .usage = ending.eos.usage, .text = "", .error = held.error()};
    }
  }
  Promise<Unit> done([self = shared_from_this()](Expected<Unit> written) {
    if (!written) self->give_up(written.error());
  });
  apart_(bytes, [self = shared_from_this(), ending = std::move(ending), done = std::move(done)]() mutable {
    done(contain([&]() -> Expected<Unit> {
      self->write_end(std::move(ending));
      return Unit{};
    }));
  });
}

void GenerationSink::write_end(Ending ending) {
  AnswerEncoder& encoder = *ending.encoder;
  std::string bytes = std::move(ending.bytes);
  if (ending.eos.error) {
    encoder.note_failure(ending.eos);
    if (stream_) encoder.append_last(bytes, ending.eos);
    failure_ = std::exchange(bytes, {});
    failed_ = std::move(ending.eos);
  } else if (stream_) {
    encoder.append_last(bytes, ending.eos);
  } else {
    bytes = encoder.whole(ending.eos);
  }
  share_ = std::move(ending.eos.share);
  ending.encoder.reset();  // Its memory is free when the answer is counted.
  outbox_->append_last_answer(id_, std::move(bytes));
}

// Ends a generation whose end could not be written.
void GenerationSink::give_up(const Error& error) {
  failed_ = EosEvent{.reason = FinishReason::error, .usage = {}, .text = "", .error = error};
  outbox_->append_last_answer(id_, "");
}

}  // namespace uma::server
