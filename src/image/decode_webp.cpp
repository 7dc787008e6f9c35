#include <memory>
#include <vector>
#include <webp/decode.h>
#include <webp/demux.h>

#include "image/picture_formats.h"

namespace uma::image {
namespace {

struct FreeDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

int webp_orientation(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk{};
  int orientation = kUpright;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) != 0) {
    orientation = orientation_of(std::as_bytes(std::span(chunk.chunk.bytes, chunk.chunk.size)));
  }
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

// Lays the frame over the picture. False: it cannot be decoded.
bool lay_frame(const WebPIterator& frame, llm::Picture& picture) {
  const bool is_within = frame.x_offset >= 0 && frame.y_offset >= 0 && frame.width > 0 && frame.height > 0 &&
                         frame.x_offset + frame.width <= picture.width && frame.y_offset + frame.height <= picture.height;
  WebPBitstreamFeatures stored{};
  if (!is_within || WebPGetFeatures(frame.fragment.bytes, frame.fragment.size, &stored) != VP8_STATUS_OK ||
      stored.width != frame.width || stored.height != frame.height) {
    return false;
  }
  constexpr std::size_t kBytes = 4;
  const std::size_t row_bytes = static_cast<std::size_t>(frame.width) * kBytes;
  std::vector<std::uint8_t> rgba(row_bytes * static_cast<std::size_t>(frame.height));
  if (WebPDecodeRGBAInto(frame.fragment.bytes, frame.fragment.size, rgba.data(), rgba.size(), static_cast<int>(row_bytes)) ==
      nullptr) {
    return false;
  }
  for (int y = 0; y < frame.height; ++y) {
    const auto row = row_of(picture, frame.y_offset + y).subspan(static_cast<std::size_t>(frame.x_offset) * 3);
    lay_over_white(std::span(rgba).subspan(static_cast<std::size_t>(y) * row_bytes, row_bytes), row);
  }
  return true;
}

}  // namespace

Expected<Decoded> decode_webp(File file) {
  const WebPData data{.bytes = reinterpret_cast<const std::uint8_t*>(file.data()), .size = file.size()};
  const std::unique_ptr<WebPDemuxer, FreeDemuxer> demuxer(WebPDemux(&data));
  WebPIterator frame{};
  if (demuxer == nullptr || WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0) return undecodable("WebP", "it has no picture");
  Decoded decoded{.picture = white_picture(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH),
                                           WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT)),
                  .orientation = webp_orientation(demuxer.get())};
  const bool is_laid = lay_frame(frame, decoded.picture);
  WebPDemuxReleaseIterator(&frame);
  if (!is_laid) return undecodable("WebP", "its picture cannot be decoded");
  return decoded;
}

}  // namespace uma::image
