#include "image/message_images.h"

#include <limits>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "image/image_id.h"
#include "json/field_reader.h"

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
    constexpr json::TextBytes kBytes{kHashDigits, kHashDigits};
    std::string file = image.required_text("sha256", kBytes);
    const std::string pixels = image.text("pixels", kBytes).value_or("");
    if (!at || !image.ok()) return {};
    images.push_back({static_cast<std::size_t>(*at), std::move(file) + pixels});
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

std::vector<std::string> image_files(const std::string& extra) {
  std::vector<std::string> files = image_ids(extra);
  for (std::string& id : files) id = file_of(id);
  return files;
}

std::string with_images(std::string_view extra, std::span<const MessageImage> images) {
  boost::json::object fields;
  boost::system::error_code problem;
  if (const auto given = json::parse(extra, {}, problem); given.is_object()) fields = given.get_object();
  fields.erase("images");
  if (images.empty()) return fields.empty() ? "" : boost::json::serialize(fields);
  boost::json::array& array = fields["images"].emplace_array();
  for (const MessageImage& image : images) {
    boost::json::object object{{"at", image.at}, {"sha256", file_of(image.id)}};
    if (shows_pixels(image.id)) object["pixels"] = content_of(image.id);
    array.push_back(std::move(object));
  }
  return boost::json::serialize(fields);
}

void put_line(Input& input, std::size_t index, std::string_view line) {
  const InputImage& image = input.images[index];
  const std::size_t of_message = image.message;
  std::string& content = input.messages[of_message].content;
  std::string text(line);
  if (image.at > 0 && content[image.at - 1] != '\n') text.insert(0, "\n");
  if (image.at < content.size() && content[image.at] != '\n') text += '\n';
  content.insert(image.at, text);
  input.images.erase(input.images.begin() + static_cast<std::ptrdiff_t>(index));
  for (InputImage& later : std::span(input.images).subspan(index)) {
    if (later.message == of_message) later.at += text.size();
  }
}

}  // namespace uma::image
