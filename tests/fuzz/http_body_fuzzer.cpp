// Property: the decoders of HTTP bodies and queries never crash; what they accept is text that can be kept and written, what
// they refuse is refused with a sentence that can be sent back.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "wire/embedding_codec.h"
#include "wire/field_reader.h"
#include "wire/openai_codec.h"
#include "wire/request_codec.h"
#include "wire/responses_codec.h"

namespace {

using namespace uma;

void check_text(std::string_view text) {
  UMA_CHECK(is_utf8(text));
  UMA_CHECK(!text.contains('\0'));
}

void check_object(std::string_view text) {
  check_text(text);
  boost::system::error_code problem;
  UMA_CHECK(wire::parse_json(text, {}, problem).is_object() && !problem);
}

void check_messages(const std::vector<ChatMessage>& messages) {
  for (const ChatMessage& message : messages) {
    check_text(message.role);
    check_text(message.content);
    if (!message.extra.empty()) check_object(message.extra);
  }
}

// Images stand in messages of users, in order.
void check_images(const Input& input) {
  std::size_t last = 0;
  for (const InputImage& image : input.images) {
    UMA_CHECK(image.message >= last && image.message < input.messages.size());
    last = image.message;
    UMA_CHECK(image.at <= input.messages[last].content.size() && input.messages[last].role == "user");
    check_text(image.source.text);
  }
}

// What is wrong can be said.
template <class T>
bool is_accepted(const std::expected<T, wire::RejectedBody>& decoded) {
  if (!decoded) check_object(wire::error_json(decoded.error().error, 400, decoded.error().field));
  return decoded.has_value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto call = wire::decode_response(body, "0123456789abcdef"); is_accepted(call)) {
    check_object(call->request + "}");
    check_messages(call->generate.input.messages);
    check_images(call->generate.input);
    UMA_CHECK(call->generate.session.empty() || call->generate.response.has_value());
    if (call->generate.response && call->generate.response->instructions) check_text(*call->generate.response->instructions);
  }
  if (const auto made = wire::decode_conversation(body); is_accepted(made)) {
    check_object(made->metadata);
    check_messages(made->messages);
  }
  if (const auto items = wire::decode_items(body); is_accepted(items)) {
    UMA_CHECK(!items->empty());
    check_messages(items->messages);
    check_images(*items);
    check_object(wire::appended_items_json({}, *items));
  }
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
  (void)is_accepted(wire::decode_session_request("create_session", "", body));
  (void)is_accepted(wire::decode_session_request("rewind_session", body, "{\"turn\":1}"));
  if (const auto page = wire::decode_page(body); is_accepted(page)) UMA_CHECK(page->limit >= 1 && page->limit <= 100);
  if (const auto id = wire::parse_response_id(body)) UMA_CHECK(wire::response_id_text(*id) == body);
  return 0;
}
