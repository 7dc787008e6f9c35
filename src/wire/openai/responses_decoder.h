// Decodes OpenAI's requests about responses and conversations. Pure. docs/protocol/openai.md lists the fields. An impossible id
// fails with E_SESSION_001.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "wire/json_body.h"
#include "wire/openai/response_tools.h"

namespace uma::wire {

struct ResponseCall {
  GenerateRequest generate;  // Has no `response` if it continues nothing and is not to be stored.
  // Fields of the request that the response repeats: the beginning of a JSON object, as in ResponseRequest::request.
  std::string request;
  std::string brief_request;            // `request` without instructions, tools and schema, which may be long.
  ResponseTools tools;                  // Without definitions.
  bool is_background = false;           // The reply is made without the connection.
  bool seals_reasoning = false;         // Reasoning items have their encrypted_content.
  std::vector<std::string> warnings{};  // A few sentences about what is not served in every point.
};

// Stored items as JSON, by their ids.
using ReferencedItems = std::map<std::string, std::string, std::less<>>;
// The ids of the items {"type": "item_reference", "id"} in `input` or `items` of a body, which the decoders below look up in
// `stored`: a reference to another one fails with E_SESSION_001. Empty: there are none, or the body is no object.
[[nodiscard]] std::vector<std::string> referenced_items(std::string_view body);

// `id` is the id of the response. Without `input` it is a reply to input of a conversation that waits. `held_previous`: the
// response that it repeats as its previous one, which the body has in full.
[[nodiscard]] std::expected<ResponseCall, RejectedBody> decode_response(std::string_view body, std::string id,
                                                                        const ReferencedItems& stored = {},
                                                                        std::string_view held_previous = "");
// The body of /v1/responses/input_tokens, which has the same fields, as a request whose tokens can be counted: it may continue
// nothing.
[[nodiscard]] std::expected<ResponseCall, RejectedBody> decode_token_count(std::string_view body);
// An empty body is valid and has no fields.
[[nodiscard]] std::expected<CreateSessionRequest, RejectedBody> decode_conversation(std::string_view body,
                                                                                    const ReferencedItems& stored = {});
// The new metadata of a conversation, {"metadata": {…}}, as UpdateSessionRequest::metadata.
[[nodiscard]] std::expected<std::vector<MetadataChange>, RejectedBody> decode_metadata(std::string_view body);
// Decodes {"items": […]}
[[nodiscard]] std::expected<Input, RejectedBody> decode_items(std::string_view body, const ReferencedItems& stored = {});

// How a response is read.
struct ResponseQuery {
  bool is_stream = false;
  std::optional<std::uint64_t> after = std::nullopt;  // The number of the event before the first one; nullopt: from the first.
};
// Decodes a query stream=…&starting_after=…; other names are ignored.
[[nodiscard]] std::expected<ResponseQuery, RejectedBody> decode_response_query(std::string_view query);

// The requested part of a list.
struct ListPage {
  std::size_t limit = 20;
  bool is_ascending = false;
  std::string after = {};  // Id of the item before the first one; empty: from the beginning.
};
// Decodes a query limit=…&order=…&after=…; other names are ignored.
[[nodiscard]] std::expected<ListPage, RejectedBody> decode_page(std::string_view query);

}  // namespace uma::wire
