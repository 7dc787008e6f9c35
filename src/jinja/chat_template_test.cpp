// Compares the output of templates with that of Jinja2 3.1, with the options and the tojson filter of transformers.
#include "jinja/chat_template.h"

#include <format>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "jinja/hostile_templates_test_support.h"

namespace uma::jinja {
namespace {

Value message(std::string_view role, std::string content, Source source) {
  return Value::dict({{"role", Value::text(role)}, {"content", Value::text(Text::input(std::move(content), source))}});
}

ChatTemplateInput some_input() {
  ChatTemplateInput input;
  input.messages =
      Value::list({message("system", " be brief ", 0), message("user", "Hello <b>", 1), message("assistant", "hi", 2)});
  return input;
}

Expected<Text> render(std::string_view source, const ChatTemplateInput& input = some_input()) {
  auto made = ChatTemplate::parse(source);
  if (!made) return std::unexpected(made.error());
  return made->render(input);
}

std::string text_of(std::string_view source, const ChatTemplateInput& input = some_input()) {
  const auto text = render(source, input);
  return text ? text->bytes() : "error: " + text.error().message;
}

std::string error_of(std::string_view source, const ChatTemplateInput& input = some_input()) {
  const auto text = render(source, input);
  return text ? "no error, but: " + text->bytes() : text.error().message;
}

void check(const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [source, expected] : cases) EXPECT_EQ(text_of(source), expected) << source;
}

TEST(ChatTemplate, ArithmeticIsPythons) {
  check({
      {R"({{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1 - -1 }} {{ -2 ** 2 }})",
       R"(7 9 3 -4 2 3.5 1024 0.5 2 4)"},
      {R"({{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 1_000 }} {{ 5.5 % 2 }} {{ -5.5 // 2 }})",
       R"(1.0 1e+16 1e-05 0.30000000000000004 0.3333333333333333 1000 1.5 -3.0)"},
      {R"({{ 'a' * 3 }} {{ [1, 2] * 2 }} {{ (1, 2) + (3,) }} {{ 'a' + 'b' }})", R"(aaa [1, 2, 1, 2] (1, 2, 3) ab)"},
      {R"({{ true + 1 }} {{ +3 }} {{ -true }})", R"(2 3 -1)"},
  });
}

TEST(ChatTemplate, ComparisonsChain) {
  check({
      {R"({{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' != 'b' }})", R"(True False True True True)"},
      {R"({{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }} {{ x == y }})",
       R"(True True False True True)"},
      {R"({{ 'b' in 'abc' }} {{ 4 not in [1, 2] }} {{ 'k' in {'k': 1} }} {{ x in [1] }} {{ 'a' in x }})",
       R"(True True True False False)"},
  });
}

TEST(ChatTemplate, TruthIsPythons) {
  check({
      {R"({{ true and 'x' }} {{ '' or 'y' }} {{ 0 and 1 }} {{ not 1 }} {{ not [] }} {{ not x }} {{ none or {} }} {{ 0.0 or 'z' }})",
       R"(x y 0 False True True {} z)"},
      {R"({{ 'a' if [] else 'b' }} {{ 'a' if 1 }} [{{ 'a' if 0 }}] {{ 'a' if 0 else 'b' if 0 else 'c' }})", R"(b a [] c)"},
  });
}

TEST(ChatTemplate, TextsJoinWithAnyValue) {
  check({
      {R"({{ 'a' ~ 1 ~ none ~ true ~ 1.5 }})", R"(a1NoneTrue1.5)"},
      {R"({{ 'a' 'b' }} {{ "\x41\u00e9\t\\\'\"\q\101" }})", "ab Aé\t\\'\"\\qA"},
  });
}

TEST(ChatTemplate, ValuesPrintAsInPython) {
  check({
      {R"({{ none }} {{ true }} [{{ x }}] {{ [1, 'a', none, 1.0] }} {{ (1,) }} {{ () }} {{ {'a': [1, {}]} }})",
       R"(None True [] [1, 'a', None, 1.0] (1,) () {'a': [1, {}]})"},
      {R"({{ ['it\'s', 'say "hi"', 'both \' "', 'a\nb', 'wörld'] }})", R"(["it's", 'say "hi"', 'both \' "', 'a\nb', 'wörld'])"},
  });
}

TEST(ChatTemplate, IndexesAndSlicesCountCharacters) {
  check({
      {R"({{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ 'hello'[-1] }} {{ 'wörld'[1] }} {{ 'wörld'[2:] }} {{ 'wörld'[:-3] }} {{ 'abc'[1:99] }})",
       R"(el olleh o ö rld wö bc)"},
      {R"({{ [1, 2, 3][:-1] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][1:] }} {{ [1, 2, 3][-1] }} [{{ [1][5] }}])",
       R"([1, 2] [1, 3] [2, 3] 3 [])"},
      {R"({{ messages[0]['role'] }} {{ messages[0].role }} {{ messages.0.role }} {{ messages[-1].role }} [{{ messages[0].nope }}])",
       R"(system system system assistant [])"},
  });
}

TEST(ChatTemplate, TestsAskForKinds) {
  check({
      {R"({{ x is defined }} {{ x is undefined }} {{ messages is not defined }} {{ none is none }})",
       R"(False True False True)"},
      {R"({{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.5 is float }} {{ false is boolean }} {{ true is true }} {{ 0 is false }})",
       R"(True True False True True True True False)"},
      {R"({{ 'a' is string }} {{ {} is mapping }} {{ [] is mapping }} {{ [] is sequence }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ messages[0].items is callable }})",
       R"(True True False True True False True)"},
      {R"({{ 1 is odd }} {{ 4 is even }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 2 is in [1, 2] }} {{ 5 is gt 3 }} {{ 3 is ne 3 }} {{ 'a' is eq 'a' }} {{ 'a' is equalto('b') }})",
       R"(True True True False True True False True False)"},
      {R"({{ 'AB' is upper }} {{ 'ab' is lower }} {{ 'a' is string and 1 is odd }} {{ x is defined == false }})",
       R"(True True True True)"},
  });
}

TEST(ChatTemplate, FiltersOfTexts) {
  check({
      {R"({{ '  x ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 'aBc' | upper }}|{{ 'aBc' | lower }}|{{ 'hello wORLD foo-bar' | title }}|{{ 'hELLO w' | capitalize }})",
       R"(x|a|ABC|abc|Hello World Foo-Bar|Hello w)"},
      {R"({{ 'abcabc' | replace('b', 'X') }} {{ 'abcabc' | replace('b', 'X', 1) }} {{ 'wörld' | length }} {{ 'abc' | reverse }} {{ 'abc' | list }})",
       R"(aXcaXc aXcabc 5 cba ['a', 'b', 'c'])"},
      {R"({{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }})",
       "a\n    b\n\n    c|  a\n  b|a\n  \n  b"},
      {R"({{ '<a href=\'x\'>&</a>' | escape }} {{ 'x' | safe }} {{ 'ab' | first }} {{ 'ab' | last }})",
       R"(&lt;a href=&#39;x&#39;&gt;&amp;&lt;/a&gt; x a b)"},
      {R"({{ 'a' + 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 5 | string + '!' }})", R"(aB AB 5!)"},
  });
}

TEST(ChatTemplate, FiltersOfLists) {
  check({
      {R"({{ [1, 2, 3] | join('-') }} {{ messages | join(',', attribute='role') }} {{ [1, 2] | first }} {{ [1, 2] | last }} [{{ [] | first }}] {{ [1, 2] | count }})",
       R"(1-2-3 system,user,assistant 1 2 [] 2)"},
      {R"({{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A', 'c'] | sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }} {{ messages | sort(attribute='role') | map(attribute='role') | list }})",
       R"([1, 2, 3] ['A', 'b', 'c'] ['A', 'b', 'c'] [2, 1] ['assistant', 'system', 'user'])"},
      {R"({{ [1, 2, 1, 'a', 'A'] | unique | list }} {{ [1, 2, 3] | reverse | list }})", R"([1, 2, 'a'] [3, 2, 1])"},
      {R"({{ ['a', 'b'] | map('upper') | list }} {{ messages | map(attribute='nope', default='-') | list }})",
       R"(['A', 'B'] ['-', '-', '-'])"},
      {R"({{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='role') | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 0] | select | list }} {{ [1, 2, 3] | reject('in', [1]) | list }})",
       R"(1 ['assistant'] [1, 3] [1] [2, 3])"},
  });
}

TEST(ChatTemplate, FiltersOfDicts) {
  check({
      {R"({{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }} {{ {'b': 1} | items | list }} {{ {'b': 1} | length }} {{ {'b': 1} | list }})",
       R"([('a', 2), ('b', 1)] [('b', 1), ('a', 2)] [('b', 1), ('a', 2)] [('b', 1)] 1 ['b'])"},
  });
}

TEST(ChatTemplate, FiltersOfNumbers) {
  check({
      {R"({{ '12' | int }} {{ '1.9' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '0x1f' | int(base=16) }} {{ 1.9 | int }} {{ '1.5' | float }} {{ 1 | float }} {{ -3 | abs }} {{ -3.5 | abs }})",
       R"(12 1 0 7 31 1 1.5 1.0 3 3.5)"},
  });
}

TEST(ChatTemplate, DefaultReplacesMissingValues) {
  check({
      {R"({{ x | default('d') }} [{{ '' | default('d') }}] {{ '' | default('d', true) }} {{ none | d('q', boolean=true) }} {{ none | default('d') }} [{{ x | default }}])",
       R"(d [] d q None [])"},
  });
}

TEST(ChatTemplate, JsonIsWrittenAsTransformersDoes) {
  check({
      {R"({{ {'a': 1, 'b': [1, 'é"\n</x>', none, true, 1.5, {}, []]} | tojson }})",
       R"({"a": 1, "b": [1, "é\"\n</x>", null, true, 1.5, {}, []]})"},
      {R"({{ {'b': 1, 'a': [1, {'z': 2}], 'e': {}, 'f': []} | tojson(indent=2) }})",
       "{\n  \"b\": 1,\n  \"a\": [\n    1,\n    {\n      \"z\": 2\n    }\n  ],\n  \"e\": {},\n  \"f\": []\n}"},
      {R"({{ {'b': 1, 'a': [1]} | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ 'é😀' | tojson(ensure_ascii=true) }})",
       R"({"b":1,"a":[1]} {"a": 2, "b": 1} "\u00e9\ud83d\ude00")"},
  });
}

TEST(ChatTemplate, MethodsOfTexts) {
  check({
      {R"({{ 'a,b,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b  c '.rsplit(none, 1) }} {{ ''.split(',') }} {{ ''.split() }})",
       R"(['a', 'b', 'c'] ['a', 'b', 'c'] ['a', 'b,c'] ['a,b', 'c'] ['a', 'b c '] [' a  b', 'c'] [''] [])"},
      {R"({{ ' x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\u3000a\xa0'.strip() }}|)",
       R"(x|x | x|a|a|)"},
      {R"({{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'wörld'.find('r') }} {{ 'abc'.find('z') }} {{ 'aba'.rfind('a') }} {{ 'aXbXa'.count('X') }} {{ '12'.isdigit() }})",
       R"(True True True 2 -1 2 2 True)"},
      {R"({{ 'aBc'.upper() }} {{ 'aBc'.lower() }} {{ "they're bill's".title() }} {{ 'aBc'.capitalize() }} {{ 'abcabc'.replace('b', 'X', 1) }} {{ 'abc'.replace('', '-') }} {{ ','.join(['a', 'b']) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }})",
       R"(ABC abc They'Re Bill'S Abc aXcabc -a-b-c- a,b bc ab)"},
      {R"({{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }})", R"(['a', 'b', 'c'] ['a\n', 'b'])"},
  });
}

TEST(ChatTemplate, MethodsOfDicts) {
  check({
      {R"({{ {'b': 1}.items() | list }} {{ {'b': 1}.keys() | list }} {{ {'b': 1}.values() | list }} {{ {'b': 1}.get('b') }} {{ {'b': 1}.get('c') }} {{ {'b': 1}.get('c', 5) }})",
       R"([('b', 1)] ['b'] [1] 1 None 5)"},
      {R"({{ {'items': 1}['items'] }} {{ {'items': 1}.get('items') }} {{ {'items': 1}.items is callable }})", R"(1 1 True)"},
  });
}

TEST(ChatTemplate, FunctionsMakeValues) {
  check({
      {R"({{ range(3) | list }} {{ range(1, 3) | list }} {{ range(5, 1, -2) | list }} {{ dict(a=1, b='x') }} {{ namespace(x=1).x }})",
       R"([0, 1, 2] [1, 2] [5, 3] {'a': 1, 'b': 'x'} 1)"},
  });
}

TEST(ChatTemplate, KeysMayBeIntegers) {
  check({
      {R"({% set d = {512: 'b', 0: 'a', '0': 'text', 0: 'again'} %}{{ d }} {{ d[0] }} {{ d['0'] }} {{ d[true - 1] }} [{{ d[7] }}] {{ d.get(512) }} {{ d.get(7) }} {{ d | length }})",
       R"({512: 'b', 0: 'again', '0': 'text'} again text again [] b None 3)"},
      {R"({% set d = {512: 'b', 0: 'a'} %}{% for k, v in d | dictsort %}{{ k + 1 }}{{ v }} {% endfor %}{{ 512 in d }} {{ '512' in d }} {{ d | tojson }} {{ d | tojson(sort_keys=true) }} {{ d == {0: 'a', 512: 'b'} }} {{ d == {'0': 'a', '512': 'b'} }} {{ d.keys() | list }} {{ d | list }})",
       R"(1a 513b True False {"512": "b", "0": "a"} {"0": "a", "512": "b"} True False [512, 0] [512, 0])"},
  });
}

TEST(ChatTemplate, NamespacesMayBeItems) {
  check({
      {R"({% set a = namespace(n=1) %}{% set list = [a, {'in': a}] %}{% set a.n = 2 %}{{ list[0].n }} {{ list[1]['in'].n }} {{ list[0] == a }} {{ a in list }} {{ namespace() in list }})",
       R"(2 2 True True False)"},
      {R"({% for m in [namespace(role='system', content='s')] + messages %}{{ m.role }} {% endfor %})",
       R"(system system user assistant )"},
      {R"({% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns, ns] %}{{ ns.me.me.list[1].list | length }})",
       R"(2)"},
  });
}

TEST(ChatTemplate, SafeChangesNothing) {
  check({{R"({{ '<a>'|safe + '&' }} {{ "it's"|safe ~ '"' }})", R"(<a>& it's")"}});
}

TEST(ChatTemplate, LoopsReportTheirPosition) {
  check({
      {R"({% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.length }} {{ loop.depth }} {{ loop.previtem.role if loop.previtem is defined }} {{ loop.nextitem is defined }} {{ loop.cycle('odd', 'even') }};{% endfor %})",
       R"(1032 True False 3 1  True odd;2121 False False 3 1 system True even;3210 False True 3 1 user False odd;)"},
  });
}

TEST(ChatTemplate, LoopsGoThroughManyThings) {
  check({
      {R"({% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}={{ b }},{% endfor %}{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% for c in 'wö' %}{{ c }}.{% endfor %}{% for k in {'p': 1} %}{{ k }}{% endfor %}{% for q in x %}never{% endfor %})",
       R"(x=1,y=2,12w.ö.p)"},
      {R"({% for x in [] %}a{% else %}empty{% endfor %} {% for x in [1, 2, 3, 4] if x is even %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %})",
       R"(empty 2/2 4/2 )"},
      {R"({% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %})",
       R"(023)"},
      {R"({% for i in [1, 2] %}{% for j in [3] %}{{ i }}{{ j }}{{ loop.depth }} {% endfor %}{{ loop.index }}{% endfor %})",
       R"(131 1231 2)"},
  });
}

TEST(ChatTemplate, NamesBelongToTheirBlock) {
  check({
      {R"({% set a = 0 %}{% for i in [1, 2] %}[{{ a }}]{% set a = i %}[{{ a }}]{% endfor %}{{ a }})", R"([0][1][0][2]0)"},
      {R"({% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.last = i %}{% endfor %}{{ ns.n }} {{ ns.last }})",
       R"(6 3)"},
      {R"({% if true %}{% set a = 1 %}{% endif %}{{ a }} {% set a, b = 2, 3 %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }})",
       R"(1 23 (1, 2))"},
  });
}

TEST(ChatTemplate, BlocksBecomeValues) {
  check({
      {R"({% set a %} hi {{ 1 + 1 }} {% endset %}[{{ a }}]{% set a | trim | upper %} low {% endset %}[{{ a }}])",
       R"([ hi 2 ][LOW])"},
      {R"({% filter upper %}abc{{ 'd' }}{% endfilter %}{% generation %}gen{% endgeneration %})", R"(ABCDgen)"},
  });
}

TEST(ChatTemplate, ConditionsHaveBranches) {
  check({
      {R"({% for i in range(4) %}{% if i == 0 %}a{% elif i == 1 %}b{% elif i == 2 %}c{% else %}d{% endif %}{% endfor %})",
       R"(abcd)"},
  });
}

TEST(ChatTemplate, MacrosTakeArguments) {
  check({
      {R"({% macro m(a, b=2, c=none) %}<{{ a }},{{ b }},{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m('x', 'y', 'z') }}{{ m() }})",
       R"(<1,2,None><1,2,3><x,y,z><,2,None>)"},
      {R"({% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{{ f(1) | length }})",
       R"(32102)"},
      {R"({% macro w() %}[{{ caller() }}]{% endmacro %}{% set a = 5 %}{% call w() %}in {{ a }}{% endcall %}{% macro v() %}{{ caller(5) }}{% endmacro %}{% call(q) v() %}q={{ q }}{% endcall %})",
       R"([in 5]q=5)"},
  });
}

TEST(ChatTemplate, CommentsAndRawBlocksAreNotRun) {
  check({
      {R"(a{# {{ x }} #}b{% raw %}{{ x }} {% if %}{% endraw %}c)", R"(ab{{ x }} {% if %}c)"},
      {"  {# c #}\n  d\n", R"(  d)"},
      {"{#- c -#}  \n x", R"(x)"},
      {"x {#- c #}\n y", R"(x y)"},
      {"  {% raw %}\n  x\n  {% endraw %}\n  y", "\n  x\n  y"},
      {"{%- raw -%}  a {{ }} {%- endraw -%}  \n b", R"(a {{ }}b)"},
  });
}

TEST(ChatTemplate, TagsControlTheWhitespaceAroundThem) {
  check({
      {"a\n{% if 1 %}\n  b\n{% endif %}\nc\n", "a\n  b\nc"},
      {"a  {%- if 1 -%}  \n b {% endif %}\n\n c", "ab \n c"},
      {"  {% if 1 %}x{% endif %}  \n", R"(x  )"},
      {"{{ 1 }}\n{{ 2 }}\n", "1\n2"},
      {"  {{ 1 }}  \n x", "  1  \n x"},
      {"a\n  {%+ if 1 %}b{% endif %}", "a\n  b"},
      {"a\n{% if 1 +%}\nb{% endif %}", "a\n\nb"},
      {"a {{- 1 -}} \n b", R"(a1b)"},
      {"x\n   {%- set a = 1 %}\n   {%- set b = 2 -%}\n   y", R"(xy)"},
      {"\n\n{% for i in [1, 2] %}\n - {{ i }}\n{% endfor %}\n\nend\n\n", "\n\n - 1\n - 2\n\nend\n"},
      {"a\r\nb\r\n", "a\nb"},
      {"a\t{% if 1 %}\t{% endif %}\tb", "a\t\t\tb"},
      {"\u00a0{%- if 1 %}a{% endif %}", R"(a)"},
  });
}

TEST(ChatTemplate, BracketsOfTagsInsideTags) {
  check({
      {R"({{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}{{ {'a':1}}})", R"(}}%}{'a': {'b': 1}}{'a': 1})"},
      {R"({ {% if 1 %}{ }{% endif %} } %} }})", R"({ { } } %} }})"},
  });
}

TEST(ChatTemplate, SeesItsInput) {
  ChatTemplateInput input = some_input();
  EXPECT_EQ(text_of("{{ tools is none }} {{ add_generation_prompt }} {{ enable_thinking is defined }}", input),
            "True True False");
  input.tools = Value::list({Value::dict({{"name", Value::text("f")}})});
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  input.add_generation_prompt = false;
  input.variables = {{"enable_thinking", Value::boolean(true)}};
  EXPECT_EQ(
      text_of("{{ tools | tojson }} {{ bos_token }}{{ eos_token }} {{ add_generation_prompt }} {{ enable_thinking }}", input),
      R"([{"name": "f"}] <s></s> False True)");
  input.unix_s = 86'400 * 59 + 43'200;
  EXPECT_EQ(text_of("{{ strftime_now('%d %B %Y, %a %-d %b') }}", input), "01 March 1970, Sun 1 Mar");
}

TEST(ChatTemplate, RendersManyTimesFromOneTree) {
  const auto made = ChatTemplate::parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->render(some_input())->bytes(), "3");
  EXPECT_EQ(made->render(some_input())->bytes(), "3");
}

// --- sources of text

TEST(ChatTemplate, TextsKeepTheirSource) {
  const auto ranges = [](std::string_view source) {
    const auto text = render(source);
    EXPECT_TRUE(text) << source;
    return std::vector(text->inputs().begin(), text->inputs().end());
  };
  using Ranges = std::vector<SourceRange>;
  EXPECT_EQ(ranges("<{{ messages[1].content }}>"), (Ranges{{1, 10, 1}}));
  EXPECT_EQ(ranges("{% for m in messages %}{{ m.content | trim }}{% endfor %}"), (Ranges{{0, 8, 0}, {8, 17, 1}, {17, 19, 2}}));
  EXPECT_EQ(ranges("{{ messages[1].content.split(' ')[1] ~ '!' ~ messages[1].content[:2] }}"), (Ranges{{0, 3, 1}, {4, 6, 1}}));
  EXPECT_EQ(ranges("{{ messages[1].content | replace('ll', 'LL') | upper }}"), (Ranges{{0, 2, 1}, {4, 9, 1}}))
      << "what the template puts in is the template's";
  EXPECT_EQ(ranges("{{ messages[1].content | replace('l', 'L') }}"), (Ranges{{0, 2, 1}, {4, 9, 1}})) << "no empty range";
  EXPECT_EQ(ranges("{% set x %}a{{ messages[2].content }}{% endset %}{% macro m(t) %}b{{ t }}{% endmacro %}{{ m(x) }}"),
            (Ranges{{2, 4, 2}}));
  EXPECT_EQ(ranges("{{ messages[2].content | tojson }}"), (Ranges{{0, 4, 2}})) << "quotes and all";
  EXPECT_EQ(ranges("{{ messages[2] }}"), (Ranges{{0, 38, 2}}));
  EXPECT_EQ(ranges("{{ [messages[1].content, messages[2].content] | tojson }}").front().source, kOtherInput)
      << "of two messages";
  EXPECT_EQ(ranges("{{ messages[2].role }}{{ [1, 'a'] }}"), Ranges{});
}

// --- refused templates

TEST(ChatTemplate, RefusesByNameAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n{% include 'x' %}", "line 2: the statement \"include\" is not supported"},
      {"{{ 1\n| nofilter }}", "line 2: the filter \"nofilter\" is not supported"},
      {"\n\n{{ 1 is notest }}", "line 3: the test \"notest\" is not supported"},
      {"{{ foo() }}", "line 1: \"foo\" is not a function"},
      {"{{ 'a'.zfill(3) }}", "line 1: \"zfill\" is not a function"},
      {"{{ [1].append(2) }}", "line 1: \"append\" is not a function"},
      {"{{ foo.bar }}", "line 1: \"foo\" is undefined, so it has no \"bar\""},
      {"{{ 1 + foo }}", "line 1: \"foo\" is undefined"},
      {"{{ 'a' + 1 }}", "line 1: \"+\" of str and int is not supported"},
      {"{{ 1 // 0 }}", "line 1: division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "line 1: an integer is too large"},
      {"{{ 5 | length }}", "line 1: a value of type int has no length"},
      {"{% for x in none %}{% endfor %}", "line 1: a value of type None has no items"},
      {"{% for a, b in [1] %}{% endfor %}", "line 1: a value of type int has no items"},
      {"{% for a, b in [[1]] %}{% endfor %}", "line 1: 1 values for 2 names"},
      {"{{ 'a' < 1 }}", "line 1: str and int have no order"},
      {"{{ {1.5: 2} }}", "line 1: the keys of a dict must be texts or integers, got float"},
      {"{% set x = 1 %}{% set x.y = 2 %}", "line 1: \"x\" is not a namespace, so \"x.y\" cannot be set"},
      {"{% set ns = namespace() %}{{ [ns] }}", "line 1: a namespace cannot be printed"},
      {"{% set ns = namespace() %}{{ {'a': ns} | tojson }}", "line 1: tojson: a value of type namespace has no JSON form"},
      {"{% for x in [1] %}{{ [loop] }}{% endfor %}", "line 1: a loop cannot be an item of a list or a dict"},
      {"{% set ns = namespace() %}{% for x in [1] %}{% set ns.x = loop %}{% endfor %}",
       "line 1: a loop cannot be put into a namespace"},
      {"{{ messages[0].content.upper(1) }}", "line 1: upper takes 0 arguments, got 1"},
      {"{{ 'a' | replace('b') }}", "line 1: replace needs more arguments"},
      {"{{ 'a' | trim(x=1) }}", "line 1: trim has no argument \"x\""},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "line 1: \"m\" takes 1 arguments, got 2"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "line 1: \"m\" has no argument \"b\""},
      {"{{ strftime_now('%Q') }}", "line 1: strftime_now: \"%Q\" is not supported"},
      {"{{ strftime_now('%999999999d') }}", "line 1: strftime_now: \"%99\" is not supported"},
      {"x\n{{ raise_exception('roles must alternate') }}",
       "line 2: the template refuses this conversation: roles must alternate"},
      {"{% if x %}\na", "line 2: \"endif\" is missing"},
      {"{% for x in y %}{% endif %}", "line 1: the statement \"endif\" is not supported"},
      {"{% endfor %}", "line 1: unmatched \"endfor\""},
      {"{% else %}", "line 1: unmatched \"else\""},
      {"{% break %}", "line 1: \"break\" is outside of a loop"},
      {"{% for x in y recursive %}{% endfor %}", "line 1: recursive loops are not supported"},
      {"{% for x in y %}{% macro m() %}{% endmacro %}{% endfor %}",
       "line 1: a macro inside a loop or another macro is not supported"},
      {"{{ 'abc }}", "line 1: a string is not closed"},
      {"{{ 1 ", "line 1: a tag is not closed by \"}}\""},
      {"{# x", "line 1: a comment is not closed by \"#}\""},
      {"{% raw %}x", "line 1: a raw block is not closed by \"{% endraw %}\""},
      {"{{ 1 + }}", "line 1: expected an expression, got \"}}\""},
      {"{{ (1 }}", "line 1: unmatched \"}\""},
      {"{{ 1 2 }}", "line 1: expected \"}}\", got \"2\""},
      {"{{ 1a }}", "line 1: \"1a\" is not a number"},
      {"{{ $ }}", "line 1: unexpected character \"$\""},
      {"{{ f(*a) }}", "line 1: arguments with * are not supported"},
      {"{{ f(a=1, 2) }}", "line 1: a positional argument follows a named argument"},
      {"{% set true = 1 %}", "line 1: \"true\" cannot be assigned to"},
      {"{{ '\\ud800' }}", "line 1: an escape in a string is not a character"},
      {"{{ 99999999999999999999 }}", "line 1: an integer is too large"},
      {"\xff", "line 1: not UTF-8"},
  };
  for (const auto& [source, problem] : cases) EXPECT_EQ(error_of(source), "chat template, " + problem) << source;
}

TEST(ChatTemplate, NestingIsBounded) {
  for (const auto& [source, why] : deep_templates()) {
    EXPECT_TRUE(error_of(source).contains(why)) << source.substr(0, 60) << ": " << error_of(source);
  }
}

TEST(ChatTemplate, WorkIsBounded) {
  const ChatTemplateInput input = long_input();
  for (const std::string& source : endless_templates()) {
    const std::string problem = error_of(source, input);
    EXPECT_TRUE(problem.contains("too many steps") || problem.contains("too much text") || problem.contains("range:") ||
                problem.contains("too large"))
        << source.substr(0, 120) << ": " << problem.substr(0, 200);
  }
}

TEST(ChatTemplate, TheSourceIsBounded) {
  EXPECT_EQ(error_of(std::string(200'000, 'a')), "chat template, line 0: the template has 200000 bytes; the limit is 131072");
}

TEST(ChatTemplate, LongConversationsAreRendered) {
  std::vector<Value> messages;
  for (int i = 0; i < 4000; ++i) messages.push_back(message(i % 2 == 0 ? "user" : "assistant", repeated("word ", 100), i));
  ChatTemplateInput input;
  input.messages = Value::list(std::move(messages));
  const std::string text = text_of(
      "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' and not m.content.startswith('<tool') %}"
      "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if '</think>' in m.content %}no{% endif "
      "%}"
      "<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>{% endfor %}{{ ns.last }}",
      input);
  EXPECT_TRUE(text.ends_with("3998")) << text.substr(0, 200);
  EXPECT_GT(text.size(), 2'000'000u);
}

}  // namespace
}  // namespace uma::jinja
