// A session's file (docs/SESSION_FILE.md) in transfer between a connection and the engine. With KV it has hundreds of
// megabytes, so its parts are never copied together.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/byte_budget.h"
#include "base/bytes.h"
#include "core/error.h"

namespace uma {

// The parts in order. Copies are cheap; the bytes never change.
struct PortableFile {
  std::vector<std::span<const std::byte>> parts;
  std::shared_ptr<const void> owner;  // Owns the bytes; shared by all that send or read them.

  [[nodiscard]] std::size_t size() const;
};

[[nodiscard]] PortableFile file_of(Bytes bytes);

// Reads a file from its beginning. The file outlives the reader.
class PortableReader {
 public:
  explicit PortableReader(const PortableFile& file) : parts_(file.parts), left_(file.size()) {}
  [[nodiscard]] std::size_t left() const { return left_; }
  // Fills `out`. Requires: at least that many bytes are left.
  void read(std::span<std::byte> out);

 private:
  std::span<const std::span<const std::byte>> parts_;
  std::size_t offset_ = 0;  // Offset in the first remaining part.
  std::size_t left_;
};

// Collects a file that arrives in parts.
class PortableWriter {
 public:
  // All transfers share `budget`.
  explicit PortableWriter(const std::shared_ptr<ByteBudget>& budget);
  // Errors: limit_prompt if the file alone is too large; limit_wait if all present files together are.
  [[nodiscard]] Expected<Unit> append(std::span<const std::byte> bytes);
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] PortableFile finish() &&;

 private:
  struct Chunks {
    ByteBudget::Share share;
    std::vector<Bytes> all;
  };
  std::size_t bytes_max_;
  std::size_t size_ = 0;
  std::shared_ptr<Chunks> chunks_;
};

}  // namespace uma
