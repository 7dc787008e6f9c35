#include "uma-cli/top.h"

#include <algorithm>
#include <format>
#include <string_view>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/sessions.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

namespace json = boost::json;

struct Window {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

Window window_of(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

// The terminal's second screen, without a cursor, for the life of this object: the user's own text comes back unharmed.
class FullScreen {
 public:
  explicit FullScreen(Output& output) : output_(output) { (void)output_.write_verbatim("\x1b[?1049h\x1b[?25l"); }
  ~FullScreen() { (void)output_.write_verbatim("\x1b[?25h\x1b[?1049l"); }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  WriteEnd show(const std::string& text) {
    const Window window = window_of(output_.fd());
    return output_.write_verbatim("\x1b[H\x1b[2J" + fit_to_window(text, window.rows, window.columns));
  }

 private:
  Output& output_;
};

std::string tiers_text(const json::object& metrics) {
  Table table({{"KV"}, {"STATES", Align::right}, {"SIZE", Align::right}, {"HITS", Align::right}, {"RESTORE", Align::right}});
  for (const std::string tier : {"hot", "warm", "cold"}) {
    const double restore_ms = number_field(metrics, tier + "_restore_ms_avg");
    table.add({tier, std::to_string(int_field(metrics, tier + "_sessions")),
               human_bytes(number_field(metrics, tier + "_bytes")), std::to_string(int_field(metrics, tier + "_hits_total")),
               tier == "hot" ? "" : std::format("{:.1f} ms", restore_ms)});
  }
  return table.text();
}

// Takes pictures; remembers what it needs to turn totals into rates.
class Camera {
 public:
  explicit Camera(Client& client) : client_(client) {}

  Result<std::string> picture() {
    auto metrics_answer = client_.call({{"type", "metrics"}}, "metrics");
    if (!metrics_answer) return std::unexpected(metrics_answer.error());
    auto sessions_answer = client_.call({{"type", "list_sessions"}}, "sessions");
    if (!sessions_answer) return std::unexpected(sessions_answer.error());
    const json::object& metrics = object_field(*metrics_answer, "metrics");
    return top_text(metrics, array_field(*sessions_answer, "sessions"), unix_time_s(),
                    rate(number_field(metrics, "tokens_total")));
  }

 private:
  // A total below the one before: another daemon answers now.
  std::optional<double> rate(double tokens_total) {
    const TimePoint now = clock_.now();
    std::optional<double> tokens_per_s;
    if (last_time_ != kNever && tokens_total >= last_total_)
      tokens_per_s = (tokens_total - last_total_) * 1000 / to_ms(now - last_time_);
    last_time_ = now;
    last_total_ = tokens_total;
    return tokens_per_s;
  }

  Client& client_;
  const SteadyClock clock_;
  TimePoint last_time_ = kNever;
  double last_total_ = 0;
};

}  // namespace

std::string top_text(const json::object& metrics, const json::array& sessions, std::int64_t now_s,
                     std::optional<double> tokens_per_s) {
  std::string out = std::format("{}  up {}  rss {}", printable_line(text_field(metrics, "model")),
                                human_age(int_field(metrics, "uptime_s")), human_bytes(number_field(metrics, "rss_bytes")));
  if (tokens_per_s) out += std::format("  {:.1f} tokens/s", *tokens_per_s);
  out += std::format("\nsequences {} active, {} queued  sessions {}  batch {:.2f}\n", int_field(metrics, "sequences_active"),
                     int_field(metrics, "queue_depth"), int_field(metrics, "sessions"), number_field(metrics, "avg_batch"));
  out +=
      std::format("between tokens {:.1f} / {:.1f} / {:.1f} ms (p50 / p95 / p99)  first token {:.0f} / {:.0f} ms (p50 / p95)\n",
                  number_field(metrics, "p50_ms"), number_field(metrics, "p95_ms"), number_field(metrics, "p99_ms"),
                  number_field(metrics, "ttft_p50_ms"), number_field(metrics, "ttft_p95_ms"));
  out += std::format("tokens {} generated, {} read, {} reused\n", int_field(metrics, "tokens_total"),
                     int_field(metrics, "prompt_tokens_total"), int_field(metrics, "reused_tokens_total"));
  out += std::format("models {} of {} loaded  memory {} of {} reserved\n", int_field(metrics, "models_loaded"),
                     int_field(metrics, "models_registered"), human_bytes(number_field(metrics, "memory_reserved_bytes")),
                     human_bytes(number_field(metrics, "memory_usable_bytes")));
  // What was done about the last shortage.
  if (const json::array& decisions = array_field(metrics, "memory_decisions");
      !decisions.empty() && decisions.back().is_string()) {
    out += printable_line(decisions.back().get_string()) + '\n';
  }
  out += '\n';
  return out + tiers_text(metrics) + '\n' + session_table(sessions, now_s);
}

std::string fit_to_window(const std::string& text, std::size_t rows, std::size_t columns) {
  std::string out;
  std::string_view rest = text;
  for (std::size_t row = 0; row < rows && !rest.empty(); ++row) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (row > 0) out += "\r\n";
    out += clip(line, columns);
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return out;
}

Result<void> run_top(Client& client, Output& output, Interrupts& interrupts, double interval_s) {
  Camera camera(client);
  if (!output.is_terminal()) {
    auto picture = camera.picture();
    if (!picture) return std::unexpected(picture.error());
    return print(output, *picture);
  }
  FullScreen screen(output);
  while (true) {
    auto picture = camera.picture();
    if (!picture && picture.error().exit_code == ExitCode::interrupted) return {};
    if (!picture) return std::unexpected(picture.error());
    if (screen.show(*picture) != WriteEnd::done) return {};
    // A change of the window ends the wait as well: the next picture fits.
    (void)interrupts.wait({}, static_cast<int>(interval_s * 1000));
    if (interrupts.pending()) return {};
  }
}

}  // namespace uma::cli
