#include "image/fetched_images.h"

#include <cstddef>
#include <format>
#include <utility>

namespace uma::image {
namespace {

const ImageSource& source_of(const ImageSource& image) {
  return image;
}
const ImageSource& source_of(const InputImage& image) {
  return image.source;
}
void set_source(ImageSource& image, ImageSource source) {
  image = std::move(source);
}
void set_source(InputImage& image, ImageSource source) {
  image.source = std::move(source);
}
std::string field_of(const ImageSource&, std::size_t index) {
  return std::format("images[{}]", index);
}
std::string field_of(const InputImage& image, std::size_t) {
  return image.field;
}

template <class ImageT>
std::vector<std::string> addresses(const std::vector<ImageT>& images) {
  std::vector<std::string> urls;
  for (const ImageT& image : images) {
    if (source_of(image).kind == ImageSource::Kind::url) urls.push_back(source_of(image).text);
  }
  return urls;
}

template <class ImageT>
Expected<Unit> put(std::vector<ImageT>& images, Fetched fetched) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (source_of(images[i]).kind != ImageSource::Kind::url) continue;
    if (!fetched && next == fetched.error().index) {
      Error error = std::move(fetched.error().error);
      const std::string field = field_of(images[i], i);
      if (!field.empty()) error.message = std::format("field \"{}\": {}", field, error.message);
      error.field = field;
      return std::unexpected(std::move(error));
    }
    if (fetched) {
      const Bytes& file = (*fetched)[next];
      set_source(images[i], {.kind = ImageSource::Kind::file,
                             .text = std::string(reinterpret_cast<const char*>(file.data()), file.size())});
    }
    ++next;
  }
  return Unit{};
}

}  // namespace

std::vector<std::string> urls_of(const std::vector<InputImage>& images) {
  return addresses(images);
}
std::vector<std::string> urls_of(const std::vector<ImageSource>& images) {
  return addresses(images);
}
Expected<Unit> put_fetched(std::vector<InputImage>& images, Fetched fetched) {
  return put(images, std::move(fetched));
}
Expected<Unit> put_fetched(std::vector<ImageSource>& images, Fetched fetched) {
  return put(images, std::move(fetched));
}

}  // namespace uma::image
