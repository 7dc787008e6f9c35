#include "uma-cli/models/url.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <curl/curl.h>
#include <format>
#include <memory>

#include "base/text.h"
#include "uma-cli/printable.h"

namespace uma::cli {
namespace {

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

std::string part_of(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  std::string copy = text;
  curl_free(text);
  return copy;
}

}  // namespace

Result<Url> parse_url(const std::string& text) {
  const std::unique_ptr<CURLU, FreeUrl> url(curl_url());
  const auto refuse = [&](std::string_view why) { return fail(ExitCode::usage, std::format("{} {}", shown_url(text), why)); };
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_DISALLOW_USER);
  if (code == CURLUE_USER_NOT_ALLOWED) return refuse("contains a user name: give a URL without one");
  const std::string scheme = lower_ascii(part_of(url.get(), CURLUPART_SCHEME));
  if (code == CURLUE_UNSUPPORTED_SCHEME || (code == CURLUE_OK && scheme != "http" && scheme != "https"))
    return refuse("is not an http or https URL");
  if (code != CURLUE_OK) return refuse("is not a valid URL");
  curl_url_set(url.get(), CURLUPART_FRAGMENT, nullptr, 0);
  Url result;
  result.text = part_of(url.get(), CURLUPART_URL);
  result.host = lower_ascii(part_of(url.get(), CURLUPART_HOST));
  result.path = part_of(url.get(), CURLUPART_PATH);
  result.origin = std::format("{}://{}:{}", scheme, result.host, part_of(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT));
  return result;
}

std::string shown_url(std::string_view text) {
  text = text.substr(0, text.find_first_of("?#"));
  const std::size_t scheme = text.find("://");
  const std::size_t host = scheme == std::string_view::npos ? 0 : scheme + 3;
  const std::size_t user_end = text.substr(0, text.find('/', host)).rfind('@');
  if (user_end == std::string_view::npos || user_end < host) return printable_line(text);
  return printable_line(std::format("{}{}", text.substr(0, host), text.substr(user_end + 1)));
}

bool may_follow(const Url& from, const Url& to) {
  return to.is_https() || !from.is_https();
}

std::string percent_encoded(std::string_view text, std::string_view kept) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    const bool is_plain = byte < 0x80 && (std::isalnum(byte) != 0 || std::string_view("-._~").contains(c) || kept.contains(c));
    out += is_plain ? std::string(1, c) : std::format("%{:02X}", byte);
  }
  return out;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out += text[at];
      continue;
    }
    const std::string_view digits = text.substr(at + 1, 2);
    std::uint8_t byte = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || problem != std::errc() || end != digits.data() + 2) return std::nullopt;
    out += static_cast<char>(byte);
    at += 2;
  }
  return out;
}

}  // namespace uma::cli
