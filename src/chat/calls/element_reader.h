// Reads the arguments of a call that are elements: <parameter=a>1</parameter>. Their types follow from the tool's schema.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/calls/argument_reader.h"
#include "chat/calls/call_pattern.h"
#include "chat/calls/parameter_types.h"
#include "chat/family.h"

namespace uma::chat {

class ElementReader final : public ArgumentReader {
 public:
  // The texts that follow the arguments: `call_end` at the end of this call, and any of `ends` where elements may follow.
  // `types` may be null; it and the marks must outlive the reader.
  ElementReader(const ElementMarks& marks, Pattern call_end, std::vector<std::string_view> ends, const ParameterTypes* types);

  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;
  [[nodiscard]] bool finish(std::string_view rest, CallText& call) override;

 private:
  // Where a value ends. `maybe`: the text up to `at` belongs to it, and more text decides about the rest.
  struct End {
    Found found = Found::no;
    std::size_t at = 0;
    std::size_t mark_bytes = 0;
    std::size_t depth = 0;  // Elements of the same name that are open there within the value.
  };

  [[nodiscard]] Result read_between(std::string_view& text, CallText& call);
  [[nodiscard]] Found begin_element(std::string_view& text, CallText& call);
  void begin_value(std::string_view name, std::string_view attributes, CallText& call);
  [[nodiscard]] Found next_mark(std::string_view text) const;
  // `blanks`: so many bytes at the begin of `text` are known to be whitespace.
  [[nodiscard]] End find_end(std::string_view text, std::size_t blanks) const;
  // The end of the value by its own mark alone; `blanks` as for find_end().
  [[nodiscard]] End find_close(std::string_view text, std::size_t blanks) const;
  [[nodiscard]] std::size_t skip_begin(std::string_view& part);
  void add(std::string_view part, CallText& call);
  // False: the value goes on.
  [[nodiscard]] bool read_value(std::string_view& text, CallText& call, bool is_last);

  const ElementMarks& marks_;
  const bool has_named_ends_;  // ElementMarks::close has the name.
  const Pattern call_end_;
  const std::vector<std::string_view> ends_;
  const ParameterTypes* const types_;
  const Pattern next_element_;  // The marks before the value of an element, to recognise one within a value.
  std::size_t count_ = 0;

  // The current value.
  bool is_in_value_ = false;
  TypeSet type_;
  std::string name_;          // The parameter.
  std::string close_;         // The mark behind it.
  std::string nested_open_;   // The mark before an element of the same name within it; empty: it has no elements.
  std::size_t depth_ = 0;     // Open elements of that name.
  bool is_streamed_ = false;  // It is a text, and is added as it comes.
  bool has_begun_ = false;    // Some of it was added.
  bool has_skipped_ = false;  // The whitespace before it was skipped.
  std::size_t blanks_ = 0;    // Whitespace at the begin of the text that read() has left; it is not read again.
  std::string value_;         // The value as far as it came, unless it is streamed.
};

}  // namespace uma::chat
