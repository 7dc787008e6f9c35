#include "grammar/json_schema.h"

#include <format>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/grammar.h"
#include "grammar/json_pattern.h"

namespace uma::grammar {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct SchemaCase {
  std::string_view schema;
  std::vector<std::string_view> accepted;
  std::vector<std::string_view> refused;
};

void expect_texts(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& row : cases) {
    const auto gbnf = json_schema_gbnf(row.schema);
    ASSERT_TRUE(gbnf) << row.schema << ": " << gbnf.error().message;
    const auto grammar = json_schema_grammar(row.schema);
    ASSERT_TRUE(grammar) << row.schema << ": " << grammar.error().message << "\n" << *gbnf;
    GrammarReader reader(*grammar);
    const auto accepts = [&](std::string_view text) { return reader.can_end(reader.next(GrammarReader::kStart, text)); };
    for (const std::string_view text : row.accepted) EXPECT_TRUE(accepts(text)) << row.schema << ": " << text << "\n" << *gbnf;
    for (const std::string_view text : row.refused) EXPECT_FALSE(accepts(text)) << row.schema << ": " << text << "\n" << *gbnf;
  }
}

TEST(JsonSchema, KnowsTypes) {
  expect_texts({
      {R"({"type":"null"})", {"null"}, {"", "0", "nul", "null "}},
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "\"true\""}},
      {R"({"type":"integer"})", {"0", "-7", "120"}, {"01", "1.5", "-", "1e3", "+1"}},
      {R"({"type":"number"})", {"0", "-7.25", "1e9", "2.5E-3"}, {"01", ".5", "5.", "NaN", "1e999"}},
      {R"({"type":"string"})",
       {R"("")", R"("a \"b\" \\ \/ \n \u00e9 \ud83d\ude00 é😀")"},
       {"a", R"("a)", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"a\nb\"", "\"\x1f\"", "\"\xff\"", R"("""")"}},
      {R"({"type":["integer","null"]})", {"1", "null"}, {"true"}},
      {R"({"type":"integer","nullable":true})", {"1", "null"}, {"true"}},
      {R"({"type":"array"})", {"[]", "[1, [2], \"x\", {}]", "[\n  1,\n  2\n]"}, {"[1,]", "[,1]", "[1 2]", "{}"}},
      {R"({"type":"object"})",
       {"{}", R"({"a": [1], "b":{"c":null}})", "{\n  \"a\": 1\n}"},
       {"{1:2}", R"({"a"})", R"({"a":1,})", "[]"}},
      {"true", {"null", "[1]", R"("x")"}, {"", "x"}},
      {"{}", {"null", "[1]", R"({"a":{}})"}, {""}},
  });
}

TEST(JsonSchema, KnowsObjects) {
  expect_texts({
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"]})",
       {R"({"b":true})", R"({"a":1,"b":true})", R"({"b":true,"c":null})", R"({"a": 1, "b": false, "c": null})"},
       {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"a":1,"a":2,"b":true})", R"({"b":1})", R"({"b":true,"d":1})",
        R"({"a":1,,"b":true})"}},
      {R"({"properties":{"a":{},"b":{}}})",
       {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {R"({"b":1,"a":2})", R"({,"b":1})", R"({"a":1,})"}},
      {R"({"properties":{"ab":{"type":"null"},"a":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"b":1})", R"({"ab":null,"a":null,"abc":1,"":2,"é":3})", R"({"ac":1})"},
       {R"({"ab":1})", R"({"a":1})", R"({"a":null,"ab":1})", R"({"b":null})", R"({"\u0061":1})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"a":1,"b":2})"}, {R"({"a":"x"})"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"object","required":["x"]})", {R"({"x":[1]})"}, {"{}", R"({"y":1})"}},
      {R"({"type":"object","required":["x"],"additionalProperties":{"type":"null"}})",
       {R"({"x":null,"y":null})"},
       {R"({"x":1})"}},
      {R"({"properties":{"a":false,"b":{}}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
      {R"({"type":"object","maxProperties":2})", {"{}", R"({"a":1,"b":2})"}, {R"({"a":1,"b":2,"c":3})"}},
      {R"({"type":"object","minProperties":1})", {R"({"a":1})", R"({"a":1,"b":2})"}, {"{}"}},
      {R"({"properties":{"q\"\\\n":{"type":"null"}},"required":["q\"\\\n"]})", {R"({"q\"\\\n":null})"}, {"{}"}},
  });
}

TEST(JsonSchema, KnowsArrays) {
  expect_texts({
      {R"({"items":{"type":"integer"}})", {"[]", "[1]", "[1,2,3]"}, {"[true]", "[1,]"}},
      {R"({"items":{"type":"integer"},"minItems":2,"maxItems":3})", {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"items":{"type":"integer"},"minItems":1})", {"[1]", "[1,2,3,4,5]"}, {"[]"}},
      {R"({"items":{"type":"integer"},"maxItems":1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type":"array","items":false})", {"[]"}, {"[1]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"null"}]})", {"[]", "[1]", "[1,null]"}, {"[null]", "[1,null,2]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"boolean"},"minItems":1})",
       {"[1]", "[1,null]", "[1,null,true,false]"},
       {"[]", "[1,true]", "[1,null,1]"}},
      {R"({"prefixItems":[{"type":"integer"}],"minItems":3,"maxItems":4})",
       {"[1,2,\"x\"]", "[1,2,3,4]"},
       {"[1,2]", "[1,2,3,4,5]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"null"}],"maxItems":1})", {"[]", "[1]"}, {"[1,null]"}},
      {R"({"type":"array","uniqueItems":false,"items":{"const":1}})", {"[1,1]"}, {"[2]"}},
  });
}

TEST(JsonSchema, KnowsStrings) {
  expect_texts({
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("é\n😀")", R"("\ud83d\ude00a")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type":"string","minLength":1})", {R"("a")", R"("abcdef")"}, {R"("")"}},
      {R"({"pattern":"^[a-c]{2}\\d+$"})", {R"("ab1")", R"("cc123")"}, {R"("a1")", R"("ab")", R"("ab1x")"}},
      {R"({"pattern":"b+"})", {R"("b")", R"("abbc")"}, {R"("")", R"("ac")"}},
      {R"({"pattern":"^(a|b)?(?:c.)*\\.$"})", {R"(".")", R"("acx.")", R"("bcxcy.")"}, {R"("ab.")", R"("ac")", R"("x")"}},
      {R"({"pattern":"^\"\\\\\\n\\u00e9[^a\"]$"})", {R"("\"\\\né\n")", R"("\"\\\néb")"}, {R"("\"\\\néa")", R"("\"\\\né\"")"}},
      {R"({"pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")", R"("bx")"}},
      {R"({"pattern":"^[a-z]{2,4}$","minLength":2,"maxLength":4})", {R"("ab")"}, {R"("a")"}},
      {R"({"format":"date"})",
       {R"("2024-02-28")", R"("2024-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("0000-01-01")", R"("2024-13-01")", R"("2024-04-31")", R"("24-01-01")"}},
      {R"({"format":"time"})", {R"("23:59:59Z")", R"("00:00:00.5+01:00")"}, {R"("24:00:00Z")", R"("00:00:00")"}},
      {R"({"format":"date-time"})", {R"("2024-01-31T12:00:00Z")"}, {R"("2024-01-31")"}},
      {R"({"format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
      {R"({"format":"ipv4"})", {R"("127.0.0.1")", R"("255.255.255.255")"}, {R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"}},
      {R"({"type":"integer","format":"int64"})", {"1"}, {R"("1")"}},
  });
}

// What is enforced must not bend a valid value.
TEST(JsonSchema, FormatsHaveAllTheirTexts) {
  expect_texts({
      {R"({"format":"uri"})",
       {R"("http://localhost:8080/health")", R"("http://127.0.0.1:8000/v1")",
        R"j("https://de.wikipedia.org/wiki/K%C3%B6ln_(Stadt)")j", R"("https://de.wikipedia.org/wiki/Köln")",
        R"("mailto:a@b.org")", R"("ftp://user:pw@host:65535/a/b/c/d/e/f/g/h/i/j?q#x")", R"("file:///etc/hosts")",
        R"("urn:isbn:0451450523")", R"("HTTPS://user@[::1]:443?a=b")", R"("h:x")", R"("httpx:y")",
        R"("data:text/plain;base64,eA==")", R"("https://müller.de")", R"("about:blank")"},
       {R"("http:")", R"("https://")", R"("example.org")", R"("a b:c")", R"("http://a b")", R"("http:///x")", R"("https:x")"}},
      {R"({"format":"uri","minLength":1,"maxLength":2083})",
       {R"("http://localhost:8080/health")", R"("https://[::1]/")", R"("mailto:a@b.org")", R"("https://example.org/Köln")"},
       {R"("http:")", R"("x")"}},
      {R"({"format":"uri","maxLength":24})",
       {R"("http://localhost:8080/he")", R"("mailto:a@b.org")"},
       {R"("http://localhost:8080/health")", R"("http:")"}},
      {R"({"type":"string","format":"regex"})", {R"("^a(b|c)*\\d$")", R"("")"}, {"1"}},
      {R"({"format":"jwt"})",
       {R"("eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiIxIn0.c2ln-_")", R"("eyJhbGciOiJub25lIn0.e30.")"},
       {R"("eyJhbGciOiJub25lIn0.e30")", R"("a b.c.d")"}},
      {R"({"format":"email"})",
       {R"("a.b@c.org")", R"("o'neil+tag=x!y%z@mail.example-site.co.uk")", R"("#!$%&'*+-/=?^_`{}|~@example.org")",
        R"("info@müller.de")", R"("a@xn--mller-kva.xn--p1ai")", R"("x@a--b.museum")",
        R"("very_long_name_without_any_dot_in_it_1234567890@b.io")"},
       {R"("a.b")", R"("a..b@c.org")", R"(".a@c.org")", R"("a.@c.org")", R"("a@-c.org")", R"("a b@c.org")", R"("a@b")"}},
      {R"({"format":"email","maxLength":254})", {R"("a.b@c.org")"}, {R"("a.b")"}},
      {R"({"format":"email","maxLength":100})", {R"("o'neil@mail.example.org")"}, {R"("a.b")"}},
      {R"({"format":"name-email"})",
       {R"("Ann Lee <ann@b.org>")", R"("\"Dr. Ann Lee\" <ann@b.org>")", R"("ann@b.org")"},
       {R"("Ann Lee")"}},
      {R"({"format":"hostname"})",
       {R"("localhost")", R"("a--b.example")", R"("10-0-0-1.compute.internal.eu-west-1.cloud.example.org")",
        R"("xn--mller-kva.de")"},
       {R"("-a")", R"("a-")", R"("a..b")", R"("a_b")", R"("")"}},
      {R"({"format":"json-pointer"})", {R"("")", R"("/a~1b/m~0n/ä b/0/\"")"}, {R"("a")", R"("/a~2")", R"("/~")"}},
      {R"({"format":"ipv6"})",
       {R"("::ffff:1.2.3.4")", R"("64:ff9b::192.0.2.33")", R"("1:2:3:4:5:6:1.2.3.4")", R"("::1")", R"("fe80::1:2")", R"("::")"},
       {R"("::ffff:1.2.3")", R"("1:2:3:4:5:6:7:1.2.3.4")", R"("1::2::3")", R"("::ffff:1.2.3.256")"}},
      {R"({"format":"ipv4network"})",
       {R"("10.0.0.0/8")", R"("192.168.1.0/24")", R"("0.0.0.0/0")", R"("172.16.0.0/12")", R"("10.1.2.3")",
        R"("10.1.2.254/31")"},
       {R"("10.1.0.0/8")", R"("192.168.1.1/24")", R"("10.1.2.3/33")"}},
      {R"({"format":"ipv6network"})",
       {R"("2001:db8::/32")", R"("fe80::/10")", R"("::/0")", R"("2001:db8:a0::/44")", R"("2001:db8::1/128")", R"("fd00::/8")",
        R"("::1")"},
       {R"("2001:db8::1/64")", R"("fe81::/10")", R"("2001:db8:a1::/44")", R"("2001:db8::/16")"}},
      {R"({"format":"ipv4interface"})", {R"("192.168.1.7/24")", R"("192.168.1.7")"}, {R"("192.168.1.7/33")"}},
      {R"({"format":"ipv6interface"})", {R"("2001:db8::7/64")", R"("::ffff:1.2.3.4/96")"}, {R"("::1/129")"}},
      {R"({"format":"duration"})",
       {R"("P1DT2H")", R"("P3W")", R"("PT5M")", R"("PT1.5S")", R"("PT0,25H")", R"("PT86400S")", R"("P1Y2DT3H5S")", R"("P0.5D")",
        R"("P365D")", R"("P1M")"},
       {R"("P")", R"("1D")", R"("PT")", R"("P1DT")", R"("P1.5DT2H")", R"("P1H")", R"("P1W1D")"}},
      {R"({"format":"date-time"})",
       {R"("2024-01-31T12:00:00.123456789Z")", R"("2024-01-31T12:00:00-03:30")"},
       {R"("2024-01-31T25:00:00Z")", R"("2024-01-31T12:00:00")"}},
      {R"({"format":"uuid2"})", {R"("000003e8-2363-21ed-b200-325096b39f47")"}, {R"("000003e8-2363-11ed-b200-325096b39f47")"}},
      {R"({"format":"base64"})", {R"("/+8=")", R"("iVBORw0KGgo=")", R"("")", R"("AA==")"}, {R"("AA")", R"("A===")"}},
      {R"({"format":"base64url"})", {R"("_-8=")", R"("_-8")", R"("AAAA")"}, {R"("+A==")", R"("A")"}},
      {R"({"format":"uri","pattern":"^https://"})", {R"("https://a/b")"}, {R"("http://a")", R"("https://")"}},
  });
}

TEST(JsonSchema, KnowsNumbers) {
  expect_texts({
      {R"({"type":"integer","minimum":0})", {"0", "10", "999"}, {"-1", "-0"}},
      {R"({"type":"integer","minimum":1,"maximum":12})", {"1", "9", "10", "12"}, {"0", "13", "99", "112"}},
      {R"({"type":"integer","minimum":-15,"maximum":7})", {"-15", "-9", "-1", "0", "7"}, {"-16", "8", "-20", "10"}},
      {R"({"type":"integer","exclusiveMinimum":5,"exclusiveMaximum":8.5})", {"6", "8"}, {"5", "9"}},
      {R"({"type":"integer","minimum":1.2,"maximum":3.9})", {"2", "3"}, {"1", "4"}},
      {R"({"type":"integer","maximum":-3})", {"-3", "-10"}, {"-2", "0", "3"}},
      {R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})",
       {"0", "-123456789012345", "1234567890123456789", "9223372036854775807", "-9223372036854775808"},
       {"9223372036854775808", "-9223372036854775809", "10000000000000000000"}},
      {R"({"type":"integer","minimum":10000000000000000,"multipleOf":10})", {"10000000000000010"}, {"10", "10000000000000001"}},
      {R"({"type":"integer"})", {"1234567890123456789", "18446744073709551615", "-9223372036854775808"}, {"0123"}},
      {R"({"type":"number"})", {"1700000000123456.5", "0.30000000000000004", "12345678901234567890"}, {}},
      {"{}", {R"({"id":1234567890123456789})"}, {}},
      {R"({"type":"integer","minimum":1})", {"1", "9", "10", "1234567890123456789"}, {"0", "-1234567890123456789"}},
      {R"({"type":"integer","maximum":-7})", {"-7", "-10", "-1234567890123456789"}, {"-6", "10"}},
      {R"({"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991})",
       {"0", "9007199254740991", "-9007199254740991", "1700000000123456"},
       {"9007199254740992", "-9007199254740992", "10000000000000000"}},
      {R"({"type":"integer","maximum":18446744073709551615})",
       {"18446744073709551615", "1234567890123456789"},
       {"18446744073709551616"}},
      {R"({"type":"integer","minimum":1234567890123456789})",
       {"1234567890123456789", "99999999999999999999"},
       {"1234567890123456788"}},
      {R"({"type":"integer","multipleOf":5})", {"1700000000123455", "-1700000000123455"}, {"1700000000123456"}},
      {R"({"type":"number","minimum":0,"maximum":1})", {"0", "0.25", "1", "1.0"}, {"-0.1", "1.01", "2", "-1", "1e1"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.001", "1", "17.5"}, {"0", "0.0", "-1", "-0.5"}},
      {R"({"type":"number","minimum":-2,"maximum":-1})", {"-1", "-1.5", "-2", "-2.0"}, {"-0.5", "-2.1", "1", "0"}},
      {R"({"type":"number","exclusiveMaximum":0})", {"-0.1", "-5"}, {"0", "-0", "-0.0", "1"}},
      {R"({"type":"number","maximum":0})", {"-0.1", "0", "-5"}, {"0.1", "1"}},
      {R"({"type":"number","multipleOf":1,"minimum":3})", {"3", "10"}, {"2", "3.5"}},
  });
}

// Tests whole ranges, number by number.
TEST(JsonSchema, IntegersAreExactlyThoseBetweenTheBounds) {
  for (const auto& [low, high] :
       std::vector<std::pair<int, int>>{{0, 0}, {7, 1203}, {-1203, -7}, {-99, 100}, {100, 999}, {95, 1005}, {-1, 1}}) {
    const auto grammar = json_schema_grammar(std::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", low, high));
    GrammarReader reader(grammar.value());
    for (int i = -1500; i <= 1500; ++i) {
      const bool is_accepted = reader.can_end(reader.next(GrammarReader::kStart, std::to_string(i)));
      EXPECT_EQ(is_accepted, low <= i && i <= high) << i << " in " << low << " to " << high;
    }
  }
}

TEST(JsonSchema, KnowsCombinations) {
  expect_texts({
      {R"({"enum":["a",1,1.5,null,{"b":[true]}]})", {R"("a")", "1", "1.5", "null", R"({"b":[true]})"}, {R"("b")", "2", "true"}},
      {R"({"enum":["info"]})", {R"("info")"}, {}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"const":"x","enum":["x","y"],"type":"string"})", {R"("x")"}, {R"("y")"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"1", R"("a")"}, {R"("ab")", "true"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"properties":{"b":{"type":"null"}},"required":["b"]}]})",
       {R"({"a":1})", R"({"b":null})", R"({"a":1,"b":null})"},
       {"{}", R"({"b":1})"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("a")"}, {"true"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k"],"type":"object"},)"
       R"({"properties":{"k":{"const":"b"},"y":{"type":"null"}},"required":["k"],"type":"object"}]})",
       {R"({"k":"a","x":1})", R"({"k":"b","y":null})"},
       {R"({"k":"a","y":null})", R"({"k":"c"})", "{}"}},
      {R"({"allOf":[{"type":"integer","minimum":3},{"type":"number","maximum":5}]})", {"3", "5"}, {"2", "6", "3.5"}},
      {R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"null"}},"required":["b"]}]})",
       {R"({"a":1,"b":null})"},
       {R"({"a":1})", R"({"b":null})"}},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})"}},
      {R"({"allOf":[{"prefixItems":[{"type":"integer"}]},{"items":{"minimum":5,"type":"integer"}}]})",
       {"[]", "[5]", "[5,6]"},
       {"[4]", "[5,4]"}},
  });
}

TEST(JsonSchema, FollowsReferences) {
  expect_texts({
      {R"({"$defs":{"n":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/n"}},"required":["a"]})",
       {R"({"a":1})"},
       {R"({"a":"x"})"}},
      {R"({"properties":{"v":{"type":"integer"},"next":{"$ref":"#"}},"required":["v"]})",
       {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"},
       {R"({"v":1,"next":{}})"}},
      {R"({"$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}},"$ref":"#/$defs/t"})", {"[]", "[[],[[]]]"}, {"[1]"}},
      {R"({"$defs":{"a/b~c d":{"type":"null"}},"$ref":"#/$defs/a~1b~0c%20d"})", {"null"}, {"1"}},
      {R"({"$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n","minimum":5})", {"5"}, {"4"}},
      {R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/anyOf/0"}}]})", {"null", "[null]"}, {"[[]]"}},
      // Two simultaneous recursions meet the same pairs again.
      {R"({"$defs":{"a":{"properties":{"n":{"$ref":"#/$defs/a"}},"type":"object"},"b":{"properties":{"n":{"$ref":"#/$defs/b"}},"required":[],"type":"object"}},)"
       R"("allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]})",
       {"{}", R"({"n":{"n":{}}})"},
       {R"({"n":1})"}},
  });
}

TEST(JsonSchema, RefusesInvalidAndLargeSchemasByNameAndPlace) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {"{", "not valid JSON"},
      {"3", "#: a schema must be an object"},
      {R"({"enum":["info",1e999]})", "#/enum: has a number that is too large"},
      {R"({"type":"integer","exclusiveMinimum":true})", "#/exclusiveMinimum: must be a number"},
      {R"({"type":"integer","multipleOf":0})", "#/multipleOf: must be above 0"},
      {R"({"type":"string","pattern":3})", "#/pattern: must be a string"},
      {R"({"patternProperties":[]})", "#/patternProperties: must be an object of schemas"},
      {R"({"type":3})", "#/type: must be a type"},
      {R"({"type":[]})", "#/type: must be a type"},
      {R"({"properties":5})", "#/properties: must be an object of schemas"},
      {R"({"required":"a"})", "#/required: must be an array of strings"},
      {R"({"$ref":"#/$defs/x"})", "#/$ref: \"#/$defs/x\" is not in the schema"},
      {R"({"$ref":"#"})", "are nested without end"},
      {R"({"allOf":[{"$ref":"#"}]})", "are nested without end"},
      {R"({"anyOf":[]})", "#/anyOf: must be an array of schemas"},
      {"\"\xff\"", "not valid UTF-8"},
  };
  for (const auto& [schema, message] : cases) {
    const auto grammar = json_schema_grammar(schema);
    ASSERT_FALSE(grammar) << schema;
    EXPECT_EQ(grammar.error().code, ErrorCode::proto_field);
    EXPECT_THAT(grammar.error().message, HasSubstr(message)) << schema;
  }
}

// Each schema with the keyword that is left out, and texts that the rest of the schema still decides.
TEST(JsonSchema, LeavesOutAloneWhatItCannotEnforce) {
  struct Row {
    std::string_view schema;
    std::vector<std::string> left_out;
    std::string_view accepted;
    std::string_view refused;
  };
  const std::vector<Row> rows = {
      {R"({"properties":{"a":{"type":"integer","not":{"const":3}}},"required":["a"]})",
       {"#/properties/a/not"},
       R"({"a":3})",
       "{}"},
      {R"({"type":"integer","if":{"minimum":3},"then":{"maximum":5}})", {"#/if"}, "9", "\"x\""},
      {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})", {"#/uniqueItems"}, R"(["a","a"])", "[1]"},
      {R"({"type":"array","items":{"type":"null"},"contains":{"type":"null"}})", {"#/contains"}, "[]", "[1]"},
      {R"j({"type":"string","minLength":2,"pattern":"^(a|b)\\1$"})j", {"#/pattern"}, R"("xy")", R"("x")"},
      {R"j({"type":"string","pattern":"\\p{Script=Greek}"})j", {"#/pattern"}, R"("x")", "1"},
      {R"j({"type":"string","pattern":"(?i)abc"})j", {"#/pattern"}, R"("x")", "1"},
      {R"j({"type":"string","pattern":"(a"})j", {"#/pattern"}, R"("x")", "1"},
      {R"({"type":"string","pattern":"^[a-z]+ [a-z]+$","maxLength":4000})", {"#/maxLength"}, R"("a b")", R"("ab")"},
      {R"({"type":"string","format":"file-path"})", {"#/format"}, R"("x")", "1"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", {"#/oneOf"}, "1", "\"x\""},
      {R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":2})",
       {"#/minProperties"},
       R"({"a":null,"b":null})",
       R"({"a":null})"},
      {R"({"type":"integer","multipleOf":7919,"minimum":0})", {"#/multipleOf"}, "1", "-1"},
      {R"({"type":"array","items":{"type":"string"},"minItems":100000})", {"#/minItems"}, "[]", "[1]"},
      {R"({"$defs":{"s":{"type":"array","items":{"type":"string"},"uniqueItems":true}},"properties":{"a":{"$ref":"#/$defs/s"}},)"
       R"("required":["a"]})",
       {"#/properties/a/uniqueItems"},
       R"({"a":[]})",
       "{}"},
      {R"({"properties":{"a":{"type":"any"},"b":{"type":"integer"}},"required":["a"]})",
       {"#/properties/a/type"},
       R"({"a":[1],"b":2})",
       R"({"a":1,"b":"x"})"},
      {R"({"properties":{"a":{"type":["str","null"]}},"required":["a"]})", {"#/properties/a/type"}, R"({"a":1})", "{}"},
      {R"({"type":"file","minLength":2})", {"#/type"}, R"("xy")", R"("x")"},
      {R"({"properties":{"a":{"type":"integer","required":true},"b":{"type":"null","required":false}}})",
       {"#/properties/a/required"},
       R"({"a":1})",
       R"({"a":"x"})"},
      {R"({"$ref":"other.json","type":"integer"})", {"#/$ref"}, "1", "null"},
      {R"({"properties":{"a":{"$ref":"https://example.org/s.json#/$defs/a"},"b":{"type":"null"}},"required":["a"]})",
       {"#/properties/a/$ref"},
       R"({"a":1,"b":null})",
       R"({"a":1,"b":1})"},
      {R"({"$defs":{"n":{"$anchor":"n","type":"integer"}},"items":{"$ref":"#n"}})", {"#/items/$ref"}, "[null]", "{}"},
      {R"({"$defs":{"a":{"$id":"x","$defs":{"b":{}}}},"type":"integer","$ref":"#/$defs/a/$defs/b"})", {"#/$ref"}, "1", "null"},
      {R"({"$defs":{"n":{"type":"null"}},"type":"array","items":{"$id":"x","type":"array","items":{"$ref":"#/$defs/n"}}})",
       {"#/items/items/$ref"},
       "[[1]]",
       "[1]"},
      {R"({"allOf":[{"patternProperties":{"^a":{"type":"integer"}}},{"properties":{"ab":{}},"additionalProperties":false}]})",
       {"#/patternProperties"},
       R"({"ab":1})",
       R"({"ab":"x"})"},
  };
  for (const Row& row : rows) {
    LeftOut left_out;
    const auto grammar = json_schema_grammar(row.schema, &left_out);
    ASSERT_TRUE(grammar) << row.schema << ": " << grammar.error().message;
    EXPECT_EQ(left_out.places(), row.left_out) << row.schema;
    GrammarReader reader(*grammar);
    EXPECT_TRUE(reader.can_end(reader.next(GrammarReader::kStart, row.accepted))) << row.schema;
    EXPECT_FALSE(reader.can_end(reader.next(GrammarReader::kStart, row.refused))) << row.schema;
    LeftOut nothing(true);
    const auto strict = json_schema_grammar(row.schema, &nothing);
    ASSERT_FALSE(strict) << row.schema;
    EXPECT_THAT(strict.error().message, HasSubstr(row.left_out.front() + ": ")) << row.schema;
  }
}

TEST(JsonSchema, EnforcesSeveralConditionsOfATextAtOnce) {
  expect_texts({
      {R"({"type":"string","pattern":"^[A-Z]+$","maxLength":3})", {R"("A")", R"("ABC")"}, {R"("ABCD")", R"("")", R"("abc")"}},
      {R"({"type":"string","pattern":"^(ab|c)*$","minLength":3,"maxLength":4})",
       {R"("abc")", R"("abab")"},
       {R"("ab")", R"("ccccc")"}},
      {R"({"type":"string","pattern":"foo","maxLength":5})", {R"("foo")", R"("xfoox")"}, {R"("xxfoox")", R"("fo")"}},
      {R"({"allOf":[{"pattern":"^a"},{"pattern":"z$"},{"pattern":"m"}]})", {R"("amz")", R"("a m z")"}, {R"("az")", R"("maz")"}},
      {R"({"format":"date","pattern":"^2024"})", {R"("2024-02-29")"}, {R"("2023-01-01")", R"("2024")", R"("2024-02-30")"}},
      {R"({"format":"email","maxLength":12})", {R"("joe@b.org")"}, {R"("joe@example.org")", R"("joe")"}},
      {R"j({"pattern":"^(?=.*\\d)(?=.*[a-z])[a-z\\d]{3,}$"})j", {R"("a1b")", R"("00a")"}, {R"("abc")", R"("123")", R"("a1")"}},
      {R"j({"pattern":"^(?!admin$)[a-z]+$"})j", {R"("adminx")", R"("adm")"}, {R"("admin")", R"("")"}},
      {R"j({"pattern":"^(?:(?!--)[a-z-])+$"})j", {R"("a-b-c")", R"("-")"}, {R"("a--b")", R"("")"}},
      {R"j({"pattern":"^[a-z-]+(?<!-)$"})j", {R"("a-b")"}, {R"("ab-")"}},
      {R"j({"pattern":"^.(?<=[aeiou])x$"})j", {R"("ax")"}, {R"("bx")"}},
      {R"j({"pattern":"^\\w+\\b \\bsir$"})j", {R"("no sir")"}, {R"("nosir")", R"(" sir")"}},
      {R"j({"pattern":"^(['\"])(ab)\\2x$"})j", {R"("'ababx")", R"("\"ababx")"}, {R"("'abx")"}},
      {R"j({"pattern":"^\\p{Lu}\\p{Ll}*$"})j", {R"("Éa")", R"("Z")"}, {R"("éa")", R"("A1")"}},
      {R"({"pattern":"^$|^x$"})", {R"("")", R"("x")"}, {R"("xx")"}},
      {R"({"type":"string","contentMediaType":"application/json"})", {R"("1")", R"("{\"a\": [true]}")"}, {R"("x")", R"("{")"}},
  });
}

TEST(JsonSchema, EnforcesFractionsAndMultiples) {
  expect_texts({
      {R"({"type":"number","minimum":0.5})", {"0.5", "0.50", "0.51", "1", "17.25"}, {"0.49", "0.4999", "0", "-1", "1e1"}},
      {R"({"type":"number","minimum":0.25,"exclusiveMaximum":0.3})",
       {"0.25", "0.299", "0.2500"},
       {"0.3", "0.30", "0.249", "0"}},
      {R"({"type":"number","exclusiveMinimum":-0.001,"exclusiveMaximum":0.1})",
       {"0", "-0.0009", "0.09", "0.0"},
       {"-0.001", "0.1", "1"}},
      {R"({"type":"number","minimum":1.5,"maximum":12.75})",
       {"1.5", "2", "9.99", "12", "12.75", "12.7500"},
       {"1.49", "12.76", "13", "1"}},
      {R"({"type":"number","minimum":-3.4028234663852886e+38,"maximum":3.4028234663852886e+38})",
       {"0", "-1.5", "12345678"},
       {"1e99"}},
      {R"({"type":"integer","multipleOf":5})", {"0", "5", "-10", "125"}, {"1", "52", "5.0"}},
      {R"({"type":"number","multipleOf":12,"minimum":0,"maximum":100})", {"0", "12", "96"}, {"100", "108", "-12"}},
      {R"({"type":"number","multipleOf":0.01})", {"0.01", "7", "7.5", "-7.25", "7.250"}, {"0.001", "7.255"}},
      {R"({"type":"number","multipleOf":0.25,"minimum":0,"maximum":2})",
       {"0.25", "1.5", "2", "1.750"},
       {"0.3", "2.25", "0.26"}},
      {R"({"type":"integer","multipleOf":0.5})", {"1", "2"}, {"0.5"}},
      {R"({"type":"integer","minimum":3,"exclusiveMinimum":false})", {"3"}, {"2"}},
      {R"({"type":"integer","minimum":3,"exclusiveMinimum":true})", {"4"}, {"3"}},
  });
}

// Tests whole ranges, hundredth by hundredth.
TEST(JsonSchema, NumbersAreExactlyThoseBetweenTheBounds) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{
           {0, 0}, {5, 95}, {-5, 110}, {99, 101}, {-1203, -7}, {105, 1995}, {110, 110}, {-10, 10}, {950, 1005}}) {
    for (const bool is_excluded : {false, true}) {
      const std::string schema =
          std::format(R"({{"type":"number","{0}inimum":{1},"{2}aximum":{3}}})", is_excluded ? "exclusiveM" : "m", low / 100.0,
                      is_excluded ? "exclusiveM" : "m", high / 100.0);
      const auto grammar = json_schema_grammar(schema);
      if (!grammar) {
        EXPECT_TRUE(is_excluded && low == high) << schema << grammar.error().message;
        continue;
      }
      GrammarReader reader(*grammar);
      for (int i = -2100; i <= 2100; ++i) {
        const std::string text = std::format("{}", i / 100.0);
        const bool is_accepted = reader.can_end(reader.next(GrammarReader::kStart, text));
        EXPECT_EQ(is_accepted, is_excluded ? low < i && i < high : low <= i && i <= high) << text << ": " << schema;
      }
    }
  }
}

TEST(JsonSchema, EnforcesKeys) {
  expect_texts({
      {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"a":1,"bc":2})"},
       {R"({"A":1})", R"({"a":"x"})"}},
      {R"({"type":"object","propertyNames":{"enum":["x","y"]},"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1})", R"({"x":1,"y":2})"},
       {R"({"z":1})", R"({"x":1,"x":2})"}},
      {R"({"type":"object","propertyNames":{"enum":["x","y"]},"additionalProperties":{"type":"integer"},"required":["x","y"]})",
       {R"({"x":1,"y":2})"},
       {R"({"x":1})"}},
      {R"({"properties":{"ab":{"type":"null"},"a":{"type":"null"}},"propertyNames":{"maxLength":1}})",
       {R"({"a":null})"},
       {R"({"ab":null})"}},
      {R"({"type":"object","propertyNames":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"object","propertyNames":{"type":"integer"}})", {"{}"}, {R"({"a":1})", R"({"1":1})"}},
      {R"({"patternProperties":{"^n_":{"type":"integer"},"_s$":{"type":"string"}}})",
       {"{}", R"({"n_a":1,"b_s":"x"})"},
       {R"({"n_a":"x"})", R"({"other":1})", R"({"n_s":1})"}},
      {R"({"properties":{"n_a":{"minimum":3}},"patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":{"type":"null"}})",
       {R"({"n_a":3})", R"({"n_b":1})", R"({"x":null})"},
       {R"({"n_a":2})", R"({"n_b":null})", R"({"x":1})"}},
      {R"({"patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":false,"required":["n_a"]})",
       {R"({"n_a":1})", R"({"n_a":1,"n_b":2})"},
       {"{}", R"({"n_a":null})", R"({"x":1})"}},
      {R"({"propertyNames":{"enum":["n_a","x"]},"patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":false})",
       {"{}", R"({"n_a":1})"},
       {R"({"n_a":null})", R"({"x":1})"}},
      {R"({"allOf":[{"properties":{"n_a":{"minimum":3}}},{"patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":false}]})",
       {"{}", R"({"n_a":3})", R"({"n_b":1})"},
       {R"({"n_a":2})", R"({"n_a":"x"})", R"({"x":1})"}},
      {R"({"properties":{"a":{},"b":{},"c":{}},"minProperties":2,"maxProperties":2})",
       {R"({"a":1,"b":1})", R"({"b":1,"c":1})"},
       {R"({"a":1})", R"({"a":1,"b":1,"c":1})", "{}"}},
      {R"({"allOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"b":{"type":"null"}}}],"unevaluatedProperties":false})",
       {R"({"a":null,"b":null})"},
       {R"({"c":1})"}},
  });
}

TEST(JsonSchema, EnforcesSetsOfFewValues) {
  std::string many = R"("v0")";
  for (int i = 1; i < 40; ++i) many += std::format(R"(,"v{}")", i);
  const std::string of_many =
      std::format(R"({{"type":"array","uniqueItems":true,"items":{{"enum":[{}]}},"minItems":1,"maxItems":3}})", many);
  expect_texts({
      {R"({"type":"array","uniqueItems":true,"items":{"enum":["a","b","c"]},"minItems":1})",
       {R"(["a"])", R"(["c","a"])", R"(["b","c","a"])"},
       {"[]", R"(["a","a"])", R"(["a","b","a"])", R"(["d"])"}},
      {R"({"type":"array","uniqueItems":true,"items":{"type":["boolean","null"]},"maxItems":2})",
       {"[]", "[true,null]"},
       {"[true,true]", "[true,false,null]"}},
      {R"({"type":"array","uniqueItems":true,"items":{"type":"integer","minimum":1,"maximum":3}})",
       {"[3,1,2]"},
       {"[1,1]", "[4]"}},
      // In the order of the list only.
      {of_many, {R"(["v0"])", R"(["v3","v17","v39"])"}, {"[]", R"(["v3","v3"])", R"(["v1","v2","v3","v4"])"}},
  });
}

TEST(JsonSchema, ListedValuesAreThoseThatTheOtherKeywordsAllow) {
  expect_texts({
      {R"({"enum":["a","abc","abcd"],"minLength":3,"pattern":"c$"})", {R"("abc")"}, {R"("a")", R"("abcd")"}},
      {R"({"enum":[1,2.5,7,"x"],"minimum":2,"multipleOf":0.5})", {"2.5", "7", R"("x")"}, {"1"}},
      {R"({"enum":[[1],[1,1],["a"]],"uniqueItems":true,"items":{"type":"integer"}})", {"[1]"}, {"[1,1]", R"(["a"])"}},
      {R"({"enum":[{"a":1},{"b":1}],"required":["a"],"properties":{"a":{"type":"integer"}}})", {R"({"a":1})"}, {R"({"b":1})"}},
      {R"({"enum":["a",1],"anyOf":[{"type":"string"},{"type":"null"}]})", {R"("a")"}, {"1"}},
      {R"({"enum":["2024-01-01"],"format":"date"})", {R"("2024-01-01")"}, {}},
  });
}

TEST(JsonSchema, ListsOfThousandsOfValuesAreServedOrRefusedByPlace) {
  const auto listed = [](int count, std::string_view end) {
    std::string all;
    for (int i = 0; i < count; ++i) all += std::format("{}\"SKU-{:05}{}\"", i == 0 ? "" : ",", i, end);
    return std::format(R"({{"properties":{{"a":{{"type":"string","enum":[{}]}}}},"required":["a"]}})", all);
  };
  for (const int count : {3000, 10'000}) {
    const auto grammar = json_schema_grammar(listed(count, ""));
    ASSERT_TRUE(grammar) << grammar.error().message;
    GrammarReader reader(*grammar);
    EXPECT_TRUE(reader.can_end(reader.next(GrammarReader::kStart, std::format(R"({{"a":"SKU-{:05}"}})", count - 1))));
    EXPECT_FALSE(reader.can_end(reader.next(GrammarReader::kStart, std::format(R"({{"a":"SKU-{:05}"}})", count))));
  }
  const auto refused = json_schema_grammar(listed(6000, "-long-end-of-it"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_THAT(refused.error().message, HasSubstr("#/properties/a/enum: "));
}

TEST(JsonSchema, ReadsTheFormsOfOlderDrafts) {
  expect_texts({
      {R"({"items":[{"type":"integer"},{"type":"null"}],"additionalItems":{"type":"boolean"}})",
       {"[1,null,true]"},
       {"[null]", "[1,null,1]"}},
      {R"({"items":[{"type":"integer"}],"additionalItems":false})", {"[1]"}, {"[1,2]"}},
      {R"({"properties":{"a":{"id":"Named","type":"null"}},"required":["a"]})", {R"({"a":null})"}, {"{}"}},
      {R"({"type":"string","format":"no-such-format","x-order":3})", {R"("x")"}, {"1"}},
      {R"({"allOf":[{"x-order":1,"type":"integer"},{"x-order":2}]})", {"1"}, {"null"}},
      {R"({"properties":{"a":{"not":{}},"b":{}}})", {R"({"b":1})"}, {R"({"a":1})"}},
  });
}

TEST(JsonSchema, KeywordsThatAreNullAreAbsent) {
  expect_texts({
      {R"({"type":"object","properties":{"a":{"type":"integer","enum":null,"minimum":null,"exclusiveMaximum":null}},"required":null,)"
       R"("additionalProperties":null,"anyOf":null,"$ref":null,"$defs":null,"not":null,"if":null,"nullable":null})",
       {"{}", R"({"a":1})"},
       {R"({"a":"x"})", R"({"b":1})"}},
      {R"({"type":"object","properties":null,"required":["x"]})", {R"({"x":1})"}, {"{}"}},
      {R"({"type":"array","items":null,"maxItems":1,"minItems":null})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type":"string","pattern":null,"format":null,"maxLength":1})", {R"("a")"}, {R"("ab")"}},
      {R"({"type":null,"minLength":1})", {R"("a")"}, {"1", R"("")"}},
      {R"({"const":null})", {"null"}, {"1"}},
      {R"({"enum":[null,1]})", {"null", "1"}, {"2"}},
      {R"({"properties":{"a":null,"b":{"type":"null"}},"required":["a"]})", {R"({"a":1})"}, {"{}", R"({"a":1,"b":1})"}},
  });
}

TEST(JsonSchema, TypesMayBeInAnyCase) {
  expect_texts({
      {R"({"type":"OBJECT","properties":{"a":{"type":"STRING"},"b":{"type":"Integer","nullable":true}}})",
       {R"({"a":"x","b":null})", R"({"b":1})"},
       {R"({"a":1})", R"({"b":"x"})", "[]"}},
      {R"({"type":["NULL","Boolean"]})", {"null", "true"}, {"1"}},
  });
}

TEST(JsonSchema, AnIdOfAPartChangesNothingElse) {
  expect_texts({
      {R"({"properties":{"a":{"$id":"https://example.org/a","type":"integer"},"$id":{"type":"null"}}})",
       {R"({"a":1,"$id":null})"},
       {R"({"a":"x"})"}},
      {R"({"$defs":{"a":{"$id":"x","type":"integer"}},"$ref":"#/$defs/a"})", {"1"}, {"null"}},
  });
}

TEST(JsonSchema, ASchemaWithoutValuesIsRefused) {
  for (const std::string_view schema :
       {"false", R"({"type":"integer","minimum":3,"maximum":2})", R"({"enum":[]})",
        R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", R"({"allOf":[{"type":"null"},{"type":"string"}]})",
        R"({"type":"string","pattern":"a$b"})", R"({"type":"array","items":false,"minItems":1})"}) {
    const auto grammar = json_schema_grammar(schema);
    ASSERT_FALSE(grammar) << schema;
    EXPECT_EQ(grammar.error().message, "no JSON value satisfies the schema") << schema;
  }
}

TEST(JsonSchema, AHostileSchemaIsRefusedSoon) {
  std::string branches = R"({"type":"object"})";
  for (int i = 0; i < 200; ++i) branches += R"(,{"type":"object"})";
  const std::string product = std::format(R"({{"allOf":[{{"anyOf":[{0}]}},{{"anyOf":[{0},true]}}]}})", branches);
  EXPECT_FALSE(json_schema_grammar(product));
  EXPECT_FALSE(
      json_schema_grammar(R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})"));
  // Each level doubles the one below.
  for (const std::string_view combined : {"allOf", "anyOf"}) {
    std::string levels = R"("a0":{"type":"object"})";
    for (int i = 1; i < 20; ++i)
      levels += std::format(R"(,"a{0}":{{"{2}":[{{"$ref":"#/$defs/a{1}"}},{{"$ref":"#/$defs/a{1}"}}]}})", i, i - 1, combined);
    const auto grammar = json_schema_grammar(
        std::format(R"({{"$defs":{{{}}},"oneOf":[{{"$ref":"#/$defs/a19"}},{{"$ref":"#/$defs/a18"}}]}})", levels));
    ASSERT_FALSE(grammar);
    EXPECT_THAT(grammar.error().message,
                AnyOf(HasSubstr("too many combinations"), HasSubstr("is too large, with what is merged")));
  }
}

// Short schemas that would take minutes: work is counted before it is done.
TEST(JsonSchema, WorkIsBounded) {
  const auto list = [](int count, auto&& element) {
    std::string all;
    for (int i = 0; i < count; ++i) all += std::string(i == 0 ? "" : ",") + element(i);
    return all;
  };
  const auto numbers = [&](int from, int count) { return list(count, [&](int i) { return std::to_string(from + i); }); };
  const auto expect_too_large = [](const std::string& schema) {
    const auto grammar = json_schema_grammar(schema);
    ASSERT_FALSE(grammar);
    EXPECT_THAT(grammar.error().message, HasSubstr("is too large after merging"));
  };
  const std::string both = list(20, [](int i) { return i % 2 == 0 ? R"({"$ref":"#/$defs/a"})" : R"({"$ref":"#/$defs/b"})"; });
  expect_too_large(std::format(R"({{"$defs":{{"a":{{"enum":[{}]}},"b":{{"enum":[{}]}}}},"allOf":[{}]}})", numbers(0, 12'000),
                               numbers(1, 12'000), both));
  // Each level includes the one below twice, and copies its content.
  const std::string properties = list(250, [](int i) { return std::format(R"("p{}":{{}})", i); });
  std::string levels = std::format(R"("l0":{{"properties":{{{}}}}})", properties);
  for (int i = 1; i < 13; ++i)
    levels += std::format(R"(,"l{0}":{{"allOf":[{{"$ref":"#/$defs/l{1}"}},{{"$ref":"#/$defs/l{1}"}}]}})", i, i - 1);
  expect_too_large(std::format(R"({{"$defs":{{{}}},"$ref":"#/$defs/l12"}})", levels));
  const auto names = [&](const char* prefix) { return list(8000, [&](int i) { return std::format("\"{}{}\"", prefix, i); }); };
  const auto required = json_schema_grammar(
      std::format(R"({{"type":"object","allOf":[{{"required":[{}]}},{{"required":[{}]}}]}})", names("a"), names("b")));
  EXPECT_FALSE(required) << "but soon";
}

TEST(JsonRules, ARefusedSchemaLeavesNoRule) {
  JsonRules rules;
  ASSERT_TRUE(rules.add(R"({"type":"string"})"));
  const std::string before = rules.gbnf();
  EXPECT_FALSE(rules.add(R"({"type":"object","properties":{"a":{"type":"array"},"b":{"type":3}}})"));
  EXPECT_EQ(rules.gbnf(), before);
  const auto later = rules.add(R"({"type":"object","properties":{"a":{"type":"array"}}})");
  ASSERT_TRUE(later);
  EXPECT_TRUE(Grammar::parse(std::format("root ::= {}\n{}", *later, rules.gbnf()))) << rules.gbnf();
}

TEST(JsonRules, APartOfASchemaRefersToTheWhole) {
  const boost::json::value whole = boost::json::parse(
      R"({"type":"object","properties":{"next":{"$ref":"#"},"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}})");
  JsonRules rules;
  const auto next = rules.add(whole.at("properties").at("next"), whole);
  ASSERT_TRUE(next) << next.error().message;
  GrammarReader reader(Grammar::parse(std::format("root ::= {}\n{}", *next, rules.gbnf())).value());
  const auto accepts = [&](std::string_view text) { return reader.can_end(reader.next(GrammarReader::kStart, text)); };
  EXPECT_TRUE(accepts(R"({"next": {"next": {"n": 1}, "n": 2}})"));
  EXPECT_FALSE(accepts(R"({"next": {"n": "1"}})"));
}

// Otherwise each tool of a request could cost as much as one schema may.
TEST(JsonRules, TheWorkOfAllSchemasIsBounded) {
  std::string parts;
  for (int i = 0; i < 200; ++i) parts += R"(,{"$ref":"#/$defs/p"})";
  std::string properties;
  for (int i = 0; i < 2000; ++i) properties += std::format(R"({}"p{}":{{}})", i == 0 ? "" : ",", i);
  const std::string costly = std::format(R"({{"$defs":{{"p":{{"properties":{{{}}}}}}},"allOf":[{{}}{}]}})", properties, parts);
  JsonRules rules;
  for (int i = 0; i < 3; ++i) {
    const auto refused = rules.add(costly);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("is too large after merging"));
  }
  const auto refused = rules.add(R"({"type":"string"})");
  ASSERT_FALSE(refused) << "no work is left";
  EXPECT_THAT(refused.error().message, HasSubstr("is too large after merging"));
}

TEST(JsonRules, StandBesideOthersInOneGrammar) {
  JsonRules rules;
  const auto first = rules.add(R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})");
  const auto second = rules.add(R"({"$defs":{"x":{"type":"integer"}},"$ref":"#/$defs/x"})");
  ASSERT_TRUE(first && second);
  GrammarReader reader(
      Grammar::parse(std::format("root ::= \"a:\" {} | \"b:\" {}\n{}", *first, *second, rules.gbnf())).value());
  const auto accepts = [&](std::string_view text) { return reader.can_end(reader.next(GrammarReader::kStart, text)); };
  EXPECT_TRUE(accepts(R"(a:{"city": "Rome"})"));
  EXPECT_TRUE(accepts("b:12"));
  EXPECT_FALSE(accepts("a:12"));
}

}  // namespace
}  // namespace uma::grammar
