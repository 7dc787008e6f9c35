// WebSocket mode of /v1/responses: a client's event as the body of a request, and the server's events as messages. Pure.
// docs/protocol/openai.md#websocket-mode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "wire/json_body.h"

namespace uma::wire {

// A response that only its connection knows: one that is not stored, or one whose prompt alone was computed.
struct HeldResponse {
  std::string id;
  std::string previous;  // The stored response that it continues, with its prefix; empty: none.
  std::string items;     // Its input behind `previous`, and its output: JSON objects, separated by commas.
};

// A client's event {"type": "response.create", …}.
struct CreateEvent {
  std::string body;               // Body of POST /v1/responses, with "stream": true.
  std::string stream;             // Names the client's stream in all events of the answer; empty: none.
  std::string previous{};         // previous_response_id as the client has sent it; empty: none.
  bool is_held = false;           // The connection holds that one: `items` has its items, and the body does not name it.
  std::string items;              // HeldResponse::items, without output.
  std::string stored_previous{};  // HeldResponse::previous of the answer.
  bool generates = true;          // False: only the prompt is computed.
  bool is_stored = true;          // The answer is found again without the connection, or belongs to a conversation.
};

// Finds a held response by its id; null: the connection holds none with that id.
class HeldResponses {
 public:
  virtual ~HeldResponses() = default;
  [[nodiscard]] virtual const HeldResponse* find(std::string_view id) const = 0;
};

// Decodes a client's event. Unknown types fail with E_PROTO_004.
[[nodiscard]] std::expected<CreateEvent, RejectedBody> decode_create_event(std::string_view text, const HeldResponses& held);

// The event at the beginning of `events`, which has server-sent events as ResponseEncoder writes them, and removes it from
// there. Comments are skipped. Nullopt: there is none.
struct ServerEvent {
  std::string_view type;
  std::string_view json;  // Borrowed from the events.
};
[[nodiscard]] std::optional<ServerEvent> take_event(std::string_view& events);
// Appends the event as a message of the client's stream, which may be empty.
void append_stream_event(std::string& out, std::string_view json, std::string_view stream);
// The items of an answer's last event, separated by commas, and the id of its response. Nullopt: the event is not the end of a
// response that can be continued.
[[nodiscard]] std::optional<HeldResponse> held_response(const ServerEvent& last);

// The event that answers a client's event which could not be served. `field` may be empty.
[[nodiscard]] std::string socket_error_event(const Error& error, int status, std::string_view field, std::string_view stream);

}  // namespace uma::wire
