// The table of umad's settings: what each is called in a file, in the environment and on the command line, and how its value
// gets into the configuration and out of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "umad/config.h"

namespace uma::umad {

// Stores the text's value in the configuration; returns what was expected where the text has none.
using Apply = std::function<std::optional<std::string>(Config& config, std::string_view text)>;
// The value in the configuration as text that Apply reads; empty where nothing is set.
using Show = std::function<std::string(const Config& config)>;

// A setting's two ways, into the configuration and out of it.
struct Access {
  Apply apply;
  Show show = nullptr;  // null: the configuration does not keep the value
};

enum class Effect : std::uint8_t { works, not_yet, superseded };

// One setting and the names it has in each source. This table is all there is to know about settings: the YAML reader, the
// environment, the flags and --print-config only walk it.
struct Setting {
  std::string_view section;  // of the YAML file; empty: top level
  std::string_view key;
  Access access;
  const char* environment = nullptr;
  const char* flag = nullptr;
  const char* help = nullptr;   // of the flag
  const char* unset = nullptr;  // what counts where the value is empty, for --help
  Effect effect = Effect::works;
  bool takes_list = false;  // of YAML: its values are joined, one a line

  [[nodiscard]] std::string name() const { return section.empty() ? std::string(key) : std::format("{}.{}", section, key); }
};

[[nodiscard]] const std::vector<Setting>& settings();

// The setting of that name; null where there is none.
[[nodiscard]] const Setting* find_setting(std::string_view section, std::string_view key);
[[nodiscard]] bool is_section(std::string_view name);
// The keys of a section, for an error message; of the top level (an empty name) with the names of the sections.
[[nodiscard]] std::string known_keys(std::string_view section);

}  // namespace uma::umad
