// Appends JSON directly to a byte buffer, without a document in between and without allocations except the buffer's growth.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace uma::json {

// Appends `text` as a JSON string with quotes. Invalid UTF-8 becomes U+FFFD, so a frame is always valid JSON.
void append_string(std::string& out, std::string_view text);
// Writes at most `decimals` digits after the point; null for infinity and NaN.
void append_number(std::string& out, double value, int decimals = 4);
// Writes the shortest text that identifies the float; null for infinity and NaN.
void append_float(std::string& out, float value);
void append_integer(std::string& out, std::int64_t value);
void append_integer(std::string& out, std::uint64_t value);

// One object, from the opening brace (constructor) to the closing brace (close()). Names are constants and need no escaping.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_.push_back('{'); }
  // Starts with `head`, which has an object's opening brace and its first fields.
  ObjectWriter(std::string& out, std::string_view head) : out_(out), empty_(false) { out_.append(head); }

  void field(std::string_view name, std::string_view value) { append_string(begin(name), value); }
  void field(std::string_view name, const char* value) { field(name, std::string_view(value)); }
  void field(std::string_view name, double value) { append_number(begin(name), value); }
  void field(std::string_view name, std::same_as<bool> auto value) { begin(name).append(value ? "true" : "false"); }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void field(std::string_view name, T value) {
    if constexpr (std::signed_integral<T>) {
      append_integer(begin(name), static_cast<std::int64_t>(value));
    } else {
      append_integer(begin(name), static_cast<std::uint64_t>(value));
    }
  }
  void null_field(std::string_view name) { begin(name).append("null"); }

  // Writes the name and returns the buffer; the caller appends one value.
  std::string& begin(std::string_view name);

  void close() { out_.push_back('}'); }

 private:
  std::string& out_;
  bool empty_ = true;  // No field yet, so the next one needs no comma.
};

// Appends an array; write(item) appends each element.
template <class ItemsT, class WriteT>
void append_array(std::string& out, ItemsT&& items, WriteT&& write) {
  out.push_back('[');
  bool first = true;
  for (const auto& item : items) {
    if (!first) out.push_back(',');
    first = false;
    write(item);
  }
  out.push_back(']');
}

}  // namespace uma::json
