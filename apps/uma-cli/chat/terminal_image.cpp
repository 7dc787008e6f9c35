#include "uma-cli/chat/terminal_image.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <format>
#include <map>
#include <png.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/system/unique_fd.h"

namespace uma::cli {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): this program has one thread
  return value == nullptr ? "" : value;
}

// The protocol takes at most 4,096 characters at once.
std::string kitty(std::string_view png, int columns) {
  constexpr std::size_t kPartMax = 4096;
  const std::string text = base64_of(png);
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += kPartMax) {
    const bool is_last = at + kPartMax >= text.size();
    const std::string keys = at == 0 ? std::format("a=T,f=100,q=2,c={},", columns) : "";
    out += std::format("\x1b_G{}m={};{}\x1b\\", keys, is_last ? 0 : 1, text.substr(at, kPartMax));
  }
  return out + "\n";
}

std::string iterm(std::string_view png, int columns) {
  return std::format("\x1b]1337;File=inline=1;size={};width={};preserveAspectRatio=1:{}\a\n", png.size(), columns,
                     base64_of(png));
}

struct Pixels {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::vector<std::uint8_t> levels;  // RGB
};

std::optional<Pixels> read_png(std::string_view png) {
  constexpr std::uint32_t kSideMax = 4096;
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  std::optional<Pixels> pixels;
  if (png_image_begin_read_from_memory(&image, png.data(), png.size()) != 0 && image.width <= kSideMax &&
      image.height <= kSideMax) {
    image.format = PNG_FORMAT_RGB;
    Pixels read{.width = image.width, .height = image.height, .levels = std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
    if (png_image_finish_read(&image, nullptr, read.levels.data(), 0, nullptr) != 0) pixels = std::move(read);
  }
  png_image_free(&image);
  return pixels;
}

// Sixels have up to 256 colours: each level becomes one of six.
constexpr int kSteps = 6;

std::uint8_t colour_of(const Pixels& pixels, std::uint32_t x, std::uint32_t y) {
  const std::uint8_t* const at = &pixels.levels[(std::size_t{y} * pixels.width + x) * 3];
  const auto step = [](std::uint8_t level) { return (level * (kSteps - 1) + 127) / 255; };
  return static_cast<std::uint8_t>((step(at[0]) * kSteps + step(at[1])) * kSteps + step(at[2]));
}

void append_run(std::string& out, std::size_t length, char sixel) {
  constexpr std::size_t kShort = 3;
  if (length > kShort) {
    out += std::format("!{}{}", length, sixel);
  } else {
    out.append(length, sixel);
  }
}

// Bands of six lines. A band is drawn once for each of its colours.
std::string sixel(const Pixels& pixels, std::uint32_t scale) {
  constexpr std::uint32_t kBand = 6;
  const std::uint32_t width = pixels.width * scale;
  const std::uint32_t height = pixels.height * scale;
  std::string out = std::format("\x1bPq\"1;1;{};{}", width, height);
  for (int colour = 0; colour < kSteps * kSteps * kSteps; ++colour) {
    const auto percent = [](int step) { return step * 100 / (kSteps - 1); };
    out += std::format("#{};2;{};{};{}", colour, percent(colour / (kSteps * kSteps)), percent(colour / kSteps % kSteps),
                       percent(colour % kSteps));
  }
  for (std::uint32_t top = 0; top < height; top += kBand) {
    std::map<std::uint8_t, std::string> bits;  // Bits of each column, by colour.
    for (std::uint32_t line = 0; line < std::min(kBand, height - top); ++line) {
      for (std::uint32_t x = 0; x < width; ++x) {
        std::string& columns = bits.try_emplace(colour_of(pixels, x / scale, (top + line) / scale), width, '?').first->second;
        columns[x] = static_cast<char>(columns[x] + (1 << line));
      }
    }
    for (const auto& [colour, columns] : bits) {
      out += std::format("#{}", colour);
      for (std::size_t at = 0; at < columns.size();) {
        const std::size_t end = std::min(columns.find_first_not_of(columns[at], at), columns.size());
        append_run(out, end - at, columns[at]);
        at = end;
      }
      out += '$';
    }
    out += '-';
  }
  return out + "\x1b\\\n";
}

// A terminal whose keys are neither echoed nor held back until Enter.
class RawTerminal {
 public:
  explicit RawTerminal(int fd) : fd_(fd) {
    if (tcgetattr(fd_, &before_) != 0) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    is_raw_ = tcsetattr(fd_, TCSANOW, &raw) == 0;
  }
  ~RawTerminal() {
    if (!is_raw_) return;
    tcflush(fd_, TCIFLUSH);  // The rest of a late answer is no input for the shell.
    tcsetattr(fd_, TCSANOW, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;
  [[nodiscard]] bool is_raw() const { return is_raw_; }

 private:
  const int fd_;
  termios before_{};
  bool is_raw_ = false;
};

}  // namespace

TerminalNames TerminalNames::of_environment() {
  const std::string program = environment("TERM_PROGRAM");
  return {.term = environment("TERM"),
          .program = program.empty() ? environment("LC_TERMINAL") : program,
          .is_kitty_window = !environment("KITTY_WINDOW_ID").empty() || !environment("KONSOLE_VERSION").empty(),
          .is_in_multiplexer = !environment("TMUX").empty() || !environment("STY").empty()};
}

ImageProtocol protocol_by_names(const TerminalNames& names) {
  if (names.is_in_multiplexer) return ImageProtocol::none;
  const auto is_program = [&](std::string_view name) { return names.program == name; };
  if (names.is_kitty_window || names.term.contains("kitty") || names.term.contains("ghostty") || is_program("ghostty") ||
      is_program("WezTerm")) {
    return ImageProtocol::kitty;
  }
  if (is_program("iTerm.app") || is_program("iTerm2") || is_program("mintty")) return ImageProtocol::iterm;
  return ImageProtocol::none;
}

bool says_sixel(std::string_view answer) {
  const std::size_t begin = answer.find("\x1b[?");
  if (begin == std::string_view::npos) return false;
  answer.remove_prefix(begin + 3);
  const std::size_t end = answer.find('c');
  if (end == std::string_view::npos) return false;
  const std::string numbers = std::format(";{};", answer.substr(0, end));
  return numbers.contains(";4;");
}

bool terminal_says_sixel(int timeout_ms) {
  const UniqueFd terminal(::open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY));
  // In the background, changing the terminal's mode would suspend the program.
  if (!terminal.is_open() || ::tcgetpgrp(terminal.get()) != ::getpgrp()) return false;
  const RawTerminal raw(terminal.get());
  constexpr std::string_view kQuestion = "\x1b[c";
  if (!raw.is_raw() || ::write(terminal.get(), kQuestion.data(), kQuestion.size()) != std::ssize(kQuestion)) return false;
  std::string answer;
  while (!answer.contains('c')) {
    pollfd event{.fd = terminal.get(), .events = POLLIN, .revents = 0};
    std::array<char, 64> bytes{};
    if (::poll(&event, 1, timeout_ms) <= 0) return false;
    const ssize_t got = ::read(terminal.get(), bytes.data(), bytes.size());
    if (got <= 0 || answer.size() > 256) return false;
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return says_sixel(answer);
}

std::optional<std::string> terminal_image(std::string_view png, ImageProtocol protocol, int columns, std::uint32_t pixels_min) {
  const auto pixels = read_png(png);
  if (!pixels) return std::nullopt;
  switch (protocol) {
    case ImageProtocol::kitty:
      return kitty(png, columns);
    case ImageProtocol::iterm:
      return iterm(png, columns);
    case ImageProtocol::sixel:
      return sixel(*pixels, std::max<std::uint32_t>(1, (pixels_min + pixels->width - 1) / pixels->width));
    case ImageProtocol::none:
      break;
  }
  return std::nullopt;
}

}  // namespace uma::cli
