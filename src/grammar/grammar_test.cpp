#include "grammar/grammar.h"

#include <format>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/gbnf.h"
#include "grammar/grammar_parts.h"
#include "grammar/json_pattern.h"

namespace uma::grammar {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Grammar> parsed(std::string_view gbnf) {
  auto grammar = Grammar::parse(gbnf);
  EXPECT_TRUE(grammar) << (grammar ? "" : grammar.error().message);
  return grammar ? *grammar : nullptr;
}

bool accepts(GrammarReader& reader, std::string_view text) {
  return reader.can_end(reader.next(GrammarReader::kStart, text));
}

struct Case {
  std::string_view gbnf;
  std::vector<std::string_view> accepted;
  std::vector<std::string_view> refused;
};

TEST(Grammar, AcceptsTheTextsOfItsRules) {
  const std::vector<Case> cases = {
      {R"g(root ::= "yes" | "no")g", {"yes", "no"}, {"", "ye", "yesno", "maybe"}},
      {R"g(root ::= "a"*)g", {"", "a", "aaaa"}, {"b", "ab"}},
      {R"g(root ::= "ab"+)g", {"ab", "abab"}, {"", "aba", "abb"}},
      {R"g(root ::= "a"? "b")g", {"b", "ab"}, {"", "aab"}},
      {R"g(root ::= "a"{2,3} "b"{2} "c"{1,} "d"{0,1})g", {"aabbc", "aaabbccd"}, {"abbc", "aabc", "aabb", "aabbcdd"}},
      {R"g(root ::= [a-c] [^a-c] [-x] [a-] .)g", {"azx-!", "b\n-aé"}, {"aaxaa", "dzx-!"}},
      {"root ::= first # one\n  second\nfirst ::= \"a\" |\n  \"b\"\nsecond ::= (\"c\"\n | \"d\"\n)", {}, {}},
      {"root ::= first # one\n\n# two\nfirst ::= \"a\" |\n  (\"b\"\n \"c\")\n", {"a", "bc"}, {"b"}},
      {"root ::= \"a\"\n  | \"b\"\n", {"a", "b"}, {"ab"}},
      {R"g(root ::= "\x41\u00e9\U0001F600\n\t\r\"\\")g", {"Aé😀\n\t\r\"\\"}, {"A"}},
      {R"g(root ::= "" )g", {""}, {"a"}},
      {R"g(root ::= word_1-b
word_1-b ::= "x")g",
       {"x"},
       {"y"}},
  };
  for (const Case& row : cases) {
    const auto grammar = Grammar::parse(row.gbnf);
    if (row.accepted.empty()) {
      EXPECT_FALSE(grammar) << row.gbnf;  // A line that begins with a name is a rule.
      continue;
    }
    ASSERT_TRUE(grammar) << row.gbnf << grammar.error().message;
    GrammarReader reader(*grammar);
    for (const std::string_view text : row.accepted) EXPECT_TRUE(accepts(reader, text)) << row.gbnf << ": " << text;
    for (const std::string_view text : row.refused) EXPECT_FALSE(accepts(reader, text)) << row.gbnf << ": " << text;
  }
}

TEST(Grammar, HasOtherGrammarsAsRules) {
  const auto list = parsed(R"g(root ::= "[" (root ("," root)*)? "]" | item
item ::= [0-9]+)g");
  const auto name = parsed(R"g(root ::= item?
item ::= [a-z]+)g");
  const auto both = parse_with_parts(R"g(root ::= "(" list ")" | item "=" list | item "!"
item ::= name)g",
                                     std::vector<GrammarPart>{{"list", *list}, {"name", *name}, {"unused", *name}});
  ASSERT_TRUE(both) << both.error().message;
  GrammarReader reader(*both);
  for (const std::string_view text : {"([1,[2,33],[]])", "ab=[1]", "=7", "!", "abc!"})
    EXPECT_TRUE(accepts(reader, text)) << text;
  for (const std::string_view text : {"(a)", "(1", "1=1", "ab=cd", "ab", "[1]", ""})
    EXPECT_FALSE(accepts(reader, text)) << text;
  EXPECT_FALSE(parse_with_parts("root ::= list\nlist ::= \"a\"", std::vector<GrammarPart>{{"list", *list}}));
  EXPECT_FALSE(parse_with_parts("root ::= list", std::vector<GrammarPart>{{"name", *name}}));
}

TEST(Grammar, KnowsRecursionOfAllKinds) {
  for (const std::string_view gbnf : {
           R"g(root ::= "(" root ")" root | "")g",  // Right recursion.
           R"g(root ::= root "(" root ")" | "")g",  // Left recursion.
           R"g(root ::= pair*
pair ::= "(" root ")")g",
           R"g(root ::= root root | "(" root ")" | "")g",  // Ambiguous recursion.
       }) {
    GrammarReader reader(parsed(gbnf));
    for (const std::string_view text : {"", "()", "()()", "((()())())"}) EXPECT_TRUE(accepts(reader, text)) << gbnf << text;
    for (const std::string_view text : {"(", ")", "())", "(()"}) EXPECT_FALSE(accepts(reader, text)) << gbnf << text;
    const std::string deep = std::string(300, '(') + std::string(300, ')');
    EXPECT_TRUE(accepts(reader, deep)) << gbnf;
    EXPECT_FALSE(accepts(reader, deep + ")")) << gbnf;
  }
}

TEST(Grammar, ARuleThatCallsOnlyItselfAddsNothing) {
  GrammarReader reader(parsed("root ::= root | other | \"x\"\nother ::= other \"y\""));
  EXPECT_TRUE(accepts(reader, "x"));
  EXPECT_FALSE(reader.can_go_on(reader.next(GrammarReader::kStart, "x")));
  EXPECT_EQ(reader.next(GrammarReader::kStart, "y"), GrammarReader::kNowhere);
}

TEST(Grammar, CharactersAreWholeUtf8) {
  GrammarReader reader(parsed(R"g(root ::= [^a]*)g"));
  for (const std::string_view text :
       {"\x7f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010FFFF"})
    EXPECT_TRUE(accepts(reader, text)) << text;
  for (const std::string_view text :
       {"a", "\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8", "\xc3"})
    EXPECT_FALSE(accepts(reader, text)) << text;
  GrammarReader range(parsed(R"g(root ::= [\u0101-\u1003])g"));
  for (std::uint32_t c = 0x80; c < 0x2000; ++c) {
    std::string text;
    if (c < 0x800) {
      text = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    } else {
      text = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
              static_cast<char>(0x80 | (c & 0x3F))};
    }
    EXPECT_EQ(accepts(range, text), c >= 0x101 && c <= 0x1003) << c;
  }
}

TEST(Grammar, ReportsErrors) {
  const std::vector<std::pair<std::string, std::string_view>> cases = {
      {"", "no rule \"root\""},
      {"rot ::= \"a\"", "no rule \"root\""},
      {"root ::= other", "rule \"other\" is used but not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule \"root\" is defined twice"},
      {"root = \"a\"", "line 1: expected \"::=\""},
      {"root ::= \"a", "no closing quote"},
      {"root ::= [a", "no \"]\""},
      {"root ::= (\"a\"", "expected \")\""},
      {"root ::= \"a\")", "unexpected \")\""},
      {"root ::= *", "nothing to repeat"},
      {"root ::= \"a\"**", "a repetition is repeated"},
      {"root ::= \"a\"{3,2}", "larger than its maximum"},
      {"root ::= \"a\"{99999}", "must be 0 to 4096"},
      {"root ::= [b-a]", "ends before it begins"},
      {"root ::= \"\\q\"", "an escape must be"},
      {"root ::= \"\\ud800\"", "4 hexadecimal digits of a valid character"},
      {"root ::= \"\\x4", "2 hexadecimal digits"},
      {"root ::= <think>", "references to tokens"},
      {"root ::= \"a\" root", "has no finite text"},
      {"root ::= []", "has no finite text"},
      {"root ::= ((\"a\"{4096}){4096}){4096}", "too large"},
      {"root ::= " + std::string(200, '(') + "\"a\"" + std::string(200, ')'), "deeper than 64 levels"},
      {"root ::= \"\xff\"", "not valid UTF-8"},
      {std::string(gbnf::kBytesMax + 1, ' '), "the limit is 262144"},
  };
  for (const auto& [gbnf, message] : cases) {
    const auto grammar = Grammar::parse(gbnf);
    ASSERT_FALSE(grammar) << gbnf;
    EXPECT_EQ(grammar.error().code, ErrorCode::proto_field);
    EXPECT_THAT(grammar.error().message, HasSubstr(message));
  }
}

// A place does not depend on the length of the text before it, so a long text costs no more than its distinct places.
TEST(Grammar, KeepsEqualPlacesOnce) {
  GrammarReader reader(parsed(R"g(
root ::= value
value ::= "[" (value ("," value)*)? "]" | "\"" character* "\""
character ::= [^"\\] | "\\" [nrt]
)g"));
  const auto inside = reader.next(GrammarReader::kStart, "[[],\"some text");
  EXPECT_EQ(inside, reader.next(GrammarReader::kStart, "[\"\",[[]],\"another, longer text"));
  EXPECT_NE(inside, reader.next(GrammarReader::kStart, "[[\"deeper"));
}

// Exceeding a bound ends the text. Behind "a", 1,500 rules have two places each.
TEST(Grammar, AnExplosionEndsTheTextAndNotTheProgram) {
  std::string gbnf = "root ::= choice*\nchoice ::= ";
  for (int i = 0; i < 1500; ++i) gbnf += std::format("{}r{} \"z\"", i == 0 ? "" : " | ", i);
  gbnf += "\n";
  for (int i = 0; i < 1500; ++i) {
    gbnf += std::format("r{} ::= \"a\" [{}-z] | \"a\" [0-9] \"x\"\n", i, static_cast<char>('b' + i % 20));
  }
  GrammarReader reader(parsed(gbnf));
  EXPECT_TRUE(reader.can_go_on(GrammarReader::kStart));
  const auto place = reader.next(GrammarReader::kStart, "a");
  EXPECT_FALSE(reader.can_go_on(place));
  EXPECT_FALSE(reader.can_end(place));
}

// --- Expensive grammars

std::string times(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Repetitions without states are also expanded only once.
TEST(GrammarCost, RepetitionsOfNothingAreWrittenOutOnce) {
  for (const std::string& nothing : {std::string("()"), times("()", 300)}) {
    const auto made = Grammar::parse("root ::= (((" + nothing + "){4096}){4096}){4096} \"a\"");
    ASSERT_TRUE(made) << made.error().message;
    GrammarReader reader(*made);
    EXPECT_TRUE(reader.can_end(reader.next(GrammarReader::kStart, "a")));
  }
  const auto refused = Grammar::parse("root ::= ((((|)){4096}){4096}){4096}");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("too large"), std::string::npos);
}

TEST(GrammarCost, RepeatedClassesOfManyCharactersAreTooLarge) {
  std::string characters;
  for (int c = 0; c < 20'000; ++c) characters += c % 2 == 0 ? "a" : "c";
  const auto refused = Grammar::parse("root ::= ([" + characters + "]{1000}){1000}");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("too large"), std::string::npos);
}

// 2,000 continuations behind an empty rule, and 200 callers: each place exceeds the limit of items.
TEST(GrammarCost, APlaceOfManyCallsIsBounded) {
  std::string alternatives;
  for (int i = 0; i < 2000; ++i)
    alternatives += std::string(i == 0 ? "" : " | ") + "e0 [\\x" + std::format("{:02x}", 0x20 + i % 90) + "]";
  const auto made = Grammar::parse("root ::= " + times("r ", 200) + "\nr ::= " + alternatives + "\ne0 ::= \"\"\n");
  ASSERT_TRUE(made) << made.error().message;
  GrammarReader reader(*made);
  constexpr std::uint64_t kLimit = 10'000;
  reader.limit_work(kLimit);
  (void)reader.next(GrammarReader::kStart, "    ");
  EXPECT_LT(reader.work(), kLimit + 64 * GrammarReader::kItemsMax) << "the limit, and one place more";
  // The total work is bounded for any length.
  for (int i = 0; i < 10'000; ++i) {
    reader.limit_work(kLimit);
    (void)reader.next(GrammarReader::kStart, times(" ", i % 200) + "!");
  }
  EXPECT_LT(reader.work(), 32 * GrammarReader::kKeptMax);
}

TEST(GrammarCost, BeyondTheLimitNothingMayFollow) {
  const auto made = Grammar::parse("root ::= [a-z]+ \"!\"").value();
  GrammarReader reader(made);
  reader.limit_work(0);
  EXPECT_EQ(reader.next(GrammarReader::kStart, 'a'), GrammarReader::kNowhere);
  EXPECT_FALSE(reader.can_go_on(GrammarReader::kStart));
  reader.limit_work(1000);
  EXPECT_NE(reader.next(GrammarReader::kStart, 'a'), GrammarReader::kNowhere) << "what was not found out is found out later";
}

TEST(Grammar, APatternOfAPlainTextMatchesAllOfIt) {
  const auto check = [](std::string_view pattern, std::vector<std::string_view> good, std::vector<std::string_view> bad) {
    const auto gbnf = pattern_gbnf(pattern);
    ASSERT_TRUE(gbnf) << gbnf.error().message;
    GrammarReader reader(parsed(*gbnf));
    for (const std::string_view text : good) EXPECT_TRUE(accepts(reader, text)) << pattern << " " << text;
    for (const std::string_view text : bad) EXPECT_FALSE(accepts(reader, text)) << pattern << " " << text;
  };
  check("a+", {"a", "aa"}, {"", "ba", "ab"});
  check("^(red|green)$", {"red", "green"}, {"reds", "r"});
  check(R"(\d{3}-"\\\n.)", {"123-\"\\\nx", "123-\"\\\né"}, {R"(123-\"\\\nx)", "12-\"\\\nx"});
  check("[^a]", {"b", "\"", "é", "\n"}, {"a", "bb"});
  check("a(?=b)b|c", {"ab", "c"}, {"a", "b"});
  EXPECT_FALSE(pattern_gbnf("(a"));
}

// Each alternative had a state of its own at the first place, which a reader does not keep.
TEST(Grammar, ManyLiteralsShareTheirBeginnings) {
  for (const int count : {3000, 10'000}) {
    for (const std::string_view begin : {"value-", "SKU-", "é"}) {
      std::string gbnf = "root ::= \"<\" (";
      for (int i = 0; i < count; ++i) gbnf += std::format("{}\"{}{:05}\"", i == 0 ? "" : " | ", begin, i);
      const auto grammar = Grammar::parse(gbnf + ") \">\"");
      ASSERT_TRUE(grammar) << grammar.error().message;
      GrammarReader reader(*grammar);
      const auto accepts = [&](const std::string& text) { return reader.can_end(reader.next(GrammarReader::kStart, text)); };
      EXPECT_TRUE(accepts(std::format("<{}00000>", begin)));
      EXPECT_TRUE(accepts(std::format("<{}{:05}>", begin, count - 1)));
      EXPECT_FALSE(accepts(std::format("<{}{:05}>", begin, count)));
      EXPECT_FALSE(accepts(std::format("<{}0000>", begin)));
    }
  }
}

TEST(Grammar, ManyDifferentCharactersHaveNoCrowdedPlace) {
  std::string gbnf = "root ::= (\"\" ";
  for (int i = 0; i < 3000; ++i) gbnf += std::format("| \"\\u{:04x}x\" ", 0x4e00 + i);
  const auto grammar = Grammar::parse(gbnf + ")*");
  ASSERT_TRUE(grammar) << grammar.error().message;
  GrammarReader reader(*grammar);
  EXPECT_TRUE(reader.can_end(reader.next(GrammarReader::kStart, "一x丁x")));
  EXPECT_FALSE(reader.can_end(reader.next(GrammarReader::kStart, "一丁x")));
}

TEST(Grammar, APlaceWithTooManyRulesIsRefused) {
  std::string root = "root ::= r0";
  std::string rules = "r0 ::= [a-z]+\n";
  for (int i = 1; i < 3000; ++i) {
    root += std::format(" | r{}", i);
    rules += std::format("r{} ::= [a-z]+\n", i);
  }
  const auto grammar = Grammar::parse(root + "\n" + rules);
  ASSERT_FALSE(grammar);
  EXPECT_EQ(grammar.error().code, ErrorCode::proto_field);
}

}  // namespace
}  // namespace uma::grammar
