// Parts of a list of sessions: the position between two pages, and the search. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/session_info.h"
#include "kv/catalog/catalog.h"

namespace uma::engine {

// The place of a session in an order of sessions: the time by which they are ordered, and its id.
using ListPosition = std::pair<std::int64_t, SessionId>;
[[nodiscard]] ListPosition position_of(const kv::SessionSummary& session, SessionOrder order);
// The position as a text for clients, "TIME.ID", and back; nullopt: the text is no position.
[[nodiscard]] std::string position_text(const ListPosition& position);
[[nodiscard]] std::optional<ListPosition> parse_position(std::string_view text);

// A list is made in steps of half a millisecond, so that a hundred thousand sessions do not hold up the router.
inline constexpr std::size_t kSessionsPerStep = 500;
// Limits of one page, which ends earlier than its limit says; the next one continues.
inline constexpr std::size_t kPageMetadataBytesMax = 4ul << 20;
inline constexpr std::size_t kPageSearchedMax = 10'000;
inline constexpr std::size_t kPageSearchedBytesMax = 2ul << 20;

// Each word is looked for in the whole text, so their number bounds the time, too.
inline constexpr std::size_t kSearchWordsMax = 8;

// The first words of a query, at most kSearchWordsMax.
class SessionSearch {
 public:
  // Without words every session matches.
  explicit SessionSearch(std::string_view query);
  [[nodiscard]] bool is_empty() const { return words_.empty(); }
  // Whether each word is in the session's name or in a value of its listed metadata, in any case.
  [[nodiscard]] bool matches(const kv::SessionSummary& session) const;

 private:
  std::vector<std::string> words_;
};

}  // namespace uma::engine
