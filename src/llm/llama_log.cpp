#include "llm/llama_log.h"

#include <cstdlib>
#include <optional>

#include "base/log.h"

namespace uma::llm {
namespace {

// The number behind `label` in a line such as "sched_reserve: CPU compute buffer size = 2.15 MiB".
std::optional<std::uint64_t> bytes_after(std::string_view text, std::string_view label) {
  const std::size_t at = text.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string number(text.substr(at + label.size(), 32));
  char* end = nullptr;
  const double mib = std::strtod(number.c_str(), &end);
  if (!std::string_view(end).starts_with(" MiB") || !(mib >= 0 && mib < 1e12)) return std::nullopt;
  return static_cast<std::uint64_t>(mib * (1 << 20));
}

std::string last_word(std::string_view text) {
  return std::string(text.substr(text.find_last_of(' ') + 1));
}

}  // namespace

std::uint64_t LibraryLog::weight_bytes_in(const std::string& buffer) const {
  const auto found = weight_bytes_in_.find(buffer);
  return found == weight_bytes_in_.end() ? 0 : found->second;
}

void LibraryLog::add(ggml_log_level level, std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.empty()) return;
  // The last lines of a failed load give no reason.
  const bool has_reason = !text.contains("failed to load model") || last_error_.empty();
  if (level == GGML_LOG_LEVEL_ERROR && has_reason) last_error_ = text;
  if (text.contains("Flash Attention enabled")) chose_flash_attention_ = true;
  if (const auto bytes = bytes_after(text, " compute buffer size = ")) compute_bytes_ += *bytes;
  // "load_tensors:   CPU_Mapped model buffer size = …", "load_tensors:   AMX model buffer size = …"
  if (const auto bytes = bytes_after(text, " model buffer size = ")) {
    (text.contains("_Mapped") ? mapped_bytes_ : weight_bytes_) += *bytes;
    weight_bytes_in_[last_word(text.substr(0, text.find(" model buffer size")))] += *bytes;
  }
  // "llama_kv_cache: size = …", "llama_memory_recurrent: size = …": one line for each cache of a model.
  if (text.starts_with("llama_kv_cache") || text.starts_with("llama_memory_")) {
    if (const auto bytes = bytes_after(text, ": size = ")) cache_bytes_ += *bytes;
  }
  if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) log_debug("libllama: {}", text);
}

LibraryLog& library_log() {
  thread_local LibraryLog log;
  return log;
}

}  // namespace uma::llm
