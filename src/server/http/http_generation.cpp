#include "server/http/http_generation.h"

#include <format>
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
    return append([&](std::string& out) { encoder_->append_text(out, *token); });
  }
  if (const auto* part = std::get_if<ReplyPart>(&event)) {
    return append([&](std::string& out) { encoder_->append_part(out, *part); });
  }
  if (const auto* prompt = std::get_if<PromptReadyEvent>(&event)) {
    encoder_->set_prompt(*prompt);
    return !stream_ || append([](std::string&) {});
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

// Appends to the stream, which begins with its first event.
template <class WriteT>
bool GenerationSink::append(WriteT&& write) {
  return outbox_->append_unless_full([&](std::string& out) {
    if (!std::exchange(has_begun_, true)) encoder_->append_first(out);
    write(out);
  });
}

void GenerationSink::keep_alive() {
  const MutexLock lock(mutex_);
  outbox_->append([&](std::string& out) {
    if (has_begun_) {
      encoder_->append_keep_alive(out);
    } else {
      encoder_->append_waiting(out);
    }
  });
}

void GenerationSink::append_failure(std::string& out) {
  const MutexLock lock(mutex_);
  if (!std::exchange(has_begun_, true)) encoder_->append_first(out);
  encoder_->append_last(out, *failed_);
}

void GenerationSink::end(const EosEvent& eos) {
  // Encoded before the outbox is locked.
  std::string bytes;
  if (eos.error) {
    failed_ = eos;
    encoder_->note_failure(eos);
  } else if (stream_) {
    if (!std::exchange(has_begun_, true)) encoder_->append_first(bytes);
    encoder_->append_last(bytes, eos);
  } else {
    bytes = encoder_->whole(eos);
  }
  share_ = eos.share;
  outbox_->append_last(id_, [&](std::string& out) { out += bytes; });
}

}  // namespace uma::server
