// What the library says of itself: its log is global, and the only place where it tells why something failed or what it chose.
// Internal to llm: includes the library's header. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include <llama.h>

#include "base/mutex.h"

namespace uma::llm {

class LibraryLog {
 public:
  // Takes one piece of the library's log; errors and warnings also go to ours, at debug level.
  void add(ggml_log_level level, std::string_view text);
  // Forgets what was said: called before an action whose reasons are asked for afterwards.
  void forget();
  [[nodiscard]] std::string last_error() const;
  // The library has turned flash attention on where the choice was left to it.
  [[nodiscard]] bool chose_flash_attention() const;

 private:
  mutable Mutex mutex_;
  std::string last_error_ GUARDED_BY(mutex_);
  bool chose_flash_attention_ GUARDED_BY(mutex_) = false;
};

// The one that init_llama() connects.
LibraryLog& library_log();

}  // namespace uma::llm
