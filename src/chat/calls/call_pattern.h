// The texts of CallForm: their parts, and how far a reply agrees with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace uma::chat {

inline constexpr std::size_t kNameBytesMax = 256;  // The name of a function.

struct PatternPart {
  enum class Kind : std::uint8_t {
    text,
    blanks,  // Any whitespace, or none.
    line,    // One line feed.
    name,
    id,
    index,
    any,
    arguments,
    function,
  };
  Kind kind = Kind::text;
  std::string_view text{};  // The text as it is written.
  bool operator==(const PatternPart&) const = default;
};
using Pattern = std::vector<PatternPart>;

[[nodiscard]] Pattern pattern_of(std::string_view text);

enum class Found : std::uint8_t { no, maybe, yes };

// Whether `text` begins with `mark`, or may do so when more comes.
[[nodiscard]] Found begins_with(std::string_view text, std::string_view mark);

// The place of a mark that stands at most a number of bytes behind the begin of a text. `no`: it is not there; `maybe`: more
// text decides.
struct MarkPlace {
  Found found = Found::no;
  std::size_t at = 0;  // The text before it is no part of the mark.
};
[[nodiscard]] MarkPlace find_mark(std::string_view text, std::string_view mark, std::size_t bytes_before_max);

// The part of a call before its arguments.
struct CallHead {
  Found found = Found::no;  // `maybe`: more text decides.
  std::size_t length = 0;
  std::string name{};  // Empty if {function} has it.
  std::string id{};
};

// Compares `text` with the parts, whose {any} and {index} stand before a text, up to {arguments} or {function}, which
// must begin with one of `begins`, or to the end. What is longer than 1024 bytes is none. A name ends at whitespace, unless it
// is one of `spaced_names`.
[[nodiscard]] CallHead match_head(std::span<const PatternPart> pattern, std::string_view text, std::string_view begins,
                                  std::span<const std::string> spaced_names = {});

// Whether a model may name a function so.
[[nodiscard]] bool is_function_name(std::string_view name);

[[nodiscard]] std::size_t blanks_at_begin(std::string_view text);
// `blanks_known`: so many bytes at its begin are whitespace, and are not read.
[[nodiscard]] std::string_view without_blanks_at_end(std::string_view text, std::size_t blanks_known = 0);
[[nodiscard]] std::string_view without_blanks(std::string_view text);
// The bytes at the end of `text` that may be the begin of `mark`.
[[nodiscard]] std::size_t begun_at_end(std::string_view text, std::string_view mark);

}  // namespace uma::chat
