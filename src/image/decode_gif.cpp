#include <algorithm>
#include <array>
#include <cstring>
#include <gif_lib.h>
#include <memory>
#include <optional>
#include <vector>

#include "image/picture_formats.h"

namespace uma::image {
namespace {

struct CloseGif {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};

int read_gif_bytes(GifFileType* gif, GifByteType* bytes, int size) {
  File& left = *static_cast<File*>(gif->UserData);
  const std::size_t count = std::min(left.size(), static_cast<std::size_t>(size));
  std::memcpy(bytes, left.data(), count);
  left = left.subspan(count);
  return static_cast<int>(count);
}

// Reads an extension. Returns the colour that it makes transparent, else `transparent`; nullopt: it cannot be read.
std::optional<int> read_gif_extension(GifFileType& gif, int transparent) {
  int kind = 0;
  GifByteType* bytes = nullptr;  // The first is their number.
  if (DGifGetExtension(&gif, &kind, &bytes) == GIF_ERROR) return std::nullopt;
  while (bytes != nullptr) {
    GraphicsControlBlock control{};
    if (kind == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(bytes[0], bytes + 1, &control) != GIF_ERROR) {
      transparent = control.TransparentColor;
    }
    if (DGifGetExtensionNext(&gif, &bytes) == GIF_ERROR) return std::nullopt;
  }
  return transparent;
}

void write_gif_row(std::span<const GifPixelType> codes, const ColorMapObject& colours, int transparent,
                   std::span<std::uint8_t> row) {
  for (std::size_t x = 0; x < codes.size() && 3 * x < row.size(); ++x) {
    if (codes[x] == transparent) continue;
    const GifColorType colour = codes[x] < colours.ColorCount ? colours.Colors[codes[x]] : GifColorType{};
    row[3 * x] = colour.Red;
    row[3 * x + 1] = colour.Green;
    row[3 * x + 2] = colour.Blue;
  }
}

// Reads the picture that follows in the file, as far as the canvas shows it.
bool read_gif_picture(GifFileType& gif, int transparent, llm::Picture& canvas) {
  struct Pass {
    int first;
    int step;
  };
  constexpr std::array<Pass, 4> kInterlaced = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
  constexpr std::array<Pass, 1> kPlain = {{{0, 1}}};
  if (DGifGetImageDesc(&gif) == GIF_ERROR) return false;
  const GifImageDesc& image = gif.Image;
  const ColorMapObject* const colours = image.ColorMap != nullptr ? image.ColorMap : gif.SColorMap;
  if (colours == nullptr || image.Left < 0 || image.Top < 0 || image.Width <= 0 || image.Height <= 0) return false;
  std::vector<GifPixelType> codes(static_cast<std::size_t>(image.Width));
  for (const Pass& pass : image.Interlace ? std::span<const Pass>(kInterlaced) : std::span<const Pass>(kPlain)) {
    for (int y = pass.first; y < image.Height; y += pass.step) {
      if (DGifGetLine(&gif, codes.data(), image.Width) == GIF_ERROR) return false;
      if (image.Top + y >= canvas.height || image.Left >= canvas.width) continue;
      write_gif_row(codes, *colours, transparent,
                    row_of(canvas, image.Top + y).subspan(static_cast<std::size_t>(image.Left) * 3));
    }
  }
  return true;
}

}  // namespace

Expected<Decoded> decode_gif(File file) {
  const auto refuse = [](int code) {
    const char* const why = GifErrorString(code);
    return undecodable("GIF", why == nullptr ? "it has no picture" : why);
  };
  int problem = 0;
  const std::unique_ptr<GifFileType, CloseGif> gif(DGifOpen(&file, read_gif_bytes, &problem));
  if (gif == nullptr) return refuse(problem);
  Decoded decoded{.picture = white_picture(gif->SWidth, gif->SHeight)};
  int transparent = NO_TRANSPARENT_COLOR;
  for (GifRecordType record = UNDEFINED_RECORD_TYPE; DGifGetRecordType(gif.get(), &record) != GIF_ERROR;) {
    if (record == IMAGE_DESC_RECORD_TYPE) {
      if (!read_gif_picture(*gif, transparent, decoded.picture)) return refuse(gif->Error);
      return decoded;
    }
    const auto read = record == EXTENSION_RECORD_TYPE ? read_gif_extension(*gif, transparent) : std::nullopt;
    if (!read) break;
    transparent = *read;
  }
  return refuse(gif->Error);
}

}  // namespace uma::image
