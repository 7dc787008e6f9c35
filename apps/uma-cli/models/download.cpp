#include "uma-cli/models/download.h"

#include <algorithm>
#include <format>
#include <optional>
#include <utility>
#include <vector>

#include "uma-cli/format.h"
#include "uma-cli/models/model_head.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

constexpr int kConnectionsMax = 10000;  // Connections for one file; any working network needs far fewer.
constexpr std::size_t kPageBytesMax = 32u << 20;

std::string bytes_text(std::uint64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

// Explains why an attempt brought less than the whole file.
std::string reason_of(const HttpEnd& end) {
  if (!end.broken.empty()) return printable_line(end.broken);
  return end.head.status == 200 || end.head.status == 206 ? "the answer ended early"
                                                          : std::format("the server answered with status {}", end.head.status);
}

// Writes the body of one answer to the part file.
class Fetch final : public HttpHandler {
 public:
  Fetch(const Wanted& wanted, const Plan& plan, PartFile& part, Progress& progress)
      : wanted_(wanted), plan_(plan), part_(part), progress_(progress) {}

  Result<Flow> on_head(const HttpHead& head) override {
    head_ = head;
    auto judgement = judge(head, plan_, part_.state(), wanted_);
    if (!judgement) return std::unexpected(judgement.error());
    judgement_ = *judgement;
    if (!is_wanted()) return Flow::stop;
    if (judgement->total) {
      if (auto room = part_.check_room(*judgement->total); !room) return std::unexpected(room.error());
      progress_.set_total(judgement->total);
    }
    return Flow::more;
  }

  Result<void> on_body(std::string_view bytes) override {
    if (!is_begun()) {
      first_ += bytes;
      if (first_.size() < kModelHeadBytes) return {};
      if (auto begun = begin(); !begun) return begun;
      bytes = first_;
    }
    if (judgement_->limit && part_.size() + bytes.size() > *judgement_->limit) {
      part_.discard();
      return fail(ExitCode::protocol,
                  std::format("{} should have {} bytes, but the server sends more; the download was discarded", wanted_.name,
                              *judgement_->limit));
    }
    return part_.append(bytes);
  }

  void on_tick() override { progress_.update(is_begun_ || plan_.offset > 0 ? part_.size() : 0); }

  // Checks an answer that its server ended regularly.
  Result<void> check_end() const {
    if (is_wanted() && !is_begun()) return refuse(why_not_model(first_));
    return {};
  }
  [[nodiscard]] const std::optional<Judgement>& judgement() const { return judgement_; }

 private:
  [[nodiscard]] bool is_wanted() const {
    return judgement_ && (judgement_->verdict == Verdict::write_new || judgement_->verdict == Verdict::append);
  }
  [[nodiscard]] bool is_begun() const { return is_begun_ || judgement_->verdict == Verdict::append; }

  // The existing part stays until the first bytes of the new answer look valid, so that an error page does not destroy it.
  Result<void> begin() {
    const std::string_view head = std::string_view(first_).substr(0, kModelHeadBytes);
    if (const std::string why = why_not_model(head); !why.empty()) return refuse(why);
    is_begun_ = true;
    return part_.begin({.url = wanted_.url.text,
                        .etag = head_.etag,
                        .last_modified = head_.last_modified,
                        .size = judgement_->total,
                        .sha256 = wanted_.sha256});
  }

  [[nodiscard]] Result<void> refuse(const std::string& why) const {
    const std::string type = head_.content_type.empty() ? "none" : printable_line(head_.content_type);
    return fail(ExitCode::protocol, std::format("{} did not send a model: {} (status {}, content type: {})",
                                                shown_url(head_.url), why, head_.status, type));
  }

  const Wanted& wanted_;
  const Plan plan_;
  PartFile& part_;
  Progress& progress_;
  HttpHead head_;
  std::optional<Judgement> judgement_;
  std::string first_;  // First bytes of a new file, collected until the file's type can be checked.
  bool is_begun_ = false;
};

// Adds to a failure that the part is kept, and how to resume.
Failure with_part(Failure failure, const PartFile& part) {
  if (part.size() == 0 || failure.exit_code == ExitCode::protocol) return failure;
  if (failure.message.empty()) failure.message = "interrupted";
  failure.message +=
      std::format("; {} are kept in {}, and the same command resumes from there", bytes_text(part.size()), part.path());
  return failure;
}

std::vector<std::string> headers_for(const Plan& plan) {
  if (plan.offset == 0) return {};
  std::vector<std::string> headers = {std::format("Range: bytes={}-", plan.offset)};
  if (!plan.if_range.empty()) headers.push_back("If-Range: " + plan.if_range);
  return headers;
}

// Whether the whole file is here.
Result<bool> is_complete(const HttpEnd& end, const Fetch& fetch, const PartFile& part) {
  if (!end.broken.empty() || !fetch.judgement()) return false;
  if (auto good = fetch.check_end(); !good) return std::unexpected(good.error());
  const Judgement& judgement = *fetch.judgement();
  if (judgement.verdict == Verdict::is_whole) return true;
  if (judgement.total) return part.size() == *judgement.total;
  return judgement.verdict == Verdict::write_new;
}

Result<void> fetch_bytes(const Wanted& wanted, PartFile& part, Http& http, Progress& progress, Interrupts& interrupts) {
  Patience patience;
  std::uint64_t most = plan_request(part.state(), part.size(), wanted).offset;  // Largest size that the part has had.
  bool asks_anew = false;
  for (int i = 0; i < kConnectionsMax; ++i) {
    const Plan plan = std::exchange(asks_anew, false) ? Plan{} : plan_request(part.state(), part.size(), wanted);
    if (plan.is_whole) return {};
    Fetch fetch(wanted, plan, part, progress);
    auto end = http.get(wanted.url, headers_for(plan), fetch);
    if (!end) return std::unexpected(end.error());
    auto is_done = is_complete(*end, fetch, part);
    if (!is_done) return std::unexpected(is_done.error());
    if (*is_done) return {};
    asks_anew = fetch.judgement() && fetch.judgement()->verdict == Verdict::ask_anew;

    // A new start does not count as progress; otherwise a server that always fails at the same byte would be asked for ever.
    const std::uint64_t here = part.size();
    const auto wait_ms = patience.wait_ms(here > most, end->head.retry_after_s);
    most = std::max(most, here);
    const std::string reason = asks_anew ? "the local part does not match the server's file" : reason_of(*end);
    if (!wait_ms) {
      return fail(ExitCode::server, std::format("cannot fetch {} from {}: {} ({} attempts without progress)", wanted.name,
                                                wanted.url.host, reason, Patience::kAttemptsMax));
    }
    progress.note(std::format("{} at {}; retrying in {} s", reason, bytes_text(here), human_number(*wait_ms / 1000.0)));
    if (interrupts.wait({}, *wait_ms) == Wake::signal && interrupts.pending()) return interrupted();
  }
  return fail(ExitCode::server, std::format("cannot fetch {}: the connection was lost {} times", wanted.name, kConnectionsMax));
}

Result<void> load_part(const Wanted& wanted, PartFile& part, Progress& progress, Interrupts& interrupts) {
  if (plan_request(part.state(), part.size(), wanted).offset == 0) return {};
  progress.begin("checking the local part", part.size());
  auto loaded = part.load(interrupts, [&](std::uint64_t done) { progress.update(done); });
  if (!loaded) return loaded;
  progress.end();
  return {};
}

class PageHandler final : public HttpHandler {
 public:
  Result<Flow> on_head(const HttpHead& head) override { return head.status == 200 ? Flow::more : Flow::stop; }
  Result<void> on_body(std::string_view bytes) override {
    text += bytes;
    if (text.size() > kPageBytesMax) return fail(ExitCode::protocol, "the hub's list of files is larger than pull accepts");
    return {};
  }
  std::string text;
};

}  // namespace

Result<std::string> download(const Wanted& wanted, PartFile& part, Http& http, Progress& progress, Interrupts& interrupts) {
  if (wanted.size) {
    if (auto room = part.check_room(*wanted.size); !room) return std::unexpected(room.error());
  }
  if (auto loaded = load_part(wanted, part, progress, interrupts); !loaded)
    return std::unexpected(with_part(loaded.error(), part));
  const bool goes_on = plan_request(part.state(), part.size(), wanted).offset > 0;
  progress.begin(wanted.name, goes_on && !wanted.size ? part.state()->size : wanted.size);
  if (auto fetched = fetch_bytes(wanted, part, http, progress, interrupts); !fetched)
    return std::unexpected(with_part(fetched.error(), part));
  progress.update(part.size());
  progress.end();
  if (const std::string why = why_not_model(part.head()); !why.empty()) {
    part.discard();
    return fail(ExitCode::protocol, std::format("{} is not a model: {}", wanted.name, why));
  }
  std::string sum = part.sha256();
  if (!wanted.sha256.empty() && sum != wanted.sha256) {
    part.discard();
    return fail(ExitCode::protocol, std::format("{} has the SHA-256 {}, but {} was expected; the download was discarded",
                                                wanted.name, sum, wanted.sha256));
  }
  return sum;
}

Result<Page> fetch_page(const Url& url, const Wanted& wanted, Http& http, Interrupts& interrupts) {
  Patience patience;
  while (true) {
    PageHandler handler;
    auto end = http.get(url, {}, handler);
    if (!end) return std::unexpected(end.error());
    if (end->head.status == 200 && end->broken.empty()) return Page{std::move(handler.text), std::move(end->head)};
    // judge() decides for pages as for files which failures are worth another attempt.
    if (auto judgement = judge(end->head, {}, nullptr, wanted); !judgement && end->head.status != 0)
      return std::unexpected(judgement.error());
    const auto wait_ms = patience.wait_ms(false, end->head.retry_after_s);
    if (!wait_ms) return fail(ExitCode::server, std::format("cannot reach {}: {}", url.host, reason_of(*end)));
    if (interrupts.wait({}, *wait_ms) == Wake::signal && interrupts.pending()) return interrupted();
  }
}

}  // namespace uma::cli
