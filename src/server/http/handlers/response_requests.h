// A request for a response, over HTTP or WebSocket, from its body to the generation.
#pragma once

#include <cstddef>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/request.h"
#include "core/work/tenant_budget.h"
#include "server/awaitable.h"
#include "server/http/http_connection.h"
#include "wire/json_body.h"
#include "wire/openai/response_encoder.h"
#include "wire/openai/response_writer.h"
#include "wire/openai/responses_decoder.h"

namespace uma::server {

// The body of a request, and the items that its input refers to. Those that are not found are left out.
struct BodyWithItems {
  KeptBodyPtr body;
  wire::ReferencedItems items{};
  std::vector<RequestShare> shares{};  // Charged for the items.
  std::optional<Error> problem{};      // Why items could not be looked up.
};
Awaitable<std::shared_ptr<const BodyWithItems>> find_items(HttpConnection& connection, KeptBodyPtr body);

// Reads the images of the items, up to the limit of one request. Returns the share that is charged for them and for their JSON;
// null: there are none. Ends with the coroutine. Errors: E_LIMIT_003 if there is no room for them.
Awaitable<Expected<RequestShare>> read_images(HttpConnection& connection, std::vector<wire::Item>& items);

// The size of the URLs that read_images() has set.
[[nodiscard]] std::size_t bytes_of_urls(std::span<const wire::Item> items);

struct PreparedResponse {
  GenerateRequest generate;
  wire::ResponseEncoder encoder;
  RequestShare share;              // Charged for the encoder, and for the JSON for clients that ask.
  std::string_view session_field;  // The field that named its session; static storage.
  bool is_background = false;
};

// `held_previous`: the response that the body continues without naming it, for the answer; empty: none.
Awaitable<std::expected<PreparedResponse, wire::RejectedBody>> prepare_response(HttpConnection& connection, KeptBodyPtr body,
                                                                                std::string_view held_previous = "");

}  // namespace uma::server
