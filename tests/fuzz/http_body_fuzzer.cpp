// Property: the decoders of HTTP bodies never crash; accepted texts can be stored and written, and every refusal has a message
// that can be sent. responses_body_fuzzer.cpp tests /v1/responses and /v1/conversations.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "wire/image_fields.h"
#include "wire/llama_server/llama_server_decoder.h"
#include "wire/llama_server/sdapi_codec.h"
#include "wire/ollama/ollama_decoder.h"
#include "wire/openai/embedding_codec.h"
#include "wire/openai/openai_codec.h"
#include "wire/openai/picture_codec.h"
#include "wire/own/administration.h"
#include "wire/own/model_calls.h"
#include "wire/own/request_codec.h"
#include "wire_checks.h"

using namespace uma;
using namespace uma::fuzz;

namespace {

void check_ollama(const wire::OllamaCall& call) {
  const Input& input = call.generate.input;
  const GenerateOptions& options = call.generate.options;
  check_text(call.generate.model);
  check_text(input.text);
  if (input.infill) check_text(input.infill->suffix);
  check_messages(input.messages);
  UMA_CHECK(call.is_empty || !input.empty());
  UMA_CHECK(input.images.size() <= kImagesPerRequestMax);
  check_images(input);
  check_sampling(options.sampling);
  UMA_CHECK(options.max_tokens.value_or(0) >= 0);
}

void check_text_call(const wire::TextCall& call) {
  const Input& input = call.generate.input;
  const GenerateOptions& options = call.generate.options;
  const Infill infill = input.infill.value_or(Infill());
  check_text(input.text);
  check_text(infill.suffix);
  check_text(infill.begun);
  for (const InfillFile& file : infill.files) {
    check_text(file.name);
    check_text(file.text);
  }
  check_sampling(options.sampling);
  UMA_CHECK(options.max_tokens.value_or(0) >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto kind : {wire::CompletionKind::chat, wire::CompletionKind::text}) {
    if (const auto call = wire::decode_completion(kind, body); is_accepted(call)) {
      for (const Input& prompt : call->prompts) {
        check_text(prompt.text);
        if (prompt.infill) check_text(prompt.infill->suffix);
        check_messages(prompt.messages);
      }
    }
  }
  if (const auto call = wire::decode_embeddings(body); is_accepted(call)) {
    UMA_CHECK(!call->embed.inputs.empty() && call->embed.inputs.size() <= kEmbedInputsMax && call->embed.dimensions >= 0);
    for (const EmbedInput& input : call->embed.inputs) {
      if (const auto* text = std::get_if<std::string>(&input)) check_text(*text);
    }
    UMA_CHECK(call->embed.images.size() <= kImagesPerRequestMax);
    for (const InputImage& image : call->embed.images) {
      UMA_CHECK(image.message < call->embed.inputs.size());
      UMA_CHECK(image.at <= std::get<std::string>(call->embed.inputs[image.message]).size());
      check_text(image.source.text);
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
  if (const auto call = wire::decode_images_call(body); is_accepted(call)) check_picture(call->request);
  if (const auto call = wire::decode_txt2img(body); is_accepted(call)) check_picture(*call);
  (void)is_accepted(wire::decode_sd_options(body));
  if (const auto call = wire::decode_tokenize(body); is_accepted(call)) check_text(call->text);
  if (const auto call = wire::decode_detokenize(body); is_accepted(call)) {
    for (const Token token : call->tokens) UMA_CHECK(token >= 0);
  }
  for (const auto decode : {wire::decode_infill, wire::decode_plain_completion}) {
    if (const auto call = decode(body); is_accepted(call)) check_text_call(*call);
  }
  for (const auto kind : {wire::OllamaKind::chat, wire::OllamaKind::generate}) {
    if (const auto call = wire::decode_ollama(kind, body); is_accepted(call)) check_ollama(*call);
  }
  for (const auto decode : {wire::decode_ollama_embed, wire::decode_ollama_embeddings}) {
    const auto call = decode(body);
    if (!is_accepted(call)) continue;
    UMA_CHECK(call->embed.inputs.size() <= kEmbedInputsMax && call->is_empty == call->embed.inputs.empty());
    for (const EmbedInput& input : call->embed.inputs) check_text(std::get<std::string>(input));
  }
  (void)is_accepted(wire::decode_ollama_show(body));
  (void)is_accepted(wire::decode_ollama_pull(body));
  (void)is_accepted(wire::decode_ollama_copy(body));
  (void)is_accepted(wire::decode_ollama_delete(body));
  (void)is_accepted(wire::decode_model_call(body));
  if (const auto card = wire::decode_card(body); is_accepted(card)) {
    check_text(card->text);
    if (card->was) check_text(*card->was);
  }
  if (const auto key = wire::decode_new_key(body); is_accepted(key)) {
    check_text(key->tenant);
    UMA_CHECK(!key->name.empty() && key->requests_per_minute >= 0 && key->deadline_ms.value_or(0) >= 0);
  }
  (void)is_accepted(wire::decode_session_request("create_session", "", body));
  (void)is_accepted(wire::decode_session_request("rewind_session", body, "{\"turn\":1}"));
  return 0;
}
