#include "uma-cli/chat/imagine.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <format>
#include <iostream>
#include <map>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <boost/json/serialize.hpp>

#include "base/base64.h"
#include "base/system/new_file.h"
#include "base/system/unique_fd.h"
#include "base/text.h"
#include "uma-cli/chat/attachments.h"
#include "uma-cli/fields.h"
#include "uma-cli/print.h"
#include "uma-cli/progress.h"
#include "uma-cli/text_input.h"

namespace uma::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kShownColumns = 32;
constexpr std::uint32_t kShownPixels = 256;
constexpr int kSixelWaitMs = 150;

boost::json::object request_of(const ImagineOptions& options) {
  boost::json::object request{{"type", "generate_image"}, {"prompt", options.caption}, {"n", options.count}};
  if (!options.negative.empty()) request["negative_prompt"] = options.negative;
  if (!options.model.empty()) request["model"] = options.model;
  if (options.size) request["width"] = request["height"] = *options.size;
  if (options.steps) request["steps"] = *options.steps;
  if (options.guidance) request["guidance"] = *options.guidance;
  if (options.seed) request["seed"] = *options.seed;
  if (!options.sampler.empty()) request["sampler"] = options.sampler;
  if (!options.schedule.empty()) request["schedule"] = options.schedule;
  if (options.strength) request["strength"] = *options.strength;
  if (options.is_background) request["class"] = "background";
  if (options.has_no_metadata) request["metadata"] = false;
  return request;
}

// One line on standard error that is redrawn.
class StepLine {
 public:
  explicit StepLine(bool is_shown) : is_shown_(is_shown) {}
  ~StepLine() { clear(); }
  StepLine(const StepLine&) = delete;
  StepLine& operator=(const StepLine&) = delete;

  void draw(const boost::json::object& progress, std::int64_t count) {
    if (!is_shown_) return;
    constexpr std::int64_t kBar = 24;
    const std::int64_t total = std::max<std::int64_t>(1, int_field(progress, "total"));
    const std::int64_t done = std::clamp<std::int64_t>(int_field(progress, "done"), 0, total);
    const std::int64_t filled = kBar * done / total;
    const std::string which =
        count > 1 ? std::format("picture {} of {}  ", int_field(progress, "image") + 1, count) : std::string();
    std::cerr << std::format("\r\x1b[K{}[{}{}]  step {} of {}  {} left", which,
                             std::string(static_cast<std::size_t>(filled), '='),
                             std::string(static_cast<std::size_t>(kBar - filled), ' '), done, total,
                             human_duration(number_field(progress, "eta_ms") / 1000))
              << std::flush;
    is_drawn_ = true;
  }
  void clear() {
    if (std::exchange(is_drawn_, false)) std::cerr << "\r\x1b[K" << std::flush;
  }

 private:
  const bool is_shown_;
  bool is_drawn_ = false;
};

// Writes a file whole or not at all. `replaces`: an existing one is replaced; a device, a pipe or a link is written to.
Result<void> write_file(const std::string& path, std::string_view bytes, bool replaces) {
  const auto result = [&](int problem) -> Result<void> {
    if (problem == 0) return {};
    return fail(ExitCode::usage, std::format("{}: {}", path, std::strerror(problem)));
  };
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (replaces && (!fs::exists(status) || fs::is_regular_file(status))) {
    NewFile file(path, 0666);
    file.write(bytes);
    return result(file.publish());
  }
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (replaces ? O_TRUNC : O_EXCL), 0666));
  const int problem = file.is_open() ? write_all(file.get(), bytes) : errno;
  if (problem != 0 && file.is_open() && !replaces) ::unlink(path.c_str());
  return result(problem);
}

// Receives the pictures of one request.
class Pictures {
 public:
  Pictures(const ImagineOptions& options, Output& output) : options_(options), output_(output) {
    if (options_.show == "kitty") protocol_ = ImageProtocol::kitty;
    if (options_.show == "iterm") protocol_ = ImageProtocol::iterm;
    if (options_.show == "sixel") protocol_ = ImageProtocol::sixel;
    if (options_.show != "auto" || !output_.is_terminal()) return;
    const TerminalNames names = TerminalNames::of_environment();
    protocol_ = protocol_by_names(names);
    if (protocol_ == ImageProtocol::none && !names.is_in_multiplexer && terminal_says_sixel(kSixelWaitMs)) {
      protocol_ = ImageProtocol::sixel;
    }
  }

  // A frame with a part of a picture.
  Result<void> add(const boost::json::object& chunk) {
    const std::int64_t picture = int_field(chunk, "image");
    const auto bytes = decode_base64(text_field(chunk, "data"));
    std::string& whole = pictures_[picture];
    const std::int64_t part = int_field(chunk, "part");
    if (!bytes || part != parts_[picture]++)
      return fail(ExitCode::protocol, "the daemon sent a picture whose parts do not belong together");
    whole.append(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    if (part + 1 < int_field(chunk, "parts")) return {};
    const std::string png = std::exchange(whole, {});
    return keep(png, picture);
  }

 private:
  // The name of a picture's file, of several by their numbers.
  [[nodiscard]] std::string numbered(const std::string& path, std::int64_t picture) const {
    if (options_.count == 1) return path;
    const fs::path whole(path);
    return (whole.parent_path() / std::format("{}-{}{}", whole.stem().string(), picture + 1, whole.extension().string()))
        .string();
  }
  // A name after the caption that no file has.
  [[nodiscard]] std::string new_name(std::int64_t picture) const {
    const std::string stem = file_stem_of(options_.caption);
    for (int i = 1;; ++i) {
      std::string name = numbered(i == 1 ? stem + ".png" : std::format("{}_{}.png", stem, i), picture);
      std::error_code problem;
      if (!fs::exists(fs::symlink_status(name, problem))) return name;
    }
  }

  Result<void> keep(std::string_view png, std::int64_t picture) {
    if (options_.file == "-" || (options_.file.empty() && !output_.is_terminal())) return print(output_, png);
    const std::string path = options_.file.empty() ? new_name(picture) : numbered(options_.file, picture);
    if (auto written = write_file(path, png, !options_.file.empty()); !written) return written;
    if (protocol_ != ImageProtocol::none) {
      if (const auto shown = terminal_image(png, protocol_, kShownColumns, kShownPixels)) output_.write_verbatim(*shown);
    }
    return print(output_, path + "\n");
  }

  const ImagineOptions& options_;
  Output& output_;
  ImageProtocol protocol_ = ImageProtocol::none;
  std::map<std::int64_t, std::string> pictures_;  // The parts so far, by the picture's number.
  std::map<std::int64_t, std::int64_t> parts_;    // Their number.
};

// A seed may be larger than what int_field() reads.
std::string seed_of(const boost::json::object& usage) {
  const auto* const seed = usage.if_contains("seed");
  return seed == nullptr ? "" : boost::json::serialize(*seed);
}

std::string receipt_of(const boost::json::object& usage) {
  const std::int64_t pictures = int_field(usage, "images");
  return std::format("{} × {} pixels, {} steps{}, seed {}, {:.1f} s by {}", int_field(usage, "width"),
                     int_field(usage, "height"), int_field(usage, "steps"),
                     pictures > 1 ? std::format(" for each of {} pictures", pictures) : "", seed_of(usage),
                     number_field(usage, "draw_ms") / 1000, text_field(usage, "model"));
}

}  // namespace

std::string file_stem_of(const std::string& caption) {
  constexpr std::size_t kMax = 40;
  std::string stem;
  for (const char c : caption) {
    const bool is_kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
    if (is_kept) {
      stem += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!stem.empty() && stem.back() != '-') {
      stem += '-';
    }
    if (stem.size() == kMax) break;
  }
  while (stem.ends_with('-')) stem.pop_back();
  return stem.empty() ? "picture" : stem;
}

Result<void> run_imagine(Client& client, const ImagineOptions& options, Output& output, Interrupts& interrupts) {
  if (auto good = check_text(options.caption, "the caption"); !good) return good;
  const bool is_piped = options.file == "-" || (options.file.empty() && !output.is_terminal());
  if (is_piped && options.count > 1) {
    return fail(ExitCode::usage, "standard output takes one picture: give --count 1, or a name with --output");
  }
  if (options.file == "-" && output.is_terminal())
    return fail(ExitCode::usage, "a picture is no text for a terminal: give --output a file's name");
  boost::json::object request = request_of(options);
  if (!options.image.empty()) {
    auto images = read_images({&options.image, 1});
    if (!images) return std::unexpected(images.error());
    if (!images->front().contains("data"))
      return fail(ExitCode::usage, std::format("{}: a picture to begin with is a file of up to {}", options.image,
                                               readable_bytes(kFileBytesPerRequest)));
    request["image"] = std::move(images->front());
  }
  const auto id = client.send(request, "eos");
  if (!id) return std::unexpected(id.error());
  Pictures pictures(options, output);
  const bool shows_progress = ::isatty(STDERR_FILENO) != 0;
  StepLine line(shows_progress);
  while (true) {
    auto frame = client.receive(-1, output.fd());
    if (!frame) return std::unexpected(frame.error());
    if (interrupts.pending() || output.is_closed()) {
      client.disconnect();  // The daemon cancels the request.
      return interrupted();
    }
    if (!*frame) continue;
    const std::string event = text_field(**frame, "event");
    if (event == "progress") {
      line.draw(**frame, options.count);
    } else if (event == "image_chunk" && !(*frame)->contains("partial")) {
      line.clear();
      if (auto added = pictures.add(**frame); !added) return added;
    } else if (event == "error" || (event == "eos" && (*frame)->contains("code"))) {
      return std::unexpected(failure_of(**frame));
    } else if (event == "eos") {
      line.clear();
      const std::string reason = text_field(**frame, "reason");
      if (reason != "stop") return fail(ExitCode::server, std::format("the request ended early: {}", reason));
      if (shows_progress) std::cerr << receipt_of(object_field(**frame, "usage")) << std::endl;
      return {};
    }
  }
}

}  // namespace uma::cli
