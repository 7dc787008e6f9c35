// Decides what to request when a part of the file exists, what the answer means for that part, and how long to retry. Pure: all
// of pull's rules against a corrupt file are here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "uma-cli/models/http.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Facts that are known before the first request.
struct Wanted {
  Url url;
  std::string name;                   // File name for messages.
  std::optional<std::uint64_t> size;  // Size according to the hub.
  std::string sha256;                 // Checksum according to the hub or the user; empty: unknown.
  bool is_on_hub = false;             // A refusal by the hub may mean that a token is needed.
};

// Identifies the file whose beginning the part holds; stored beside the part as JSON.
struct PartState {
  std::string url;
  std::string etag{};
  std::string last_modified{};
  std::optional<std::uint64_t> size{};
  std::string sha256{};
};
[[nodiscard]] std::string state_text(const PartState& state);
[[nodiscard]] std::optional<PartState> parse_state(std::string_view text);

struct Plan {
  bool is_whole = false;     // Every byte is already here: no request is needed.
  std::uint64_t offset = 0;  // 0: request the whole file.
  std::string if_range;      // Empty: only the checksum at the end can detect a different file.
};
// Ignores a part that is of unknown origin (`state` is null), that belongs to another URL, size or checksum, or that has
// neither ETag, date nor checksum to compare.
[[nodiscard]] Plan plan_request(const PartState* state, std::uint64_t part_bytes, const Wanted& wanted);

enum class Verdict {
  write_new,  // The body is the file from its start and replaces the part.
  append,     // The body continues the part.
  is_whole,   // The part is already the whole file.
  ask_anew,   // The part does not match the server's file: request the whole file.
  retry,      // The server is temporarily unable to answer.
};
struct Judgement {
  Verdict verdict;
  std::optional<std::uint64_t> total;  // Bytes of the whole file, if the answer states them.
  std::optional<std::uint64_t> limit;  // Bytes of the part after the whole body, if the answer states them.
};
// Requires: `state` is not null if `plan.offset` is not 0. Fails for an answer that a retry would not change.
[[nodiscard]] Result<Judgement> judge(const HttpHead& head, const Plan& plan, const PartState* state, const Wanted& wanted);

struct ContentRange {
  std::optional<std::uint64_t> first;  // With `last`; both missing in "bytes */TOTAL".
  std::optional<std::uint64_t> last;
  std::optional<std::uint64_t> total;
};
[[nodiscard]] std::optional<ContentRange> parse_content_range(std::string_view text);

// One sentence for a status that brings no file.
[[nodiscard]] Failure http_failure(const HttpHead& head, const Wanted& wanted);

// Counts attempts without progress and spaces them: 0.2 s after the first, doubling up to 5 s. An attempt that brought bytes
// starts the count again.
class Patience {
 public:
  static constexpr int kAttemptsMax = 5;
  // Returns nullopt after too many attempts.
  [[nodiscard]] std::optional<int> wait_ms(bool has_progress, std::int64_t retry_after_s);

 private:
  int fruitless_ = 0;
};

}  // namespace uma::cli
