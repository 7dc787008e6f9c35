#include "uma-cli/progress.h"

#include <algorithm>
#include <csignal>
#include <format>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vector>

#include "json/json_writer.h"
#include "uma-cli/format.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

constexpr Duration kRedrawEvery = std::chrono::milliseconds(100);
constexpr Duration kPlainEvery = std::chrono::seconds(10);
constexpr Duration kJsonEvery = std::chrono::milliseconds(250);
constexpr Duration kRateOver = std::chrono::seconds(5);
constexpr Duration kSampleEvery = std::chrono::milliseconds(100);
constexpr std::size_t kBarColumnsMin = 10;
constexpr std::size_t kBarColumnsMax = 40;
constexpr std::size_t kNameColumnsMin = 12;

std::string bytes_text(std::uint64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

Duration interval_of(ProgressStyle style) {
  if (style == ProgressStyle::bar) return kRedrawEvery;
  return style == ProgressStyle::json ? kJsonEvery : kPlainEvery;
}

double share(const ProgressView& view) {
  if (!view.total || *view.total == 0) return 0;
  return std::min(1.0, static_cast<double>(view.done) / static_cast<double>(*view.total));
}

std::string percent_text(const ProgressView& view) {
  return std::format("{:3} %", static_cast<int>(100 * share(view)));
}

// The numbers of the view, the most important ones first.
std::vector<std::string> numbers(const ProgressView& view) {
  std::vector<std::string> parts;
  if (view.total) {
    parts.push_back(percent_text(view));
    parts.push_back(std::format("{} / {}", bytes_text(view.done), bytes_text(*view.total)));
  } else {
    parts.push_back(bytes_text(view.done));
  }
  if (!view.bytes_per_s) return parts;
  parts.push_back(human_bytes(*view.bytes_per_s) + "/s");
  if (view.total && view.done < *view.total && *view.bytes_per_s > 0)
    parts.push_back(human_duration(static_cast<double>(*view.total - view.done) / *view.bytes_per_s) + " left");
  return parts;
}

std::string shortened(const std::string& name, std::size_t columns) {
  if (display_width(name) <= columns) return name;
  return columns == 0 ? "" : std::string(clip(name, columns - 1)) + "\u2026";
}

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string bar_line(const ProgressView& view, std::size_t columns) {
  const std::size_t name_width = display_width(view.name);
  const std::size_t name_least = std::min(name_width, kNameColumnsMin);
  std::string tail;
  for (const std::string& part : numbers(view)) {
    const std::string longer = tail + "  " + part;
    if (!tail.empty() && name_least + longer.size() > columns) break;
    tail = longer;
  }
  const std::size_t left = columns > tail.size() ? columns - tail.size() : 0;  // Columns for the name and the bar.
  const std::size_t frame = 4;                                                 // "  [" and "]"
  std::string bar;
  if (view.total && left >= name_least + frame + kBarColumnsMin) {
    const std::size_t wanted = left > name_width + frame ? left - name_width - frame : 0;
    const std::size_t width = std::clamp(wanted, kBarColumnsMin, kBarColumnsMax);
    const auto filled = static_cast<std::size_t>(share(view) * static_cast<double>(width));
    bar = "  [" + std::string(filled, '#') + std::string(width - filled, '-') + "]";
  }
  const std::string line = shortened(view.name, left - std::min(left, bar.size())) + bar + tail;
  return std::string(clip(line, columns));
}

std::string plain_line(const ProgressView& view) {
  std::string line = view.name + ":";
  std::string_view separator = " ";
  for (const std::string& part : numbers(view)) {
    line += separator;
    line += std::string_view(part).substr(std::min(part.find_first_not_of(' '), part.size()));
    separator = ", ";
  }
  return line;
}

std::string json_line(const ProgressView& view) {
  std::string line;
  json::ObjectWriter object(line);
  object.field("name", view.name);
  object.field("done", view.done);
  if (view.total) object.field("total", *view.total);
  object.close();
  return line;
}

std::string human_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 359999.0));
  if (whole < 3600) return std::format("{}:{:02}", whole / 60, whole % 60);
  return std::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

void RateMeter::add(TimePoint now, std::uint64_t bytes_done) {
  // Fewer bytes than before: the download has restarted.
  if (!samples_.empty() && bytes_done < samples_.back().bytes) samples_.clear();
  if (!samples_.empty() && now - samples_.back().time < kSampleEvery) return;
  samples_.push_back({now, bytes_done});
  while (samples_.size() > 2 && now - samples_.front().time > kRateOver) samples_.pop_front();
}

std::optional<double> RateMeter::bytes_per_s() const {
  if (samples_.size() < 2) return std::nullopt;
  const double seconds = to_ms(samples_.back().time - samples_.front().time) / 1000;
  return static_cast<double>(samples_.back().bytes - samples_.front().bytes) / seconds;
}

Progress::~Progress() {
  leave_line();
}

void Progress::begin(std::string_view name, std::optional<std::uint64_t> total) {
  leave_line();
  view_ = {.name = printable_line(name), .done = 0, .total = total, .bytes_per_s = {}};
  rate_.reset();
  drawn_at_ = kNever;
  is_stale_ = false;
}

void Progress::update(std::uint64_t done) {
  const TimePoint now = clock_.now();
  rate_.add(now, done);
  view_.done = done;
  view_.bytes_per_s = rate_.bytes_per_s();
  is_stale_ = true;
  if (drawn_at_ == kNever || now - drawn_at_ >= interval_of(style_)) draw();
}

void Progress::note(const std::string& text) {
  if (style_ == ProgressStyle::quiet) return;
  if (is_on_line_) std::cerr << "\r\x1b[K";
  is_on_line_ = false;
  std::cerr << text << std::endl;
}

void Progress::end() {
  if (is_stale_) draw();
  leave_line();
}

void Progress::draw() {
  if (view_.done == 0 && !view_.total) return;  // Nothing to draw yet.
  drawn_at_ = clock_.now();
  is_stale_ = false;
  if (style_ == ProgressStyle::quiet) return;
  if (style_ == ProgressStyle::json) {
    std::cout << json_line(view_) << std::endl;
    if (!std::cout) std::raise(SIGTERM);  // The program that reads the progress has ended, so nobody waits for the file.
    return;
  }
  if (style_ == ProgressStyle::plain) {
    std::cerr << plain_line(view_) << std::endl;
    return;
  }
  is_on_line_ = true;
  // The last column stays free, because a cursor behind it would wrap on some terminals.
  std::cerr << "\r" << bar_line(view_, terminal_columns() - 1) << "\x1b[K" << std::flush;
}

void Progress::leave_line() {
  if (is_on_line_) std::cerr << std::endl;
  is_on_line_ = false;
}

ProgressStyle progress_style(bool is_quiet, bool as_json) {
  if (as_json) return ProgressStyle::json;
  if (is_quiet) return ProgressStyle::quiet;
  return isatty(STDERR_FILENO) != 0 ? ProgressStyle::bar : ProgressStyle::plain;
}

}  // namespace uma::cli
