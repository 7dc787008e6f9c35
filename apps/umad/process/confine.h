#pragma once

namespace uma::umad {

// From now on this process can compute, take memory, and read and write what is open; on Linux it can open nothing, start
// nothing, reach no network and make no code. Elsewhere nothing changes. False: the system cannot do it.
[[nodiscard]] bool confine();

}  // namespace uma::umad
