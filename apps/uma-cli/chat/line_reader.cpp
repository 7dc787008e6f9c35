#include "uma-cli/chat/line_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cwchar>
#include <unistd.h>
#include <utility>

#include <histedit.h>

#include "base/check.h"
#include "base/printable.h"
#include "base/thrown.h"
#include "base/utf8.h"
#include "uma-cli/chat/history.h"
#include "uma-cli/text_input.h"

namespace uma::cli {
namespace {

class PlainLines final : public LineReader {
 public:
  PlainLines(int fd, Interrupts& interrupts) : fd_(fd), interrupts_(interrupts) {}

  Line read(const std::string&) override {
    while (true) {
      if (const std::size_t end = buffer_.find('\n', searched_); end != std::string::npos) return take(end, end + 1);
      searched_ = buffer_.size();
      if (searched_ > kTextBytesMax) {
        buffer_.clear();
        is_at_end_ = true;
      }
      if (is_at_end_) return buffer_.empty() ? Line{LineEnd::end_of_input, ""} : take(buffer_.size(), buffer_.size());
      pollfd source{.fd = fd_, .events = POLLIN, .revents = 0};
      if (interrupts_.wait({&source, 1}) == Wake::ready) {
        read_more();
      } else if (interrupts_.must_leave()) {
        return {LineEnd::must_leave, ""};
      } else if (interrupts_.take() > 0) {
        return {LineEnd::interrupted, ""};
      }
    }
  }
  [[nodiscard]] bool is_terminal() const override { return false; }

 private:
  Line take(std::size_t length, std::size_t consumed) {
    Line line{LineEnd::line, buffer_.substr(0, length)};
    buffer_.erase(0, consumed);
    searched_ = 0;
    return line;
  }
  void read_more() {
    std::array<char, 65536> bytes{};
    const ssize_t got = ::read(fd_, bytes.data(), bytes.size());
    if (got > 0) {
      buffer_.append(bytes.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
      is_at_end_ = true;
    }
  }

  const int fd_;
  Interrupts& interrupts_;
  std::string buffer_;
  std::size_t searched_ = 0;  // These bytes of the buffer have no newline.
  bool is_at_end_ = false;
};

// Line editing by libedit. Characters come through next_character(), where a signal ends the line.
class EditedLines final : public LineReader {
 public:
  EditedLines(std::FILE* output, std::string path, Interrupts& interrupts)
      : path_(std::move(path)), interrupts_(interrupts), output_(output) {
    edit_ = el_init("uma-cli", stdin, output_, stderr);
    history_ = history_init();
    UMA_CHECK(edit_ != nullptr && history_ != nullptr);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &EditedLines::prompt_of);
    el_set(edit_, EL_GETCFN, &EditedLines::next_character);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(edit_, EL_ADDFN, "uma-complete", "Completes commands and names", &EditedLines::complete);
    el_set(edit_, EL_BIND, "^I", "uma-complete", nullptr);
    el_source(edit_, nullptr);  // Reads the user's ~/.editrc.
    HistEvent event{};
    history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLinesMax));
    history(history_, &event, H_SETUNIQUE, 1);
    for (const std::string& line : load_history(path_)) history(history_, &event, H_ENTER, line.c_str());
  }
  ~EditedLines() override {
    el_end(edit_);
    history_end(history_);
  }
  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  Line read(const std::string& prompt) override {
    prompt_ = prompt;
    stopped_by_ = LineEnd::line;
    int length = 0;
    const char* typed = el_gets(edit_, &length);
    std::fflush(output_);
    if (stopped_by_ != LineEnd::line) {
      el_reset(edit_);  // Without the reset the abandoned characters would begin the next line.
      std::fputs("\n", output_);
      std::fflush(output_);
      return {stopped_by_, ""};
    }
    if (typed == nullptr || length <= 0) {
      std::fputs("\n", output_);
      std::fflush(output_);
      return {LineEnd::end_of_input, ""};
    }
    Line line{LineEnd::line, std::string(typed, static_cast<std::size_t>(length))};
    if (line.text.ends_with('\n')) line.text.pop_back();
    remember(line.text);
    return line;
  }
  [[nodiscard]] bool is_terminal() const override { return true; }
  void complete_with(const Completer& completer) override { completer_ = completer; }

 private:
  // Inserts what all candidates have in common, and lists them if that is nothing.
  static unsigned char complete(EditLine* edit, int) {
    const EditedLines& self = self_of(edit);
    const LineInfo* const line = el_line(edit);
    const std::string typed(line->buffer, static_cast<std::size_t>(line->cursor - line->buffer));
    std::vector<std::string> candidates;
    if (self.completer_) run_noting([&] { candidates = self.completer_(typed); });
    if (candidates.empty()) return CC_ERROR;
    const std::string common = common_beginning(candidates);
    if (common.size() > typed.size()) {
      return el_insertstr(edit, common.c_str() + typed.size()) == 0 ? CC_REFRESH : CC_ERROR;
    }
    if (candidates.size() == 1) return CC_ERROR;
    std::fputs("\n", self.output_);
    for (const std::string& each : candidates) std::fprintf(self.output_, "%s\n", printable_line(each).c_str());
    std::fflush(self.output_);
    return CC_REDISPLAY;
  }
  static EditedLines& self_of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<EditedLines*>(self);
  }
  static char* prompt_of(EditLine* edit) { return self_of(edit).prompt_.data(); }

  // el_rfunc_t: 1 with a character, 0 at the end of the input, -1 when a signal ended the line.
  static int next_character(EditLine* edit, wchar_t* character) { return self_of(edit).read_character(character); }

  int read_character(wchar_t* character) {
    std::mbstate_t state{};
    while (true) {
      char byte = 0;
      pollfd source{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (interrupts_.wait({&source, 1}) != Wake::ready) {
        if (is_stopped()) return -1;
        continue;
      }
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return 0;
      const std::size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == 0 || used == 1) return 1;
      if (used == static_cast<std::size_t>(-1)) state = std::mbstate_t{};  // Drops a byte that is no character.
    }
  }

  // Handles the signal that ended a wait. Returns true if it also ends the line.
  bool is_stopped() {
    if (interrupts_.must_leave()) {
      stopped_by_ = LineEnd::must_leave;
      return true;
    }
    if (interrupts_.take() > 0) {
      const LineInfo* line = el_line(edit_);
      stopped_by_ = line->lastchar == line->buffer ? LineEnd::interrupted : LineEnd::discarded;
      return true;
    }
    if (interrupts_.take_redraw()) {
      // The window was resized, or the program was stopped and the shell has set its own terminal modes.
      el_set(edit_, EL_PREP_TERM, 1);
      el_resize(edit_);
      el_set(edit_, EL_REFRESH);
    }
    return false;
  }

  void remember(const std::string& line) {
    if (line.empty()) return;
    HistEvent event{};
    history(history_, &event, H_ENTER, line.c_str());
    append_history(path_, line);
  }

  const std::string path_;
  Interrupts& interrupts_;
  std::FILE* const output_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  std::string prompt_;
  Completer completer_;
  LineEnd stopped_by_ = LineEnd::line;
};

}  // namespace

std::string common_beginning(const std::vector<std::string>& texts) {
  if (texts.empty()) return {};
  std::string_view common = texts.front();
  for (const std::string& text : texts) {
    common = common.substr(0, static_cast<std::size_t>(std::ranges::mismatch(common, text).in1 - common.begin()));
  }
  while (!common.empty() && !is_utf8(common)) common.remove_suffix(1);
  return std::string(common);
}

std::unique_ptr<LineReader> read_lines_from(int fd, Interrupts& interrupts) {
  return std::make_unique<PlainLines>(fd, interrupts);
}

std::unique_ptr<LineReader> edit_lines(std::FILE* output, std::string history_path, Interrupts& interrupts) {
  return std::make_unique<EditedLines>(output, std::move(history_path), interrupts);
}

}  // namespace uma::cli
