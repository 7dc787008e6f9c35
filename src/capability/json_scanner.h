// Follows one JSON value character by character: where it stands, where it ends, whether it still is one. Bare control
// characters in strings go through: models write them, and who takes the text can escape them.
#pragma once

#include <cstdint>
#include <string>

namespace uma::capability {

class JsonScanner {
 public:
  enum class Result : std::uint8_t {
    more,       // the character is part of the value, which goes on
    complete,   // it ends the value
    malformed,  // it cannot stand here
  };
  // Where the next character stands.
  enum class Place : std::uint8_t {
    value,         // before a value
    first_value,   // before a value or the end of an array
    first_key,     // before a key or the end of an object
    key,           // before a key
    colon,         // behind a key
    end_of_value,  // behind a value, before a comma or the end
    string,
    escape,
    hex,
    word,  // in a number, true, false or null
  };

  // REQUIRES: the value is not complete. Numbers and words that are the whole value never are: nothing shows their end.
  Result feed(char c);

  [[nodiscard]] Place place() const { return place_; }
  [[nodiscard]] std::int32_t depth() const { return depth_; }  // of the brackets that are open
  [[nodiscard]] bool is_key() const { return is_key_; }        // string: it is a key

 private:
  [[nodiscard]] Result begin_value(char c);
  [[nodiscard]] Result open(bool is_object);
  [[nodiscard]] Result close(bool is_object);
  [[nodiscard]] Result end_value();
  [[nodiscard]] bool is_in_object() const { return (objects_ >> depth_ & 1u) != 0; }

  Place place_ = Place::value;
  std::int32_t depth_ = 0;
  std::uint64_t objects_ = 0;  // bit n: the bracket at depth n is an object's
  bool is_key_ = false;
  std::int32_t hex_left_ = 0;
  std::string word_;
};

}  // namespace uma::capability
