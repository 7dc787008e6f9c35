// Bytes of the RPC protocol, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace uma::llm {

using RpcData = std::vector<std::byte>;

// In little-endian order.
inline RpcData rpc_number(std::uint64_t value, std::size_t bytes = 8) {
  RpcData data(bytes);
  std::memcpy(data.data(), &value, bytes);
  return data;
}

inline RpcData rpc_joined(std::initializer_list<RpcData> parts) {
  RpcData all;
  for (const RpcData& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// With its size.
inline RpcData rpc_answer(const RpcData& data) {
  return rpc_joined({rpc_number(data.size()), data});
}

}  // namespace uma::llm
