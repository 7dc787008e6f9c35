// Writes JSON straight to the end of a byte buffer: no document in between, no allocation beyond the buffer's growth.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace uma::wire {

// Appends `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD: a frame is always valid JSON.
void append_json_string(std::string& out, std::string_view text);
// At most `decimals` digits after the point; null for what JSON cannot say (infinity, NaN).
void append_json_number(std::string& out, double value, int decimals = 4);
// As many digits as tell it from every other float; null for what JSON cannot say.
void append_json_float(std::string& out, float value);
void append_json_integer(std::string& out, std::int64_t value);
void append_json_integer(std::string& out, std::uint64_t value);

// One object, from its opening brace (constructor) to its closing one (close()). Names are ours and need no escaping.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_.push_back('{'); }
  // Starts with `head`, an object's opening brace and its first fields, written before.
  ObjectWriter(std::string& out, std::string_view head) : out_(out), empty_(false) { out_.append(head); }

  void field(std::string_view name, std::string_view value) { append_json_string(begin(name), value); }
  void field(std::string_view name, const char* value) { field(name, std::string_view(value)); }
  void field(std::string_view name, double value) { append_json_number(begin(name), value); }
  void field(std::string_view name, std::same_as<bool> auto value) { begin(name).append(value ? "true" : "false"); }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void field(std::string_view name, T value) {
    if constexpr (std::signed_integral<T>) {
      append_json_integer(begin(name), static_cast<std::int64_t>(value));
    } else {
      append_json_integer(begin(name), static_cast<std::uint64_t>(value));
    }
  }
  void null_field(std::string_view name) { begin(name).append("null"); }

  // Writes the name; the caller appends one value to the returned buffer.
  std::string& begin(std::string_view name);

  void close() { out_.push_back('}'); }

 private:
  std::string& out_;
  bool empty_ = true;  // no field yet, so the next one needs no comma
};

// Appends an array with one element per item; write(item) appends it.
template <class ItemsT, class WriteT>
void append_json_array(std::string& out, ItemsT&& items, WriteT&& write) {
  out.push_back('[');
  bool first = true;
  for (const auto& item : items) {
    if (!first) out.push_back(',');
    first = false;
    write(item);
  }
  out.push_back(']');
}

}  // namespace uma::wire
