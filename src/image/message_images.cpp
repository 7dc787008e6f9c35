#include "image/message_images.h"

#include <limits>
#include <utility>

#include <boost/json/value.hpp>

#include "json/field_reader.h"
#include "json/json_writer.h"

namespace uma::image {

namespace {

// `content_bytes` bounds the positions.
std::vector<MessageImage> read_images(const std::string& extra, std::size_t content_bytes) {
  std::vector<MessageImage> images;
  if (!extra.contains("\"images\"")) return images;
  boost::system::error_code problem;
  const boost::json::value given = json::parse(extra, {}, problem);
  if (problem || !given.is_object()) return images;
  json::FieldReader fields(given.get_object());
  const boost::json::array* array = fields.array("images");
  if (array == nullptr) return images;
  for (const boost::json::value& value : *array) {
    if (!value.is_object()) return {};
    json::FieldReader image(value.get_object());
    const auto at = image.integer("at", images.empty() ? 0 : static_cast<std::int64_t>(images.back().at),
                                  static_cast<std::int64_t>(content_bytes));
    std::string id = image.required_text("sha256", {.min = 64, .max = 64});
    if (!at || !image.ok()) return {};
    images.push_back({static_cast<std::size_t>(*at), std::move(id)});
  }
  return images;
}

}  // namespace

std::vector<MessageImage> images_of(const ChatMessage& message) {
  return read_images(message.extra, message.content.size());
}

std::vector<std::string> image_ids(const std::string& extra) {
  std::vector<std::string> ids;
  for (MessageImage& image : read_images(extra, std::numeric_limits<std::int32_t>::max())) ids.push_back(std::move(image.id));
  return ids;
}

std::string images_extra(std::span<const MessageImage> images) {
  std::string out;
  json::ObjectWriter extra(out);
  json::append_array(extra.begin("images"), images, [&](const MessageImage& image) {
    json::ObjectWriter object(out);
    object.field("at", image.at);
    object.field("sha256", image.id);
    object.close();
  });
  extra.close();
  return out;
}

}  // namespace uma::image
