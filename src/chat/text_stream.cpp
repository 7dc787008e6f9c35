#include "chat/text_stream.h"

#include <algorithm>
#include <utility>

namespace uma::chat {

TextStream::TextStream(const llm::Vocab& vocab, std::vector<std::string> stop_strings,
                       std::vector<std::pair<Token, std::string>> marks)
    : detokenizer_(vocab), stop_strings_(std::move(stop_strings)), marks_(std::move(marks)) {}

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
  if (stop_strings_.empty() || !may_stop) {
    out += held_;
    held_.clear();
    push_text(token, out);
    return false;
  }
  push_text(token, held_);
  std::size_t stop_at = std::string::npos;
  for (const std::string& stop : stop_strings_) {
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
  const std::size_t certain = held_.size() - possible_stop_length();
  out.append(held_, 0, certain);
  held_.erase(0, certain);
  return false;
}

// Length of the longest suffix of held_ that begins a stop string.
std::size_t TextStream::possible_stop_length() const {
  std::size_t longest = 0;
  for (const std::string& stop : stop_strings_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > longest; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) longest = length;
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
