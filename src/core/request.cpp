#include "core/request.h"

#include "core/embedding.h"
#include "core/image.h"
#include "core/picture.h"
#include "core/text_conversion.h"

namespace uma {
namespace {

template <class T>
std::size_t array_bytes(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

std::size_t array_bytes(const std::vector<std::string>& texts) {
  std::size_t bytes = texts.size() * sizeof(std::string);
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

std::size_t messages_bytes(const std::vector<ChatMessage>& messages) {
  std::size_t bytes = messages.size() * sizeof(ChatMessage);
  for (const ChatMessage& message : messages) {
    bytes += message.role.size() + message.content.size() + message.extra.size();
  }
  return bytes;
}

std::size_t images_bytes(const std::vector<InputImage>& images) {
  std::size_t bytes = array_bytes(images);
  for (const InputImage& image : images) bytes += image.source.text.size() + image.field.size();
  return bytes;
}

}  // namespace

std::size_t memory_of(const Input& input) {
  std::size_t bytes =
      input.text.size() + messages_bytes(input.messages) + array_bytes(input.tokens) + images_bytes(input.images);
  if (input.infill) {
    bytes += input.infill->bytes() + input.infill->files.size() * sizeof(InfillFile);
  }
  return bytes;
}

std::size_t memory_of(const GenerateRequest& request) {
  const GenerateOptions& options = request.options;
  const ChatOptions& chat = options.chat;
  std::size_t bytes = sizeof request + memory_of(request.input) + options.grammar.size() + options.json_schema.size() +
                      array_bytes(options.stop) + array_bytes(options.sampling.logit_bias) +
                      array_bytes(options.sampling.logit_bias_texts) + chat.tools.size() + array_bytes(chat.tool_names) +
                      chat.template_arguments.size() + array_bytes(options.adapters);
  if (request.response) {
    bytes += request.response->request.size() + (request.response->instructions ? request.response->instructions->size() : 0);
  }
  return bytes;
}

std::size_t memory_of(const CreateSessionRequest& request) {
  return sizeof request + request.system.size() + messages_bytes(request.messages) + request.metadata.size();
}

std::size_t memory_of(const AppendRequest& request) {
  return sizeof request + memory_of(request.input);
}

std::size_t memory_of(const EmbedImagesRequest& request) {
  std::size_t bytes = sizeof request + array_bytes(request.images);
  for (const ImageSource& image : request.images) bytes += image.text.size();
  return bytes;
}

std::size_t memory_of(const EmbedRequest& request) {
  std::size_t bytes = sizeof request + array_bytes(request.inputs);
  for (const EmbedInput& input : request.inputs) {
    bytes += std::visit([](const auto& values) { return values.size() * sizeof values[0]; }, input);
  }
  bytes += images_bytes(request.images) + array_bytes(request.extras);
  return bytes;
}

// The tokenizer needs room for a token of each byte.
std::size_t memory_of(const TokenizeRequest& request) {
  return sizeof request + request.text.size() * (1 + sizeof(Token));
}

std::size_t memory_of(const DetokenizeRequest& request) {
  return sizeof request + array_bytes(request.tokens);
}

std::size_t memory_of(const RerankRequest& request) {
  return sizeof request + request.query.size() + array_bytes(request.documents);
}

std::size_t memory_of(const PictureRequest& request) {
  return sizeof request + request.caption.size() + request.negative_caption.size() +
         (request.begin ? request.begin->text.size() : 0);
}

}  // namespace uma
