// The bytes between the library's RPC client and a server: which answers are outstanding, and what to answer instead of a
// server that is lost. The protocol, with numbers in little-endian order:
//
//   request  | command, 1 byte | size, 8 bytes | data |     The first one of a connection is HELLO.
//   answer                     | size, 8 bytes | data |     To some commands only, in the order of the requests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace uma::llm {

struct RpcVersion {
  std::uint8_t major = 0;
  std::uint8_t minor = 0;
  std::uint8_t patch = 0;  // Another one may number the operations of a graph differently.

  [[nodiscard]] std::string text() const;
  bool operator==(const RpcVersion&) const = default;
};

// The version whose commands this file knows; the patch does not change them.
inline constexpr RpcVersion kRpcKnown{.major = 8, .minor = 0};

enum class RpcCommand : std::uint8_t {
  alloc_buffer = 0,
  get_alignment = 1,
  get_max_size = 2,
  buffer_get_base = 3,
  free_buffer = 4,
  buffer_clear = 5,
  set_tensor = 6,
  set_tensor_hash = 7,
  get_tensor = 8,
  copy_tensor = 9,
  graph_compute = 10,
  get_device_memory = 11,
  init_tensor = 12,
  get_alloc_size = 13,
  hello = 14,
  device_count = 15,
  graph_recompute = 16,
  memset_tensor = 17,
};

inline constexpr std::size_t kRpcHelloBytes = 24;        // Bytes of the request: what the transport can do.
inline constexpr std::size_t kRpcHelloAnswerBytes = 28;  // Version, padding, what the transport can do.

// The bytes of a request. Its data follows these if `data` is only a part.
[[nodiscard]] std::vector<std::byte> rpc_request(RpcCommand command, std::span<const std::byte> data);

// Follows one connection of the library. Pure: the caller moves the bytes. Answers of a lost server are as harmless as
// possible: no buffer for ALLOC_BUFFER, zeros for tensors, and for the figures that the library divides by or asserts on,
// values that it survives.
class RpcExchange {
 public:
  explicit RpcExchange(RpcVersion version) : version_(version) {}

  // Takes bytes of the library. HELLO is answered here; other bytes are for the server, unless it is lost.
  void from_library(std::span<const std::byte> bytes);
  // Takes bytes of the server. The result is what is wrong with them; the server is then to be given up.
  [[nodiscard]] std::optional<std::string> from_server(std::span<const std::byte> bytes);
  // From now on the answers are made here.
  void lose();

  [[nodiscard]] bool is_lost() const { return is_lost_; }
  // The server has something to answer.
  [[nodiscard]] bool awaits() const { return !is_lost_ && !expected_.empty(); }

  // Bytes of the buffers that the connection has on a device of the server, and how often that has changed.
  [[nodiscard]] std::uint64_t bytes_allocated(std::uint32_t device) const;
  [[nodiscard]] std::uint64_t allocations_count() const { return allocations_count_; }

  // Bytes to send to each side; the caller sends some and says how many.
  [[nodiscard]] std::span<const std::byte> for_library();
  void sent_to_library(std::size_t count);
  [[nodiscard]] std::span<const std::byte> for_server() const { return std::span(for_server_).subspan(for_server_at_); }
  void sent_to_server(std::size_t count);

 private:
  struct Buffer {
    std::uint32_t device = 0;
    std::uint64_t bytes = 0;
  };
  struct Answer {
    std::uint64_t bytes = 0;         // Without the size before them.
    std::uint64_t word = 0;          // The word that a lost server's answer repeats.
    std::optional<Buffer> buffer{};  // That is being allocated.
  };

  // Whether the request that is arriving is forwarded.
  [[nodiscard]] bool is_for_server() const;
  // The answer to the request whose data begins with `head_`.
  [[nodiscard]] std::optional<Answer> answer_to_request() const;
  void end_request();
  void end_answer();
  void append_for_library(std::span<const std::byte> bytes);
  void make_answers();

  const RpcVersion version_;
  bool is_lost_ = false;
  // The request that is arriving.
  std::array<std::byte, 9> start_{};  // Command and size.
  std::size_t start_count_ = 0;
  std::uint64_t data_left_ = 0;
  std::vector<std::byte> head_;  // The first bytes of its data.
  // The answers to requests that arrived as a whole.
  std::deque<Answer> expected_;
  std::uint64_t answered_ = 0;  // Bytes of the first expected answer that were made or forwarded, with the size before it.
  std::array<std::byte, 8> size_{};
  std::size_t size_count_ = 0;
  std::vector<std::byte> answer_head_;       // The first word of its data.
  std::map<std::uint64_t, Buffer> buffers_;  // By their addresses on the server.
  std::uint64_t allocations_count_ = 0;
  std::vector<std::byte> for_library_;
  std::size_t for_library_at_ = 0;
  std::vector<std::byte> for_server_;
  std::size_t for_server_at_ = 0;
};

}  // namespace uma::llm
