// Readers of the arguments of one tool call, in the ways in which families of models write them: as JSON or a text here, as
// elements in element_reader.h, as in Python in loose_reader.h. They make JSON of them while the text comes in, so long texts
// stream. The result does not depend on how the text is divided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "chat/calls/json_scanner.h"
#include "chat/calls/parameter_types.h"

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
  // Nothing more comes, behind a `rest` that read() has left: adds what is missing if the arguments can end here. False: they
  // are cut.
  [[nodiscard]] virtual bool finish(std::string_view /*rest*/, CallText& /*call*/) { return false; }

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

// The text of a tool's only parameter, up to the end of the reply.
class RawReader final : public ArgumentReader {
 public:
  explicit RawReader(const ParameterTypes& types);

  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;
  [[nodiscard]] bool finish(std::string_view rest, CallText& call) override;

 private:
  std::string begin_;  // The arguments before the text.
};

// A JSON object with the name and the arguments of the call, in any order, and perhaps an id. Its last brace may be missing.
class FunctionReader final : public ArgumentReader {
 public:
  // `waits_for_id`: the id counts behind the name and the arguments, too. `needs_arguments`: an object without them is no call;
  // else it has none.
  FunctionReader(bool waits_for_id, bool needs_arguments) : waits_for_id_(waits_for_id), needs_arguments_(needs_arguments) {}

  [[nodiscard]] Result read(std::string_view& text, CallText& call) override;
  [[nodiscard]] bool finish(std::string_view rest, CallText& call) override;

 private:
  enum class Member : std::uint8_t { none, key, name, id, arguments, arguments_text };

  [[nodiscard]] Result take(char c, CallText& call);
  [[nodiscard]] bool take_member(char c, JsonScanner::Place before, CallText& call);
  [[nodiscard]] bool take_text(char c, CallText& call);
  // Whether only the end of the object is missing.
  [[nodiscard]] bool is_whole(const CallText& call) const {
    return has_arguments_ && member_ == Member::none && !call.name.empty() && scanner_.depth() == 1;
  }

  const bool waits_for_id_;
  const bool needs_arguments_;
  JsonScanner scanner_;
  Member member_ = Member::none;
  std::string key_;   // The key of the current member.
  std::string text_;  // The current key, name or id, still escaped.
  bool has_arguments_ = false;
};

}  // namespace uma::chat
