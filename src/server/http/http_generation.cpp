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
    : id_(std::move(id)), outbox_(std::move(outbox)), encoder_(std::move(encoder)), stream_(stream) {}

bool GenerationSink::deliver(const Event& event) {
  const auto* token = std::get_if<TokenEvent>(&event);
  const auto* part = std::get_if<ReplyPart>(&event);
  if (token != nullptr && token->text.empty()) return true;
  if (token != nullptr || part != nullptr) {
    return outbox_->append_unless_full([&](std::string& out) {
      if (!std::exchange(has_text_, true)) encoder_->append_first(out);
      if (token != nullptr) {
        encoder_->append_text(out, *token);
      } else {
        encoder_->append_part(out, *part);
      }
    });
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

void GenerationSink::end(const EosEvent& eos) {
  // Encoded before the outbox is locked.
  std::string bytes;
  if (eos.error) {
    failed_ = eos;
  } else if (stream_) {
    if (!has_text_) encoder_->append_first(bytes);
    encoder_->append_last(bytes, eos);
  } else {
    bytes = encoder_->whole(eos);
  }
  outbox_->append_last(id_, [&](std::string& out) { out += bytes; });
}

}  // namespace uma::server
