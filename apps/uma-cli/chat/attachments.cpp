#include "uma-cli/chat/attachments.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <iostream>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/base64.h"
#include "base/bytes.h"
#include "base/system/unique_fd.h"
#include "uma-cli/chat/turn.h"
#include "uma-cli/fields.h"
#include "uma-cli/printable.h"
#include "uma-cli/text_input.h"
#include "wire/image_fields.h"

namespace uma::cli {
namespace {

constexpr std::size_t kFileBytesMax = 32u << 20;  // No daemon accepts a larger image or clip.

bool is_address(const std::string& name) {
  return name.starts_with("http://") || name.starts_with("https://");
}

std::unexpected<Failure> refuse(const std::string& path, std::string_view why) {
  return fail(ExitCode::usage, std::format("{}: {}", printable_line(path), why));
}

Result<Bytes> read_file(const std::string& path, Media media) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts{};
  if (!file.is_open() || ::fstat(file.get(), &facts) != 0) return refuse(path, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) return refuse(path, "is not a regular file");
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (size > kFileBytesMax) return refuse(path, std::format("has {} bytes, but at most {} are allowed", size, kFileBytesMax));
  Bytes bytes(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(path, std::strerror(errno));
    if (got == 0) return refuse(path, "shrank while it was read");
    done += static_cast<std::size_t>(got);
  }
  const bool is_image = media == Media::image;
  if (!wire::image_type(bytes).starts_with(is_image ? "image/" : "audio/"))
    return refuse(path, is_image ? "is not a PNG, JPEG, WebP, GIF or BMP file" : "is not a WAV, MP3 or FLAC file");
  return bytes;
}

bool has_name(const boost::json::object& model, const std::string& name) {
  if (text_field(model, "name") == name) return true;
  return std::ranges::any_of(array_field(model, "aliases"),
                             [&](const boost::json::value& alias) { return alias == boost::json::value(name); });
}

Result<boost::json::array> ask_for_models(Client& client) {
  auto answer = client.call({{"type", "models"}}, "models");
  if (!answer) return std::unexpected(answer.error());
  return array_field(*answer, "models");
}

std::string_view name_of(Media media) {
  return media == Media::image ? "images" : "sound";
}

bool reads(const boost::json::value& model, Media media) {
  return model.is_object() && bool_field(model.get_object(), media == Media::image ? "reads_images" : "reads_audio");
}

// Advice for a user whose model does not read such files.
std::string names_of_readers(const boost::json::array& models, Media media) {
  std::string names;
  for (const boost::json::value& entry : models) {
    if (!reads(entry, media)) continue;
    names += std::format("{}{}", names.empty() ? "" : ", ", printable_line(text_field(entry.get_object(), "name")));
  }
  if (names.empty()) {
    return std::format("no model of this daemon reads {}; umad --mmproj FILE adds a projector to its model", name_of(media));
  }
  return std::format("models that do: {}", names);
}

boost::json::object image_part(boost::json::object image) {
  image["type"] = "image";
  return image;
}

// A clip as OpenAI's clients send it.
Result<boost::json::object> read_clip(const std::string& name, std::size_t bytes_left) {
  if (auto good = check_text(name, "the name of a clip"); !good) return std::unexpected(good.error());
  const auto file = read_file(name, Media::audio);
  if (!file) return std::unexpected(file.error());
  if (file->size() > bytes_left) {
    return refuse(name, std::format("has {} bytes, but the files of one message may have {} together", file->size(),
                                    kFileBytesPerRequest));
  }
  std::string data;
  append_base64(data, *file);
  const std::string_view type = wire::image_type(*file);
  boost::json::object clip{{"data", std::move(data)}, {"format", type.substr(type.find('/') + 1)}};
  return boost::json::object{{"type", "input_audio"}, {"input_audio", std::move(clip)}};
}

}  // namespace

Result<std::vector<boost::json::object>> read_images(std::span<const std::string> names) {
  std::vector<boost::json::object> images;
  std::size_t bytes_left = kFileBytesPerRequest;
  for (const std::string& name : names) {
    if (auto good = check_text(name, "the name of an image"); !good) return std::unexpected(good.error());
    if (is_address(name)) {
      images.push_back({{"url", name}});
      continue;
    }
    const auto file = read_file(name, Media::image);
    if (!file) return std::unexpected(file.error());
    if (file->size() > bytes_left) {
      std::error_code problem;
      const std::filesystem::path path = std::filesystem::canonical(name, problem);
      if (problem) return refuse(name, problem.message());
      images.push_back({{"path", path.string()}});
      continue;
    }
    bytes_left -= file->size();
    std::string text;
    append_base64(text, *file);
    images.push_back({{"data", std::move(text)}});
  }
  return images;
}

Result<boost::json::array> read_parts(const Attachments& attachments) {
  auto images = read_images(attachments.images);
  if (!images) return std::unexpected(images.error());
  boost::json::array parts;
  for (boost::json::object& image : *images) parts.push_back(image_part(std::move(image)));
  for (const std::string& name : attachments.clips) {
    auto clip = read_clip(name, kFileBytesPerRequest - std::min(bytes_of_parts(parts), kFileBytesPerRequest));
    if (!clip) return std::unexpected(clip.error());
    parts.push_back(std::move(*clip));
  }
  return parts;
}

std::size_t bytes_of_parts(const boost::json::array& parts) {
  std::size_t chars = 0;
  for (const boost::json::value& part : parts) {
    const boost::json::object& fields = part.get_object();
    const boost::json::value* clip = fields.if_contains("input_audio");
    chars += text_field(clip == nullptr ? fields : clip->get_object(), "data").size();
  }
  return chars / 4 * 3;
}

boost::json::array messages_with(boost::json::array parts, const std::string& text) {
  parts.push_back(boost::json::object{{"type", "text"}, {"text", text}});
  return {boost::json::object{{"role", "user"}, {"content", std::move(parts)}}};
}

Result<void> check_reads(Client& client, const std::string& model, Media media) {
  const auto models = ask_for_models(client);
  if (!models) return std::unexpected(models.error());
  const auto found = std::ranges::find_if(*models, [&](const boost::json::value& entry) {
    return entry.is_object() && (model.empty() || has_name(entry.get_object(), model));
  });
  // The daemon itself refuses an unknown model and suggests similar names.
  if (found == models->end() || reads(*found, media)) return {};
  return fail(ExitCode::server,
              std::format("the model \"{}\" reads no {}; {}", printable_line(text_field(found->get_object(), "name")),
                          name_of(media), names_of_readers(*models, media)));
}

Result<void> check_any_reads(Client& client, Media media) {
  const auto models = ask_for_models(client);
  if (!models) return std::unexpected(models.error());
  if (std::ranges::any_of(*models, [media](const boost::json::value& entry) { return reads(entry, media); })) return {};
  return fail(ExitCode::server,
              std::format("this daemon cannot read {}: {}", name_of(media), names_of_readers(*models, media)));
}

Result<void> run_describe(Client& client, const DescribeOptions& options, Output& output, Interrupts& interrupts) {
  if (auto good = check_text(options.query, "--query"); !good) return std::unexpected(good.error());
  auto images = read_images(std::span(&options.image, 1));
  if (!images) return std::unexpected(images.error());
  if (auto sees = check_reads(client, options.model, Media::image); !sees) return sees;
  boost::json::object request = std::move(images->front());
  request["type"] = "describe_image";
  request["query"] = options.query;
  request["deadline_ms"] = kImageDeadlineMs;
  if (!options.model.empty()) request["model"] = options.model;
  options.generation.add_to(request);
  auto end = run_turn(client, std::move(request), output, interrupts);
  if (!end) return std::unexpected(end.error());
  if (options.shows_usage && !end->usage.empty()) std::cerr << receipt_line(end->usage) << std::endl;
  if (end->is_interrupted) return interrupted();
  return {};
}

}  // namespace uma::cli
