#include "wire/image_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <format>
#include <string_view>
#include <utility>

#include "base/base64.h"
#include "json/json_writer.h"
#include "wire/generate_fields.h"
#include "wire/own/request_codec.h"

namespace uma::wire {

namespace {

void append_float(std::string& out, float value) {
  std::array<char, 32> text;
  out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
}

}  // namespace

ImageSource image_of_url(std::string url) {
  constexpr std::string_view kFile = "file://";
  // Every URL has a scheme; base64 without one has no colon.
  if (is_data_uri(url) || !url.contains(':')) return {.kind = ImageSource::Kind::data, .text = std::move(url)};
  if (url.starts_with(kFile)) return {.kind = ImageSource::Kind::path, .text = url.substr(kFile.size())};
  return {.kind = ImageSource::Kind::url, .text = std::move(url)};
}

std::string url_of_image(const ImageSource& image) {
  return image.kind == ImageSource::Kind::path ? "file://" + image.text : image.text;
}

std::string_view image_type(std::span<const std::byte> file) {
  const auto begins_with = [&](std::string_view magic) {
    return file.size() >= magic.size() && std::memcmp(file.data(), magic.data(), magic.size()) == 0;
  };
  if (begins_with("\x89PNG")) return "image/png";
  if (begins_with("\xFF\xD8\xFF")) return "image/jpeg";
  if (begins_with("GIF8")) return "image/gif";
  if (begins_with("BM")) return "image/bmp";
  if (begins_with("RIFF")) {
    constexpr std::string_view kWebp = "WEBP";
    const auto kind = file.subspan(std::min<std::size_t>(file.size(), 8));
    const bool is_webp = kind.size() >= kWebp.size() && std::memcmp(kind.data(), kWebp.data(), kWebp.size()) == 0;
    return is_webp ? "image/webp" : "audio/wav";
  }
  if (begins_with("fLaC")) return "audio/flac";
  const bool is_mp3 = begins_with("ID3") || (file.size() > 1 && file[0] == std::byte{0xFF} && file[1] >= std::byte{0xE0});
  return is_mp3 ? "audio/mp3" : "";
}

std::string data_uri(std::span<const std::byte> file) {
  std::string uri = std::format("data:{};base64,", image_type(file));
  append_base64(uri, file);
  return uri;
}

ImageSource image_field(json::FieldReader& fields) {
  constexpr std::array<std::string_view, 3> kNames = {"path", "data", "url"};
  std::size_t count = 0;
  for (const std::string_view name : kNames) count += fields.find(name) != nullptr ? 1 : 0;
  if (count != 1) {
    fields.fail_field("data", "or \"path\" or \"url\" is required, and only one is allowed");
    return {};
  }
  if (auto path = fields.text("path", {.min = 1})) return {.kind = ImageSource::Kind::path, .text = std::move(*path)};
  if (auto data = fields.text("data", {.min = 1})) return {.kind = ImageSource::Kind::data, .text = std::move(*data)};
  return image_of_url(fields.text("url", {.min = 1}).value_or(""));
}

ImageSource audio_field(json::FieldReader& fields) {
  constexpr std::array<std::string_view, 3> kFormats = {"wav", "mp3", "flac"};
  std::string data = fields.required_text("data", {.min = 1});
  const std::string format = fields.required_text("format");
  if (fields.ok() && !std::ranges::contains(kFormats, format)) fields.fail_field("format", R"(must be "wav", "mp3" or "flac")");
  if (is_data_uri(data)) data.erase(0, data.find(',') + 1);
  if (fields.ok()) data.insert(0, std::format("data:audio/{};base64,", format));
  return {.kind = ImageSource::Kind::data, .text = std::move(data), .media = Media::audio};
}

ImageSource audio_part(json::FieldReader& part) {
  const boost::json::object* object = part.object("input_audio");
  if (object == nullptr) {
    part.fail_field("input_audio", "is required");
    return {};
  }
  json::FieldReader inner(*object, part.path() + "input_audio.");
  ImageSource clip = audio_field(inner);
  if (!inner.ok()) part.fail_as(inner);
  return clip;
}

std::optional<ImageSource> image_part(json::FieldReader& part) {
  constexpr std::array<std::string_view, 3> kTypes = {"image_url", "input_image", "image"};
  const std::string type = part.text("type").value_or("");
  if (type == "input_audio") return audio_part(part);
  if (!std::ranges::contains(kTypes, type)) return std::nullopt;
  if (part.find("source") != nullptr) return image_of_source(part);
  if (part.find("file_id") != nullptr) {
    part.fail_field("file_id", "names an uploaded file, but this server has no /v1/files: send the image as a data: URI");
  }
  for (const std::string_view name : {"image_url", "image"}) {
    const boost::json::value* address = part.find(name);
    if (address == nullptr) continue;
    if (!address->is_object()) return image_of_url(part.required_text(name, {.min = 1}));
    json::FieldReader inner(address->get_object(), std::format("{}{}.", part.path(), name));
    ImageSource image = image_of_url(inner.required_text("url", {.min = 1}));
    if (!inner.ok()) part.fail_as(inner);
    return image;
  }
  if (type == "image") return image_field(part);
  part.fail_field("image_url", "is required");
  return ImageSource();
}

ImageSource image_of_source(json::FieldReader& block) {
  const boost::json::object* object = block.object("source");
  if (object == nullptr) {
    block.fail_field("source", "is required");
    return {};
  }
  json::FieldReader source(*object, block.path() + "source.");
  ImageSource image;
  const std::string type = source.required_text("type");
  if (type == "base64") {
    image = {.kind = ImageSource::Kind::data, .text = source.required_text("data", {.min = 1})};
  } else if (type == "url") {
    image = image_of_url(source.required_text("url", {.min = 1}));
  } else {
    source.fail_field("type", R"(must be "base64" or "url": this server keeps no files)");
  }
  if (!source.ok()) block.fail_as(source);
  return image;
}

EmbedImagesRequest embed_images_fields(json::FieldReader& fields) {
  EmbedImagesRequest request;
  request.options.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  request.options.request_class = class_field(fields);
  request.options.deadline_ms = fields.integer("deadline_ms", 0, kTimeMsMax);
  const boost::json::array* images = fields.array("images");
  if (images == nullptr) {
    request.images.push_back(image_field(fields));
    return request;
  }
  if (images->empty() || images->size() > kImagesPerRequestMax) {
    fields.fail_field("images", std::format("has {} images, but must have 1 to {}", images->size(), kImagesPerRequestMax));
  }
  for (std::size_t i = 0; i < images->size() && fields.ok(); ++i) {
    const boost::json::object* object = (*images)[i].if_object();
    if (object == nullptr) {
      fields.fail_field(std::format("images[{}]", i), "must be an object");
      break;
    }
    json::FieldReader image(*object, std::format("images[{}].", i));
    request.images.push_back(image_field(image));
    if (!image.ok()) fields.fail_as(image);
  }
  return request;
}

void append_vectors(std::string& out, const std::vector<std::vector<float>>& vectors) {
  json::append_array(out, vectors, [&](const std::vector<float>& vector) {
    json::append_array(out, vector, [&](float value) { append_float(out, value); });
  });
}

std::string image_embeddings_json(const ImageEmbeddings& embeddings, std::string_view model) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("object", "list");
  std::size_t index = 0;
  json::append_array(object.begin("data"), embeddings.embeddings, [&](const std::vector<float>& vector) {
    json::ObjectWriter item(out);
    item.field("object", "embedding");
    item.field("index", index++);
    std::string& value = item.begin("embedding");
    json::append_array(value, vector, [&](float number) { append_float(value, number); });
    item.close();
  });
  object.field("model", model);
  object.close();
  return out;
}

}  // namespace uma::wire
