// What to ask a server for when a part of the file is here, what its answer means for that part, and how long to keep asking.
// Pure: pull's rules against a corrupt file are all in here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "uma-cli/http.h"
#include "uma-cli/result.h"

namespace uma::cli {

// What is known before the first request.
struct Wanted {
  Url url;
  std::string name;                   // of the file, for people
  std::optional<std::uint64_t> size;  // as the hub says
  std::string sha256;                 // as the hub or the user says; empty: unknown
  bool is_on_hub = false;             // what it refuses may want a token
};

// What the bytes of a part are the beginning of; kept beside it as JSON.
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
  bool is_whole = false;     // nothing to ask: every byte is here
  std::uint64_t offset = 0;  // 0: ask for all of it
  std::string if_range;      // empty: the checksum at the end has to tell
};
// `state` may be null: the part is of unknown origin and worth nothing. Neither is one of another address, size or checksum,
// nor one that could not be told from another file's: without an ETag, a date or a checksum.
[[nodiscard]] Plan plan_request(const PartState* state, std::uint64_t part_bytes, const Wanted& wanted);

enum class Verdict {
  write_new,  // the body is the file from its start: it replaces the part
  append,     // the body goes on where the part ends
  is_whole,   // the part is all there is
  ask_anew,   // the part does not fit what the server has: ask for all of it
  retry,      // the server cannot now
};
struct Judgement {
  Verdict verdict;
  std::optional<std::uint64_t> total;  // bytes of the whole file, where the answer says
  std::optional<std::uint64_t> limit;  // bytes of the part once the whole body is written, where the answer says
};
// `state` is not null where `plan.offset` is not 0. Fails for an answer that more asking does not mend.
[[nodiscard]] Result<Judgement> judge(const HttpHead& head, const Plan& plan, const PartState* state, const Wanted& wanted);

struct ContentRange {
  std::optional<std::uint64_t> first;  // with `last`; both missing in "bytes */TOTAL"
  std::optional<std::uint64_t> last;
  std::optional<std::uint64_t> total;
};
[[nodiscard]] std::optional<ContentRange> parse_content_range(std::string_view text);

// One sentence for a status that brings no file.
[[nodiscard]] Failure http_failure(const HttpHead& head, const Wanted& wanted);

// Counts attempts that brought nothing. 0.2 s after the first, doubling up to 5 s; an attempt that brought bytes counts as the
// first.
class Patience {
 public:
  static constexpr int kAttemptsMax = 5;
  // Nothing: enough asked.
  [[nodiscard]] std::optional<int> wait_ms(bool has_progress, std::int64_t retry_after_s);

 private:
  int fruitless_ = 0;
};

}  // namespace uma::cli
