#include "grammar/character_set.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <utf8proc.h>
#include <utility>

namespace uma::grammar {
namespace {

// The short and the long names of general categories; utf8proc's numbers are the indices.
constexpr std::array<std::array<std::string_view, 2>, 30> kCategories = {{{"Cn", "Unassigned"},
                                                                          {"Lu", "Uppercase_Letter"},
                                                                          {"Ll", "Lowercase_Letter"},
                                                                          {"Lt", "Titlecase_Letter"},
                                                                          {"Lm", "Modifier_Letter"},
                                                                          {"Lo", "Other_Letter"},
                                                                          {"Mn", "Nonspacing_Mark"},
                                                                          {"Mc", "Spacing_Mark"},
                                                                          {"Me", "Enclosing_Mark"},
                                                                          {"Nd", "Decimal_Number"},
                                                                          {"Nl", "Letter_Number"},
                                                                          {"No", "Other_Number"},
                                                                          {"Pc", "Connector_Punctuation"},
                                                                          {"Pd", "Dash_Punctuation"},
                                                                          {"Ps", "Open_Punctuation"},
                                                                          {"Pe", "Close_Punctuation"},
                                                                          {"Pi", "Initial_Punctuation"},
                                                                          {"Pf", "Final_Punctuation"},
                                                                          {"Po", "Other_Punctuation"},
                                                                          {"Sm", "Math_Symbol"},
                                                                          {"Sc", "Currency_Symbol"},
                                                                          {"Sk", "Modifier_Symbol"},
                                                                          {"So", "Other_Symbol"},
                                                                          {"Zs", "Space_Separator"},
                                                                          {"Zl", "Line_Separator"},
                                                                          {"Zp", "Paragraph_Separator"},
                                                                          {"Cc", "Control"},
                                                                          {"Cf", "Format"},
                                                                          {"Cs", "Surrogate"},
                                                                          {"Co", "Private_Use"}}};
constexpr std::array<std::array<std::string_view, 2>, 7> kMajorCategories = {{{"L", "Letter"},
                                                                              {"M", "Mark"},
                                                                              {"N", "Number"},
                                                                              {"P", "Punctuation"},
                                                                              {"S", "Symbol"},
                                                                              {"Z", "Separator"},
                                                                              {"C", "Other"}}};

void extend(CharacterSet& set, std::uint32_t code_point) {
  if (!set.empty() && set.back().high + 1 == code_point) {
    set.back().high = code_point;
  } else {
    set.push_back({code_point, code_point});
  }
}

std::map<std::string, CharacterSet, std::less<>> all_properties() {
  std::array<CharacterSet, kCategories.size()> categories;
  std::array<CharacterSet, kMajorCategories.size()> majors;
  for (std::uint32_t code_point = 0; code_point <= kLastCodePoint; ++code_point) {
    const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
    const auto category = static_cast<std::size_t>(property.category);
    extend(categories[category], code_point);
    const auto* const major =
        std::ranges::find(kMajorCategories, kCategories[category][0].substr(0, 1), [](const auto& names) { return names[0]; });
    extend(majors[static_cast<std::size_t>(major - kMajorCategories.begin())], code_point);
  }
  std::map<std::string, CharacterSet, std::less<>> all;
  for (std::size_t i = 0; i < categories.size(); ++i) {
    for (const std::string_view name : kCategories[i]) all.emplace(name, categories[i]);
  }
  for (std::size_t i = 0; i < majors.size(); ++i) {
    for (const std::string_view name : kMajorCategories[i]) all.emplace(name, majors[i]);
  }
  all.emplace("Any", CharacterSet{{0, kLastCodePoint}});
  all.emplace("ASCII", CharacterSet{{0, 0x7F}});
  all.emplace("Assigned", complement(all.at("Cn")));
  // The blocks of which every version of Unicode has all characters.
  all.emplace("Extended_Pictographic", CharacterSet{{0x231A, 0x231B},
                                                    {0x23E9, 0x23F3},
                                                    {0x2600, 0x2604},
                                                    {0x2614, 0x2615},
                                                    {0x2648, 0x2653},
                                                    {0x26BD, 0x26BE},
                                                    {0x2708, 0x270D},
                                                    {0x2733, 0x2734},
                                                    {0x2764, 0x2764},
                                                    {0x1F400, 0x1F4FD},
                                                    {0x1F4FF, 0x1F53D},
                                                    {0x1F550, 0x1F567},
                                                    {0x1F5FB, 0x1F64F},
                                                    {0x1F680, 0x1F6C5},
                                                    {0x1F90C, 0x1F93A},
                                                    {0x1F93C, 0x1F945},
                                                    {0x1F947, 0x1F9FF}});
  all.emplace("Regional_Indicator", CharacterSet{{0x1F1E6, 0x1F1FF}});
  all.emplace("Emoji_Modifier", CharacterSet{{0x1F3FB, 0x1F3FF}});
  all.emplace("Emoji_Component", CharacterSet{{'#', '#'},
                                              {'*', '*'},
                                              {'0', '9'},
                                              {0x200D, 0x200D},
                                              {0x20E3, 0x20E3},
                                              {0xFE0F, 0xFE0F},
                                              {0x1F1E6, 0x1F1FF},
                                              {0x1F3FB, 0x1F3FF},
                                              {0x1F9B0, 0x1F9B3},
                                              {0xE0020, 0xE007F}});
  return all;
}

}  // namespace

CharacterSet sorted_and_joined(CharacterSet ranges) {
  std::ranges::sort(ranges);
  CharacterSet joined;
  for (const CodeRange& range : ranges) {
    if (!joined.empty() && range.low <= joined.back().high + 1) {
      joined.back().high = std::max(joined.back().high, range.high);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

CharacterSet complement(const CharacterSet& set) {
  CharacterSet rest;
  std::uint32_t next = 0;
  for (const CodeRange& range : set) {
    if (range.low > next) rest.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

bool contains(const CharacterSet& set, std::uint32_t code_point) {
  const auto after = std::ranges::upper_bound(set, code_point, {}, &CodeRange::low);
  return after != set.begin() && code_point <= std::prev(after)->high;
}

const CharacterSet* property_set(std::string_view name) {
  static const std::map<std::string, CharacterSet, std::less<>> all = all_properties();
  for (const std::string_view prefix : {"gc=", "General_Category="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

std::uint32_t take_code_point(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
  std::uint32_t value = length == 1 ? first : first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3F);
  text.remove_prefix(length);
  return value;
}

}  // namespace uma::grammar
