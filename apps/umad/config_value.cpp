#include "umad/config_value.h"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <cmath>
#include <format>
#include <limits>
#include <netinet/in.h>
#include <optional>
#include <sstream>
#include <sys/un.h>
#include <utility>
#include <vector>

#include "base/read_number.h"
#include "fetch/image_url.h"
#include "kv/shared/redis_address.h"
#include "server/http/rules.h"

namespace uma::umad {
namespace {

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Quantity {
  std::int64_t count = 0;
  std::string_view unit;  // Text after the digits.
};

std::optional<Quantity> parse_quantity(std::string_view text) {
  Quantity quantity;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), quantity.count);
  if (problem != std::errc() || quantity.count < 0) return std::nullopt;
  quantity.unit = text.substr(static_cast<std::size_t>(end - text.data()));
  return quantity;
}

// The product, or nullopt on overflow.
std::optional<std::int64_t> multiply(std::int64_t count, std::int64_t factor) {
  if (count > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
  return count * factor;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const std::optional<Quantity> quantity = parse_quantity(text);
  if (!quantity) return std::nullopt;
  if (quantity->unit.empty()) return quantity->count;
  static constexpr std::pair<char, int> kPrefixes[] = {{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}};
  const std::string_view rest = quantity->unit.substr(1);
  if (!rest.empty() && rest != "B" && rest != "iB") return std::nullopt;
  for (const auto& [prefix, shift] : kPrefixes) {
    if (quantity->unit.front() == prefix) return multiply(quantity->count, std::int64_t{1} << shift);
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_milliseconds(std::string_view text) {
  const std::optional<Quantity> quantity = parse_quantity(text);
  if (!quantity) return std::nullopt;
  static constexpr std::pair<std::string_view, std::int64_t> kUnits[] = {{"ms", 1},     {"s", 1000},      {"", 1000},
                                                                         {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}};
  for (const auto& [unit, factor] : kUnits) {
    if (quantity->unit == unit) return multiply(quantity->count, factor);
  }
  return std::nullopt;
}

constexpr std::string_view kDurationExpected = "a duration such as 90s, 60m, 12h or 7d";

}  // namespace

Reader<std::int64_t> integer(std::int64_t min, std::int64_t max) {
  return [min, max](std::string_view text) -> std::expected<std::int64_t, std::string> {
    const std::optional<std::int64_t> value = parse_integer(text);
    if (!value || *value < min || *value > max) return std::unexpected(std::format("an integer from {} to {}", min, max));
    return *value;
  };
}

Reader<double> number(double min, double max) {
  return [min, max](std::string_view text) -> std::expected<double, std::string> {
    double value = 0;
    const auto [end, problem] = read_number(text.data(), text.data() + text.size(), value);
    const bool is_whole = problem == std::errc() && end == text.data() + text.size();
    // The comparison also refuses NaN.
    if (!is_whole || !(value >= min && value <= max)) return std::unexpected(std::format("a number from {} to {}", min, max));
    return value;
  };
}

Reader<std::int64_t> byte_count(std::int64_t min, std::int64_t max) {
  return [min, max](std::string_view text) -> std::expected<std::int64_t, std::string> {
    const std::optional<std::int64_t> value = parse_bytes(text);
    if (!value || *value < min || *value > max) {
      return std::unexpected(std::format("a size from {} to {} bytes, such as 65536 or 256M", min, max));
    }
    return *value;
  };
}

Reader<std::int64_t> byte_count_or_auto(std::int64_t min, std::int64_t max) {
  return [read = byte_count(min, max)](std::string_view text) -> std::expected<std::int64_t, std::string> {
    if (text == "auto") return -1;
    return read(text).transform_error([](const std::string& expected) { return "auto, or " + expected; });
  };
}

Reader<std::chrono::milliseconds> duration() {
  return [](std::string_view text) -> std::expected<std::chrono::milliseconds, std::string> {
    const std::optional<std::int64_t> value = parse_milliseconds(text);
    if (!value) return std::unexpected(std::string(kDurationExpected));
    return std::chrono::milliseconds(*value);
  };
}

Reader<std::chrono::milliseconds> duration_or_none() {
  return [read = duration()](std::string_view text) -> std::expected<std::chrono::milliseconds, std::string> {
    if (text == "none") return std::chrono::milliseconds(0);
    return read(text).transform_error([](const std::string& expected) { return "none, or " + expected; });
  };
}

Reader<std::string> one_of(std::initializer_list<std::string_view> words) {
  return [allowed = std::vector<std::string>(words.begin(), words.end())](
             std::string_view text) -> std::expected<std::string, std::string> {
    std::string expected;
    for (const std::string& word : allowed) {
      if (word == text) return word;
      expected += (expected.empty() ? "" : " or ") + word;
    }
    return std::unexpected(expected);
  };
}

Reader<std::string> path() {
  return [](std::string_view text) -> std::expected<std::string, std::string> {
    if (text.empty() || text.find('\0') != std::string_view::npos) return std::unexpected("a path");
    return std::string(text);
  };
}

Reader<std::string> database_address() {
  return [](std::string_view text) -> std::expected<std::string, std::string> {
    if (!text.starts_with("postgresql://") && !text.starts_with("postgres://")) {
      return std::unexpected("the address of a PostgreSQL database, such as postgresql://uma@db.example/uma");
    }
    return std::string(text);
  };
}

Reader<std::string> shared_store() {
  return [](std::string_view text) -> std::expected<std::string, std::string> {
    // One with a password is refused later, where it is not shown.
    if (text.starts_with('/') || kv::has_redis_password(text)) return std::string(text);
    if (!kv::is_redis_address(text)) {
      return std::unexpected("the path of a folder, from /, or the address of a Redis or Valkey server, redis://HOST");
    }
    const auto address = kv::parse_redis_address(text);
    if (!address) return std::unexpected(address.error());
    if (address->is_encrypted && !kv::redis_has_tls()) {
      return std::unexpected(
          "an address without TLS, because this umad was built with libhiredis before version 1, which has no TLS: build it "
          "with a later one, or use redis:// to a TLS tunnel on this machine");
    }
    return std::string(text);
  };
}

Reader<std::string> node_name() {
  return [](std::string_view text) -> std::expected<std::string, std::string> {
    constexpr std::size_t kBytesMax = 64;
    const auto is_allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    };
    if (text.empty() || text.size() > kBytesMax || !std::ranges::all_of(text, is_allowed)) {
      return std::unexpected("a name of at most 64 letters, digits, '-', '_' and '.'");
    }
    return std::string(text);
  };
}

Reader<std::vector<std::string>> paths() {
  return [read = path()](std::string_view text) -> std::expected<std::vector<std::string>, std::string> {
    std::vector<std::string> list;
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line);) {
      auto one = read(line);
      if (!one) return std::unexpected("paths");
      list.push_back(*std::move(one));
    }
    return list;
  };
}

Reader<std::string> socket_path() {
  return [read = path()](std::string_view text) -> std::expected<std::string, std::string> {
    constexpr std::size_t kBytesMax = sizeof(sockaddr_un::sun_path) - 1;
    if (text.size() > kBytesMax)
      return std::unexpected(std::format("a path of at most {} bytes, a Unix socket's limit", kBytesMax));
    return read(text);
  };
}

Reader<HttpAddress> http_address() {
  return [](std::string_view text) -> std::expected<HttpAddress, std::string> {
    if (text == "off") return HttpAddress{};
    constexpr std::string_view kExpected = "off, or a numeric address and a port, such as 127.0.0.1:8642";
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return std::unexpected(std::string(kExpected));
    const std::expected<std::int64_t, std::string> port = integer(0, 65'535)(text.substr(colon + 1));
    std::string address(text.substr(0, colon));
    if (address == "localhost") address = "127.0.0.1";
    in_addr v4{};
    in6_addr v6{};
    const bool is_bracketed = address.starts_with('[') && address.ends_with(']');
    if (is_bracketed) address = address.substr(1, address.size() - 2);
    const bool is_address =
        is_bracketed ? ::inet_pton(AF_INET6, address.c_str(), &v6) == 1 : ::inet_pton(AF_INET, address.c_str(), &v4) == 1;
    if (!port || !is_address) return std::unexpected(std::string(kExpected));
    return HttpAddress{.address = std::move(address), .port = static_cast<std::uint16_t>(*port)};
  };
}

Reader<HttpAddress> ollama_address() {
  return [read = http_address()](std::string_view text) -> std::expected<HttpAddress, std::string> {
    if (text == "on") return HttpAddress{.address = "127.0.0.1", .port = 11'434};
    auto address = read(text);
    if (!address) return std::unexpected("on, off, or a numeric address and a port, such as 127.0.0.1:11434");
    return address;
  };
}

bool is_loopback(const HttpAddress& address) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET6, address.address.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return ::inet_pton(AF_INET, address.address.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

Reader<std::vector<std::string>> origins() {
  return [](std::string_view text) -> std::expected<std::vector<std::string>, std::string> {
    std::vector<std::string> list;
    std::istringstream words{std::string(text)};
    for (std::string origin; words >> origin;) {
      if (!server::is_origin(origin)) return std::unexpected("origins such as https://chat.example, without a path");
      list.push_back(std::move(origin));
    }
    return list;
  };
}

Reader<std::vector<std::string>> hosts() {
  return [](std::string_view text) -> std::expected<std::vector<std::string>, std::string> {
    std::vector<std::string> list;
    std::istringstream words{std::string(text)};
    for (std::string host; words >> host;) {
      const auto url = fetch::parse_image_url("http://" + host + "/");
      // The host is written with its port, and nothing else surrounds the two.
      const bool has_port = url && std::ranges::equal(url->authority(), host, [](char a, char b) {
                              return a == b || (b >= 'A' && b <= 'Z' && a == b - 'A' + 'a');
                            });
      if (!has_port) return std::unexpected("hosts with their ports, such as images.local:8080 or [::1]:80");
      list.push_back(url->authority());
    }
    return list;
  };
}

Reader<std::vector<std::string>> host_names() {
  return [](std::string_view text) -> std::expected<std::vector<std::string>, std::string> {
    std::vector<std::string> list;
    std::istringstream words{std::string(text)};
    for (std::string host; words >> host;) {
      const bool is_name = std::ranges::all_of(host, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
      });
      if (!is_name) return std::unexpected("names of hosts without ports, such as host.docker.internal");
      list.push_back(std::move(host));
    }
    return list;
  };
}

Reader<std::vector<std::string>> folders() {
  return [](std::string_view text) -> std::expected<std::vector<std::string>, std::string> {
    std::vector<std::string> list;
    std::istringstream words{std::string(text)};
    for (std::string folder; words >> folder;) {
      if (!folder.starts_with('/')) return std::unexpected("absolute paths of folders, without blanks");
      list.push_back(std::move(folder));
    }
    return list;
  };
}

std::string show_value(std::string_view value) {
  return std::string(value);
}

std::string show_value(double value) {
  return std::format("{}", value);
}

std::string show_value(const HttpAddress& value) {
  if (value.address.empty()) return "off";
  const bool is_v6 = value.address.contains(':');
  return std::format("{}{}{}:{}", is_v6 ? "[" : "", value.address, is_v6 ? "]" : "", value.port);
}

std::string show_value(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += std::format("{}{}", text.empty() ? "" : "\n", value);
  return text;
}

std::string show_value(std::chrono::milliseconds value) {
  constexpr std::pair<std::int64_t, std::string_view> kUnits[] = {
      {86'400'000, "d"}, {3'600'000, "h"}, {60'000, "m"}, {1000, "s"}};
  for (const auto& [factor, unit] : kUnits) {
    if (value.count() != 0 && value.count() % factor == 0) return std::format("{}{}", value.count() / factor, unit);
  }
  return std::format("{}ms", value.count());
}

std::string show_bytes(std::int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{40, 'T'}, {30, 'G'}, {20, 'M'}, {10, 'K'}}) {
    if (bytes != 0 && bytes % (std::int64_t{1} << shift) == 0) return std::format("{}{}", bytes >> shift, unit);
  }
  return std::to_string(bytes);
}

std::string show_duration_or_none(std::chrono::milliseconds value) {
  return value.count() == 0 ? std::string("none") : show_value(value);
}

}  // namespace uma::umad
