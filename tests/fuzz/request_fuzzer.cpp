// Property: decode_request never crashes, accepted requests satisfy core/request.h, and every refusal has a message that can be
// sent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "base/utf8.h"
#include "wire/generate_fields.h"
#include "wire/own/event_codec.h"
#include "wire/own/request_codec.h"
#include "wire_checks.h"

namespace {

using namespace uma;
using namespace uma::fuzz;

void check_name(std::string_view name, std::size_t bytes_max) {
  check_text(name);
  UMA_CHECK(name.size() <= bytes_max);
}

void check_session(std::string_view session) {
  check_name(session, wire::kSessionBytesMax);
  UMA_CHECK(!session.empty());
}

void check_id(std::string_view id) {
  check_name(id, wire::kIdBytesMax);
  UMA_CHECK(!id.empty());
}

void check_input(const Input& input) {
  check_text(input.text);
  UMA_CHECK(input.text.empty() || input.messages.empty());
  check_images(input);
  for (const ChatMessage& message : input.messages) {
    UMA_CHECK(message.role == "system" || message.role == "user" || message.role == "assistant" || message.role == "tool");
    check_text(message.content);
  }
}

void check(const GenerateRequest& request) {
  check_name(request.model, wire::kModelBytesMax);
  check_name(request.session, wire::kSessionBytesMax);
  check_input(request.input);
  UMA_CHECK(!request.session.empty() || !request.input.empty());
  UMA_CHECK(!request.regenerate || (!request.session.empty() && request.input.empty()));
  const GenerateOptions& options = request.options;
  check_sampling(options.sampling);
  UMA_CHECK(options.max_tokens.value_or(0) >= 0);
  UMA_CHECK(options.stop.size() <= wire::kStopStringsMax);
  for (const std::string& stop : options.stop) {
    check_name(stop, wire::kStopBytesMax);
    UMA_CHECK(!stop.empty());
  }
  UMA_CHECK(options.deadline_ms.value_or(0) >= 0 && options.deadline_ms.value_or(0) <= wire::kTimeMsMax);
  UMA_CHECK(options.timeout_ms >= 0 && options.timeout_ms <= wire::kTimeMsMax);
  UMA_CHECK(options.adapters.size() <= wire::kAdaptersPerRequestMax);
  for (const AdapterChoice& choice : options.adapters) {
    check_name(choice.name, 128);
    UMA_CHECK(choice.number >= 0 && std::abs(choice.scale.value_or(0)) <= kAdapterScaleMax);
  }
}

void check(const TextOptions& options) {
  check_name(options.model, wire::kModelBytesMax);
  UMA_CHECK(options.deadline_ms.value_or(0) >= 0 && options.deadline_ms.value_or(0) <= wire::kTimeMsMax);
}

void check(const EmbedImagesRequest& request) {
  check(request.options);
  UMA_CHECK(!request.images.empty() && request.images.size() <= kImagesPerRequestMax);
  for (const ImageSource& image : request.images) {
    UMA_CHECK(!image.text.empty() || image.kind == ImageSource::Kind::path);
    check_text(image.text);
  }
}

void check(const PictureRequest& request) {
  check_picture(request);
}

void check(const CreateSessionRequest& request) {
  check_name(request.model, wire::kModelBytesMax);
  check_text(request.system);
  check_name(request.name, wire::kSessionBytesMax);
  check_metadata(request.metadata);
  UMA_CHECK(request.ttl_s >= 0 && request.ttl_s <= wire::kTtlSecondsMax);
}

void check(const AppendRequest& request) {
  check_session(request.session);
  check_input(request.input);
  UMA_CHECK(!request.input.empty());
}

void check(const wire::CancelRequest& request) {
  check_name(request.target, wire::kIdBytesMax);
  check_name(request.session, wire::kSessionBytesMax);
  UMA_CHECK(request.target.empty() != request.session.empty());
}

void check(const wire::EndSessionRequest& request) {
  check_session(request.session);
}
void check(const wire::TouchRequest& request) {
  check_session(request.session);
}
void check(const wire::GetSessionRequest& request) {
  check_session(request.session);
}

void check(const ForkRequest& request) {
  check_session(request.session);
  check_name(request.name, wire::kSessionBytesMax);
  UMA_CHECK(!request.turn || *request.turn >= ForkRequest::kSystemOnly);
  check_changes(request.metadata);
}

void check(const UpdateSessionRequest& request) {
  check_session(request.session);
  check_name(request.name.value_or(""), wire::kSessionBytesMax);
  check_changes(request.metadata);
}

void check(const wire::RewindSessionRequest& request) {
  check_session(request.session);
  UMA_CHECK(request.turn >= 0);
}

void check(const wire::EmbeddingCall& call) {
  check(call.embed.options);
  check_text(call.embed.task);
  UMA_CHECK(call.embed.dimensions >= 0);
  UMA_CHECK(!call.embed.inputs.empty() && call.embed.inputs.size() <= kEmbedInputsMax);
  UMA_CHECK(call.embed.images.size() <= kImagesPerRequestMax);
  for (const InputImage& image : call.embed.images) {
    check_text(image.source.text);
    UMA_CHECK(image.message < call.embed.inputs.size());
    UMA_CHECK(image.at <= std::get<std::string>(call.embed.inputs[image.message]).size());
  }
  for (std::size_t i = 0; i < call.embed.inputs.size(); ++i) {
    const EmbedInput& input = call.embed.inputs[i];
    if (const auto* text = std::get_if<std::string>(&input)) {
      check_text(*text);
      UMA_CHECK(!text->empty() || std::ranges::contains(call.embed.images, i, &InputImage::message));
    } else {
      const auto& tokens = std::get<std::vector<Token>>(input);
      UMA_CHECK(!tokens.empty());
      UMA_CHECK(std::ranges::all_of(tokens, [](Token token) { return token >= 0; }));
    }
  }
}

void check(const wire::RerankCall& call) {
  check(call.rerank.options);
  check_text(call.rerank.query);
  UMA_CHECK(!call.rerank.query.empty() && call.rerank.top_n >= 0);
  UMA_CHECK(call.rerank.options.long_input != LongInput::chunk);
  UMA_CHECK(!call.rerank.documents.empty() && call.rerank.documents.size() <= kEmbedInputsMax);
  for (const std::string& document : call.rerank.documents) check_text(document);
}

void check(const SessionListRequest& request) {
  UMA_CHECK(request.limit >= 1 && request.limit <= SessionListRequest::kLimitMax);
  UMA_CHECK(request.query.size() <= SessionListRequest::kQueryBytesMax);
}
void check(const wire::ExportSessionRequest& request) {
  check_session(request.session);
}
void check(const wire::ImportSessionRequest& request) {
  check_name(request.name, wire::kSessionBytesMax);
}
void check(const wire::ImportDataRequest& request) {
  check_id(request.target);
}
void check(const wire::LoadModelRequest&) {}
void check(const wire::UnloadModelRequest&) {}
void check(const wire::PullModelRequest& request) {
  UMA_CHECK(!request.source.empty() && request.source.size() <= kPullSourceBytesMax);
}
void check(const wire::GetReceiptRequest& request) {
  UMA_CHECK(request.reply.size() <= wire::kIdBytesMax);
  check_text(request.reply);
}
void check(const wire::ModelsRequest&) {}
void check(const wire::MetricsRequest&) {}
void check(const wire::TraceRequest& request) {
  UMA_CHECK(request.span >= std::chrono::milliseconds(0) && request.span <= wire::kTraceMax);
}
void check(const wire::PingRequest&) {}
void check(const wire::WatchRequest& request) {
  UMA_CHECK(request.interval >= wire::LiveRequest::kIntervalMin && request.interval <= wire::LiveRequest::kIntervalMax);
  UMA_CHECK(request.history >= std::chrono::seconds(0) && request.history <= wire::LiveRequest::kHistoryMax);
}

void check(const wire::RejectedRequest& rejected) {
  if (rejected.id) check_id(*rejected.id);
  check_text(rejected.error.message);
  std::string frame;
  wire::append_error(frame, wire::FrameHead(rejected.id), rejected.error);
  UMA_CHECK(is_utf8(std::string_view(frame).substr(4)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto request = wire::decode_request({reinterpret_cast<const char*>(data), size});
  if (!request) {
    check(request.error());
    return 0;
  }
  check_id(request->id);
  std::visit([](const auto& body) { check(body); }, request->body);
  return 0;
}
