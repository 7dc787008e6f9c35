// Scans one JSON value character by character: the current place, the end of the value, and errors. Unescaped control
// characters in strings are accepted, because models write them; the caller can escape them.
#pragma once

#include <cstdint>
#include <string>

namespace uma::chat {

class JsonScanner {
 public:
  enum class Result : std::uint8_t {
    more,       // The character is part of the value, and the value continues.
    complete,   // The character ends the value.
    malformed,  // The character is not allowed here.
  };
  // The place of the next character.
  enum class Place : std::uint8_t {
    value,         // Before a value.
    first_value,   // Before a value or the end of an array.
    first_key,     // Before a key or the end of an object.
    key,           // Before a key.
    colon,         // Behind a key.
    end_of_value,  // Behind a value, before a comma or the end.
    string,
    escape,
    hex,
    word,  // In a number, true, false or null.
  };

  // Requires: the value is not complete. A top-level number or word is never complete, because nothing marks its end.
  Result feed(char c);

  [[nodiscard]] Place place() const { return place_; }
  [[nodiscard]] std::int32_t depth() const { return depth_; }  // Number of open brackets.
  [[nodiscard]] bool is_key() const { return is_key_; }        // The string is a key.

 private:
  [[nodiscard]] Result begin_value(char c);
  [[nodiscard]] Result open(bool is_object);
  [[nodiscard]] Result close(bool is_object);
  [[nodiscard]] Result end_value();
  [[nodiscard]] bool is_in_object() const { return (objects_ >> depth_ & 1u) != 0; }

  Place place_ = Place::value;
  std::int32_t depth_ = 0;
  std::uint64_t objects_ = 0;  // Bit n: the bracket at depth n belongs to an object.
  bool is_key_ = false;
  std::int32_t hex_left_ = 0;
  std::string word_;
};

}  // namespace uma::chat
