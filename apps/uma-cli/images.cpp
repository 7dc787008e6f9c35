#include "uma-cli/images.h"

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
#include "base/unique_fd.h"
#include "uma-cli/fields.h"
#include "uma-cli/input.h"
#include "uma-cli/printable.h"
#include "uma-cli/turn.h"
#include "wire/image_fields.h"

namespace uma::cli {
namespace {

constexpr std::size_t kFileBytesMax = 32u << 20;  // No daemon accepts a larger image.

bool is_address(const std::string& name) {
  return name.starts_with("http://") || name.starts_with("https://");
}

std::unexpected<Failure> refuse(const std::string& path, std::string_view why) {
  return fail(ExitCode::usage, std::format("{}: {}", printable_line(path), why));
}

Result<Bytes> read_file(const std::string& path) {
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
  if (wire::image_type(bytes).empty()) return refuse(path, "is not a PNG, JPEG, BMP or GIF file");
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

// Advice for a user whose model reads no images.
std::string names_of_seeing(const boost::json::array& models) {
  std::string names;
  for (const boost::json::value& entry : models) {
    if (!entry.is_object() || !bool_field(entry.get_object(), "reads_images")) continue;
    names += std::format("{}{}", names.empty() ? "" : ", ", printable_line(text_field(entry.get_object(), "name")));
  }
  if (names.empty()) return "no model of this daemon reads images; umad --mmproj FILE adds a projector to its model";
  return std::format("models that do: {}", names);
}

}  // namespace

Result<std::vector<boost::json::object>> read_images(std::span<const std::string> names) {
  std::vector<boost::json::object> images;
  std::size_t bytes_left = kImageBytesPerRequest;
  for (const std::string& name : names) {
    if (auto good = check_text(name, "the name of an image"); !good) return std::unexpected(good.error());
    if (is_address(name)) {
      images.push_back({{"url", name}});
      continue;
    }
    const auto file = read_file(name);
    if (!file) return std::unexpected(file.error());
    if (file->size() > bytes_left) {
      std::error_code problem;
      images.push_back({{"path", std::filesystem::canonical(name, problem).string()}});
      continue;
    }
    bytes_left -= file->size();
    std::string text;
    append_base64(text, *file);
    images.push_back({{"data", std::move(text)}});
  }
  return images;
}

boost::json::array messages_with(std::span<const boost::json::object> images, const std::string& text) {
  boost::json::array content;
  for (const boost::json::object& image : images) {
    boost::json::object part = image;
    part["type"] = "image";
    content.push_back(std::move(part));
  }
  content.push_back(boost::json::object{{"type", "text"}, {"text", text}});
  return {boost::json::object{{"role", "user"}, {"content", std::move(content)}}};
}

Result<void> check_reads_images(Client& client, const std::string& model) {
  const auto models = ask_for_models(client);
  if (!models) return std::unexpected(models.error());
  const auto found = std::ranges::find_if(*models, [&](const boost::json::value& entry) {
    return entry.is_object() && (model.empty() || has_name(entry.get_object(), model));
  });
  // The daemon itself refuses an unknown model and suggests similar names.
  if (found == models->end() || bool_field(found->get_object(), "reads_images")) return {};
  return fail(ExitCode::server, std::format("the model \"{}\" reads no images; {}",
                                            printable_line(text_field(found->get_object(), "name")), names_of_seeing(*models)));
}

Result<void> check_any_reads_images(Client& client) {
  const auto models = ask_for_models(client);
  if (!models) return std::unexpected(models.error());
  const bool any = std::ranges::any_of(*models, [](const boost::json::value& entry) {
    return entry.is_object() && bool_field(entry.get_object(), "reads_images");
  });
  if (any) return {};
  return fail(ExitCode::server, std::format("this daemon cannot read images: {}", names_of_seeing(*models)));
}

Result<void> run_describe(Client& client, const DescribeOptions& options, Output& output, Interrupts& interrupts) {
  if (auto good = check_text(options.query, "--query"); !good) return std::unexpected(good.error());
  auto images = read_images(std::span(&options.image, 1));
  if (!images) return std::unexpected(images.error());
  if (auto sees = check_reads_images(client, options.model); !sees) return sees;
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
