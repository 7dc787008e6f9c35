#include "engine/router/settle_request.h"

#include <cstddef>
#include <format>
#include <utility>

#include "engine/router/apply_defaults.h"
#include "wire/own/request_codec.h"

namespace uma::engine {
namespace {

constexpr std::size_t kBytesOnRouter = 4096;  // More takes longer than a job's way to the work pool and back.

std::size_t bytes_to_read(const GenerateOptions& options) {
  std::size_t bytes = options.chat.template_arguments.size();
  for (const auto& [text, bias] : options.sampling.logit_bias_texts) bytes += text.size();
  return bytes;
}

// Whether the request may be one to a chat: the session of a request is not known yet.
bool is_chat(const GenerateRequest& request) {
  return !request.input.messages.empty() || !request.session.empty();
}

// Replaces the texts of the bias by their tokens, and checks all tokens.
Expected<Unit> settle_logit_bias(const llm::Model& model, SamplingParams& sampling) {
  for (const auto& [text, bias] : std::exchange(sampling.logit_bias_texts, {})) {
    const auto tokens = model.vocab().tokenize(text, false);
    if (!tokens) return std::unexpected(tokens.error());
    for (const Token token : *tokens) sampling.logit_bias.emplace_back(token, bias);
    if (sampling.logit_bias.size() > wire::kLogitBiasMax) {
      return std::unexpected(Error{
          ErrorCode::proto_field,
          std::format("field \"logit_bias\": its texts have more than {} tokens, which is the limit", wire::kLogitBiasMax),
          "logit_bias"});
    }
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token >= 0 && token < model.vocab().size()) continue;
    return std::unexpected(
        Error{ErrorCode::proto_field,
              std::format("field \"logit_bias\": token {} is not in the vocabulary, whose tokens are 0 to {}", token,
                          model.vocab().size() - 1),
              "logit_bias"});
  }
  return Unit{};
}

Expected<GenerateRequest> settled(const ServedModel& served, GenerateRequest request) {
  apply_defaults(served.defaults, request);
  ChatOptions& chat = request.options.chat;
  if (is_chat(request)) {
    if (auto known = served.chat->check_name(chat.template_arguments); !known) return std::unexpected(known.error());
    served.chat->chosen(chat).settle_thinking(chat);
  }
  if (auto may = settle_logit_bias(*served.model, request.options.sampling); !may) return std::unexpected(may.error());
  return request;
}

}  // namespace

Task<Expected<GenerateRequest>> settle(WorkPool& work, TaskRunner& tasks, TenantId tenant, ModelLease lease,
                                       GenerateRequest request, std::stop_token end) {
  const std::size_t bytes = bytes_to_read(request.options);
  if (bytes <= kBytesOnRouter) co_return settled(*lease, std::move(request));
  co_return co_await work.run(
      tasks, std::move(tenant), bytes,
      [lease = std::move(lease), request = std::move(request)]() mutable { return settled(*lease, std::move(request)); },
      std::move(end));
}

}  // namespace uma::engine
