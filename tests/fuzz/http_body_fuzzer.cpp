// Property: the decoders of HTTP bodies never crash; accepted texts can be stored and written, and every refusal has a message
// that can be sent. responses_body_fuzzer.cpp tests /v1/responses and /v1/conversations.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "wire/embedding_codec.h"
#include "wire/image_fields.h"
#include "wire/openai_codec.h"
#include "wire/request_codec.h"
#include "wire_checks.h"

using namespace uma;
using namespace uma::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto kind : {wire::CompletionKind::chat, wire::CompletionKind::text}) {
    if (const auto call = wire::decode_completion(kind, body); is_accepted(call)) {
      for (const Input& prompt : call->prompts) {
        check_text(prompt.text);
        check_messages(prompt.messages);
      }
    }
  }
  if (const auto call = wire::decode_embeddings(body); is_accepted(call)) {
    UMA_CHECK(!call->embed.inputs.empty() && call->embed.inputs.size() <= kEmbedInputsMax && call->embed.dimensions >= 0);
    for (const EmbedInput& input : call->embed.inputs) {
      if (const auto* text = std::get_if<std::string>(&input)) check_text(*text);
    }
  }
  if (const auto call = wire::decode_rerank(body); is_accepted(call)) {
    check_text(call->rerank.query);
    for (const std::string& document : call->rerank.documents) check_text(document);
  }
  if (const auto call = wire::decode_body<EmbedImagesRequest>(body, wire::embed_images_fields); is_accepted(call)) {
    UMA_CHECK(!call->images.empty() && call->images.size() <= kImagesPerRequestMax);
    for (const ImageSource& image : call->images) check_text(image.text);
  }
  (void)is_accepted(wire::decode_session_request("create_session", "", body));
  (void)is_accepted(wire::decode_session_request("rewind_session", body, "{\"turn\":1}"));
  return 0;
}
