// Reads and writes images of requests.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/embedding.h"
#include "core/image.h"
#include "json/field_reader.h"

namespace uma::wire {

// Reads exactly one of {"path": ...}, {"data": base64} and {"url": ...}. A url may be a data: URI, or file:// and a path.
[[nodiscard]] ImageSource image_field(json::FieldReader& fields);
// Reads {"data": base64, "format": "wav" | "mp3" | "flac"}, which OpenAI calls input_audio, as a clip with a data: URI.
[[nodiscard]] ImageSource audio_field(json::FieldReader& fields);
// The clip in a part of a content that is {type: "input_audio", input_audio: {data, format}}.
[[nodiscard]] ImageSource audio_part(json::FieldReader& part);
// The image or clip in a part of a content, in the form of any API: image_url and input_image with a URL or {url}, Anthropic's
// image with a source, the AI SDK's with an image, MCP's with data, {type: "image"} with path, data or url, and {type:
// "input_audio", input_audio: {data, format}}. Nullopt for another part.
[[nodiscard]] std::optional<ImageSource> image_part(json::FieldReader& part);
// Anthropic's "source": {type: "base64", data} or {type: "url", url}.
[[nodiscard]] ImageSource image_of_source(json::FieldReader& block);
// Reads one image, or several in "images", and the other fields of a request for image embeddings.
[[nodiscard]] EmbedImagesRequest embed_images_fields(json::FieldReader& fields);
// The image of a URL in OpenAI's content; the URL begins with data:, file:// or http, or is base64 alone.
[[nodiscard]] ImageSource image_of_url(std::string url);
// The inverse of image_of_url().
[[nodiscard]] std::string url_of_image(const ImageSource& image);
// The media type of the file of an image or a clip by its first bytes, such as "image/png"; empty for unsupported types.
[[nodiscard]] std::string_view image_type(std::span<const std::byte> file);
// Requires: image_type(file) is not empty.
[[nodiscard]] std::string data_uri(std::span<const std::byte> file);

// Appends an array of vectors. Each number is the shortest text that reads as the same float.
void append_vectors(std::string& out, const std::vector<std::vector<float>>& vectors);
// The embeddings in OpenAI's list format.
[[nodiscard]] std::string image_embeddings_json(const ImageEmbeddings& embeddings, std::string_view model);

}  // namespace uma::wire
