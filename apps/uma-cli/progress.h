// Shows the progress of a download on standard error: one line that is redrawn on a terminal, a plain line now and then
// elsewhere. For programs, it goes to standard output as lines of JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/clock.h"

namespace uma::cli {

struct ProgressView {
  std::string name;  // Safe for a terminal.
  std::uint64_t done = 0;
  std::optional<std::uint64_t> total;
  std::optional<double> bytes_per_s;
};

// Name, bar, percent, bytes, rate and time left, in at most `columns`. If space is short, the time left is dropped first, then
// the rate, the bytes and the bar.
[[nodiscard]] std::string bar_line(const ProgressView& view, std::size_t columns);
// The progress as one line of a log.
[[nodiscard]] std::string plain_line(const ProgressView& view);
// The progress for a program: {"name": "m.gguf", "done": 100, "total": 200}, without `total` if that is unknown.
[[nodiscard]] std::string json_line(const ProgressView& view);
[[nodiscard]] std::string human_duration(double seconds);  // "0:07", "12:30", "1:02:03"

// Computes bytes per second over the last few seconds.
class RateMeter {
 public:
  void add(TimePoint now, std::uint64_t bytes_done);
  [[nodiscard]] std::optional<double> bytes_per_s() const;
  void reset() { samples_.clear(); }

 private:
  struct Sample {
    TimePoint time;
    std::uint64_t bytes;
  };
  std::deque<Sample> samples_;
};

enum class ProgressStyle { quiet, plain, bar, json };

class Progress {
 public:
  Progress(ProgressStyle style, const Clock& clock) : style_(style), clock_(clock) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts a line for another job. `name` need not be safe for a terminal.
  void begin(std::string_view name, std::optional<std::uint64_t> total);
  void set_total(std::optional<std::uint64_t> total) { view_.total = total; }
  void update(std::uint64_t done);     // Redraws at a limited rate.
  void note(const std::string& text);  // Prints a separate line; `text` must be safe for a terminal.
  void end();                          // Draws the last state and ends the line.

 private:
  void draw();
  void leave_line();

  const ProgressStyle style_;
  const Clock& clock_;
  ProgressView view_;
  RateMeter rate_;
  TimePoint drawn_at_ = kNever;  // kNever: not drawn yet.
  bool is_on_line_ = false;      // The cursor stands behind a bar.
  bool is_stale_ = false;        // The last state has not been drawn.
};

// Chooses by standard error and the flags --quiet and --json.
[[nodiscard]] ProgressStyle progress_style(bool is_quiet, bool as_json);

}  // namespace uma::cli
