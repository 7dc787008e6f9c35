#include "llm/device/rpc_address.h"

#include <algorithm>
#include <charconv>
#include <format>

namespace uma::llm {
namespace {

bool is_in_host(char letter) {
  const bool is_word = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
  return is_word || letter == '.' || letter == '-' || letter == '_';
}

template <class Number>
std::optional<Number> number_of(std::string_view digits) {
  Number number = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (problem != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

bool is_in_ipv6(char letter) {
  return is_in_host(letter) || letter == ':' || letter == '%';
}

}  // namespace

std::string RpcAddress::text() const {
  return host.contains(':') ? std::format("[{}]:{}", host, port) : std::format("{}:{}", host, port);
}

std::optional<RpcName> rpc_name_of(std::string_view name) {
  if (!is_rpc_name(name)) return std::nullopt;
  name.remove_prefix(kRpcPrefix.size());
  std::optional<std::uint32_t> device;
  if (const std::size_t mark = name.find('#'); mark != std::string_view::npos) {
    device = number_of<std::uint32_t>(name.substr(mark + 1));
    if (!device) return std::nullopt;
    name = name.substr(0, mark);
  }
  const std::size_t colon = name.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = name.substr(0, colon);
  const auto port = number_of<std::uint16_t>(name.substr(colon + 1));
  if (!port || *port == 0) return std::nullopt;
  const bool has_brackets = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  if (has_brackets) host = host.substr(1, host.size() - 2);
  if (host.empty() || !std::ranges::all_of(host, has_brackets ? is_in_ipv6 : is_in_host)) return std::nullopt;
  return RpcName{.address = {.host = std::string(host), .port = *port}, .device = device};
}

}  // namespace uma::llm
