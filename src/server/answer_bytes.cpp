#include "server/answer_bytes.h"

#include <string>
#include <vector>

namespace uma::server {

std::size_t answer_bytes(const EosEvent& eos) {
  constexpr std::size_t kTokenBytes = 96;  // A token with its logprob and the list of its bytes.
  const auto bytes_of = [](const std::vector<TokenLogprobs>& places) {
    return places.empty() ? 0 : places.size() * (1 + places.back().top.size()) * kTokenBytes;
  };
  std::size_t sum = eos.text.size() + bytes_of(eos.logprobs) + bytes_of(eos.prompt_logprobs);
  for (const ReplyPart& part : eos.parts) sum += part.text.size();
  return sum;
}

std::size_t answer_bytes(const SessionDetail& session) {
  constexpr std::size_t kMessageBytes = 32;  // The frame of a message without text.
  return session.bytes() + (session.messages.size() + session.pending_messages.size()) * kMessageBytes;
}

std::size_t answer_bytes(const SessionList& list) {
  constexpr std::size_t kInfoBytes = 512;
  std::size_t sum = 0;
  for (const SessionInfo& info : list.sessions) sum += kInfoBytes + info.name.size() + info.metadata.size();
  return sum;
}

std::size_t answer_bytes(const ResponseDetail& detail) {
  return answer_bytes(detail.session);
}

std::size_t answer_bytes(const std::vector<TurnReceipt>& receipts) {
  constexpr std::size_t kReceiptBytes = 1024;
  return receipts.size() * kReceiptBytes;
}

std::size_t answer_bytes(const EmbedResult& result) {
  return result.values.size() * kNumberBytes;
}

std::size_t answer_bytes(const ImageEmbeddings& result) {
  std::size_t sum = 0;
  for (const std::vector<float>& vector : result.embeddings) sum += vector.size() * kNumberBytes;
  return sum;
}

std::size_t answer_bytes(const wire::RerankCall& call, std::size_t documents) {
  constexpr std::size_t kScoreBytes = 64;
  std::size_t sum = documents * kScoreBytes;
  if (!call.returns_documents) return sum;
  for (const std::string& document : call.rerank.documents) sum += document.size();
  return sum;
}

}  // namespace uma::server
