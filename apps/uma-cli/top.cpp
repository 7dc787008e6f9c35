#include "uma-cli/top.h"

#include <algorithm>
#include <format>
#include <string_view>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "core/metrics_table.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/sessions.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

struct Window {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

Window window_of(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

// Switches to the terminal's alternate screen and hides the cursor; the destructor restores both.
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

// The metric's value in the frame, formatted by its unit. `decimals` applies to values that are not whole.
std::string shown(const boost::json::object& metrics, const Metric& metric, std::optional<int> decimals = std::nullopt) {
  if (metric.kind == MetricKind::text) return printable_line(text_field(metrics, metric.name));
  if (metric.unit == "bytes") return human_bytes(number_field(metrics, metric.name));
  if (metric.unit == "s") return human_age(int_field(metrics, metric.name));
  if (decimals) return std::format("{:.{}f}", number_field(metrics, metric.name), *decimals);
  return std::to_string(int_field(metrics, metric.name));
}

struct TierMetrics {
  const char* name;
  const Metric* states;
  const Metric* bytes;
  const Metric* hits;
  const Metric* restore_ms;  // Null: nothing is restored from this tier.
};
constexpr TierMetrics kTierMetrics[] = {
    {"hot", &metric("hot_sessions"), &metric("hot_bytes"), &metric("hot_hits_total"), nullptr},
    {"warm", &metric("warm_sessions"), &metric("warm_bytes"), &metric("warm_hits_total"), &metric("warm_restore_ms_avg")},
    {"cold", &metric("cold_sessions"), &metric("cold_bytes"), &metric("cold_hits_total"), &metric("cold_restore_ms_avg")},
};

std::string tiers_text(const boost::json::object& metrics) {
  Table table({{"KV"}, {"STATES", Align::right}, {"SIZE", Align::right}, {"HITS", Align::right}, {"RESTORE", Align::right}});
  for (const TierMetrics& tier : kTierMetrics) {
    table.add({tier.name, shown(metrics, *tier.states), shown(metrics, *tier.bytes), shown(metrics, *tier.hits),
               tier.restore_ms == nullptr ? "" : shown(metrics, *tier.restore_ms, 1) + " ms"});
  }
  return table.text();
}

// Turns successive metrics frames into pictures; remembers totals to compute rates.
class Camera {
 public:
  explicit Camera(Client& client) : client_(client) {}

  Result<std::string> picture() {
    auto metrics_answer = client_.call({{"type", "metrics"}}, "metrics");
    if (!metrics_answer) return std::unexpected(metrics_answer.error());
    auto sessions_answer = client_.call({{"type", "list_sessions"}, {"order", "desc"}}, "sessions");
    if (!sessions_answer) return std::unexpected(sessions_answer.error());
    const boost::json::object& metrics = object_field(*metrics_answer, "metrics");
    return top_text(metrics, array_field(*sessions_answer, "sessions"), unix_time_s(),
                    rate(number_field(metrics, metric("tokens_total").name)));
  }

 private:
  // A smaller total than before: another daemon answers now.
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

std::string top_text(const boost::json::object& metrics, const boost::json::array& sessions, std::int64_t now_s,
                     std::optional<double> tokens_per_s) {
  const auto number = [&](const Metric& metric, std::optional<int> decimals = std::nullopt) {
    return shown(metrics, metric, decimals);
  };
  std::string out =
      std::format("{}  up {}  rss {}", number(metric("model")), number(metric("uptime_s")), number(metric("rss_bytes")));
  if (tokens_per_s) out += std::format("  {:.1f} tokens/s", *tokens_per_s);
  out += std::format("\nsequences {} active, {} queued  sessions {}  batch {}\n", number(metric("sequences_active")),
                     number(metric("queue_depth")), number(metric("sessions")), number(metric("avg_batch"), 2));
  out += std::format("between tokens {} / {} / {} ms (p50 / p95 / p99)  first token {} / {} ms (p50 / p95)\n",
                     number(metric("p50_ms"), 1), number(metric("p95_ms"), 1), number(metric("p99_ms"), 1),
                     number(metric("ttft_p50_ms"), 0), number(metric("ttft_p95_ms"), 0));
  out += std::format("tokens {} generated, {} read, {} reused\n", number(metric("tokens_total")),
                     number(metric("prompt_tokens_total")), number(metric("reused_tokens_total")));
  out += std::format("models {} of {} loaded  memory {} of {} reserved\n", number(metric("models_loaded")),
                     number(metric("models_registered")), number(metric("memory_reserved_bytes")),
                     number(metric("memory_usable_bytes")));
  for (const boost::json::value& value : array_field(metrics, "devices")) {
    if (!value.is_object()) continue;
    const boost::json::object& device = value.get_object();
    out += printable_line(text_field(device, "name"));
    // Without memory of its own it uses the machine's.
    if (const double usable = number_field(device, "memory_usable_bytes"); usable > 0) {
      out += std::format("  memory {} of {} reserved", human_bytes(number_field(device, "memory_reserved_bytes")),
                         human_bytes(usable));
    }
    out += std::format("  {:.0f} % busy\n", 100 * number_field(device, "busy_ratio"));
  }
  // Decisions of the pool about the last shortage of memory.
  if (const boost::json::array& decisions = array_field(metrics, metric("memory_decisions").name);
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
    // A resized window also ends the wait, so that the next picture fits.
    (void)interrupts.wait({}, static_cast<int>(interval_s * 1000));
    if (interrupts.pending()) return {};
  }
}

}  // namespace uma::cli
