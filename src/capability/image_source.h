// Gets the bytes of an image from where a client says it is.
#pragma once

#include <span>
#include <string>

#include "base/bytes.h"
#include "core/error.h"
#include "core/image.h"

namespace uma::capability {

// Reads the file of an image and checks it (image_header.h). Paths are read only below `allowed_dirs`, where every step is
// taken from an open folder and no symbolic link is followed, so that neither a link nor a rename meanwhile leads out; only
// regular files. Blocks on the disk. Errors: E_PROTO_003 that says why, the same for a file that is absent and one that is not
// allowed.
[[nodiscard]] Expected<Bytes> read_image(const ImageSource& source, std::span<const std::string> allowed_dirs);

}  // namespace uma::capability
