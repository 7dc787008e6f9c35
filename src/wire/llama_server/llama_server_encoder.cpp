#include "wire/llama_server/llama_server_encoder.h"

#include <algorithm>
#include <cstddef>
#include <format>
#include <utility>

#include "base/utf8.h"
#include "json/json_writer.h"
#include "wire/openai/openai_codec.h"
#include "wire/sampling_writer.h"

namespace uma::wire {
namespace {

void append_piece(std::string& out, std::string_view piece) {
  if (is_utf8(piece)) return json::append_string(out, piece);
  json::append_array(out, piece, [&](char byte) { json::append_integer(out, std::int64_t{static_cast<unsigned char>(byte)}); });
}

std::string_view stop_type(const EosEvent& eos) {
  if (!eos.stop_string.empty()) return "word";
  return eos.reason == FinishReason::stop ? "eos" : "limit";
}

void write_timings(json::ObjectWriter& parent, const Usage& usage) {
  json::ObjectWriter timings(parent.begin("timings"));
  timings.field("cache_n", usage.reused_tokens);
  timings.field("prompt_n", usage.recomputed_tokens);
  timings.field("predicted_n", usage.completion_tokens);
  timings.field("predicted_per_second", usage.tokens_per_s);
  timings.close();
}

}  // namespace

std::string tokens_json(const TokenizedText& tokenized) {
  std::string out;
  json::ObjectWriter object(out);
  std::size_t index = 0;
  json::append_array(object.begin("tokens"), tokenized.tokens, [&](Token token) {
    if (tokenized.text_ends.empty()) return json::append_integer(out, std::int64_t{token});
    const std::size_t begin = index == 0 ? 0 : tokenized.text_ends[index - 1];
    const std::size_t end = tokenized.text_ends[index++];
    json::ObjectWriter entry(out);
    entry.field("id", token);
    append_piece(entry.begin("piece"), std::string_view(tokenized.text).substr(begin, end - begin));
    entry.close();
  });
  object.close();
  return out;
}

std::string text_json(std::string_view name, std::string_view text) {
  std::string out;
  json::ObjectWriter object(out);
  object.field(name, text);
  object.close();
  return out;
}

std::string props_json(const ModelInfo& model, std::string_view umad_version) {
  std::string out;
  json::ObjectWriter object(out);
  json::ObjectWriter settings(object.begin("default_generation_settings"));
  settings.field("n_ctx", model.sequence_tokens_max);
  write_sampling_params(settings, model.sampling);
  settings.close();
  write_sampling_sources(object, model.sampling);
  object.field("total_slots", model.slots * std::max(model.workers, 1));
  object.field("model_alias", model.name);
  object.field("model_path", model.name);  // Clients show it; where the file is concerns nobody.
  object.field("chat_template", model.chat_template ? std::string_view(*model.chat_template) : "");
  json::ObjectWriter modalities(object.begin("modalities"));
  modalities.field("vision", model.reads_images);
  modalities.field("audio", model.reads_audio);
  modalities.close();
  object.field("build_info", std::format("umad {}", umad_version));
  object.field("is_sleeping", model.state != ModelState::ready);
  object.close();
  return out;
}

void TextAnswer::write(std::string& out, std::string_view text, const EosEvent* eos) const {
  json::ObjectWriter object(out);
  object.field("index", 0);
  object.field("content", text);
  object.field("stop", eos != nullptr);
  if (eos != nullptr) {
    object.field("model", model_);
    object.field("tokens_predicted", eos->usage.completion_tokens);
    object.field("tokens_evaluated", eos->usage.prompt_tokens);
    object.field("tokens_cached", eos->usage.reused_tokens);
    object.field("truncated", false);  // A prompt that does not fit is refused.
    object.field("stop_type", stop_type(*eos));
    object.field("stopping_word", eos->stop_string);
    write_timings(object, eos->usage);
  }
  object.close();
}

void TextAnswer::append_event(std::string& out, std::string_view text, const EosEvent* eos) const {
  out += "data: ";
  write(out, text, eos);
  out += "\n\n";
}

void TextAnswer::append_text(std::string& out, std::string_view text) {
  append_event(out, text, nullptr);
}

void TextAnswer::append_last(std::string& out, const EosEvent& eos) {
  if (eos.error) {
    out += std::format("data: {}\n\n", error_json(*eos.error, 500, ""));
    return;
  }
  append_event(out, eos.text, &eos);
}

std::string TextAnswer::whole(const EosEvent& eos) const {
  std::string out;
  write(out, eos.text, &eos);
  return out;
}

}  // namespace uma::wire
