#pragma once

namespace uma::umad {

// From now on this process is killed when its parent ends: on Linux when the parent's thread that started it ends, elsewhere a
// moment after the parent's process. A parent that has ended before is not noticed. False if the system refuses.
[[nodiscard]] bool end_with_parent();

}  // namespace uma::umad
