#include "engine/router/prompt_memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <ranges>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace uma::engine {
namespace {

constexpr std::int32_t kRunTokens = 16;     // Shorter runs of equal tokens are no sign of the same text.
constexpr std::int32_t kNotHeldMin = 64;    // A lane may compute fewer tokens although it holds them: copying takes as long.
constexpr std::int32_t kClockLostMin = 64;  // Fewer tokens are not worth a warning.
constexpr std::int32_t kClockSpread = 32;   // The digits of one clock are this many tokens apart at most.
constexpr std::int32_t kGapTokens = 8;      // More tokens without an outline are no marks around a reply.
constexpr std::size_t kCountedTokens = 128ul << 10;  // In common, of each prompt: a few milliseconds.
constexpr std::size_t kPlacesMax = 8;

std::int32_t count_of(std::span<const Token> tokens) {
  return static_cast<std::int32_t>(tokens.size());
}

std::int32_t common_prefix(std::span<const Token> left, std::span<const Token> right) {
  return static_cast<std::int32_t>(std::ranges::mismatch(left, right).in1 - left.begin());
}

bool has_same(std::span<const Token> left, std::span<const Token> right, std::int32_t place) {
  const auto at = static_cast<std::size_t>(place);
  return at < left.size() && at < right.size() && left[at] == right[at];
}

std::span<const Token> from(std::span<const Token> tokens, std::int32_t begin) {
  return tokens.subspan(std::min(tokens.size(), static_cast<std::size_t>(begin)));
}

// Calls visit(hash) for each run of kRunTokens tokens, in order.
template <class VisitT>
void for_each_run(std::span<const Token> tokens, VisitT&& visit) {
  constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15;
  constexpr std::uint64_t kOut = [] {
    std::uint64_t power = 1;
    for (std::int32_t i = 0; i < kRunTokens; ++i) power *= kBase;
    return power;
  }();
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    hash = hash * kBase + static_cast<std::uint32_t>(tokens[i]) + 1;
    if (i >= kRunTokens) hash -= kOut * (static_cast<std::uint32_t>(tokens[i - kRunTokens]) + 1ul);
    if (i + 1 >= kRunTokens) visit(hash);
  }
}

// A set of hashes. It forgets some where a client has chosen tokens whose hashes meet, so that a step takes bounded time.
class RunSet {
 public:
  explicit RunSet(std::size_t count) : table_(std::bit_ceil(2 * count + 2)) {}
  void add(std::uint64_t hash) {
    if (std::uint64_t* const place = place_of(hash)) *place = hash;
  }
  [[nodiscard]] bool contains(std::uint64_t hash) {
    const std::uint64_t* const place = hash == 0 ? nullptr : place_of(hash);
    return place != nullptr && *place == hash;
  }

 private:
  // Where the hash is or would be; null: too many others are there.
  std::uint64_t* place_of(std::uint64_t hash) {
    constexpr std::size_t kStepsMax = 32;
    std::size_t at = hash ^ (hash >> 29);
    for (std::size_t step = 0; step < kStepsMax; ++step) {
      std::uint64_t& place = table_[at++ & (table_.size() - 1)];
      if (place == 0 || place == hash) return &place;
    }
    return nullptr;
  }
  std::vector<std::uint64_t> table_;  // 0: empty.
};

// Whether a reply's rest of the text is what the prompt has there, in other tokens.
bool is_same_text(const llm::Vocab& vocab, std::span<const Token> reply, std::span<const Token> prompt) {
  while (!reply.empty() && trim(vocab.piece(reply.back())).empty()) reply = reply.first(reply.size() - 1);
  std::string_view left;  // Rest of the prompt's last token.
  bool has_text = false;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    std::string_view piece = vocab.piece(reply[i]);
    if (i + 1 == reply.size()) piece = piece.substr(0, piece.find_last_not_of(" \t\r\n") + 1);
    while (!piece.empty()) {
      if (left.empty()) {
        if (prompt.empty()) return false;
        left = vocab.piece(prompt.front());
        prompt = prompt.subspan(1);
        continue;
      }
      const std::size_t count = std::min(left.size(), piece.size());
      if (left.substr(0, count) != piece.substr(0, count)) return false;
      left.remove_prefix(count);
      piece.remove_prefix(count);
      has_text = true;
    }
  }
  return has_text;
}

// Whether the outline has this place behind `token`.
bool has_behind(const PromptOutline& outline, std::int32_t token, const PromptPlace& place) {
  return std::ranges::any_of(outline.runs(),
                             [&](const PromptOutline::Run& run) { return run.begin >= token && run.place == place; });
}

// The place of the first difference, at `token`. A part that one of the two prompts lacks is that place, although the other
// prompt has its next part there.
PromptPlace place_of(const PromptOutline& earlier, std::span<const Token> earlier_tokens, const PromptOutline& later,
                     std::span<const Token> later_tokens, std::int32_t token) {
  const auto* was = earlier.input_at(token);
  const auto* is = later.input_at(token);
  if (was != nullptr && was->begin >= count_of(earlier_tokens)) was = nullptr;
  if (is != nullptr && is->begin >= count_of(later_tokens)) is = nullptr;
  if (was == nullptr || is == nullptr) return was != nullptr ? was->place : is != nullptr ? is->place : PromptPlace{};
  if (was->place == is->place) {
    constexpr std::int32_t kShownTokens = 8;
    const bool are_template = was->begin > token && is->begin > token;
    const bool goes_on_alike = common_prefix(from(earlier_tokens, was->begin), from(later_tokens, is->begin)) >=
                               std::min(kShownTokens, count_of(from(later_tokens, is->begin)));
    return are_template && goes_on_alike ? PromptPlace{} : is->place;
  }
  return has_behind(later, token, was->place) || !has_behind(earlier, token, is->place) ? is->place : was->place;
}

}  // namespace

std::int32_t tokens_in_common(std::span<const Token> known, std::span<const Token> prompt) {
  // Most prompts end alike.
  const auto ends = std::ranges::mismatch(known | std::views::reverse, prompt | std::views::reverse);
  const auto same = static_cast<std::size_t>(ends.in1 - known.rbegin());
  if (same >= kRunTokens) {
    known = known.first(known.size() - same);
    prompt = prompt.first(prompt.size() - same);
    return static_cast<std::int32_t>(same) + tokens_in_common(known, prompt);
  }
  known = known.first(std::min(known.size(), kCountedTokens));
  prompt = prompt.first(std::min(prompt.size(), kCountedTokens));
  if (known.size() < kRunTokens || prompt.size() < kRunTokens) return 0;
  RunSet runs(known.size());
  for_each_run(known, [&](std::uint64_t hash) { runs.add(hash); });
  std::int32_t count = 0;
  std::int32_t end = kRunTokens - 1;  // End of the run that is visited.
  std::int32_t counted = 0;           // Tokens before this one are counted.
  for_each_run(prompt, [&](std::uint64_t hash) {
    ++end;
    if (!runs.contains(hash)) return;
    count += end - std::max(counted, end - kRunTokens);
    counted = end;
  });
  return count;
}

std::size_t PromptMemory::Line::bytes() const {
  constexpr std::size_t kPerLine = sizeof(Line) + 600;  // With the containers' own blocks.
  std::size_t total = kPerLine + model.size() + session.value.size() + tokens.capacity() * sizeof(Token) + outline.bytes();
  for (const Reply& reply : replies) total += sizeof(Reply) + reply.id.size() + reply.usage.cache_miss.compared_with.size();
  return total;
}

PromptMemory::Named PromptMemory::find_reply(const Tenant& tenant, std::string_view id) {
  for (const Line& line : tenant.lines) {
    for (const Reply& reply : line.replies) {
      if (!id.empty() && reply.id == id) return {&line, &reply};
    }
  }
  return {};
}

CacheMiss PromptMemory::difference(const PromptFacts& prompt, const PromptOutline& outline, const Line& line,
                                   const Reply& reply, std::int32_t common) {
  CacheMiss miss{.compared_with = reply.id, .known_tokens = reply.known_tokens};
  const std::span<const Token> known = std::span(line.tokens).first(static_cast<std::size_t>(reply.known_tokens));
  if (line.model != prompt.model) {
    miss.kind = CacheMissKind::model;
    miss.lost_tokens = tokens_in_common(known, prompt.tokens);
    return miss;
  }
  if (common == reply.known_tokens || common == count_of(prompt.tokens)) return miss;
  const PromptPlace place = outline.empty() && line.outline.empty()
                                ? PromptPlace{.part = PromptPart::text}
                                : place_of(line.outline, known, outline, prompt.tokens, common);
  miss.kind = cache_miss_of(place.part);
  if (miss.kind == CacheMissKind::template_text && reply.settings != prompt.settings) miss.kind = CacheMissKind::settings;
  const bool is_in_reply = common >= reply.prompt_tokens;
  if (is_in_reply && is_same_text(prompt.vocab, from(known, common), from(prompt.tokens, common)))
    miss.kind = CacheMissKind::tokens;
  miss.token = common;
  miss.message = place.message;
  miss.role = place.role;
  miss.lost_tokens = tokens_in_common(from(known, common), from(prompt.tokens, common));
  return miss;
}

PromptComparison PromptMemory::compare(const TenantId& tenant, const PromptFacts& prompt, const PromptOutline& outline,
                                       std::string_view with) {
  PromptComparison found{.miss = {}, .outline = outline, .is_named = !with.empty()};
  const auto known = tenants_.find(tenant.value);
  if (known == tenants_.end()) {
    if (!with.empty()) found.miss.kind = CacheMissKind::not_found;
    return found;
  }
  const Line* best = nullptr;
  const Line* other = nullptr;  // Best line of another model.
  std::int32_t other_common = 0;
  for (const Line& line : known->second.lines) {
    if (line.is_private && line.session != prompt.session) continue;
    const bool is_of_model = line.model == prompt.model;
    std::int32_t& longest = is_of_model ? found.known_prefix : other_common;
    // Only a line that has this token, too, has more in common.
    if (!has_same(line.tokens, prompt.tokens, longest)) continue;
    const std::int32_t common = common_prefix(line.tokens, prompt.tokens);
    if (common > longest) {
      longest = common;
      (is_of_model ? best : other) = &line;
    }
  }
  if (best != nullptr) {
    found.is_branch = found.known_prefix < count_of(best->tokens);
    found.is_reloaded = best->loaded_at != prompt.loaded_at;
    const auto& runs = outline.runs();
    const std::int32_t begin = runs.empty() ? count_of(prompt.tokens) : runs.front().begin;
    // The beginning of a session's chain has been written for an earlier request.
    if (begin > 0 && !best->outline.empty()) {
      found.outline = best->outline;
      if (begin > found.known_prefix + kGapTokens) found.outline.continue_with(found.known_prefix, {.part = PromptPart::text});
      found.outline.replace_end(outline);
    }
  }
  Named named = find_reply(known->second, with);
  if (!with.empty() && named.reply == nullptr) {
    found.miss.kind = CacheMissKind::not_found;
    return found;
  }
  if (named.reply == nullptr) {
    named.line = other_common > found.known_prefix + kRunTokens ? other : best;
    if (named.line == nullptr) return found;
    const std::int32_t common = named.line == best ? found.known_prefix : other_common;
    const auto& replies = named.line->replies;
    auto reply = std::ranges::find_if(replies, [&](const Reply& each) { return each.known_tokens > common; });
    if (reply == replies.end()) --reply;
    named.reply = &*reply;
  }
  const std::int32_t common = std::min(common_prefix(named.line->tokens, prompt.tokens), named.reply->known_tokens);
  found.miss = difference(prompt, found.outline, *named.line, *named.reply, common);
  // A prompt that is known otherwise has nothing new there.
  if (found.known_prefix == found.miss.token) count_repeats(known->second, found.miss);
  return found;
}

void PromptMemory::count_repeats(Tenant& tenant, CacheMiss& miss) {
  const bool is_head = miss.kind == CacheMissKind::system || miss.kind == CacheMissKind::tools ||
                       miss.kind == CacheMissKind::template_text || miss.kind == CacheMissKind::settings ||
                       (miss.kind == CacheMissKind::text && miss.role == "user" && miss.message <= 1);
  if (!is_head || miss.lost_tokens < kClockLostMin) return;
  auto place = std::ranges::find_if(tenant.places, [&](const Place& each) {
    return each.message == miss.message && std::abs(each.token - miss.token) <= kClockSpread;
  });
  if (place == tenant.places.end()) {
    if (tenant.places.size() == kPlacesMax) {
      // A place that clients were told of stays, so that nobody is told of it again.
      const auto untold = std::ranges::find_if(tenant.places, [](const Place& each) { return each.repeats < kClockRepeats; });
      if (untold == tenant.places.end()) return;
      tenant.places.erase(untold);
    }
    tenant.places.push_back({.message = miss.message, .token = miss.token, .repeats = 0});
    place = tenant.places.end() - 1;
  }
  miss.repeats = ++place->repeats;
}

void PromptMemory::note(const TenantId& tenant, const PromptFacts& prompt, PromptOutline outline, PromptReply reply) {
  std::vector<Token> tokens(prompt.tokens.begin(), prompt.tokens.end());
  tokens.insert(tokens.end(), reply.generated.begin(), reply.generated.end());
  tokens.shrink_to_fit();
  const PromptPlace said{.part = PromptPart::text, .message = reply.message, .role = "assistant"};
  if (!outline.empty() && !reply.generated.empty()) {
    PromptPlace thought = said;
    thought.part = PromptPart::reasoning;
    if (reply.reasoning_tokens > 0) outline.add(count_of(prompt.tokens), thought);
    if (reply.reasoning_tokens < count_of(reply.generated)) outline.add(count_of(prompt.tokens) + reply.reasoning_tokens, said);
  }
  Tenant& of = tenants_[tenant.value];
  const auto is_continued = [&](const Line& line) {
    if (line.model != prompt.model || line.is_private != prompt.is_private) return false;
    if (line.is_private && line.session != prompt.session) return false;
    const std::int32_t shorter = std::min(count_of(line.tokens), count_of(tokens));
    return has_same(line.tokens, tokens, shorter - 1) && common_prefix(line.tokens, tokens) == shorter;
  };
  auto line = std::ranges::find_if(of.lines, is_continued);
  if (line == of.lines.end()) {
    of.lines.push_front(
        {.model = std::string(prompt.model), .is_private = prompt.is_private, .tokens = {}, .outline = {}, .replies = {}});
    line = of.lines.begin();
  } else {
    resize(of, -static_cast<std::int64_t>(line->bytes()));
    of.lines.splice(of.lines.begin(), of.lines, line);
  }
  line->loaded_at = prompt.loaded_at;
  if (!prompt.session.empty()) line->session = prompt.session;
  line->age = ++age_;
  const std::int32_t known = count_of(tokens);
  if (tokens.size() >= line->tokens.size()) {
    line->tokens = std::move(tokens);
    line->outline = std::move(outline);
  }
  if (line->replies.size() == kPromptRepliesMax) line->replies.pop_front();
  reply.usage.schema_left_out.clear();
  line->replies.push_back({.id = std::move(reply.id),
                           .prompt_tokens = count_of(prompt.tokens),
                           .known_tokens = known,
                           .settings = prompt.settings,
                           .usage = std::move(reply.usage)});
  resize(of, static_cast<std::int64_t>(line->bytes()));
  make_room(of);
  if (const auto left = tenants_.find(tenant.value); left != tenants_.end() && left->second.lines.empty()) tenants_.erase(left);
}

void PromptMemory::forget(const TenantId& tenant, const SessionId& session) {
  const auto known = tenants_.find(tenant.value);
  if (known == tenants_.end() || session.empty()) return;
  std::erase_if(known->second.lines, [&](const Line& line) {
    if (line.session != session) return false;
    resize(known->second, -static_cast<std::int64_t>(line.bytes()));
    return true;
  });
  if (known->second.lines.empty()) tenants_.erase(known);
}

void PromptMemory::count(const CacheMiss& miss) {
  const auto* const kind = std::ranges::find(kCacheMissKinds, miss.kind, [](const auto& each) { return each.first; });
  if (kind == kCacheMissKinds.end() || (miss.lost_tokens == 0 && miss.kind != CacheMissKind::not_found)) return;
  misses_[static_cast<std::size_t>(kind - kCacheMissKinds.begin())].add();
}

void PromptMemory::resize(Tenant& tenant, std::int64_t added) {
  tenant.bytes = static_cast<std::size_t>(static_cast<std::int64_t>(tenant.bytes) + added);
  bytes_.add(added);
}

void PromptMemory::drop_last(Tenant& tenant) {
  resize(tenant, -static_cast<std::int64_t>(tenant.lines.back().bytes()));
  tenant.lines.pop_back();
}

void PromptMemory::make_room(Tenant& tenant) {
  while (tenant.bytes > tenant_bytes_max_ || tenant.lines.size() > kPromptLinesMax) drop_last(tenant);
  while (static_cast<std::size_t>(bytes_.value()) > bytes_max_) {
    const auto oldest = std::ranges::min_element(
        tenants_, {}, [](const auto& each) { return each.second.lines.empty() ? UINT64_MAX : each.second.lines.back().age; });
    drop_last(oldest->second);
    if (oldest->second.lines.empty()) tenants_.erase(oldest);
  }
}

const Usage* PromptMemory::find(const TenantId& tenant, std::string_view name) const {
  const auto known = tenants_.find(tenant.value);
  if (known == tenants_.end()) return nullptr;
  const std::list<Line>& lines = known->second.lines;
  if (name.empty()) return lines.empty() ? nullptr : &lines.front().replies.back().usage;
  if (const Named named = find_reply(known->second, name); named.reply != nullptr) return &named.reply->usage;
  const auto line = std::ranges::find(lines, name, [](const Line& each) { return std::string_view(each.session.value); });
  return line == lines.end() ? nullptr : &line->replies.back().usage;
}

CacheMiss final_miss(const PromptComparison& found, const Usage& usage, bool can_cut) {
  // A prompt that is not remembered had more in common.
  const bool is_other = !found.is_named && usage.reused_tokens > found.known_prefix;
  if (is_other) return {};
  CacheMiss miss = found.miss;
  const std::int32_t last = usage.prompt_tokens - 1;  // This token is computed in any case.
  miss.lost_tokens = std::min(miss.lost_tokens, std::max(0, last - std::max(usage.reused_tokens, miss.token)));
  const std::int32_t held = std::min(found.known_prefix, last);
  const std::int32_t missing = held - usage.reused_tokens;
  if (missing < kNotHeldMin || missing <= miss.lost_tokens) return miss;
  if (found.is_named && miss.kind != CacheMissKind::none) return miss;
  miss.kind = CacheMissKind::not_held;
  miss.cause = usage.reuse_reason == "refused" ? "refused"
               : found.is_reloaded             ? "unloaded"
               : found.is_branch && !can_cut   ? "window"
                                               : "";
  miss.token = usage.reused_tokens;
  const auto* place = found.outline.input_at(miss.token);
  miss.message = place == nullptr ? -1 : place->place.message;
  miss.role = place == nullptr ? "" : place->place.role;
  miss.lost_tokens = missing;
  miss.repeats = 0;
  return miss;
}

}  // namespace uma::engine
