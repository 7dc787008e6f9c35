#include "chat/reply/text_stream.h"

#include <algorithm>
#include <utility>

namespace uma::chat {

TextStream::TextStream(const llm::Vocab& vocab, std::vector<std::string> stop_strings,
                       std::vector<std::pair<Token, std::string>> marks, std::span<const std::string> ends)
    : detokenizer_(vocab), stop_strings_(std::move(stop_strings)), ends_(ends.size()), marks_(std::move(marks)) {
  stop_strings_.insert(stop_strings_.begin(), ends.begin(), ends.end());
}

void TextStream::push_text(Token token, std::string& out) {
  const std::size_t before = out.size();
  const auto mark = std::ranges::find(marks_, token, &std::pair<Token, std::string>::first);
  if (mark == marks_.end()) {
    detokenizer_.push(token, out);
  } else {
    detokenizer_.finish(out);
    out += mark->second;
  }
  made_ += out.size() - before;
}

bool TextStream::push(Token token, std::string& out, bool may_stop) {
  const auto stops = std::span<const std::string>(stop_strings_).first(may_stop ? stop_strings_.size() : ends_);
  if (stops.empty()) {
    out += held_;
    held_.clear();
    push_text(token, out);
    return false;
  }
  push_text(token, held_);
  std::size_t stop_at = std::string::npos;
  for (const std::string& stop : stops) {
    const std::size_t at = held_.find(stop);
    if (at >= stop_at) continue;
    stop_at = at;
    stop_string_ = stop;
  }
  if (stop_at != std::string::npos) {
    out.append(held_, 0, stop_at);
    held_.clear();
    return true;
  }
  const std::size_t certain = held_.size() - possible_stop_length(held_, stops);
  out.append(held_, 0, certain);
  held_.erase(0, certain);
  return false;
}

// Length of the longest suffix of `held` that begins a stop string.
std::size_t TextStream::possible_stop_length(std::string_view held, std::span<const std::string> stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t length = std::min(stop.size() - 1, held.size()); length > longest; --length) {
      if (held.ends_with(std::string_view(stop).substr(0, length))) longest = length;
    }
  }
  return longest;
}

void TextStream::finish(std::string& out) {
  out += held_;
  held_.clear();
  detokenizer_.finish(out);
}

}  // namespace uma::chat
