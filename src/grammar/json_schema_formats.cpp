#include "grammar/json_schema_formats.h"

#include <algorithm>
#include <array>
#include <format>
#include <map>
#include <string>
#include <vector>

namespace uma::grammar {
namespace {

using Formats = std::map<std::string, std::string, std::less<>>;

// Letters that readers take in the names of hosts, for character classes.
constexpr std::string_view kLatin = "\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u00ff";
constexpr std::string_view kOthers = "\\u0410-\\u044f\\u3041-\\u3096\\u30a1-\\u30fa\\u4e00-\\u9fff\\uac00-\\ud7a3";

std::string any_of(const std::vector<std::string>& alternatives) {
  std::string all;
  for (const std::string& one : alternatives) all += (all.empty() ? "(?:" : "|") + one;
  return all + ")";
}

std::string uuid(std::string_view version, std::string_view variant) {
  return std::format("^[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{}[0-9a-fA-F]{{3}}-{}[0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}$", version,
                     variant);
}

// `padding`: "?" where it may be left out.
std::string base64(std::string_view last_characters, std::string_view padding) {
  const std::string one = std::format("[A-Za-z0-9{}]", last_characters);
  return std::format("^(?:{0}{{4}})*(?:{0}{{2}}(?:==){1}|{0}{{3}}={1})?$", one, padding);
}

// --- durations

// Units with whole numbers, the last of which may have a fraction. The numbers are below 2^32 and their sum below 10^9 days,
// which readers compute with.
std::string duration() {
  const auto unit = [](int digits, char name, bool has_fraction) {
    return std::format("[0-9]{{1,{}}}{}{}", digits, has_fraction ? "(?:[.,][0-9]{1,9})?" : "", name);
  };
  const std::string years = unit(6, 'Y', false);
  const std::string months = unit(6, 'M', false);
  const std::string days = unit(8, 'D', false);
  const std::string hours = unit(9, 'H', false);
  const std::string minutes = unit(9, 'M', false);
  const std::string date = std::format("(?:{0}(?:{1})?(?:{2})?|{1}(?:{2})?|{2})", years, months, days);
  const std::string date_at_end = std::format("(?:(?:{0})?(?:{1})?{2}|(?:{0})?{3}|{4})", years, months, unit(8, 'D', true),
                                              unit(6, 'M', true), unit(6, 'Y', true));
  const std::string time = std::format("T(?:(?:{0})?(?:{1})?{2}|(?:{0})?{3}|{4})", hours, minutes, unit(9, 'S', true),
                                       unit(9, 'M', true), unit(9, 'H', true));
  return std::format("^P(?:{}|{}|(?:{})?{})$", unit(6, 'W', true), date_at_end, date, time);
}

// --- addresses

constexpr std::string_view kGroup = "[0-9a-fA-F]{1,4}";  // Group of an IPv6 address.

std::string byte() {
  return "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
}

std::string ipv4() {
  return std::format("(?:{0}\\.){{3}}{0}", byte());
}

std::string ipv6() {
  return std::format(
      "(?:(?:{0}:){{7}}{0}|(?:{0}:){{1,7}}:|(?:{0}:){{1,6}}:{0}|(?:{0}:){{1,5}}(?::{0}){{1,2}}|(?:{0}:){{1,4}}(?::{0}){{1,3}}|"
      "(?:{0}:){{1,3}}(?::{0}){{1,4}}|(?:{0}:){{1,2}}(?::{0}){{1,5}}|{0}:(?::{0}){{1,6}}|:(?:(?::{0}){{1,7}}|:)|"
      "(?:{0}:){{6}}{1}|::(?:{0}:){{0,5}}{1}|{0}::(?:{0}:){{0,4}}{1}|(?:{0}:){{2}}:(?:{0}:){{0,3}}{1}|"
      "(?:{0}:){{3}}:(?:{0}:){{0,2}}{1}|(?:{0}:){{4}}:(?:{0}:)?{1}|(?:{0}:){{5}}:{1})",
      kGroup, ipv4());
}

// A network has no bit behind its prefix. Without a length it is one address.
std::string network4() {
  std::vector<std::string> all{ipv4() + "(?:/32)?"};
  for (int bytes = 0; bytes < 4; ++bytes) {
    std::vector<std::string> ends;
    for (int bits = 0; bits < 8; ++bits) {
      std::vector<std::string> values;  // The values of the byte in which the prefix ends.
      for (int value = 0; value < 256; value += 1 << (8 - bits)) values.push_back(std::to_string(value));
      ends.push_back(std::format("{}(?:\\.0){{{}}}/{}", any_of(values), 3 - bytes, 8 * bytes + bits));
    }
    all.push_back(std::format("(?:{}\\.){{{}}}{}", byte(), bytes, any_of(ends)));
  }
  return any_of(all);
}

// A network of IPv6, with the zeros behind the prefix as "::".
std::string network6() {
  std::vector<std::string> all{ipv6() + "(?:/128)?"};
  for (int groups = 0; groups < 8; ++groups) {
    std::vector<std::string> lengths;
    for (int bits = 16 * groups; bits < 128; ++bits) lengths.push_back(std::to_string(bits));
    std::vector<std::string> ends{std::format("{}/{}", groups == 0 ? "::" : ":", any_of(lengths))};
    // The prefix may end in a group, whose last digits are zeros.
    constexpr std::array<std::string_view, 4> kDigits = {"", "[08]", "[048cC]", "[02468aAcCeE]"};
    for (int bits = 1; bits < 16; ++bits) {
      const int digits = bits / 4;
      const auto rest = static_cast<std::size_t>(bits % 4);
      const int zeros = (rest == 0 ? 4 : 3) - digits;
      ends.push_back(std::format("[0-9a-fA-F]{{0,{}}}{}0{{{}}}{}/{}", digits, kDigits[rest], zeros,
                                 groups == 7 ? "" : "::", 16 * groups + bits));
    }
    all.push_back(std::format("(?:{}:){{{}}}{}", kGroup, groups, any_of(ends)));
  }
  return any_of(all);
}

// --- hosts, mailboxes, URIs

// `is_short`: without the limits of lengths, as a small automaton.
std::string hostname(bool is_short) {
  const std::string label = is_short ? "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*" : "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return std::format("{0}(?:\\.{0})*", label);
}

// Lengths of the parts of an address, which readers take up to 254 characters together.
struct MailboxLimits {
  int name = 60;        // Without dots.
  int label = 63;       // Length of each of the last two labels before the top.
  int more_labels = 4;  // Shorter ones.
};

// A domain with a dot, which readers ask for.
std::string mailbox(const MailboxLimits& limits) {
  const auto label = [](std::string_view others, int max) {
    return std::format("[A-Za-z0-9{0}](?:[A-Za-z0-9{0}-]{{0,{1}}}[A-Za-z0-9{0}])?", others, max - 2);
  };
  // Letters beyond ASCII take several of a label's 63 characters.
  const std::string last = std::format("(?:{0}|{1}|[0-9{2}](?:[0-9{2}-]{{0,10}}[0-9{2}])?)", label("", limits.label),
                                       label(kLatin, limits.label * 3 / 5), kOthers);
  return std::format(
      "[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-](?:\\.?[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]){{0,{}}}@(?:{}\\.){{0,{}}}(?:{}\\.){{1,2}}"
      "(?:[A-Za-z]{{2,24}}|[{}]{{2,8}}|xn--[A-Za-z0-9-]{{1,40}}[A-Za-z0-9])",
      limits.name - 1, label(kLatin, 20), limits.more_labels, last, kOthers);
}

// The pattern of mailbox() without its limits, which has a small automaton.
std::string short_mailbox() {
  const std::string letter = std::format("[A-Za-z0-9{}{}]", kLatin, kOthers);
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return std::format("{0}(?:\\.{0})*@(?:{1}+(?:-+{1}+)*\\.)+[A-Za-z{2}{3}](?:-*{1})+", atom, letter, kLatin, kOthers);
}

// URIs of http have a host. Those of other schemes may go on with anything.
std::string uri(bool is_short) {
  const std::string others = "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}";
  const std::string rest = std::format("[!#-;=?-\\[\\]_a-z~{}]*", others);
  const auto limit = [&](int max) { return is_short ? std::string("+") : std::format("{{1,{}}}", max); };
  const std::string authority = std::format(
      "[Hh][Tt]{{2}}[Pp][Ss]?://(?:[A-Za-z0-9._~%!$&'()*+,;=:-]{}@)?(?:[A-Za-z0-9._~%{}-]{}|\\[{}\\])(?::[0-9]{{1,5}})?",
      limit(100), others, limit(253), is_short ? "[0-9a-fA-F:.]+" : ipv6());
  const std::string more = is_short ? "[A-Za-z0-9+.-]*" : "[A-Za-z0-9+.-]{0,40}";
  const std::string scheme = std::format(
      "(?:[A-GI-Za-gi-z]{0}|[Hh](?:[A-SU-Za-su-z0-9+.-]{0})?|[Hh][Tt](?:[A-SU-Za-su-z0-9+.-]{0})?|"
      "[Hh][Tt]{{2}}(?:[A-OQ-Za-oq-z0-9+.-]{0})?|[Hh][Tt]{{2}}[Pp](?:[A-RT-Za-rt-z0-9+.-]|[Ss][A-Za-z0-9+.-]){0})",
      more);
  return std::format("^{0}$|^{0}[/?#]{2}$|^{1}:{2}$", authority, scheme, rest);
}

Formats all_formats() {
  // The 29th of February in leap years.
  const std::string date =
      "(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29|"
      "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
      "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))";
  // Readers take no leap seconds.
  const std::string clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,20})?";
  const std::string zone = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  const std::string length4 = "(?:/(?:[12]?[0-9]|3[0-2]))?";
  const std::string length6 = "(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?";
  // Names as pydantic reads them: words, or any text in quotes.
  const std::string word = std::format("[A-Za-z0-9_!#$%&'*+/=?^`{{|}}~{}{}-]{{1,40}}", kLatin, kOthers);
  Formats formats{
      {"date", "^" + date + "$"},
      {"time", "^" + clock + zone + "$"},
      {"date-time", "^" + date + "T" + clock + zone + "$"},
      {"duration", duration()},
      {"ipv4", "^" + ipv4() + "$"},
      {"ipv6", "^" + ipv6() + "$"},
      {"ipvanyaddress", std::format("^(?:{}|{})$", ipv4(), ipv6())},
      {"ipv4network", "^" + network4() + "$"},
      {"ipv6network", "^" + network6() + "$"},
      {"ipvanynetwork", std::format("^(?:{}|{})$", network4(), network6())},
      {"ipv4interface", std::format("^{}{}$", ipv4(), length4)},
      {"ipv6interface", std::format("^{}{}$", ipv6(), length6)},
      {"ipvanyinterface", std::format("^(?:{}{}|{}{})$", ipv4(), length4, ipv6(), length6)},
      {"hostname", "^" + hostname(false) + "$"},
      {"email", "^" + mailbox({}) + "$"},
      {"name-email", std::format("^(?:(?:{0}(?: {0}){{0,7}}|\"[^\"\\\\\\x00-\\x1f]{{1,80}}\") )?<{1}>$|^{1}$", word,
                                 mailbox({.name = 48, .label = 30, .more_labels = 2}))},
      {"uri", uri(false)},
      {"json-pointer", "^(?:/(?:[^/~]|~[01])*)*$"},
      {"uuid", uuid("[0-9a-fA-F]", "[0-9a-fA-F]")},
      {"base64", base64("+/", "")},
      {"base64url", base64("_-", "?")},
      {"jwt", "^[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]*$"},
  };
  for (const char version : std::string_view("12345678"))
    formats.emplace(std::format("uuid{}", version), uuid(std::string(1, version), "[89abAB]"));
  return formats;
}

// Shorter automata, where something else bounds the text.
Formats short_formats() {
  return {
      {"hostname", "^" + hostname(true) + "$"},
      {"email", "^" + short_mailbox() + "$"},
      {"uri", uri(true)},
  };
}

}  // namespace

std::string_view format_pattern(std::string_view format, bool is_bounded) {
  static const Formats all = all_formats();
  static const Formats bounded = short_formats();
  if (is_bounded) {
    if (const auto found = bounded.find(format); found != bounded.end()) return found->second;
  }
  const auto found = all.find(format);
  return found == all.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<std::int64_t> format_length_max(std::string_view format) {
  if (format == "email") return 254;
  if (format == "hostname") return 253;
  return std::nullopt;
}

bool is_local_format(std::string_view format) {
  return format == "file-path" || format == "directory-path";
}

}  // namespace uma::grammar
