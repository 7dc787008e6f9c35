// Writes one response, as an object or as the typed server-sent events of OpenAI's API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/event.h"
#include "wire/openai/response_ids.h"
#include "wire/openai/response_tools.h"
#include "wire/openai/response_writer.h"

namespace uma::wire {

// The fields that a response repeats, and its format; see ResponseCall.
struct ResponseForm {
  std::string request;
  std::string brief_request;
  std::string model;
  std::int64_t created_s = 0;  // Unix time.
  ResponseTools tools{};
  bool seals_reasoning = false;
  bool is_compared = false;  // The request names a response to compare its prompt with.
};

// A stream is written in order: append_first, then append_text and append_part as often as needed, then append_last. Every item
// ends before the next one begins: text after a tool call is a separate item. Events before the last one repeat only short
// fields of the request.
class ResponseEncoder {
 public:
  ResponseEncoder(const ResponseId& id, ResponseForm form);

  // Sets the session of the response. Called before anything is written; without it the response belongs to no session.
  void set_place(const ResponseBegunEvent& place);

  void append_first(std::string& out);
  // Repeats that the response is in progress, without its items.
  void append_in_progress(std::string& out) { append_begun_event(out, "response.in_progress"); }
  // `logprobs` are those of the text. Only deltas have them.
  void append_text(std::string& out, std::string_view text, std::span<const TokenLogprobs> logprobs = {});
  void append_part(std::string& out, const ReplyPart& part);
  void append_last(std::string& out, const EosEvent& eos);
  // In place of append_last: ends a response whose prompt alone was computed. It has no items.
  void append_warmed(std::string& out, EosEvent eos);
  // Appends all events of a response whose items are known, from the first to the last.
  void append_whole(std::string& out, std::vector<Item> items, const EosEvent& eos);
  // Appends the last event alone, with this number.
  void append_end(std::string& out, std::uint64_t number, std::vector<Item> items, const EosEvent& eos);
  [[nodiscard]] std::string json(const EosEvent& eos) const;
  // The response before its end, without its items.
  [[nodiscard]] std::string json_in_progress() const;
  // The response with the items of the stream, after append_last.
  [[nodiscard]] std::string json_of_stream(const EosEvent& eos) const;
  [[nodiscard]] const std::string& id() const { return id_; }
  // The id of its session; empty: it is part of none, or that is not known yet.
  [[nodiscard]] std::string session() const { return has_session_ ? session_ : std::string(); }
  // Memory of the repeated fields.
  [[nodiscard]] std::size_t bytes() const { return form_->request.size() + form_->brief_request.size(); }

 private:
  template <class WriteT>
  void append_event(std::string& out, std::string_view type, WriteT&& write);
  template <class WriteT>
  void append_item_event(std::string& out, std::string_view type, WriteT&& write);
  void append_delta(std::string& out, std::string_view text, std::span<const TokenLogprobs> logprobs = {});
  void append_begun_event(std::string& out, std::string_view type);
  void append_ended_event(std::string& out, const EosEvent& eos);
  // `eos` is null before the end.
  void append_response(std::string& out, std::string_view request, const std::vector<Item>& output, const EosEvent* eos) const;
  [[nodiscard]] Item begun_item(Item::Kind kind, std::int32_t call = 0) const;
  void begin_item(std::string& out, Item item);
  void end_item(std::string& out, ItemStatus status);
  [[nodiscard]] bool is_in(Item::Kind kind) const { return is_in_item_ && items_.back().kind == kind; }

  const std::string response_;                      // See ResponseId::response.
  const std::shared_ptr<const ResponseForm> form_;  // Shared with copies of the encoder.
  std::string model_;
  std::string id_;
  std::string session_;
  MessagePosition place_;
  bool has_session_ = false;  // If false, the session's name does not stand for a session.

  // Items of the stream so far.
  std::vector<Item> items_;
  bool is_in_item_ = false;  // The last item is still open.
  std::uint64_t events_ = 0;
};

// An event that ends a stream without the end of its response. It has no sequence_number.
[[nodiscard]] std::string response_error_event(const Error& error);
// The answer of /v1/responses/input_tokens.
[[nodiscard]] std::string input_tokens_json(std::int32_t tokens);

}  // namespace uma::wire
