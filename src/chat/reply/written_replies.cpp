#include "chat/reply/written_replies.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "jinja/json_reader.h"
#include "kv/token_chain.h"

namespace uma::chat {
namespace {

std::size_t bytes_of(const WrittenReply& reply) {
  constexpr std::size_t kPerReply = 256;  // Bytes in the tables.
  return kPerReply + reply.tokens.size() * sizeof(Token);
}

std::string_view text_field(const jinja::Dict& dict, std::string_view name) {
  const jinja::Value* value = dict.find(name);
  return value == nullptr || value->as_text() == nullptr ? std::string_view() : std::string_view(value->as_text()->bytes());
}

// The fields of a reply besides its content.
class ReplyFields {
 public:
  struct Call {
    std::string_view name;
    std::string_view arguments;
  };

  explicit ReplyFields(const ChatMessage& reply) : extra_(jinja::read_json(reply.extra, jinja::kOtherInput)) {
    fields_ = extra_ ? extra_->as_dict() : nullptr;
  }
  [[nodiscard]] std::string_view thoughts() const& {
    return fields_ == nullptr ? std::string_view() : text_field(*fields_, "reasoning_content");
  }
  [[nodiscard]] std::vector<Call> calls() const& {
    std::vector<Call> found;
    const jinja::Value* calls = fields_ == nullptr ? nullptr : fields_->find("tool_calls");
    const jinja::List* list = calls == nullptr ? nullptr : calls->as_list();
    for (std::size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
      const jinja::Dict* call = list->items[i].as_dict();
      const jinja::Value* called = call == nullptr ? nullptr : call->find("function");
      const jinja::Dict* function = called == nullptr ? nullptr : called->as_dict();
      if (function == nullptr) continue;
      found.push_back({text_field(*function, "name"), text_field(*function, "arguments")});
    }
    return found;
  }

 private:
  std::optional<jinja::Value> extra_;
  const jinja::Dict* fields_ = nullptr;
};

// The arguments of a call with sorted keys and no blanks; a text that is no JSON stays.
std::string sorted_arguments(std::string_view arguments) {
  const auto value = jinja::read_json(arguments, jinja::kOtherInput);
  if (!value) return std::string(trim(arguments));
  jinja::Budget budget(UINT64_MAX, UINT64_MAX);  // Unlimited, because the input is bounded by the request.
  jinja::JsonStyle style;
  style.between_items = ",";
  style.after_key = ":";
  style.sorts_keys = true;
  return jinja::to_json(*value, style, budget).bytes();
}

class MeaningWriter {
 public:
  // Every text includes its length, so that bytes cannot move between texts.
  void add(std::string_view text) {
    const std::uint64_t size = text.size();
    hash_.add(std::as_bytes(std::span(&size, 1)));
    hash_.add(std::as_bytes(std::span(text)));
  }
  [[nodiscard]] kv::Checksum value() const { return hash_.value(); }

 private:
  kv::RunningHash hash_;
};

// How often each byte is in a text, besides blanks. A template that writes all of a reply and nothing else has these too, in
// whatever order. Calls it may also write with other signs and in another case (True, true), so that only letters and digits
// count.
class ByteCounts {
 public:
  explicit ByteCounts(bool is_of_calls) : is_of_calls_(is_of_calls) {}
  void add(std::string_view text) {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      const bool counts = is_of_calls_ ? byte >= 0x80 || std::isalnum(byte) != 0 : !std::string_view(" \t\n\r").contains(c);
      if (counts) ++counts_[static_cast<std::size_t>(is_of_calls_ ? std::tolower(byte) : byte)];
    }
  }
  bool operator==(const ByteCounts&) const = default;

 private:
  bool is_of_calls_;
  std::array<std::size_t, 256> counts_{};
};

// Both are texts of one reply: a template adds few tokens, and the blanks that a client has cut off stay so.
constexpr std::size_t kAddedMax = 256;

bool are_alike(std::size_t count, std::size_t other) {
  return count <= 2 * other + kAddedMax && other <= 2 * count + kAddedMax;
}

class ReturnedReplies {
 public:
  ReturnedReplies(const llm::Vocab& vocab, const jinja::Text& text, PlacedTokens given)
      : vocab_(vocab), text_(text), given_(std::move(given)) {}

  // Looks for the next reply. A candidate that was refused once is not compared again, until another one is taken.
  void look(std::vector<WrittenReplyPtr> candidates) {
    std::erase_if(candidates, [&](const WrittenReplyPtr& each) { return refused_.contains(each.get()); });
    std::ranges::stable_sort(candidates, std::greater(), [](const WrittenReplyPtr& each) { return each->prompt_tokens; });
    for (const WrittenReplyPtr& each : candidates) {
      if (each->prompt_tokens < base_ || each->prompt_tokens - base_ > given_.tokens.size() - base_given_) continue;
      const std::size_t next = base_given_ + each->prompt_tokens - base_;
      const auto end = is_behind(*each) && has_border(*each, next) ? end_of(*each, next) : std::nullopt;
      const bool is_same = end && are_alike(each->tokens.size(), *end - next) &&
                           bytes_of_given(next, *end, each->has_calls) == bytes_of_reply(*each);
      if (is_same) return take(*each, *end);
      refused_.insert(each.get());
    }
  }
  PlacedTokens finish() && {
    append_given(given_.tokens.size());
    return std::move(made_);
  }

 private:
  [[nodiscard]] std::size_t given_end(std::size_t count) const { return count == 0 ? 0 : given_.ends[count - 1]; }
  [[nodiscard]] std::size_t next_given() const { return base_given_ + made_.tokens.size() - base_; }

  void append_given(std::size_t until) {
    for (std::size_t i = next_given(); i < until; ++i) made_.push_back(given_.tokens[i], given_.ends[i]);
  }

  bool is_behind(const WrittenReply& reply) {
    append_given(base_given_ + reply.prompt_tokens - base_);
    const auto prompt = std::span<const Token>(made_.tokens).first(reply.prompt_tokens);
    const std::size_t whole = prompt.size() / kv::kTokensPerBlock;
    while (blocks_.size() < whole)
      blocks_.push_back(kv::block_hash(last_block(blocks_.size()), kv::block_of(prompt, blocks_.size())));
    const bool is_divided = prompt.size() % kv::kTokensPerBlock != 0;
    return reply.prompt == (is_divided ? kv::block_hash(last_block(whole), kv::block_of(prompt, whole)) : last_block(whole));
  }
  // The hash of the first `count` blocks.
  [[nodiscard]] kv::Checksum last_block(std::size_t count) const { return count == 0 ? kv::Checksum{} : blocks_[count - 1]; }

  // Whether the end of the prompt stands in the text, as the same tokens or in others.
  [[nodiscard]] bool has_border(const WrittenReply& reply, std::size_t next) const {
    const auto border = std::span(reply.tokens).first(reply.border);
    const auto given = std::span(given_.tokens).subspan(next);
    if (given.size() >= border.size() && std::ranges::equal(given.first(border.size()), border)) return true;
    std::string bytes;
    for (const Token token : border) bytes += vocab_.piece(token);
    return std::string_view(text_.bytes()).substr(given_end(next)).starts_with(bytes);
  }

  // Whether a given token is a control token that stands in the text.
  [[nodiscard]] bool is_control(std::size_t index) const {
    if (!vocab_.piece(given_.tokens[index]).empty()) return false;
    const std::string name = vocab_.text(given_.tokens[index]);
    return !name.empty() && std::string_view(text_.bytes()).substr(0, given_.ends[index]).ends_with(name);
  }

  // The number of given tokens up to where the template goes on behind a reply that begins at `next`: it has the same control
  // tokens. Nullopt: others, or no end.
  [[nodiscard]] std::optional<std::size_t> end_of(const WrittenReply& reply, std::size_t next) const {
    const auto is_without_text = [&](Token token) { return vocab_.piece(token).empty(); };
    std::vector<Token> controls;
    std::ranges::copy_if(reply.tokens, std::back_inserter(controls), is_without_text);
    const bool ends_with_control = is_without_text(reply.tokens.back());
    std::size_t seen = 0;
    for (std::size_t i = next; i < given_.tokens.size() && i - next <= 2 * reply.tokens.size() + kAddedMax; ++i) {
      if (!is_control(i)) continue;
      if (seen == controls.size()) return i;
      if (given_.tokens[i] != controls[seen++]) return std::nullopt;
      if (seen == controls.size() && ends_with_control) return i + 1;
    }
    return std::nullopt;
  }

  [[nodiscard]] ByteCounts bytes_of_given(std::size_t begin, std::size_t end, bool has_calls) const {
    ByteCounts bytes(has_calls);
    for (std::size_t i = begin; i < end; ++i) {
      if (!is_control(i)) bytes.add(std::string_view(text_.bytes()).substr(given_end(i), given_.ends[i] - given_end(i)));
    }
    return bytes;
  }
  [[nodiscard]] ByteCounts bytes_of_reply(const WrittenReply& reply) const {
    ByteCounts bytes(reply.has_calls);
    for (const Token token : reply.tokens) bytes.add(vocab_.piece(token));
    return bytes;
  }

  // The first control token that is given from `index` on; `end`: none before that.
  [[nodiscard]] std::size_t next_control(std::size_t index, std::size_t end) const {
    while (index < end && !is_control(index)) ++index;
    return index;
  }

  // The reply's tokens get the places of the given ones: control tokens those of their likes, and text between them by its
  // bytes.
  void take(const WrittenReply& reply, std::size_t next) {
    const std::size_t begin = base_given_ + reply.prompt_tokens - base_;
    made_.tokens.resize(reply.prompt_tokens);
    made_.ends.resize(reply.prompt_tokens);
    std::size_t control = next_control(begin, next);
    std::size_t at = given_end(begin);
    for (const Token token : reply.tokens) {
      const std::string_view piece = vocab_.piece(token);
      at = std::min(at + piece.size(), given_end(control));
      if (piece.empty() && control < next) {
        at = given_.ends[control];
        control = next_control(control + 1, next);
      }
      made_.push_back(token, at);
    }
    made_.ends.back() = given_end(next);
    blocks_.resize(std::min(blocks_.size(), reply.prompt_tokens / kv::kTokensPerBlock));
    base_ = made_.tokens.size();
    base_given_ = next;
    refused_.clear();
  }

  const llm::Vocab& vocab_;
  const jinja::Text& text_;
  const PlacedTokens given_;
  PlacedTokens made_;
  std::size_t base_ = 0;              // The end of the last reply in made_; behind it are given tokens,
  std::size_t base_given_ = 0;        // from this one on.
  std::vector<kv::Checksum> blocks_;  // Checksums of made_'s blocks.
  std::unordered_set<const WrittenReply*> refused_;
};

}  // namespace

WrittenReply written_behind(const llm::Vocab& vocab, std::span<const Token> prompt, std::span<const Token> reply) {
  constexpr std::size_t kBorderMax = 16;
  WrittenReply written;
  const auto is_text = [&](Token token) { return !vocab.piece(token).empty(); };
  while (written.border < std::min(kBorderMax, prompt.size()) && is_text(prompt[prompt.size() - written.border - 1]))
    ++written.border;
  written.prompt_tokens = prompt.size() - written.border;
  const std::vector<kv::Checksum> hashes = kv::block_hashes(prompt.first(written.prompt_tokens));
  if (!hashes.empty()) written.prompt = hashes.back();
  written.tokens.assign(prompt.end() - static_cast<std::ptrdiff_t>(written.border), prompt.end());
  written.tokens.insert(written.tokens.end(), reply.begin(), reply.end());
  return written;
}

kv::Checksum meaning_of(const ChatMessage& reply) {
  const ReplyFields fields(reply);
  MeaningWriter meaning;
  meaning.add(trim(reply.content));
  meaning.add(trim(fields.thoughts()));
  for (const auto& [name, arguments] : fields.calls()) {
    meaning.add(name);
    meaning.add(sorted_arguments(arguments));
  }
  return meaning.value();
}

void WrittenReplies::note(const TenantId& tenant, const ChatMessage& reply, WrittenReply written) {
  const std::size_t bytes = bytes_of(written);
  if (bytes > tenant_bytes_max_) return;
  written.has_calls = !ReplyFields(reply).calls().empty();
  const kv::Checksum meaning = meaning_of(reply);
  const auto shared = std::make_shared<const WrittenReply>(std::move(written));
  const MutexLock lock(mutex_);
  OfTenant& own = tenants_[tenant];
  std::vector<WrittenReplyPtr>& same = own.replies[meaning];
  const auto newest = same | std::views::reverse | std::views::take(kFoundMax);
  if (std::ranges::any_of(newest, [&](const WrittenReplyPtr& each) { return *each == *shared; })) return;
  same.push_back(shared);
  own.order.push_back(meaning);
  own.bytes += bytes;
  while (own.bytes > tenant_bytes_max_) {
    const auto oldest = own.replies.find(own.order.front());
    own.bytes -= bytes_of(*oldest->second.front());
    oldest->second.erase(oldest->second.begin());
    if (oldest->second.empty()) own.replies.erase(oldest);
    own.order.pop_front();
  }
}

std::vector<WrittenReplyPtr> WrittenReplies::find(const TenantId& tenant, const ChatMessage& reply) const {
  const kv::Checksum meaning = meaning_of(reply);
  const MutexLock lock(mutex_);
  const auto own = tenants_.find(tenant);
  if (own == tenants_.end()) return {};
  const auto found = own->second.replies.find(meaning);
  if (found == own->second.replies.end()) return {};
  const auto newest = found->second | std::views::reverse | std::views::take(kFoundMax);
  return {newest.begin(), newest.end()};
}

PlacedTokens with_written_replies(const llm::Vocab& vocab, const jinja::Text& text, PlacedTokens placed,
                                  std::span<const ChatMessage> messages, const OwnReplies& written) {
  if (written.all == nullptr) return placed;
  ReturnedReplies returned(vocab, text, std::move(placed));
  for (const ChatMessage& message : messages) {
    if (message.role == "assistant") returned.look(written.all->find(written.tenant, message));
  }
  return std::move(returned).finish();
}

}  // namespace uma::chat
