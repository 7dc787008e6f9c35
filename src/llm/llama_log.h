// Parses the library's log, which is the only source for the reason of a failure, the choices of the library and the memory of
// its parts. The library logs on the calling thread, so each thread has its own LibraryLog, and simultaneous loads do not mix.
// Internal to llm, because it includes the library's header.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <llama.h>

namespace uma::llm {

class LibraryLog {
 public:
  // Takes one piece of the library's log. Errors and warnings are also written to our log, at debug level.
  void add(ggml_log_level level, std::string_view text);
  // Clears the log. Called before an action whose log is needed afterwards.
  void forget() { *this = LibraryLog(); }
  // The last error that gives a reason.
  [[nodiscard]] const std::string& last_error() const { return last_error_; }
  // Whether the library enabled flash attention when the choice was left to it.
  [[nodiscard]] bool chose_flash_attention() const { return chose_flash_attention_; }
  // The memory of the weights of a loaded model: in allocated memory, and in the mapped file.
  [[nodiscard]] std::uint64_t weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] std::uint64_t mapped_bytes() const { return mapped_bytes_; }
  // The weights in buffers with this name, in allocated memory or in the mapped file.
  [[nodiscard]] std::uint64_t weight_bytes_in(const std::string& buffer) const;
  // The memory of the last context to within some KiB: caches and states, and computation.
  [[nodiscard]] std::uint64_t cache_bytes() const { return cache_bytes_; }
  [[nodiscard]] std::uint64_t compute_bytes() const { return compute_bytes_; }

 private:
  std::string last_error_;
  bool chose_flash_attention_ = false;
  std::uint64_t weight_bytes_ = 0;
  std::map<std::string, std::uint64_t> weight_bytes_in_;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t cache_bytes_ = 0;
  std::uint64_t compute_bytes_ = 0;
};

// The log of this thread. init_llama() connects it to the library.
LibraryLog& library_log();

}  // namespace uma::llm
