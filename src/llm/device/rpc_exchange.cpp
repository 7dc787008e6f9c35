#include "llm/device/rpc_exchange.h"

#include <algorithm>
#include <cstring>
#include <format>

namespace uma::llm {
namespace {

constexpr std::size_t kRequestHeadBytes = 4096;    // More than any request has that is read here.
constexpr std::size_t kMadeBytesMax = 256u << 10;  // Limit of answers that are made at once.

std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (at + sizeof word <= bytes.size()) std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

std::uint32_t half_number_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t number = 0;
  if (at + sizeof number <= bytes.size()) std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// An upper limit of a tensor's bytes, where it is contiguous. A request for its size begins with the number of the device, then
// the tensor: its id (8 bytes), type (4), buffer (8), four extents and four strides (4 each).
std::uint64_t bytes_of_tensor(std::span<const std::byte> request) {
  constexpr std::size_t kExtentsAt = 4 + 20;
  constexpr std::size_t kStridesAt = kExtentsAt + 16;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t extent = half_number_at(request, kExtentsAt + 4 * i);
    bytes = std::max(bytes, extent * half_number_at(request, kStridesAt + 4 * i));
  }
  return bytes;
}

// Removes the first `count` bytes that are left; the memory is kept.
void drop_front(std::vector<std::byte>& bytes, std::size_t& at, std::size_t count) {
  at += count;
  if (at < bytes.size()) return;
  bytes.clear();
  at = 0;
}

}  // namespace

std::string RpcVersion::text() const {
  return std::format("{}.{}.{}", major, minor, patch);
}

std::vector<std::byte> rpc_request(RpcCommand command, std::span<const std::byte> data) {
  std::vector<std::byte> bytes(1 + sizeof(std::uint64_t));
  const std::uint64_t size = data.size();
  bytes[0] = static_cast<std::byte>(command);
  std::memcpy(bytes.data() + 1, &size, sizeof size);
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

void RpcExchange::from_library(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (start_count_ < start_.size()) {
      const std::size_t count = std::min(bytes.size(), start_.size() - start_count_);
      std::memcpy(start_.data() + start_count_, bytes.data(), count);
      start_count_ += count;
      bytes = bytes.subspan(count);
      if (start_count_ < start_.size()) return;
      data_left_ = number_at(start_, 1);
      head_.clear();
      if (is_for_server()) for_server_.insert(for_server_.end(), start_.begin(), start_.end());
    }
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), data_left_));
    const std::span<const std::byte> data = bytes.first(count);
    const auto kept = data.first(std::min(count, kRequestHeadBytes - head_.size()));
    head_.insert(head_.end(), kept.begin(), kept.end());
    if (is_for_server()) for_server_.insert(for_server_.end(), data.begin(), data.end());
    data_left_ -= count;
    bytes = bytes.subspan(count);
    if (data_left_ == 0) end_request();
  }
}

bool RpcExchange::is_for_server() const {
  return !is_lost_ && start_[0] != static_cast<std::byte>(RpcCommand::hello);
}

void RpcExchange::end_request() {
  start_count_ = 0;
  if (start_[0] == static_cast<std::byte>(RpcCommand::hello)) {
    // Nothing that the transport can do besides TCP: the bytes would no longer come through here.
    std::array<std::byte, sizeof(std::uint64_t) + kRpcHelloAnswerBytes> answer{};
    answer[0] = static_cast<std::byte>(kRpcHelloAnswerBytes);
    answer[8] = static_cast<std::byte>(version_.major);
    answer[9] = static_cast<std::byte>(version_.minor);
    answer[10] = static_cast<std::byte>(version_.patch);
    append_for_library(answer);
    return;
  }
  if (start_[0] == static_cast<std::byte>(RpcCommand::free_buffer)) {
    allocations_count_ += buffers_.erase(number_at(head_, 0));
  }
  if (const auto answer = answer_to_request()) expected_.push_back(*answer);
}

std::optional<RpcExchange::Answer> RpcExchange::answer_to_request() const {
  constexpr std::uint64_t kAlignment = 128;
  constexpr std::uint64_t kBase = 4096;
  constexpr std::uint64_t kMemory = 1u << 30;
  switch (static_cast<RpcCommand>(start_[0])) {
    case RpcCommand::alloc_buffer:
      return Answer{.bytes = 16, .buffer = Buffer{.device = half_number_at(head_, 0), .bytes = number_at(head_, 4)}};
    case RpcCommand::get_alignment:
      return Answer{.bytes = 8, .word = kAlignment};
    case RpcCommand::get_max_size:
      return Answer{.bytes = 8, .word = ~std::uint64_t{0}};
    case RpcCommand::buffer_get_base:
      return Answer{.bytes = 8, .word = kBase};
    case RpcCommand::set_tensor_hash:
      return Answer{.bytes = 1, .word = 1};  // "I have it", so that the weights are not sent.
    case RpcCommand::get_tensor:
      return Answer{.bytes = head_.size() < kRequestHeadBytes
                                 ? number_at(head_, head_.size() - std::min<std::size_t>(8, head_.size()))
                                 : 0};
    case RpcCommand::copy_tensor:
      return Answer{.bytes = 1, .word = 1};
    case RpcCommand::get_device_memory:
      return Answer{.bytes = 16, .word = kMemory};
    case RpcCommand::get_alloc_size:
      return Answer{.bytes = 8, .word = bytes_of_tensor(head_)};
    case RpcCommand::device_count:
      return Answer{.bytes = 4};
    case RpcCommand::free_buffer:
    case RpcCommand::buffer_clear:
    case RpcCommand::set_tensor:
    case RpcCommand::graph_compute:
    case RpcCommand::init_tensor:
    case RpcCommand::hello:
    case RpcCommand::graph_recompute:
    case RpcCommand::memset_tensor:
      break;
  }
  return std::nullopt;
}

std::optional<std::string> RpcExchange::from_server(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (expected_.empty()) return "it sent bytes that answer no request";
    const Answer& answer = expected_.front();
    if (size_count_ < size_.size()) {
      const std::size_t count = std::min(bytes.size(), size_.size() - size_count_);
      std::memcpy(size_.data() + size_count_, bytes.data(), count);
      size_count_ += count;
      bytes = bytes.subspan(count);
      if (size_count_ < size_.size()) return std::nullopt;
      if (number_at(size_, 0) != answer.bytes) {
        return std::format("it answered with {} bytes instead of {}", number_at(size_, 0), answer.bytes);
      }
      append_for_library(size_);
      answered_ = size_.size();
    }
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), size_.size() + answer.bytes - answered_));
    append_for_library(bytes.first(count));
    const auto kept = bytes.first(std::min(count, sizeof(std::uint64_t) - answer_head_.size()));
    answer_head_.insert(answer_head_.end(), kept.begin(), kept.end());
    bytes = bytes.subspan(count);
    answered_ += count;
    if (answered_ < size_.size() + answer.bytes) continue;
    if (const std::uint64_t place = number_at(answer_head_, 0); answer.buffer && place != 0) {
      buffers_[place] = *answer.buffer;
      ++allocations_count_;
    }
    end_answer();
  }
  return std::nullopt;
}

void RpcExchange::end_answer() {
  expected_.pop_front();
  answered_ = size_count_ = 0;
  answer_head_.clear();
}

std::uint64_t RpcExchange::bytes_allocated(std::uint32_t device) const {
  std::uint64_t bytes = 0;
  for (const auto& [place, buffer] : buffers_) bytes += buffer.device == device ? buffer.bytes : 0;
  return bytes;
}

void RpcExchange::lose() {
  is_lost_ = true;
  for_server_.clear();
  for_server_at_ = 0;
}

void RpcExchange::make_answers() {
  while (!expected_.empty() && for_library_.size() < kMadeBytesMax) {
    const Answer& answer = expected_.front();
    if (answered_ < size_.size()) {
      append_for_library(std::as_bytes(std::span(&answer.bytes, 1)));
      answered_ = size_.size();
    }
    // An answer of which the server has sent a part goes on in the middle of a word.
    while (answered_ < size_.size() + answer.bytes && for_library_.size() < kMadeBytesMax) {
      const auto word = std::as_bytes(std::span(&answer.word, 1));
      const std::uint64_t left = size_.size() + answer.bytes - answered_;
      const std::size_t at = answered_ % word.size();
      const auto part = word.subspan(at, static_cast<std::size_t>(std::min<std::uint64_t>(left, word.size() - at)));
      append_for_library(part);
      answered_ += part.size();
    }
    if (answered_ < size_.size() + answer.bytes) return;
    end_answer();
  }
}

std::span<const std::byte> RpcExchange::for_library() {
  if (is_lost_ && for_library_.empty()) make_answers();
  return std::span<const std::byte>(for_library_).subspan(for_library_at_);
}

void RpcExchange::append_for_library(std::span<const std::byte> bytes) {
  for_library_.insert(for_library_.end(), bytes.begin(), bytes.end());
}

void RpcExchange::sent_to_library(std::size_t count) {
  drop_front(for_library_, for_library_at_, count);
}

void RpcExchange::sent_to_server(std::size_t count) {
  drop_front(for_server_, for_server_at_, count);
}

}  // namespace uma::llm
