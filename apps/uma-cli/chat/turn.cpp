#include "uma-cli/chat/turn.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <format>
#include <optional>
#include <utility>

#include <boost/json/serialize.hpp>

#include "uma-cli/chat/reply_view.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kCancelWait{3000};

class Turn {
 public:
  Turn(Client& client, Output& output, Interrupts& interrupts) : client_(client), output_(output), interrupts_(interrupts) {
    if (output.is_terminal() && !is_dumb_terminal()) view_.emplace(output.window().columns, wants_colour());
  }

  Result<TurnEnd> run(boost::json::object request) {
    auto finished = generate(std::move(request));
    end_line(finished.has_value());
    if (!finished) return std::unexpected(finished.error());
    return end_;
  }

 private:
  Result<void> generate(boost::json::object request) {
    auto id = client_.send(std::move(request), "eos");
    if (!id) return std::unexpected(id.error());
    id_ = *id;
    while (is_waiting()) {
      auto frame = client_.receive(wait_ms(), end_.is_output_closed ? -1 : output_.fd());
      if (!frame) return std::unexpected(frame.error());
      if (*frame) {
        if (auto good = take(**frame); !good) return std::unexpected(good.error());
      }
      if (auto good = look_around(); !good) return std::unexpected(good.error());
    }
    if (failure_) return std::unexpected(*failure_);
    return {};
  }

  // True while the answer to the generation or to its cancel is outstanding.
  [[nodiscard]] bool is_waiting() const {
    return client_.in_flight(id_) || (!cancel_id_.empty() && client_.in_flight(cancel_id_));
  }
  [[nodiscard]] bool is_cancelled() const { return cancel_until_.has_value(); }

  [[nodiscard]] int wait_ms() const {
    if (!cancel_until_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*cancel_until_ - SteadyClock::now());
    return static_cast<int>(std::max<std::int64_t>(0, left.count()));
  }

  Result<void> take(const boost::json::object& frame) {
    const std::string event = text_field(frame, "event");
    if (text_field(frame, "id") != id_) return {};  // The answer to the cancel request; `eos` carries the result.
    if (event == "token") return show(text_field(frame, "text"));
    if (event == "error") {
      if (!is_cancelled()) failure_ = failure_of(frame);
      return {};
    }
    if (event != "eos") return {};
    if (auto good = show(text_field(frame, "text")); !good) return good;
    end_.usage = object_field(frame, "usage");
    take_reason(text_field(frame, "reason"), frame);
    return {};
  }

  void take_reason(const std::string& reason, const boost::json::object& frame) {
    if (is_cancelled() || reason == "stop" || reason == "length") return;
    if (reason == "cancelled") {
      failure_ = Failure{ExitCode::server, "the daemon or another client cancelled this generation", ""};
    } else if (reason == "timeout") {
      failure_ = Failure{
          ExitCode::server,
          "the generation exceeded its time limit: ask for fewer tokens, or try again when the daemon is less busy", ""};
    } else if (reason == "slow_consumer") {
      failure_ = Failure{ExitCode::server, "the daemon ended the generation because its output was read too slowly", ""};
    } else {
      failure_ = failure_of(frame);
    }
  }

  Result<void> show(const std::string& text) {
    end_.text += text;
    if (end_.is_output_closed) return {};
    switch (view_ ? output_.write_verbatim(view_->take(printable(text))) : output_.write(text)) {
      case WriteEnd::done:
      case WriteEnd::interrupted:  // look_around() handles the signal.
        break;
      case WriteEnd::closed:
        end_.is_output_closed = true;
        return cancel();
      case WriteEnd::failed:
        client_.disconnect();
        return fail(ExitCode::server, std::format("cannot write the answer: {}", std::strerror(output_.error_number())));
    }
    return {};
  }

  // Checks, between frames, for signals, for a closed output and for the time limit of a cancel.
  Result<void> look_around() {
    const int presses = interrupts_.take();
    if (presses > 0 || interrupts_.must_leave()) {
      end_.is_interrupted = true;
      // A pending request to leave stays set and would end every later wait at once, so this does not wait for the daemon.
      if (is_cancelled() || presses > 1 || interrupts_.must_leave()) return give_up();
      return cancel();
    }
    if (!end_.is_output_closed && output_.is_closed()) {
      end_.is_output_closed = true;
      return cancel();
    }
    if (cancel_until_ && SteadyClock::now() >= *cancel_until_) return give_up();
    return {};
  }

  Result<void> cancel() {
    if (is_cancelled() || !client_.in_flight(id_)) return {};
    cancel_until_ = SteadyClock::now() + kCancelWait;
    auto sent = client_.send({{"type", "cancel"}, {"target", id_}}, "ack");
    if (!sent) return std::unexpected(sent.error());
    cancel_id_ = *sent;
    return {};
  }

  // The daemon cancels the requests of a closed connection.
  Result<void> give_up() {
    client_.disconnect();
    return {};
  }

  // Ends the text with a newline. After a failure this is needed only for a line that was begun on a terminal, because the
  // message follows on its own line. The terminal's echo of Ctrl-C begins a line, too.
  void end_line(bool is_success) {
    if (view_ && !end_.is_output_closed) (void)output_.write_verbatim(view_->end());
    const bool is_wanted = output_.is_terminal() ? !output_.at_line_start() || end_.is_interrupted : is_success;
    if (is_wanted && !end_.is_output_closed && output_.write("\n") == WriteEnd::closed) end_.is_output_closed = true;
  }

  Client& client_;
  Output& output_;
  Interrupts& interrupts_;
  std::string id_;
  std::string cancel_id_;
  std::optional<SteadyClock::time_point> cancel_until_;
  std::optional<Failure> failure_;
  std::optional<ReplyView> view_;  // Set at a terminal.
  TurnEnd end_;
};

}  // namespace

Result<TurnEnd> run_turn(Client& client, boost::json::object request, Output& output, Interrupts& interrupts) {
  return Turn(client, output, interrupts).run(std::move(request));
}

std::string receipt_line(const boost::json::object& usage) {
  std::string line = count_of(int_field(usage, "prompt_tokens"), "prompt token");
  if (const std::int64_t reused = int_field(usage, "reused_tokens"); reused > 0) {
    line += std::format(" ({} reused from {}, {} computed)", reused, text_field(usage, "tier"),
                        int_field(usage, "recomputed_tokens"));
  }
  line += std::format(", {} new", int_field(usage, "completion_tokens"));
  if (const std::int64_t reasoning = int_field(usage, "reasoning_tokens"); reasoning > 0)
    line += std::format(" ({} of reasoning)", reasoning);
  if (text_field(usage, "reuse_reason") == "rewritten") line += ", the template rewrote the past";
  if (const std::int64_t turns = int_field(usage, "dropped_turns"); turns > 0) {
    line += std::format(", context full: the {} dropped",
                        turns == 1 ? "oldest turn was" : std::format("{} oldest turns were", turns));
  }
  if (const double ttft_ms = number_field(usage, "ttft_ms"); ttft_ms > 0)
    line += std::format(", first after {:.0f} ms", ttft_ms);
  if (const double rate = number_field(usage, "tokens_per_s"); rate > 0) line += std::format(", {:.1f} tokens/s", rate);
  if (const auto* seed = usage.if_contains("seed"); seed != nullptr)
    line += std::format(", seed {}", boost::json::serialize(*seed));
  return line;
}

}  // namespace uma::cli
