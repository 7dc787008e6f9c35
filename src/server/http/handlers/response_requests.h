// A request for a response, over HTTP or WebSocket, from its body to the generation.
#pragma once

#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/request.h"
#include "core/work/tenant_budget.h"
#include "server/awaitable.h"
#include "wire/json_body.h"
#include "wire/openai/response_encoder.h"
#include "wire/openai/response_writer.h"
#include "wire/openai/responses_decoder.h"

namespace uma::server {

class HttpConnection;

// The body of a request, and the items that its input refers to. Those that are not found are left out.
struct BodyWithItems {
  std::string kept{};  // A copy of a body with references, since a request's own is gone after the first wait.
  std::string_view body;
  wire::ReferencedItems items{};
  std::optional<Error> problem{};  // Why items could not be looked up.
};
Awaitable<std::shared_ptr<const BodyWithItems>> find_items(HttpConnection& connection, std::string_view body);

// Reads the images of the items, up to the limit of one request.
Awaitable<void> read_images(HttpConnection& connection, std::span<wire::Item> items);

struct PreparedResponse {
  GenerateRequest generate;
  wire::ResponseEncoder encoder;
  RequestShare share;              // Charged for the encoder, and for the JSON for clients that ask.
  std::string_view session_field;  // The field that named its session; static storage.
  bool is_background = false;
};

// `held_previous`: the response that the body continues without naming it, for the answer; empty: none.
Awaitable<std::expected<PreparedResponse, wire::RejectedBody>> prepare_response(HttpConnection& connection,
                                                                                std::string_view body,
                                                                                std::string_view held_previous = "");

}  // namespace uma::server
