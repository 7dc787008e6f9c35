#include "llm/llama_log.h"

#include "base/log.h"

namespace uma::llm {

void LibraryLog::add(ggml_log_level level, std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.empty()) return;
  if (level == GGML_LOG_LEVEL_ERROR || text.contains("Flash Attention enabled")) {
    const MutexLock lock(mutex_);
    if (level == GGML_LOG_LEVEL_ERROR) {
      last_error_ = text;
    } else {
      chose_flash_attention_ = true;
    }
  }
  if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) log_debug("libllama: {}", text);
}

void LibraryLog::forget() {
  const MutexLock lock(mutex_);
  last_error_.clear();
  chose_flash_attention_ = false;
}

std::string LibraryLog::last_error() const {
  const MutexLock lock(mutex_);
  return last_error_;
}

bool LibraryLog::chose_flash_attention() const {
  const MutexLock lock(mutex_);
  return chose_flash_attention_;
}

LibraryLog& library_log() {
  static LibraryLog log;
  return log;
}

}  // namespace uma::llm
