#include "llm/decode_picture.h"

#include <memory>
#include <mtmd-helper.h>
#include <mtmd.h>

#include "llm/llama_guard.h"

namespace uma::llm {

Expected<DecodedPicture> decode_picture(std::span<const std::byte> file) {
  return guarded(ErrorCode::proto_field, "decoding a picture", [&]() -> Expected<DecodedPicture> {
    // Only the decoder of sound looks at a context.
    const std::unique_ptr<mtmd_bitmap, decltype(&mtmd_bitmap_free)> bitmap(
        mtmd_helper_bitmap_init_from_buf(nullptr, reinterpret_cast<const unsigned char*>(file.data()), file.size(), false,
                                         mtmd_helper_init_opt_default())
            .bitmap,
        mtmd_bitmap_free);
    if (bitmap == nullptr) return fail(ErrorCode::proto_field, "the picture cannot be decoded: its file is damaged");
    const unsigned char* const levels = mtmd_bitmap_get_data(bitmap.get());
    return DecodedPicture{.width = static_cast<std::int32_t>(mtmd_bitmap_get_nx(bitmap.get())),
                          .height = static_cast<std::int32_t>(mtmd_bitmap_get_ny(bitmap.get())),
                          .levels = {levels, levels + mtmd_bitmap_get_n_bytes(bitmap.get())}};
  });
}

}  // namespace uma::llm
