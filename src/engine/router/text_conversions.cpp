#include "engine/router/text_conversions.h"

#include <algorithm>
#include <format>
#include <utility>

#include "engine/router/settle_request.h"

namespace uma::engine {
namespace {

// Bytes of a token in a result and in its JSON.
constexpr std::size_t kTokenBytes = sizeof(Token) + 12;
constexpr std::size_t kTextedTokenBytes = kTokenBytes + sizeof(std::size_t) + 28;
constexpr std::size_t kTextFactor = 3;  // A text, and its JSON.
// The limit of a text to tokenize: the answer is encoded on the thread that serves all connections.
constexpr std::size_t kTokenizeBytesMax = 1ul << 20;

Expected<Unit> charge(const RequestShare& share, std::size_t bytes) {
  return share ? share->grow(bytes) : Unit{};
}

Expected<TokenizedText> tokenized(const llm::Vocab& vocab, const TokenizeRequest& request) {
  auto tokens = chat::tokenize_text(vocab, request.text, request.adds_special, request.parses_special);
  if (!tokens) return std::unexpected(std::move(tokens.error()));
  const std::size_t bytes = request.wants_texts ? kTextedTokenBytes : kTokenBytes;
  if (auto may = charge(request.share, tokens->size() * bytes); !may) return std::unexpected(std::move(may.error()));
  TokenizedText result{.tokens = std::move(*tokens), .share = request.share};
  if (!request.wants_texts) return result;
  result.text_ends.reserve(result.tokens.size());
  for (const Token token : result.tokens) {
    result.text += vocab.text(token);
    result.text_ends.push_back(result.text.size());
  }
  if (auto may = charge(request.share, result.text.size() * kTextFactor); !may) return std::unexpected(std::move(may.error()));
  return result;
}

Expected<ConvertedText> converted(std::string text, const RequestShare& share) {
  if (auto may = charge(share, text.size() * kTextFactor); !may) return std::unexpected(std::move(may.error()));
  return ConvertedText{.text = std::move(text), .share = share};
}

Expected<ConvertedText> detokenized(const llm::Vocab& vocab, const DetokenizeRequest& request) {
  const auto unknown =
      std::ranges::find_if(request.tokens, [size = vocab.size()](Token token) { return token < 0 || token >= size; });
  if (unknown != request.tokens.end()) {
    return std::unexpected(Error{ErrorCode::proto_field,
                                 std::format("field \"tokens\": token {} is not in the vocabulary, whose tokens are 0 to {}",
                                             *unknown, vocab.size() - 1),
                                 "tokens"});
  }
  // Charged before it is made: a token of four bytes in the request may have a text of hundreds.
  std::size_t bytes = 0;
  for (const Token token : request.tokens) bytes += vocab.text(token).size();
  if (auto may = charge(request.share, bytes * kTextFactor); !may) return std::unexpected(std::move(may.error()));
  ConvertedText result{.text = {}, .share = request.share};
  result.text.reserve(bytes);
  for (const Token token : request.tokens) result.text += vocab.text(token);
  return result;
}

}  // namespace

Expected<Unit> TextConversions::admit(std::size_t bytes) const {
  if (bytes > parts_.limits.max_prompt_bytes) {
    return fail(ErrorCode::limit_prompt, std::format("the text has {} bytes, but the limit is {} (limits.max_prompt_bytes)",
                                                     bytes, parts_.limits.max_prompt_bytes));
  }
  return parts_.in_flight.admit(0);
}

Task<Expected<TokenizedText>> TextConversions::tokenize(TenantId tenant, TokenizeRequest request) {
  if (auto admitted = admit(request.text.size()); !admitted) co_return admitted.error();
  if (request.text.size() > kTokenizeBytesMax) {
    co_return Error{ErrorCode::limit_prompt,
                    std::format("the text has {} bytes, but one request is answered with the tokens of "
                                "at most {}: send it in parts",
                                request.text.size(), kTokenizeBytesMax)};
  }
  auto lease = co_await parts_.models.lease_chat(request.model);
  if (!lease) co_return lease.error();
  const std::size_t bytes = request.text.size();
  co_return co_await parts_.work.run(
      parts_.tasks, std::move(tenant), bytes,
      [lease = lease->share(), request = std::move(request)] { return tokenized(lease->model->vocab(), request); });
}

Task<Expected<ConvertedText>> TextConversions::detokenize(TenantId tenant, DetokenizeRequest request) {
  const std::size_t bytes = request.tokens.size() * sizeof(Token);
  if (auto admitted = admit(bytes); !admitted) co_return admitted.error();
  auto lease = co_await parts_.models.lease_chat(request.model);
  if (!lease) co_return lease.error();
  co_return co_await parts_.work.run(
      parts_.tasks, std::move(tenant), bytes,
      [lease = lease->share(), request = std::move(request)] { return detokenized(lease->model->vocab(), request); });
}

Task<Expected<ConvertedText>> TextConversions::format_chat(TenantId tenant, GenerateRequest request) {
  const ChatOptions& given = request.options.chat;
  if (auto admitted = admit(request.input.bytes() + given.tools.size() + given.template_arguments.size()); !admitted)
    co_return admitted.error();
  auto lease = co_await parts_.models.lease_chat(request.model);
  if (!lease) co_return lease.error();
  auto settled = co_await settle(parts_.work, parts_.tasks, tenant, lease->share(), std::move(request));
  if (!settled) co_return settled.error();
  request = std::move(*settled);
  const std::size_t bytes = memory_of(request);
  co_return co_await parts_.work.run(
      parts_.tasks, std::move(tenant), bytes,
      [lease = lease->share(), request = std::move(request), now_s = parts_.clock.unix_s()]() -> Expected<ConvertedText> {
        const ChatOptions& chat = request.options.chat;
        const chat::ChatFormat& format = lease->chat->chosen(chat);
        const chat::ChatContext context{.unix_s = now_s, .tools = chat.tools, .template_arguments = chat.template_arguments};
        const std::vector<ChatMessage>& messages = request.input.messages;
        if (chat.continues_reply) {
          auto begun = format.write_begun(messages, context);
          if (!begun) return std::unexpected(std::move(begun.error()));
          return converted(begun->prompt.bytes(), request.share);
        }
        auto text = format.write(messages, /*add_generation_prompt=*/true, context);
        if (!text) return std::unexpected(std::move(text.error()));
        return converted(text->bytes(), request.share);
      });
}

}  // namespace uma::engine
