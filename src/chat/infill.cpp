#include "chat/infill.h"

#include <optional>
#include <string>

namespace uma::chat {
namespace {

class InfillPrompt {
 public:
  InfillPrompt(const llm::Vocab& vocab, bool parse_special) : vocab_(vocab), parse_special_(parse_special) {
    if (vocab.bos()) tokens_.push_back(*vocab.bos());
  }

  void add_mark(std::optional<Token> mark) {
    if (mark) tokens_.push_back(*mark);
  }
  void add_text(std::string_view text) {
    if (problem_) return;
    auto more = vocab_.tokenize(text, parse_special_);
    if (more) {
      tokens_.insert(tokens_.end(), more->begin(), more->end());
    } else {
      problem_ = std::move(more.error());
    }
  }

  [[nodiscard]] Expected<std::vector<Token>> take() {
    if (problem_) return std::unexpected(std::move(*problem_));
    return std::move(tokens_);
  }

 private:
  const llm::Vocab& vocab_;
  const bool parse_special_;
  std::vector<Token> tokens_;
  std::optional<Error> problem_;
};

}  // namespace

Expected<std::vector<Token>> tokenize_infill(const llm::Vocab& vocab, std::string_view prefix, const Infill& infill,
                                             bool parse_special) {
  const auto marks = vocab.gap_marks();
  if (!marks) {
    return fail(
        ErrorCode::model_capability,
        "the model cannot fill gaps, because its vocabulary has no marks for them: leave out the text behind the gap, or "
        "use a model for code that has them");
  }
  InfillPrompt prompt(vocab, parse_special);
  if (!infill.files.empty() && marks->repository && marks->file) {
    prompt.add_mark(marks->repository);
    prompt.add_text("myproject\n");  // Names are not known; models expect one.
  }
  for (const InfillFile& file : infill.files) {
    prompt.add_mark(marks->file);
    prompt.add_text(file.name + "\n" + file.text + "\n");
  }
  if (!infill.files.empty() && marks->file) {
    prompt.add_mark(marks->file);
    prompt.add_text("filename\n");
  }
  prompt.add_mark(marks->prefix);
  prompt.add_text(prefix);
  prompt.add_mark(marks->suffix);
  prompt.add_text(infill.suffix);
  prompt.add_mark(marks->middle);
  prompt.add_text(infill.begun);
  return prompt.take();
}

}  // namespace uma::chat
