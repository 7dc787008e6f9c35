#include "server/http/handlers/response_sinks.h"

#include <string_view>
#include <utility>
#include <variant>

namespace uma::server {
namespace {

// The engine stores a reply with tokens, and an empty one that the model has ended. One that failed after its first token is
// stored, too, but its turn does not tell the failure: this answer is kept beside it.
bool is_stored(const EosEvent& eos) {
  return !eos.error && (eos.usage.completion_tokens > 0 || eos.reason == FinishReason::stop);
}

}  // namespace

// --- ResponseWriter

void ResponseWriter::set_place(const ResponseBegunEvent& place) {
  encoder_.set_place(place);
  log_ = live_->make_log(tenant_);
  if (!is_stream_) {
    streamed_.emplace(encoder_);
    std::string first;
    streamed_->append_first(first);
    log_->append(first);
  }
  live_->begin(encoder_.id(), tenant_, encoder_.json_in_progress(), log_);
}

// Appends to the connection's stream and to the log.
template <class WriteT>
void ResponseWriter::append(std::string& out, WriteT&& write) {
  const std::size_t before = out.size();
  write();
  if (log_ != nullptr) log_->append(std::string_view(out).substr(before));
}

void ResponseWriter::append_first(std::string& out) {
  has_first_ = true;
  append(out, [&] { encoder_.append_first(out); });
}

void ResponseWriter::append_text(std::string& out, const TokenEvent& token) {
  reply_bytes_ += token.text.size();
  append(out, [&] { encoder_.append_text(out, token.text, token.logprobs); });
}

void ResponseWriter::append_part(std::string& out, const ReplyPart& part) {
  reply_bytes_ += part.text.size();
  append(out, [&] { encoder_.append_part(out, part); });
}

void ResponseWriter::append_keep_alive(std::string& out) {
  append(out, [&] { encoder_.append_in_progress(out); });
}

void ResponseWriter::append_last(std::string& out, const EosEvent& eos) {
  append(out, [&] { encoder_.append_last(out, eos); });
  leave();
}

std::string ResponseWriter::whole(const EosEvent& eos) {
  end_for_others(eos);
  return encoder_.json(eos);
}

// Writes the end to the log alone: the connection's own may be a status, or an object.
void ResponseWriter::end_for_others(const EosEvent& eos) {
  if (log_ == nullptr) return;
  std::string last;
  if (!streamed_) streamed_.emplace(encoder_);
  if (is_stream_ && !has_first_) streamed_->append_first(last);
  streamed_->append_last(last, eos);
  log_->append(last);
  leave();
}

// Also where the end could not be written: readers must not wait for it.
void ResponseWriter::leave() {
  if (log_ == nullptr) return;
  std::exchange(log_, nullptr)->end();
  live_->remove(encoder_.id());
}

// --- BackgroundSink

BackgroundSink::BackgroundSink(std::shared_ptr<LiveResponses> live, std::shared_ptr<ReplyLog> log,
                               std::shared_ptr<BusyCount> busy, RequestShare share, TenantId tenant,
                               wire::ResponseEncoder encoder, RunApart apart, Promise<BegunResponse> on_begun)
    : live_(std::move(live)),
      log_(std::move(log)),
      busy_(std::move(busy)),
      share_(std::move(share)),
      tenant_(std::move(tenant)),
      encoder_(std::move(encoder)),
      apart_(std::move(apart)),
      on_begun_(std::move(on_begun)) {
  busy_->add(1);
}

template <class WriteT>
void BackgroundSink::append(WriteT&& write) {
  bytes_.clear();
  write(bytes_);
  log_->append(bytes_);
}

bool BackgroundSink::deliver(const Event& event) {
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    reply_bytes_ += token->text.size();
    if (!token->text.empty()) append([&](std::string& out) { encoder_.append_text(out, token->text, token->logprobs); });
  } else if (const auto* part = std::get_if<ReplyPart>(&event)) {
    reply_bytes_ += part->text.size();
    append([&](std::string& out) { encoder_.append_part(out, *part); });
  } else if (const auto* place = std::get_if<ResponseBegunEvent>(&event)) {
    begin(*place);
  } else if (const auto* eos = std::get_if<EosEvent>(&event)) {
    end(*eos);
  } else if (const auto* failure = std::get_if<FailureEvent>(&event)) {
    end({.reason = FinishReason::error, .usage = {}, .text = "", .error = failure->error});
  }
  return true;
}

void BackgroundSink::begin(const ResponseBegunEvent& place) {
  encoder_.set_place(place);
  has_begun_ = true;
  append([&](std::string& out) { encoder_.append_first(out); });
  std::string json = encoder_.json_in_progress();
  live_->begin(encoder_.id(), tenant_, json, log_);
  on_begun_(BegunResponse{.session = encoder_.session(), .json = std::move(json)});
}

// Nothing is delivered after the end, so the job is alone. If it is dropped, the destructor ends the log. An end that is not
// stored is written at once: who has cancelled the response finds it here as soon as the service has answered.
void BackgroundSink::end(EosEvent eos) {
  const std::size_t bytes = answer_bytes(eos) + encoder_.bytes() + reply_bytes_;
  if (bytes < kApartBytes || !is_stored(eos)) return write_end(eos);
  apart_(bytes, [self = shared_from_this(), eos = std::move(eos)] { self->write_end(eos); });
}

void BackgroundSink::write_end(const EosEvent& eos) {
  append([&](std::string& out) {
    if (!has_begun_) encoder_.append_first(out);
    encoder_.append_last(out, eos);
  });
  log_->end();
  if (!has_begun_) {
    on_begun_(std::unexpected(eos.error.value_or(Error{ErrorCode::limit_wait, "the response was cancelled"})));
  } else if (is_stored(eos)) {
    live_->remove(encoder_.id());
  } else {
    live_->keep_ended(encoder_.id(), encoder_.json_of_stream(eos));
  }
}

}  // namespace uma::server
