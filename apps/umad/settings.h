// The table of umad's settings: each setting's names in the file, the environment and the command line, and how its value is
// stored in the configuration and shown.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "umad/config.h"

namespace uma::umad {

// Parses the text and stores its value in the configuration; returns a description of the expected text on failure.
using Apply = std::function<std::optional<std::string>(Config& config, std::string_view text)>;
// The value in the configuration as text that Apply reads; empty if unset.
using Show = std::function<std::string(const Config& config)>;

// Stores and shows a setting's value.
struct Access {
  Apply apply;
  Show show = nullptr;  // Null: the configuration does not keep the value.
};

enum class Effect : std::uint8_t { works, not_yet, superseded };

// One setting and its names in each source. The table is complete: the YAML reader, the environment, the flags and
// --print-config only iterate over it.
struct Setting {
  std::string_view section;  // Section of the YAML file; empty: top level.
  std::string_view key;
  Access access;
  const char* environment = nullptr;
  const char* flag = nullptr;
  const char* help = nullptr;   // Help text of the flag.
  const char* unset = nullptr;  // Default for --help if the value is empty.
  const char* alone = nullptr;  // Value of a flag without one; null: it needs one.
  Effect effect = Effect::works;
  bool takes_list = false;  // YAML accepts a list, whose values are joined with newlines.

  [[nodiscard]] std::string name() const { return section.empty() ? std::string(key) : std::format("{}.{}", section, key); }
};

[[nodiscard]] const std::vector<Setting>& settings();

// The setting of that name, or null.
[[nodiscard]] const Setting* find_setting(std::string_view section, std::string_view key);
[[nodiscard]] bool is_section(std::string_view name);
// The keys of a section, for an error message. At the top level (an empty name) the names of the sections are included.
[[nodiscard]] std::string known_keys(std::string_view section);

}  // namespace uma::umad
