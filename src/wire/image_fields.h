// Images in the requests of both doors.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/image.h"
#include "wire/field_reader.h"

namespace uma::wire {

// {"path": ...}, {"data": base64} or {"url": ...}: exactly one; a url may be a data: URI, or file:// and a path.
[[nodiscard]] ImageSource image_field(FieldReader& fields);
// The same of one image, or several in "images"; and the rest of a request for vectors.
[[nodiscard]] EmbedImagesRequest embed_images_fields(FieldReader& fields);
// The address in a part of OpenAI's content. It is an image's where it begins with data:, file:// or http.
[[nodiscard]] ImageSource image_of_url(std::string url);
// The other way round.
[[nodiscard]] std::string url_of_image(const ImageSource& image);
// Of an image's file, by its first bytes: "image/png" and so on; empty: it is of no kind that is read.
[[nodiscard]] std::string_view image_type(std::span<const std::byte> file);
// REQUIRES: it is of one.
[[nodiscard]] std::string data_uri(std::span<const std::byte> file);

// Appends an array of vectors; each number is the shortest text that reads as the same one.
void append_vectors(std::string& out, const std::vector<std::vector<float>>& vectors);
// As a list of OpenAI's embeddings.
[[nodiscard]] std::string image_embeddings_json(const ImageEmbeddings& embeddings, std::string_view model);

}  // namespace uma::wire
