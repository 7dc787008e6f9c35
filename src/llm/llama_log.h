// What the library says of itself: its log is the only place where it tells why something failed, what it chose and what its
// parts take. It speaks in the thread that called it, so each thread has a log of its own, and loads side by side do not mix.
// Internal to llm: includes the library's header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <llama.h>

namespace uma::llm {

class LibraryLog {
 public:
  // Takes one piece of the library's log; errors and warnings also go to ours, at debug level.
  void add(ggml_log_level level, std::string_view text);
  // Forgets what was said: called before an action whose reasons are asked for afterwards.
  void forget() { *this = LibraryLog(); }
  [[nodiscard]] const std::string& last_error() const { return last_error_; }
  // The library has turned flash attention on where the choice was left to it.
  [[nodiscard]] bool chose_flash_attention() const { return chose_flash_attention_; }
  // What the weights of a model that was loaded take: in memory of their own, and of the mapped file.
  [[nodiscard]] std::uint64_t weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] std::uint64_t mapped_bytes() const { return mapped_bytes_; }
  // What a context that was made takes, to some KiB: caches and states, and computing.
  [[nodiscard]] std::uint64_t cache_bytes() const { return cache_bytes_; }
  [[nodiscard]] std::uint64_t compute_bytes() const { return compute_bytes_; }

 private:
  std::string last_error_;
  bool chose_flash_attention_ = false;
  std::uint64_t weight_bytes_ = 0;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t cache_bytes_ = 0;
  std::uint64_t compute_bytes_ = 0;
};

// This thread's; init_llama() connects them.
LibraryLog& library_log();

}  // namespace uma::llm
