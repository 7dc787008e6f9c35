// Readers of the arguments of one tool call, in the ways in which families of models write them. They make JSON of them while
// the text comes in, so long texts stream. The result does not depend on how the text is divided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/family.h"
#include "chat/json_scanner.h"
#include "chat/parameter_types.h"

namespace uma::chat {

// A call as far as it was read.
struct CallText {
  std::string name;       // Empty: not known yet.
  std::string id;         // Empty: the model gives none.
  std::string arguments;  // The begin of a JSON object.
};

class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;
  ArgumentReader(const ArgumentReader&) = delete;
  ArgumentReader& operator=(const ArgumentReader&) = delete;

  enum class Result : std::uint8_t { more, complete, malformed };
  // Reads `text`, removes what is decided from it, and adds it to `call`. Text behind the arguments stays. After `malformed`
  // the rest is no part of the call.
  [[nodiscard]] virtual Result read(std::string_view& text, CallText& call) = 0;
  // The reply has ended: adds what is missing if the arguments are whole but for their end. False: they are cut.
  [[nodiscard]] virtual bool finish(CallText& /*call*/) { return false; }

 protected:
  ArgumentReader() = default;
};

// The arguments as one JSON object.
class JsonReader final : public ArgumentReader {
 public:
  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;

 private:
  JsonScanner scanner_;
};

// A JSON object with the name and the arguments of the call, in any order, and perhaps an id.
class FunctionReader final : public ArgumentReader {
 public:
  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;

 private:
  enum class Member : std::uint8_t { none, key, name, id, arguments, arguments_text };

  [[nodiscard]] Result take(char c, CallText& call);
  [[nodiscard]] bool take_member(char c, JsonScanner::Place before, CallText& call);
  [[nodiscard]] bool take_text(char c, CallText& call);

  JsonScanner scanner_;
  Member member_ = Member::none;
  std::string key_;   // The key of the current member.
  std::string text_;  // The current key, name or id, still escaped.
  bool has_arguments_ = false;
};

// One element for each argument: <parameter=a>1</parameter>. Their types follow from the tool's schema.
class ElementReader final : public ArgumentReader {
 public:
  // `ends`: the texts that may follow the last element. `types` may be null; it and the marks must outlive the reader.
  ElementReader(const ElementMarks& marks, std::vector<std::string_view> ends, const ParameterTypes* types)
      : marks_(marks), ends_(std::move(ends)), types_(types) {}

  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;
  [[nodiscard]] bool finish(CallText& call) override;

 private:
  enum class State : std::uint8_t { between, name, attributes, value };

  [[nodiscard]] Result read_between(std::string_view& text, CallText& call);
  [[nodiscard]] bool read_name(std::string_view& text, CallText& call);
  [[nodiscard]] bool read_attributes(std::string_view& text);
  [[nodiscard]] bool read_value(std::string_view& text, CallText& call);

  const ElementMarks& marks_;
  const std::vector<std::string_view> ends_;
  const ParameterTypes* const types_;
  State state_ = State::between;
  TypeSet type_;
  bool is_streamed_ = false;  // The value is a text, and is added as it comes.
  bool has_begun_ = false;    // Some of a streamed value was added.
  bool has_skipped_ = false;  // The whitespace before the value was skipped.
  std::string value_;         // The value so far, unless it is streamed.
  std::size_t count_ = 0;
};

// Words, quoted texts, lists and dictionaries in brackets: (a=1, b='x'), {a:1,b:<|"|>x<|"|>}. It begins with its bracket.
class LooseReader final : public ArgumentReader {
 public:
  // `quote`: a mark around texts without escapes, beside the quotes of Python; may be empty. It must outlive the reader.
  explicit LooseReader(std::string_view quote) : quote_(quote) {}

  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;

 private:
  enum class Place : std::uint8_t { open, item, key, separator, value, next, string, word };
  enum class Step : std::uint8_t { taken, wait, complete, malformed };

  [[nodiscard]] Step step(std::string_view& text, std::string& json);
  [[nodiscard]] Step open(char bracket);
  [[nodiscard]] Step close(std::string& json);
  [[nodiscard]] Step begin_text(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_string(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_escape(std::string_view& text, std::string& json);
  [[nodiscard]] Step take_word(std::string_view& text, std::string& json);
  void take_pending(std::string& json);
  void begin_string(std::string& json);
  void end_text(std::string& json);
  // Where the current text goes.
  [[nodiscard]] std::string& text_of(std::string& json) { return is_key_ ? pending_ : json; }

  const std::string_view quote_;
  Place place_ = Place::open;
  std::string pending_;        // JSON that counts only if a value follows.
  std::string closers_;        // The closing brackets that are due.
  std::uint64_t is_list_ = 0;  // Bit 0: the innermost bracket is a list; bit 1: the one around it, and so on.
  bool needs_comma_ = false;   // Before the next item, if there is one.
  bool is_key_ = false;        // The text or word is a key.
  char end_quote_ = 0;         // 0: quote_ ends the text.
};

// The JSON of a list or dictionary in Python's notation; empty: it is none.
[[nodiscard]] std::optional<std::string> loose_json(std::string_view text);

}  // namespace uma::chat
