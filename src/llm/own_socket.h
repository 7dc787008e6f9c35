// Which process has the other end of a connection within this machine.
#pragma once

namespace uma::llm {

// Whether the peer of a TCP connection over the loopback of IPv4 is a socket of this process. Reads /proc, which takes a
// millisecond or less on a usual machine. False also if that cannot be read.
[[nodiscard]] bool is_peer_own(int fd);

}  // namespace uma::llm
