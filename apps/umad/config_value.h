// Readers for the values of settings in YAML, environment variables and flags. A reader returns the value, or a description of
// what it expected ("an integer from 1 to 256").
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <expected>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace uma::umad {

template <class T>
using Reader = std::function<std::expected<T, std::string>(std::string_view text)>;

[[nodiscard]] Reader<std::int64_t> integer(std::int64_t min, std::int64_t max);
[[nodiscard]] Reader<double> number(double min, double max);
// A number of bytes: digits and optionally K, M, G or T (powers of 1024, a following B or iB allowed).
[[nodiscard]] Reader<std::int64_t> byte_count(std::int64_t min, std::int64_t max);
// Like byte_count; also accepts `auto`, which reads as -1.
[[nodiscard]] Reader<std::int64_t> byte_count_or_auto(std::int64_t min, std::int64_t max);
// Digits and a unit: ms, s, m, h or d; without a unit, seconds.
[[nodiscard]] Reader<std::chrono::milliseconds> duration();
// Like duration; also accepts `none`, which reads as 0.
[[nodiscard]] Reader<std::chrono::milliseconds> duration_or_none();
[[nodiscard]] Reader<std::string> one_of(std::initializer_list<std::string_view> words);
// A file name: not empty, no NUL byte.
[[nodiscard]] Reader<std::string> path();
// The URI of a PostgreSQL database.
[[nodiscard]] Reader<std::string> database_address();
// A place for states that several daemons use: the path of a folder, or the address of a Redis or Valkey server.
[[nodiscard]] Reader<std::string> shared_store();
// A name in headers and logs: 1 to 64 letters, digits, '-', '_' and '.'.
[[nodiscard]] Reader<std::string> node_name();
// File names, one per line.
[[nodiscard]] Reader<std::vector<std::string>> paths();
// A path that is short enough for a Unix socket's address.
[[nodiscard]] Reader<std::string> socket_path();

// Address of the HTTP listener: a numeric address and a port. An empty address means no listener.
struct HttpAddress {
  std::string address;
  std::uint16_t port = 0;  // 0: any free port.
  bool operator==(const HttpAddress&) const = default;
};
// ADDRESS:PORT (localhost or a numeric address, IPv6 in brackets), or `off`.
[[nodiscard]] Reader<HttpAddress> http_address();
// Like http_address; also accepts `on`, which reads as the address where Ollama's clients look.
[[nodiscard]] Reader<HttpAddress> ollama_address();
// Whether only this machine can reach the address.
[[nodiscard]] bool is_loopback(const HttpAddress& address);
// Origins of web pages, such as https://chat.example, separated by blanks.
[[nodiscard]] Reader<std::vector<std::string>> origins();
// HOST:PORT of image servers, separated by blanks.
[[nodiscard]] Reader<std::vector<std::string>> hosts();
// Names of hosts without ports.
[[nodiscard]] Reader<std::vector<std::string>> host_names();
// Absolute paths without blanks, separated by blanks.
[[nodiscard]] Reader<std::vector<std::string>> folders();

// Formats a value so that its reader accepts it; lists have one value per line.
[[nodiscard]] std::string show_value(std::string_view value);
[[nodiscard]] std::string show_value(double value);
[[nodiscard]] std::string show_value(const HttpAddress& value);
[[nodiscard]] std::string show_value(const std::vector<std::string>& values);
[[nodiscard]] std::string show_value(std::chrono::milliseconds value);
[[nodiscard]] std::string show_value(std::integral auto value) {
  return std::to_string(value);
}
// A number of seconds without a unit.
[[nodiscard]] inline std::string show_value(std::chrono::seconds value) {
  return std::to_string(value.count());
}
[[nodiscard]] std::string show_bytes(std::int64_t bytes);
// Shows 0 as `none`.
[[nodiscard]] std::string show_duration_or_none(std::chrono::milliseconds value);

}  // namespace uma::umad
