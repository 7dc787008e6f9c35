// Requests for pictures and their answers: of the socket, and of OpenAI's /v1/images/generations.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/picture.h"
#include "json/field_reader.h"
#include "wire/json_body.h"
#include "wire/own/event_codec.h"

namespace uma::wire {

// --- The socket.

// Reads the fields of generate_image.
[[nodiscard]] PictureRequest picture_fields(json::FieldReader& fields);
// Appends the frames of an event: image_begin, progress, or the image_chunks of a picture.
void append_picture_event(std::string& out, const FrameHead& head, const PictureEvent& event);
void append_picture_eos(std::string& out, const FrameHead& head, const PictureReceipt& receipt);

// --- OpenAI.

struct ImagesCall {
  PictureRequest request;
  bool is_stream = false;
  std::vector<std::string> warnings{};  // A few sentences about what is not served in every point.
};
[[nodiscard]] std::expected<ImagesCall, RejectedBody> decode_images_call(std::string_view body);

// A picture of an answer.
struct PngFile {
  std::uint64_t seed = 0;
  std::string bytes;
};
// The facts that an answer states besides its pictures.
struct ImagesHead {
  std::int64_t created_s = 0;  // Unix time.
  PictureBegun begun{};
};
[[nodiscard]] std::string images_json(const ImagesHead& head, std::span<const PngFile> pictures);
// An event of a stream, whole: "event: … data: …".
[[nodiscard]] std::string images_event(const ImagesHead& head, const DrawnPicture& picture);

}  // namespace uma::wire
