// Encodes llama-server's answers: tokens, prompts, /props, and the text of /infill and /completion as one object or as
// server-sent events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/event.h"
#include "core/session_info.h"
#include "core/text_conversion.h"

namespace uma::wire {

// {"tokens": [...]}: ids or, with texts, {"id", "piece"}. A piece that is no valid UTF-8 is an array of its bytes.
[[nodiscard]] std::string tokens_json(const TokenizedText& tokenized);
// {NAME: text}
[[nodiscard]] std::string text_json(std::string_view name, std::string_view text);
// The properties of a model as llama-server shows those of its own.
[[nodiscard]] std::string props_json(const ModelInfo& model, std::string_view umad_version);

class TextAnswer {
 public:
  explicit TextAnswer(std::string model) : model_(std::move(model)) {}

  void append_text(std::string& out, std::string_view text);
  // Appends the rest of the text and the counts, or the error.
  void append_last(std::string& out, const EosEvent& eos);
  [[nodiscard]] std::string whole(const EosEvent& eos) const;

 private:
  void write(std::string& out, std::string_view text, const EosEvent* eos) const;
  void append_event(std::string& out, std::string_view text, const EosEvent* eos) const;

  const std::string model_;
};

}  // namespace uma::wire
