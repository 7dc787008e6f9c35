// Templates that try to take a machine's time or memory, for the tests of this module and for script/bench templates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/chat_template.h"

namespace uma::jinja {

inline std::string repeated(std::string_view part, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

// Deep templates, each with a part of its error message.
inline std::vector<std::pair<std::string, std::string>> deep_templates() {
  return {
      {"{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}", "nested deeper"},
      {"{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}", "nested deeper"},
      {"{{ " + repeated("not ", 5000) + "1 }}", "nested deeper"},
      {"{{ " + repeated("-", 5000) + "1 }}", "nested deeper"},
      {"{{ " + repeated("1 if ", 5000) + "1 }}", "levels"},
      {"{{ " + repeated("1 if 1 else ", 5000) + "1 }}", "nested deeper"},
      {"{{ 1" + repeated(" + 1", 5000) + " }}", "levels"},
      {"{{ x" + repeated(".x", 5000) + " }}", "levels"},
      {"{{ x" + repeated(" | e", 5000) + " }}", "levels"},
      {"{{ x" + repeated("[1]", 5000) + " }}", "levels"},
      {"{{ 1 is eq" + repeated(" eq", 5000) + " }}", "expected"},
      {repeated("{% if 1 %}", 5000), "nested deeper"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deep"},
      {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "nested too deep"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}", "nested deeper"},
      {repeated("{% set x %}", 100), "nested deeper"},
  };
}

// A message of 100,000 letters.
inline ChatTemplateInput long_input() {
  const Text letters = Text::input(repeated("a", 100'000), 0);
  ChatTemplateInput input;
  input.messages = Value::list({Value::dict(
      std::vector<Value::Entry>{{"role", Value::text(std::string_view("user"))}, {"content", Value::text(letters)}})});
  return input;
}

// With such an input, each of these would take seconds, gigabytes or for ever.
inline std::vector<std::string> endless_templates() {
  const std::string content = "{% set t = messages[0].content %}";
  const std::string forever = "{% for i in range(99999) %}{% for j in range(99999) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::string doubled =
      "{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}";
  return {
      std::string("{{ range(2000000000) }}"),
      std::string("{% for i in range(-9223372036854775807, 9223372036854775807) %}{% endfor %}"),
      forever + "x" + ends,
      forever + ends,
      forever + "{% set x = 1 %}" + ends,
      forever + "{% if i %}{% continue %}{% endif %}" + ends,
      doubled,
      "{% set ns = namespace() %}" + forever + "{% set ns.next = namespace(next=ns.next, all=[ns, ns.next]) %}" + ends,
      std::string("{{ 'a' * 9999999999 }}"),
      std::string("{{ [1] * 9999999999 }}"),
      std::string("{{ 2 ** 9223372036854775807 }}"),
      std::string("{{ 'a' | indent(9999999999) }}"),
      std::string("{{ [[]] | tojson(indent=9999999999) }}"),
      content + forever + "{{ t | trim }}" + ends,
      content + forever + "{% if t == t ~ '' %}{% endif %}" + ends,
      content + forever + "{% if t < t %}{% endif %}" + ends,
      content + forever + "{% if 'ab' in t %}{% endif %}" + ends,
      content + forever + "{% if (t[:50000] ~ 'b') in t %}{% endif %}" + ends,
      content + forever + "{% set x = t.split('a') %}" + ends,
      content + forever + "{% set x = t.replace('a', 'bbbbbbbb') %}" + ends,
      content + forever + "{% set x = t.rsplit('a', 99999) %}" + ends,
      content + forever + "{% set x = t[::-1] %}" + ends,
      content + forever + "{% set x = t[-1] %}" + ends,
      content + forever + "{% set x = t | list | sort | unique %}" + ends,
      content + forever + "{% set x = t | length %}" + ends,
      content + forever + "{% set x = t.strip('a') %}" + ends,
      content + forever + "{% set x = t.splitlines() %}" + ends,
      content + forever + "{% set x = t.count('a') %}" + ends,
      content + forever + "{% set x = t | tojson %}" + ends,
      content + forever + "{% set x = [t, t, t] | string %}" + ends,
      content + forever + "{% set x = t | upper %}" + ends,
      content + "{% set l = [t] * 5000 %}" + forever + "{% set x = l | sort %}" + ends,
      content + "{% set l = [t] * 5000 %}" + forever + "{% set x = t in l %}" + ends,
      content + "{% set l = [t] * 5000 %}{% set x = l | join %}",
      content + "{% set l = [t] * 5000 %}{{ l | map('upper') | list | length }}",
      content + "{% set l = [t] * 5000 %}{{ l }}",
      repeated("{% set l = [1, 2, 3, 4, 5, 6, 7, 8] %}", 3) +
          "{% set ns = namespace(l=l) %}{% for i in range(99999) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
  };
}

}  // namespace uma::jinja
