#include "uma-cli/top.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <format>
#include <poll.h>
#include <string_view>
#include <termios.h>
#include <unistd.h>
#include <utility>

#include <boost/json/array.hpp>

#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

// Switches to the terminal's alternate screen, hides the cursor and takes keys as they are pressed; the destructor restores
// all.
class FullScreen {
 public:
  explicit FullScreen(Output& output)
      : output_(output), is_terminal_(::tcgetattr(STDIN_FILENO, &before_) == 0), has_keys_(is_terminal_) {
    if (is_terminal_) {
      termios keys = before_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      (void)::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    (void)output_.write_verbatim("\x1b[?1049h\x1b[?25l");
  }
  ~FullScreen() {
    (void)output_.write_verbatim("\x1b[?25h\x1b[?1049l");
    if (is_terminal_) (void)::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  WriteEnd show(const std::string& text) {
    const Window window = output_.window();
    return output_.write_verbatim("\x1b[H\x1b[2J" + fit_to_window(text, window.rows, window.columns, first_));
  }

  [[nodiscard]] int keys_fd() const { return has_keys_ ? STDIN_FILENO : -1; }

  enum class Key : std::uint8_t { none, scrolled, quit };
  // Handles the keys that were pressed.
  Key take_keys() {
    pollfd keys{.fd = keys_fd(), .events = POLLIN, .revents = 0};
    if (!has_keys_ || ::poll(&keys, 1, 0) <= 0) return Key::none;
    std::array<char, 64> bytes{};
    const ssize_t got = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Key::none;
    if (got <= 0) {
      has_keys_ = false;  // The terminal is gone, and would wake every wait.
      return Key::none;
    }
    std::string_view pressed(bytes.data(), static_cast<std::size_t>(got));
    const auto takes = [&](std::string_view key) {
      if (!pressed.starts_with(key)) return false;
      pressed.remove_prefix(key.size());
      return true;
    };
    const std::size_t page = output_.window().rows - 1;
    while (!pressed.empty()) {
      if (takes("q") || takes("Q")) return Key::quit;
      if (takes("\x1b[B") || takes("j")) {
        first_ += 1;
      } else if (takes("\x1b[A") || takes("k")) {
        first_ -= std::min<std::size_t>(first_, 1);
      } else if (takes("\x1b[6~") || takes(" ")) {
        first_ += page;
      } else if (takes("\x1b[5~")) {
        first_ -= std::min(first_, page);
      } else {
        pressed.remove_prefix(1);
      }
    }
    return Key::scrolled;
  }

 private:
  Output& output_;
  termios before_{};
  const bool is_terminal_;  // Standard input is one.
  bool has_keys_;
  std::size_t first_ = 0;  // The first line that is shown.
};

// A bar such as "####----", filled by the part of `value` in `whole`.
std::string bar_of(double value, double whole, std::size_t columns = 20) {
  const double part = whole > 0 ? std::clamp(value / whole, 0.0, 1.0) : 0;
  std::string text(columns, '-');
  std::fill_n(text.begin(), static_cast<std::size_t>(std::lround(part * static_cast<double>(columns))), '#');
  return text;
}

// Calls visit(object) for each object in an array of the snapshot.
template <class VisitT>
void for_each_object(const boost::json::object& object, std::string_view name, VisitT&& visit) {
  for (const boost::json::value& value : array_field(object, name)) {
    if (value.is_object()) visit(value.get_object());
  }
}

// The growth of a total per second, from two snapshots of one daemon; nullopt: it has started again, or no time has passed.
std::optional<double> rate_of(const boost::json::object& now, const boost::json::object* before, std::string_view total) {
  if (before == nullptr) return std::nullopt;
  const double ms = number_field(now, "unix_ms") - number_field(*before, "unix_ms");
  const double more = number_field(object_field(now, "totals"), total) - number_field(object_field(*before, "totals"), total);
  if (ms <= 0 || more < 0) return std::nullopt;
  return more * 1000 / ms;
}

std::string speed_text(const boost::json::object& now, const boost::json::object* before) {
  const boost::json::object& latency = object_field(now, "latency");
  std::string out;
  if (const auto tokens = rate_of(now, before, "tokens")) {
    out = std::format("{:.1f} tokens/s  prompts {:.0f}/s  reused {:.0f}/s\n", *tokens,
                      rate_of(now, before, "prompt_tokens").value_or(0), rate_of(now, before, "reused_tokens").value_or(0));
  }
  return out + std::format("between tokens {:.1f} / {:.1f} / {:.1f} ms (p50 / p95 / p99)  first token {:.0f} / {:.0f} ms\n",
                           number_field(latency, "p50_ms"), number_field(latency, "p95_ms"), number_field(latency, "p99_ms"),
                           number_field(latency, "ttft_p50_ms"), number_field(latency, "ttft_p95_ms"));
}

// The pauses of streams against what is promised.
std::string pauses_text(const boost::json::object& now) {
  const boost::json::object& totals = object_field(now, "totals");
  double longest_ms = 0;
  for_each_object(now, "calls", [&](const auto& call) { longest_ms = std::max(longest_ms, number_field(call, "pause_ms")); });
  std::string out = std::format("{:.0f} ms between tokens are promised", number_field(now, "contract_ms"));
  if (longest_ms > 0) out += std::format(", longest pause {:.0f} ms", longest_ms);
  const double kept = number_field(totals, "promises_kept");
  const double all = kept + number_field(totals, "promises_broken");
  if (all > 0) out += std::format(", {:.1f} % on time", 100 * kept / all);
  return out + '\n';
}

std::string models_text(const boost::json::object& now) {
  const boost::json::object& memory = object_field(now, "memory");
  const double reserved = number_field(memory, "reserved_bytes");
  const double usable = number_field(memory, "usable_bytes");
  std::string out = std::format("memory {} {} of {}\n", bar_of(reserved, usable), human_bytes(reserved), human_bytes(usable));
  std::size_t others = 0;
  for_each_object(now, "models", [&](const auto& model) {
    const std::string state = text_field(model, "state");
    if (state != "ready" && state != "loading") return void(++others);
    out += std::format("model {}  {}  {}", printable_line(text_field(model, "name")), human_bytes(number_field(model, "bytes")),
                       printable_line(state));
    if (state == "loading") out += std::format(" {:.0f} %", 100 * number_field(model, "load_progress"));
    out += std::format("  {} in use\n", count_of(int_field(model, "in_use"), "request"));
  });
  if (others > 0) out += std::format("{} not loaded\n", count_of(static_cast<std::int64_t>(others), "model"));
  for_each_object(now, "devices", [&](const auto& device) {
    out += printable_line(text_field(device, "name"));
    // Without memory of its own it uses the machine's.
    if (const double own = number_field(device, "memory_usable_bytes"); own > 0) {
      const double of_device = number_field(device, "memory_reserved_bytes");
      out += std::format("  {} {} of {}", bar_of(of_device, own), human_bytes(of_device), human_bytes(own));
    }
    out += std::format("  {:.0f} % busy\n", 100 * number_field(device, "busy_ratio"));
  });
  return out;
}

// "  claude-code 7b1c03f2", or nothing.
std::string agent_text(const boost::json::object& owned) {
  const boost::json::value* named = owned.if_contains("agent");
  if (named == nullptr || !named->is_object()) return {};
  const boost::json::object& agent = named->get_object();
  const std::string program = text_field(agent, "program");
  return std::format("  {}{}{:.8}{}", printable_line(program), program.empty() ? "" : " ",
                     printable_line(text_field(agent, "id")), agent.contains("parent") ? " (sub-agent)" : "");
}

std::string slot_text(const boost::json::object& slot) {
  const std::string state = text_field(slot, "state");
  const double tokens = number_field(slot, "tokens");
  const double prompt = number_field(slot, "prompt_tokens");
  std::string out = std::format("  {:>3} {:<9}", int_field(slot, "slot"), printable_line(state));
  out += state == "decode" ? std::format("{:20}  {:.0f} tokens, {:.0f} of them new", "", tokens, std::max(0.0, tokens - prompt))
                           : std::format("{}  {:.0f} of {:.0f} tokens", bar_of(tokens, prompt), tokens, prompt);
  return out + std::format("  {}{}\n", printable_line(text_field(slot, "tenant")), agent_text(slot));
}

std::string workers_text(const boost::json::object& now) {
  constexpr std::size_t kSlotsShown = 8;
  std::string out;
  for_each_object(now, "workers", [&](const auto& worker) {
    const double used = number_field(worker, "cells_used");
    const double total = number_field(worker, "cells_total");
    out += std::format("worker {} {}  {} {:.0f} of {:.0f} cells\n", int_field(worker, "worker"),
                       printable_line(text_field(worker, "model")), bar_of(used, total), used, total);
    std::size_t busy = 0;
    std::int64_t idle = 0;
    for_each_object(worker, "slots", [&](const auto& slot) {
      if (text_field(slot, "state") == "idle") return void(++idle);
      if (++busy <= kSlotsShown) out += slot_text(slot);
    });
    if (busy > kSlotsShown)
      out += std::format("  {} more busy\n", count_of(static_cast<std::int64_t>(busy - kSlotsShown), "slot"));
    if (idle > 0) out += std::format("  {} idle\n", count_of(idle, "slot"));
  });
  return out;
}

std::string queue_text(const boost::json::object& now) {
  constexpr std::size_t kShown = 5;
  const std::int64_t depth = int_field(now, "queue_depth");
  if (depth == 0) return "nobody waits\n";
  std::string out = std::format("{} waiting\n", count_of(depth, "request"));
  std::size_t shown = 0;
  for_each_object(now, "queue", [&](const auto& waiting) {
    if (++shown > kShown) return;
    const std::string request = text_field(waiting, "request");
    out += std::format("  {:>3} {:<9} {:>7.1f} s  {}  {}{}{}{}\n", int_field(waiting, "position"),
                       printable_line(text_field(waiting, "stage")), number_field(waiting, "waited_ms") / 1000,
                       printable_line(text_field(waiting, "model")), printable_line(text_field(waiting, "tenant")),
                       agent_text(waiting), request.empty() ? "" : "  request " + printable_line(request),
                       text_field(waiting, "class") == "background" ? "  background" : "");
  });
  return out;
}

struct TierMoves {
  const char* tier;
  const char* from_above;  // The bytes that come into the tier from there; null: nothing does.
  const char* from_below;
};
constexpr TierMoves kTierMoves[] = {
    {"hot", nullptr, "warm_hot_bytes"}, {"warm", "hot_warm_bytes", "cold_warm_bytes"}, {"cold", "warm_cold_bytes", nullptr}};

std::string tiers_text(const boost::json::object& now) {
  const boost::json::object& tiers = object_field(now, "tiers");
  const boost::json::object& moves = object_field(now, "moves");
  const auto moved = [&](const char* name) { return name == nullptr ? "" : human_bytes(number_field(moves, name)); };
  Table table({{"KV"},
               {"STATES", Align::right},
               {"SIZE", Align::right},
               {"HITS", Align::right},
               {"CAME DOWN", Align::right},
               {"CAME UP", Align::right}});
  for (const TierMoves& each : kTierMoves) {
    const boost::json::object& tier = object_field(tiers, each.tier);
    table.add({each.tier, std::to_string(int_field(tier, "states")), human_bytes(number_field(tier, "bytes")),
               std::to_string(int_field(tier, "hits_total")), moved(each.from_above), moved(each.from_below)});
  }
  return table.text();
}

// A failure to watch, in words for a person whose daemon is older than this program.
Failure watch_failure(Failure failure) {
  if (failure.server_code != "E_PROTO_004") return failure;
  return {ExitCode::server, "the daemon is older than this uma-cli and cannot be watched: restart it with the same version",
          failure.server_code};
}

// The snapshots of one watch, from its request to its end.
class Watch {
 public:
  explicit Watch(Client& client) : client_(client) {}
  ~Watch() { client_.disconnect(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Result<void> begin(double interval_s) {
    constexpr double kIntervalMsMax = 10'000;
    const auto interval_ms = static_cast<std::int64_t>(std::min(interval_s * 1000, kIntervalMsMax));
    auto sent = client_.send({{"type", "watch"}, {"interval_ms", interval_ms}, {"history_s", 0}}, "watch_end");
    if (!sent) return std::unexpected(sent.error());
    return {};
  }

  // The next snapshot; nullopt after a signal, also that of a resized window, and after a key.
  Result<std::optional<boost::json::object>> next(int keys_fd = -1) {
    auto frame = client_.receive(-1, keys_fd, POLLIN);
    if (!frame) return std::unexpected(frame.error());
    if (!*frame) return std::nullopt;
    const std::string event = text_field(**frame, "event");
    if (event == "error") return std::unexpected(watch_failure(failure_of(**frame)));
    if (event == "watch_end") return fail(ExitCode::server, "the daemon is stopping");
    if (event != "snapshot") return std::nullopt;
    return object_field(**frame, "snapshot");
  }

 private:
  Client& client_;
};

Result<void> print_one_picture(Watch& watch, Output& output, Interrupts& interrupts) {
  while (!interrupts.pending()) {
    auto snapshot = watch.next();
    if (!snapshot) return std::unexpected(snapshot.error());
    if (*snapshot) return print(output, top_text(**snapshot, nullptr));
  }
  return interrupted();
}

}  // namespace

std::string top_text(const boost::json::object& snapshot, const boost::json::object* before) {
  const boost::json::object& totals = object_field(snapshot, "totals");
  std::string out = std::format("{}  up {}  rss {}  {} open", printable_line(text_field(snapshot, "status")),
                                human_age(int_field(snapshot, "uptime_s")), human_bytes(number_field(snapshot, "rss_bytes")),
                                count_of(int_field(snapshot, "requests_open"), "request"));
  if (const std::int64_t failed = int_field(totals, "requests_failed"); failed > 0)
    out += std::format("  {} of {} failed", failed, int_field(totals, "requests"));
  out += '\n';
  return out + speed_text(snapshot, before) + pauses_text(snapshot) + workers_text(snapshot) + queue_text(snapshot) +
         models_text(snapshot) + tiers_text(snapshot);
}

std::string fit_to_window(const std::string& text, std::size_t rows, std::size_t columns, std::size_t& first) {
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  first = std::min(first, lines - std::min(lines, rows));
  std::string out;
  std::string_view rest = text;
  for (std::size_t line = 0; line < first; ++line) rest.remove_prefix(rest.find('\n') + 1);
  for (std::size_t row = 0; row < rows && !rest.empty(); ++row) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (row > 0) out += "\r\n";
    out += clip(line, columns);
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return out;
}

Result<void> run_top(Client& client, Output& output, Interrupts& interrupts, double interval_s) {
  Watch watch(client);
  if (auto begun = watch.begin(interval_s); !begun) return begun;
  if (!output.is_terminal()) return print_one_picture(watch, output, interrupts);
  constexpr double kEarlyMs = 50;  // A snapshot may come a little early.
  FullScreen screen(output);
  std::optional<boost::json::object> shown;
  std::string text;
  while (!interrupts.pending()) {
    auto snapshot = watch.next(screen.keys_fd());
    if (!snapshot) return std::unexpected(snapshot.error());
    const FullScreen::Key key = screen.take_keys();
    if (key == FullScreen::Key::quit) return {};
    if (*snapshot) {
      const double passed_ms =
          shown ? number_field(**snapshot, "unix_ms") - number_field(*shown, "unix_ms") : interval_s * 1000;
      if (passed_ms + kEarlyMs < interval_s * 1000) continue;
      text = top_text(**snapshot, shown ? &*shown : nullptr);
      shown = std::move(**snapshot);
    }
    if (!*snapshot && key == FullScreen::Key::none && !interrupts.take_redraw()) continue;
    if (!text.empty() && screen.show(text) != WriteEnd::done) return {};
  }
  return {};
}

}  // namespace uma::cli
