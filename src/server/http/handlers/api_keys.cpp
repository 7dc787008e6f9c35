#include "server/http/handlers/api_keys.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <format>
#include <fstream>
#include <optional>
#include <sstream>
#include <sys/stat.h>

#include "base/random.h"

namespace uma::server {
namespace {

constexpr std::size_t kNameBytesMax = 64;
constexpr std::size_t kTenantBytesMax = 128;
constexpr std::int64_t kCountMax = 1'000'000'000;
constexpr std::string_view kDigestPrefix = "sha256:";

bool is_plain(std::string_view text, std::size_t bytes_max) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::string_view("._-:@").contains(c);
  };
  return !text.empty() && text.size() <= bytes_max && std::ranges::all_of(text, is_allowed);
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < 0 || value > kCountMax) return std::nullopt;
  return value;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlank = " \t\r";
  std::size_t begin = line.find_first_not_of(kBlank);
  while (begin != std::string_view::npos) {
    const std::size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlank, end);
  }
  return words;
}

// Reads one option of a line into `key`. Returns what is wrong with it, or nullopt.
std::optional<std::string> read_option(ApiKey& key, std::string_view word) {
  const std::size_t equals = std::min(word.find('='), word.size());
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = word.substr(std::min(equals + 1, word.size()));
  if (name == "tenant") {
    if (!is_plain(value, kTenantBytesMax)) return "tenant= needs a name of letters, digits and ._-:@";
    key.tenant.value = value;
    return std::nullopt;
  }
  if (name == "deadline_ms") {
    const auto limit = parse_count(value);
    if (!limit) return std::format("deadline_ms= needs a whole number up to {}", kCountMax);
    key.deadline_ms = *limit;
    return std::nullopt;
  }
  if (name == "admin") {
    if (value != "true" && value != "false") return "admin= needs true or false";
    key.is_admin = value == "true";
    return std::nullopt;
  }
  if (name != "requests_per_minute" && name != "tokens_per_minute") {
    return std::format(
        "unknown option \"{}\": expected tenant=, requests_per_minute=, tokens_per_minute=, deadline_ms= or admin=",
        name.substr(0, 40));
  }
  const auto count = parse_count(value);
  if (!count) return std::format("{}= needs a whole number up to {}", name, kCountMax);
  (name == "tokens_per_minute" ? key.tokens_per_minute : key.requests_per_minute) = *count;
  return std::nullopt;
}

// The options that differ from the defaults, each with a blank before it.
std::string options_text(const ApiKey& key) {
  std::string text;
  if (!key.tenant.value.empty()) text += std::format(" tenant={}", key.tenant.value);
  if (key.requests_per_minute != 0) text += std::format(" requests_per_minute={}", key.requests_per_minute);
  if (key.tokens_per_minute != 0) text += std::format(" tokens_per_minute={}", key.tokens_per_minute);
  if (key.deadline_ms) text += std::format(" deadline_ms={}", *key.deadline_ms);
  if (key.is_admin) text += " admin=true";
  return text;
}

std::expected<ApiKey, std::string> parse_line(const std::vector<std::string_view>& words) {
  ApiKey key;
  if (!is_plain(words.front(), kNameBytesMax)) return std::unexpected("a name has 1 to 64 letters, digits and ._-:@");
  key.name = words.front();
  key.tenant.value = "key:" + key.name;
  const std::string_view digest = words.size() > 1 ? words[1] : "";
  const auto parsed = digest.starts_with(kDigestPrefix) ? parse_sha256_hex(digest.substr(kDigestPrefix.size())) : std::nullopt;
  if (!parsed)
    return std::unexpected("expected sha256: and 64 hexadecimal digits after the name (umad key new NAME prints the line)");
  key.digest = *parsed;
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (auto problem = read_option(key, words[i])) return std::unexpected(std::move(*problem));
  }
  return key;
}

}  // namespace

Expected<std::vector<ApiKey>> parse_api_keys(std::string_view text) {
  std::vector<ApiKey> keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty()) continue;
    const auto bad = [&](std::string_view what) {
      return fail(ErrorCode::proto_field, std::format("line {}: {}", number, what));
    };
    auto key = parse_line(words);
    if (!key) return bad(key.error());
    if (std::ranges::contains(keys, key->name, &ApiKey::name)) return bad("the name appears twice: choose another name");
    if (std::ranges::contains(keys, key->digest, &ApiKey::digest)) return bad("the key appears twice: remove one of the lines");
    keys.push_back(*std::move(key));
  }
  return keys;
}

Expected<std::vector<ApiKey>> read_api_keys(const std::string& path) {
  constexpr std::int64_t kBytesMax = 16 << 20;
  struct stat facts{};
  const auto bad = [&](std::string_view what) { return fail(ErrorCode::proto_field, std::format("{}: {}", path, what)); };
  if (::stat(path.c_str(), &facts) != 0) return bad(std::strerror(errno));
  if (!S_ISREG(facts.st_mode) || facts.st_size > kBytesMax) return bad("not a regular file, or too large for a keys file");
  const std::ifstream file(path, std::ios::binary);
  if (!file) return bad(std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return bad("cannot be read");
  auto keys = parse_api_keys(text.str());
  if (!keys) return bad(keys.error().message);
  // An empty file must not open a daemon that was meant to be locked.
  if (keys->empty()) return bad("the file has no keys (umad key new NAME makes one)");
  return keys;
}

Expected<NewKey> make_api_key(const std::string& name, const ApiKey& options) {
  if (!is_plain(name, kNameBytesMax)) {
    return std::unexpected(Error{ErrorCode::proto_field, "a name has 1 to 64 letters, digits and ._-:@", "name"});
  }
  // The line is read again at the next start: no option may begin another word.
  if (!options.tenant.value.empty() && !is_plain(options.tenant.value, kTenantBytesMax)) {
    return std::unexpected(Error{ErrorCode::proto_field, "a tenant has 1 to 128 letters, digits and ._-:@", "tenant"});
  }
  std::array<unsigned char, 32> chance{};
  if (!fill_secure(chance)) {
    return fail(ErrorCode::io_failed, "the system's random number generator failed");
  }
  NewKey made{.key = "uma-", .line = {}};
  for (const unsigned char byte : chance) made.key += std::format("{:02x}", byte);
  Sha256 sum;
  sum.add(made.key);
  made.line = std::format("{} {}{}{}", name, kDigestPrefix, sum.hex(), options_text(options));
  return made;
}

std::string without_api_key(std::string_view text, std::string_view name) {
  std::string left;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    text.remove_prefix(line.size());
    const std::vector<std::string_view> words = words_of(line.substr(0, line.find_first_of("#\n")));
    if (words.empty() || words.front() != name) left += line;
  }
  return left;
}

}  // namespace uma::server
