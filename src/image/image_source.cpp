#include "image/image_source.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <format>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/base64.h"
#include "base/system/file_calls.h"
#include "base/system/unique_fd.h"
#include "base/text.h"
#include "image/decode_sound.h"
#include "image/image_header.h"

namespace uma::image {
namespace {

std::unexpected<Error> image_refused(std::string message) {
  return fail(ErrorCode::proto_field, std::move(message));
}

static_assert(kAudioBytesMax == kImageBytesMax);

std::string_view noun_of(Media media) {
  return media == Media::audio ? "clip" : "image";
}

// The text with %XX decoded, as URIs may have them; other percent signs stay.
std::string without_percents(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t at = std::min(text.size(), text.find('%'));
    out += text.substr(0, at);
    text.remove_prefix(at);
    if (text.empty()) break;
    unsigned char byte = 0;
    const char* const end = text.data() + std::min<std::size_t>(text.size(), 3);
    const bool is_escape = text.size() >= 3 && std::from_chars(text.data() + 1, end, byte, 16).ptr == end;
    out += is_escape ? static_cast<char>(byte) : '%';
    text.remove_prefix(is_escape ? 3 : 1);
  }
  return out;
}

Expected<Bytes> decode_data(std::string_view text, std::string_view noun) {
  std::string unescaped;
  if (is_data_uri(text)) {
    const std::size_t comma = text.find(',');
    const std::string_view head = text.substr(0, comma);
    constexpr std::string_view kBase64 = "base64";
    const std::size_t last = head.rfind(';');
    if (comma == std::string_view::npos || last == std::string_view::npos ||
        lower_ascii(trim(head.substr(last + 1))) != kBase64) {
      return image_refused(std::format("the {}'s data: URI must have base64 data, as in data:image/png;base64,...", noun));
    }
    text.remove_prefix(comma + 1);
    if (text.contains('%')) text = unescaped = without_percents(text);
  }
  if (text.size() / 4 * 3 > kImageBytesMax + 3) {
    return image_refused(std::format("the {} has about {} bytes; the limit is {}", noun, text.size() / 4 * 3, kImageBytesMax));
  }
  auto bytes = decode_any_base64(text);
  if (!bytes) return image_refused(std::format("the {}'s data is not base64", noun));
  return std::move(*bytes);
}

// The part of the path below the folder; nothing if the path is outside the folder.
std::optional<std::string_view> below(std::string_view path, std::string_view folder) {
  while (folder.ends_with('/')) folder.remove_suffix(1);
  if (!path.starts_with(folder)) return std::nullopt;
  path.remove_prefix(folder.size());
  if (!path.starts_with('/')) return std::nullopt;
  return path;
}

// Opens one step at a time; a symbolic link or ".." fails.
UniqueFd open_below(const std::string& folder, std::string_view rest) {
  constexpr int kStep = O_CLOEXEC | O_NOFOLLOW;
  UniqueFd at(::open(folder.c_str(), O_CLOEXEC | search_folder_flags()));
  while (at.is_open()) {
    const std::size_t begin = rest.find_first_not_of('/');
    if (begin == std::string_view::npos) return {};
    const std::size_t end = rest.find('/', begin);
    const std::string step(rest.substr(begin, end - begin));
    if (step == "..") return {};
    const bool is_last = end == std::string_view::npos;
    // O_NONBLOCK, because opening a pipe would block.
    const int flags = is_last ? kStep | O_RDONLY | O_NONBLOCK | O_NOCTTY : kStep | search_folder_flags();
    at = UniqueFd(::openat(at.get(), step.c_str(), flags));
    if (is_last) return at;
    rest.remove_prefix(end);
  }
  return {};
}

Expected<Bytes> read_path(const std::string& path, std::span<const std::string> allowed_dirs) {
  if (allowed_dirs.empty()) {
    return image_refused("images by path are disabled: send the image's data, or allow folders with vision.allowed_dirs");
  }
  UniqueFd file;
  for (const std::string& folder : allowed_dirs) {
    const auto rest = below(path, folder);
    if (rest && !file.is_open()) file = open_below(folder, *rest);
  }
  struct stat facts{};
  if (!file.is_open() || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return image_refused("the image's path is not a file below vision.allowed_dirs, or contains a symbolic link");
  }
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (size > kImageBytesMax) {
    return image_refused(std::format("the image's file has {} bytes; the limit is {}", size, kImageBytesMax));
  }
  Bytes bytes(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return image_refused("the image's file cannot be read");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

Expected<Bytes> read_source(const ImageSource& source, std::span<const std::string> allowed_dirs) {
  switch (source.kind) {
    case ImageSource::Kind::data:
      return decode_data(source.text, noun_of(source.media));
    case ImageSource::Kind::path:
      return read_path(source.text, allowed_dirs);
    case ImageSource::Kind::file: {
      const auto bytes = std::as_bytes(std::span(source.text));
      return Bytes(bytes.begin(), bytes.end());
    }
    case ImageSource::Kind::url:
      break;
  }
  return image_refused("images by URL are disabled: send the image's data, or allow URLs with vision.urls");
}

}  // namespace

Expected<Bytes> read_image(const ImageSource& source, std::span<const std::string> allowed_dirs, std::int64_t pixels_max) {
  auto bytes = read_source(source, allowed_dirs);
  if (!bytes) return bytes;
  if (source.media == Media::audio || (source.media == Media::any && is_audio(*bytes))) {
    if (!is_audio(*bytes)) return image_refused("the clip cannot be read: it is not a WAV, MP3 or FLAC file");
    if (bytes->size() <= kAudioBytesMax) return bytes;
    return image_refused(std::format("the clip has {} bytes; the limit is {}", bytes->size(), kAudioBytesMax));
  }
  const auto header = check_image(*bytes);
  if (!header) return std::unexpected(header.error());
  if (header->width * header->height > pixels_max) {
    return image_refused(std::format("the image has {} by {} pixels; vision.image_pixels_max allows {}", header->width,
                                     header->height, pixels_max));
  }
  return bytes;
}

}  // namespace uma::image
