// About the size of answers as JSON, without walking through their texts, as far as it grows with the request or with what the
// tenant has stored: a large answer is counted before it is written, and written apart (Service::run_apart).
#pragma once

#include <cstddef>
#include <vector>

#include "core/embedding.h"
#include "core/event.h"
#include "core/session_info.h"
#include "wire/openai/embedding_codec.h"

namespace uma::server {

inline constexpr std::size_t kApartBytes = 65'536;  // Texts of this size and more are read and written apart.
inline constexpr std::size_t kNumberBytes = 12;     // A number of a vector.

[[nodiscard]] std::size_t answer_bytes(const EosEvent& eos);
[[nodiscard]] std::size_t answer_bytes(const SessionDetail& session);
[[nodiscard]] std::size_t answer_bytes(const SessionList& list);
[[nodiscard]] std::size_t answer_bytes(const ResponseDetail& detail);
[[nodiscard]] std::size_t answer_bytes(const std::vector<TurnReceipt>& receipts);
[[nodiscard]] std::size_t answer_bytes(const EmbedResult& result);
[[nodiscard]] std::size_t answer_bytes(const ImageEmbeddings& result);
// For a reranking of so many documents. It shows those of the call if it is asked to.
[[nodiscard]] std::size_t answer_bytes(const wire::RerankCall& call, std::size_t documents);

}  // namespace uma::server
