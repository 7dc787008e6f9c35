#include "server/http/http_generation.h"

#include <format>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/random.h"

namespace uma::server {

std::string random_name() {
  return std::format("{:016x}", secure_u64());
}

GenerationSink::GenerationSink(std::string id, std::shared_ptr<Outbox> outbox, std::unique_ptr<AnswerEncoder> encoder,
                               bool stream)
    : id_(std::move(id)), outbox_(std::move(outbox)), stream_(stream), encoder_(std::move(encoder)) {}

bool GenerationSink::deliver(const Event& event) {
  const MutexLock lock(mutex_);
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
  } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
    end(*eos);
  } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
    end({.reason = FinishReason::error, .usage = {}, .text = "", .error = failure->error});
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
  return encoder_->session();
}

PromptReadyEvent GenerationSink::prompt() {
  const MutexLock lock(mutex_);
  return prompt_;
}

void GenerationSink::append_failure(std::string& out) {
  const MutexLock lock(mutex_);
  begin(out);
  encoder_->append_last(out, *failed_);
}

void GenerationSink::end(const EosEvent& eos) {
  std::string bytes;
  if (eos.error) {
    failed_ = eos;
    encoder_->note_failure(eos);
  } else if (stream_) {
    begin(bytes);
    encoder_->append_last(bytes, eos);
  } else {
    bytes = encoder_->whole(eos);
  }
  share_ = eos.share;
  outbox_->append_last(id_, [&](std::string& out) { out += bytes; });
}

}  // namespace uma::server
