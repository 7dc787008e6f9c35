#include "uma-cli/resume.h"

#include <algorithm>
#include <charconv>
#include <format>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/models/pull_source.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

constexpr int kFirstWaitMs = 200;
constexpr int kWaitMsMax = 5000;
constexpr std::int64_t kRetryAfterSMax = 30;

std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

// Other text could end the header line that contains it.
bool is_one_line(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7f; });
}

// A weak ETag promises equal meaning, not equal bytes.
bool is_strong(std::string_view etag) {
  return etag.size() >= 2 && etag.front() == '"' && etag.back() == '"' && is_one_line(etag);
}

bool contradict(const std::optional<std::uint64_t>& a, const std::optional<std::uint64_t>& b) {
  return a && b && *a != *b;
}

// The size of the whole file, if it is known.
std::optional<std::uint64_t> known_size(const PartState* state, const Wanted& wanted) {
  if (wanted.size) return wanted.size;
  return state != nullptr ? state->size : std::nullopt;
}

Result<Judgement> judge_whole(const HttpHead& head, const Wanted& wanted) {
  if (!head.content_encoding.empty() && head.content_encoding != "identity") {
    return fail(ExitCode::server, std::format("the server sends {} compressed ({}), although pull did not ask for that",
                                              wanted.name, printable_line(head.content_encoding)));
  }
  if (contradict(head.content_length, wanted.size)) {
    return fail(ExitCode::protocol, std::format("{} should have {} bytes according to the hub, but the server announces {}",
                                                wanted.name, *wanted.size, *head.content_length));
  }
  const std::optional<std::uint64_t> total = wanted.size ? wanted.size : head.content_length;
  if (!total && !head.is_delimited && wanted.sha256.empty()) {
    return fail(ExitCode::server,
                std::format("the server does not state the length of {}, so a lost connection would look like "
                            "its end: give its checksum with --sha256",
                            wanted.name));
  }
  return Judgement{Verdict::write_new, total, total};
}

Judgement judge_part(const HttpHead& head, const Plan& plan, const PartState& state, const Wanted& wanted) {
  const Judgement unfit{Verdict::ask_anew, {}, {}};
  const auto range = parse_content_range(head.content_range);
  if (!range || !range->first || *range->first != plan.offset) return unfit;
  if (!head.content_encoding.empty() && head.content_encoding != "identity") return unfit;
  if (contradict(range->total, known_size(&state, wanted))) return unfit;
  if (is_strong(state.etag) && is_strong(head.etag) && head.etag != state.etag) return unfit;
  if (head.content_length && *head.content_length != *range->last - *range->first + 1) return unfit;
  const std::optional<std::uint64_t> total = range->total ? range->total : known_size(&state, wanted);
  if (total && *range->last >= *total) return unfit;
  return {Verdict::append, total, *range->last + 1};
}

Judgement judge_beyond(const HttpHead& head, const Plan& plan, const PartState& state, const Wanted& wanted) {
  const auto range = parse_content_range(head.content_range);
  // A part of the known size causes no request, so a known size differs from the part's.
  const bool is_all = range && range->total == plan.offset && !known_size(&state, wanted);
  if (is_all) return {Verdict::is_whole, plan.offset, plan.offset};
  return {Verdict::ask_anew, {}, {}};
}

}  // namespace

std::string state_text(const PartState& state) {
  boost::json::object object = {
      {"url", state.url}, {"etag", state.etag}, {"last_modified", state.last_modified}, {"sha256", state.sha256}};
  if (state.size) object["size"] = *state.size;
  return boost::json::serialize(object) + '\n';
}

std::optional<PartState> parse_state(std::string_view text) {
  boost::system::error_code problem;
  const boost::json::value value = boost::json::parse(text, problem);
  if (problem || !value.is_object()) return std::nullopt;
  const boost::json::object& object = value.get_object();
  PartState state{.url = text_field(object, "url"),
                  .etag = text_field(object, "etag"),
                  .last_modified = text_field(object, "last_modified"),
                  .size = {},
                  .sha256 = text_field(object, "sha256")};
  if (object.contains("size")) state.size = static_cast<std::uint64_t>(std::max<std::int64_t>(0, int_field(object, "size")));
  return state;
}

Plan plan_request(const PartState* state, std::uint64_t part_bytes, const Wanted& wanted) {
  if (state == nullptr || part_bytes == 0 || state->url != wanted.url.text || contradict(state->size, wanted.size)) return {};
  if (!state->sha256.empty() && !wanted.sha256.empty() && state->sha256 != wanted.sha256) return {};
  const auto size = known_size(state, wanted);
  if (size && part_bytes > *size) return {};
  Plan plan{.is_whole = size == part_bytes, .offset = part_bytes, .if_range = {}};
  plan.if_range = is_strong(state->etag) ? state->etag : is_one_line(state->last_modified) ? state->last_modified : "";
  if (plan.if_range.empty() && wanted.sha256.empty()) return {};
  return plan;
}

Result<Judgement> judge(const HttpHead& head, const Plan& plan, const PartState* state, const Wanted& wanted) {
  switch (head.status) {
    case 200:
      return judge_whole(head, wanted);
    case 206:
      if (plan.offset > 0) return judge_part(head, plan, *state, wanted);
      break;
    case 416:
      if (plan.offset > 0) return judge_beyond(head, plan, *state, wanted);
      break;
    case 408:
    case 425:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return Judgement{Verdict::retry, {}, {}};
    default:
      break;
  }
  return std::unexpected(http_failure(head, wanted));
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  if (!take(text, "bytes ")) return std::nullopt;
  if (!take(text, "*")) {
    range.first = take_number(text);
    if (!range.first || !take(text, "-")) return std::nullopt;
    range.last = take_number(text);
    // The largest number is refused, so that the end of the range is a number, too.
    if (!range.last || *range.last < *range.first || *range.last == UINT64_MAX) return std::nullopt;
  }
  if (!take(text, "/")) return std::nullopt;
  if (!take(text, "*")) {
    range.total = take_number(text);
    if (!range.total || (range.last && *range.last >= *range.total)) return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  return range;
}

Failure http_failure(const HttpHead& head, const Wanted& wanted) {
  const std::string url = shown_url(head.url);
  const auto because = [](std::string message) { return Failure{ExitCode::server, std::move(message), ""}; };
  switch (head.status) {
    case 401:
    case 403:
      if (wanted.is_on_hub) {
        return because(
            std::format("{} refuses {} ({}): check its name; a private or gated model needs HF_TOKEN with the right to "
                        "read it, a gated one also that you accept its licence on its page",
                        wanted.url.host, wanted.name, head.status));
      }
      return because(
          std::format("the server refuses {} ({}): it requires a login, which pull does not support", url, head.status));
    case 404:
    case 410:
      return because(std::format("{} does not exist on the server ({})", url, head.status));
    default:
      return because(std::format("the server answered with status {} for {}", head.status, url));
  }
}

std::optional<int> Patience::wait_ms(bool has_progress, std::int64_t retry_after_s) {
  fruitless_ = has_progress ? 0 : fruitless_ + 1;
  if (fruitless_ >= kAttemptsMax) return std::nullopt;
  const int wait = std::min(kWaitMsMax, kFirstWaitMs << std::max(0, fruitless_ - 1));
  return std::max(wait, static_cast<int>(std::clamp<std::int64_t>(retry_after_s, 0, kRetryAfterSMax) * 1000));
}

}  // namespace uma::cli
