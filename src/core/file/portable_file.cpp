#include "core/file/portable_file.h"

#include <algorithm>
#include <format>
#include <utility>

#include "base/check.h"

namespace uma {
namespace {

constexpr std::size_t kChunkBytes = 1ul << 20;  // Allocation size, so that many small parts cost no more than a few large ones.

}  // namespace

std::size_t PortableFile::size() const {
  std::size_t total = 0;
  for (const auto part : parts) total += part.size();
  return total;
}

PortableFile file_of(Bytes bytes) {
  const auto shared = std::make_shared<const Bytes>(std::move(bytes));
  return {.parts = {*shared}, .owner = shared};
}

void PortableReader::read(std::span<std::byte> out) {
  UMA_CHECK(out.size() <= left_);
  left_ -= out.size();
  while (!out.empty()) {
    const auto part = parts_.front().subspan(offset_);
    const std::size_t count = std::min(part.size(), out.size());
    std::ranges::copy(part.first(count), out.begin());
    out = out.subspan(count);
    offset_ += count;
    if (offset_ == parts_.front().size()) {
      parts_ = parts_.subspan(1);
      offset_ = 0;
    }
  }
}

PortableWriter::PortableWriter(const std::shared_ptr<ByteBudget>& budget)
    : bytes_max_(budget->bytes_max()), chunks_(std::make_shared<Chunks>(ByteBudget::Share(budget), std::vector<Bytes>())) {}

Expected<Unit> PortableWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > bytes_max_ - size_) {
    return fail(
        ErrorCode::limit_prompt,
        std::format("the file is larger than limits.transfer_bytes_max, which is {} bytes: export it without its KV, or "
                    "start umad with a larger limit",
                    bytes_max_));
  }
  while (!bytes.empty()) {
    std::vector<Bytes>& all = chunks_->all;
    if (all.empty() || all.back().size() == all.back().capacity()) {
      const std::size_t room = std::min(kChunkBytes, bytes_max_ - size_);
      if (!chunks_->share.grow(room)) {
        return fail(
            ErrorCode::limit_wait,
            std::format("other session files in transfer use all of limits.transfer_bytes_max, {} bytes: try again later",
                        bytes_max_));
      }
      all.emplace_back().reserve(room);
    }
    const auto part = bytes.first(std::min(bytes.size(), all.back().capacity() - all.back().size()));
    all.back().insert(all.back().end(), part.begin(), part.end());
    size_ += part.size();
    bytes = bytes.subspan(part.size());
  }
  return Unit{};
}

PortableFile PortableWriter::finish() && {
  PortableFile file;
  for (const Bytes& chunk : chunks_->all) file.parts.emplace_back(chunk);
  file.owner = std::move(chunks_);
  return file;
}

}  // namespace uma
