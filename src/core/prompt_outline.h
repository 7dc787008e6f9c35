// Which part of a request each token of its prompt comes from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace uma {

enum class PromptPart : std::uint8_t {
  template_text,  // Words of the chat template, or what its own options put there.
  system,         // A system message before all others.
  tools,
  text,
  reasoning,
  call,
  result,  // The result of a tool.
  image,   // Also a sound.
};

// A part of one message. Tools belong to none.
struct PromptPlace {
  PromptPart part = PromptPart::template_text;
  std::int32_t message = -1;   // Its index among the messages, the system message included; negative: none.
  std::string_view role = "";  // Static storage.
  bool operator==(const PromptPlace&) const = default;
};

// The role in static storage; empty: it is none of the usual ones.
constexpr std::string_view known_role(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  const auto* const found = std::ranges::find(kRoles, role);
  return found == std::end(kRoles) ? "" : *found;
}

class PromptOutline {
 public:
  // A run of tokens of one place; it ends where the next one begins.
  struct Run {
    std::int32_t begin = 0;
    PromptPlace place;
    bool operator==(const Run&) const = default;
  };

  // Tokens from `begin` on are of `place`. Words of the template between two pieces of one place belong to it. Requires:
  // ascending begins.
  void add(std::int32_t begin, const PromptPlace& place) {
    if (!runs_.empty() && runs_.back().place == place) return;
    if (runs_.size() > 1 && runs_.back().place.part == PromptPart::template_text && runs_[runs_.size() - 2].place == place) {
      runs_.pop_back();
      return;
    }
    runs_.push_back({begin, place});
  }
  // Replaces what it says about tokens from `begin` on.
  void continue_with(std::int32_t begin, const PromptPlace& place) {
    std::erase_if(runs_, [&](const Run& run) { return run.begin >= begin; });
    add(begin, place);
  }
  // Replaces what it says about tokens from `other`'s first one on.
  void replace_end(const PromptOutline& other) {
    if (other.runs_.empty()) return;
    std::erase_if(runs_, [&](const Run& run) { return run.begin >= other.runs_.front().begin; });
    for (const Run& run : other.runs_) add(run.begin, run.place);
  }

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }
  [[nodiscard]] std::size_t bytes() const { return runs_.capacity() * sizeof(Run); }
  // The run of this token or, if that is the template's, the next run that is not; null: there is none.
  [[nodiscard]] const Run* input_at(std::int32_t token) const {
    auto run = std::ranges::upper_bound(runs_, token, {}, &Run::begin);
    if (run != runs_.begin()) --run;
    while (run != runs_.end() && run->place.part == PromptPart::template_text) ++run;
    return run == runs_.end() ? nullptr : &*run;
  }

 private:
  std::vector<Run> runs_;
};

}  // namespace uma
