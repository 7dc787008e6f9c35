#include "grammar/json_schema_formats.h"

#include <array>
#include <format>
#include <map>
#include <string>

namespace uma::grammar {
namespace {

using Formats = std::map<std::string, std::string, std::less<>>;

std::string uuid(std::string_view version, std::string_view variant) {
  return std::format("^[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{}[0-9a-fA-F]{{3}}-{}[0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}$", version,
                     variant);
}

// Texts of base64 whose bytes are ASCII: readers decode them to texts.
std::string base64(std::string_view last_characters) {
  constexpr std::string_view kSecond = "[A-HQ-Xg-nw-z0-3]";
  constexpr std::string_view kThird = "[ABEFIJMNQRUVYZcdghklopstwx014589]";
  return std::format("^(?:[A-Za-f]{0}{1}[A-Za-z0-9{2}])*(?:[A-Za-f]{0}[AEIMQUYcgkosw048]=|[A-Za-f][AQgw]==)?$", kSecond, kThird,
                     last_characters);
}

Formats all_formats() {
  // The 29th of February in leap years.
  const std::string date =
      "(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29|"
      "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
      "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))";
  const std::string clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?";
  const std::string zone = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string ipv4 = std::format("(?:{0}\\.){{3}}{0}", byte);
  const std::string four = "[0-9a-fA-F]{1,4}";
  const std::string ipv6 = std::format(
      "(?:(?:{0}:){{7}}{0}|(?:{0}:){{1,7}}:|(?:{0}:){{1,6}}:{0}|(?:{0}:){{1,5}}(?::{0}){{1,2}}|(?:{0}:){{1,4}}(?::{0}){{1,3}}|"
      "(?:{0}:){{1,3}}(?::{0}){{1,4}}|(?:{0}:){{1,2}}(?::{0}){{1,5}}|{0}:(?::{0}){{1,6}}|:(?:(?::{0}){{1,7}}|:))",
      four);
  // Names have a last part that is no number, and no two hyphens in a row, which stand for other alphabets.
  const std::string label = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,16}){0,2}";
  const std::string host = std::format("(?:{}\\.){{0,3}}[A-Za-z][A-Za-z0-9]{{0,20}}", label);
  const std::string domain = std::format("(?:{}\\.){{1,3}}[A-Za-z]{{2,6}}", label);
  const std::string mailbox = "[A-Za-z0-9]{1,24}(?:[._+-][A-Za-z0-9]{1,16}){0,2}";
  const std::string digits = "[0-9]{1,4}";
  Formats formats{
      {"date", "^" + date + "$"},
      {"time", "^" + clock + zone + "$"},
      {"date-time", "^" + date + "T" + clock + zone + "$"},
      // Years, months and days, then hours, minutes and seconds; each as far as the one before is there. Or weeks.
      {"duration",
       std::format("^P(?:{0}W|(?:{0}Y(?:{0}M(?:{0}D)?)?|{0}M(?:{0}D)?|{0}D)(?:T(?:{0}H(?:{0}M(?:{0}S)?)?|{0}M(?:{0}S)?|{0}"
                   "S))?|T(?:{0}H(?:{0}M(?:{0}S)?)?|{0}M(?:{0}S)?|{0}S))$",
                   digits)},
      {"ipv4", "^" + ipv4 + "$"},
      {"ipv6", "^" + ipv6 + "$"},
      {"ipvanyaddress", std::format("^(?:{}|{})$", ipv4, ipv6)},
      {"hostname", "^" + host + "$"},
      {"email", std::format("^{}@{}$", mailbox, domain)},
      {"uri",
       std::format("^https?://{}(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~-]{{0,60}}){{0,8}}(?:\\?[A-Za-z0-9._~=&+-]{{0,120}})?"
                   "(?:#[A-Za-z0-9._~-]{{0,60}})?$",
                   domain)},
      {"regex", "^[A-Za-z0-9_ -]*$"},
      {"json-pointer", "^(?:/[A-Za-z0-9._-]*)*$"},
      {"uuid", uuid("[0-9a-fA-F]", "[0-9a-fA-F]")},
      {"base64", base64("+/")},
      {"base64url", base64("_-")},
      {"jwt",
       "^eyJ(?:hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9|hbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9|hbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9)"
       "\\.[A-Za-z0-9_-]{4,}\\.[A-Za-z0-9_-]{4,}$"},
      {"name-email", std::format("^[A-Za-z][a-z]{{0,20}}(?: [A-Za-z][a-z]{{0,20}}){{0,3}} <{}@{}>$", mailbox, domain)},
  };
  for (const char version : std::string_view("1345678"))
    formats.emplace(std::format("uuid{}", version), uuid(std::string(1, version), "[89abAB]"));
  // Networks of all addresses of the block, so that no bit of the host is set.
  for (const std::string_view kind : {"network", "interface"}) {
    const std::string net4 = std::format("{}\\.{}\\.0\\.0/(?:1[6-9]|2[0-9]|3[0-2])", byte, byte);
    const std::string net6 = "[0-9a-f]{1,4}:[0-9a-f]{1,4}::/(?:3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-8])";
    formats.emplace(std::format("ipv4{}", kind), "^" + net4 + "$");
    formats.emplace(std::format("ipv6{}", kind), "^" + net6 + "$");
    formats.emplace(std::format("ipvany{}", kind), std::format("^(?:{}|{})$", net4, net6));
  }
  return formats;
}

// Shorter automata, where something else bounds the text.
Formats unbounded_formats() {
  const std::string domain = "(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\\.)+[A-Za-z]{2,6}";
  return {
      {"hostname", "^[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*$"},
      {"email", std::format("^[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*@{}$", domain)},
      {"uri", std::format("^https?://{}(?:/[A-Za-z0-9._~-]*)*(?:\\?[A-Za-z0-9._~=&+-]*)?$", domain)},
  };
}

}  // namespace

std::string_view format_pattern(std::string_view format, bool is_bounded) {
  static const Formats all = all_formats();
  static const Formats unbounded = unbounded_formats();
  if (is_bounded) {
    if (const auto found = unbounded.find(format); found != unbounded.end()) return found->second;
  }
  const auto found = all.find(format);
  return found == all.end() ? std::string_view() : std::string_view(found->second);
}

bool is_local_format(std::string_view format) {
  return format == "file-path" || format == "directory-path";
}

}  // namespace uma::grammar
