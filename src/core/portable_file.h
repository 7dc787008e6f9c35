// A session as a file (docs/SESSION_FILE.md) on its way between a door and the engine: hundreds of megabytes with its KV, so
// its parts lie where they are and are never joined.
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

// The parts, in order. Copies are cheap; the bytes never change.
struct PortableFile {
  std::vector<std::span<const std::byte>> parts;
  std::shared_ptr<const void> owner;  // of the bytes; shared by whoever still sends or reads them

  [[nodiscard]] std::size_t size() const;
};

[[nodiscard]] PortableFile file_of(Bytes bytes);

// Reads a file from its beginning. The file outlives it.
class PortableReader {
 public:
  explicit PortableReader(const PortableFile& file) : parts_(file.parts), left_(file.size()) {}
  [[nodiscard]] std::size_t left() const { return left_; }
  // Fills `out`. REQUIRES: so many bytes are left.
  void read(std::span<std::byte> out);

 private:
  std::span<const std::span<const std::byte>> parts_;
  std::size_t offset_ = 0;  // in the first of them
  std::size_t left_;
};

// A file that comes from elsewhere, a part after another.
class PortableWriter {
 public:
  // All that is on its way, here and elsewhere, shares `budget`.
  explicit PortableWriter(const std::shared_ptr<ByteBudget>& budget);
  // Errors: limit_prompt: the file alone is too long; limit_wait: with the others that come at the same time.
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
