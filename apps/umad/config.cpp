#include "umad/config.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <format>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <CLI/CLI.hpp>
#include <yaml-cpp/yaml.h>

#include "base/text.h"
#include "kv/catalog/postgres.h"
#include "kv/shared/redis_address.h"
#include "umad/config_value.h"
#include "umad/machine.h"
#include "umad/settings.h"
#include "umad/shared_store.h"

namespace uma::umad {
namespace {

// The text of a setting that may have a password is not shown.
std::string mismatch(const Setting& setting, std::string_view expected, std::string_view text) {
  const bool is_secret = setting.name() == "catalog" || setting.name() == "shared_states";
  return is_secret ? std::format("expected {}", expected)
                   : std::format("expected {}, got \"{}\"", expected, text.substr(0, 100));
}

// Whether the setting is another name of one in a section, as `http: off` is.
bool is_other_name(const Setting& setting) {
  return setting.section.empty() && is_section(setting.key);
}

// The name under which a setting is shown.
std::string shown_name(const Setting& setting) {
  if (!is_other_name(setting)) return setting.name();
  return std::format("{}.{}", setting.key, setting.key == "http" ? "address" : "file");
}

// Parses and stores the text's value; returns a description of the expected text on failure.
std::optional<std::string> accept(Config& config, const Setting& setting, std::string_view text, SettingOrigin origin) {
  if (auto expected = setting.access.apply(config, text)) return expected;
  config.keys_given.push_back(setting.name());
  config.origins.insert_or_assign(shown_name(setting), std::move(origin));
  return std::nullopt;
}

void note_effect(Config& config, const Setting& setting) {
  if (setting.effect == Effect::not_yet) config.keys_without_effect.push_back(setting.name());
  if (setting.effect == Effect::superseded) config.keys_superseded.push_back(setting.name());
}

// A value as YAML, in quotes if a plain word could be misread.
std::string yaml_scalar(std::string_view text) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("_./-:+~").contains(c);
  };
  if (std::ranges::all_of(text, is_plain) && !text.starts_with('-') && !text.ends_with(':')) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? std::format("\\x{:02x}", c) : std::string(1, c);
  }
  return quoted + '"';
}

std::string yaml_value(const Setting& setting, const std::string& text) {
  if (!setting.takes_list || !text.contains('\n')) return yaml_scalar(text);
  std::string list;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) list += std::format("{}{}", list.empty() ? "" : ", ", yaml_scalar(line));
  return std::format("[{}]", list);
}

// A setting's line in a configuration file, with its other names. The line is a comment if nothing is set, or if the value
// follows from other settings and the file would fix it.
std::string setting_line(const Setting& setting, const Config& config) {
  const std::string value = setting.access.show(config);
  const bool is_chosen = config.is_given(setting.name()) || config.is_given(setting.section) ||  // Covers `http: off`.
                         value == setting.access.show(Config{});
  const std::string line =
      std::format("{}{}{}: {}", setting.section.empty() ? "" : "  ", is_chosen && !value.empty() ? "" : "# ", setting.key,
                  value.empty() ? "not set" : yaml_value(setting, value));
  std::string names;
  for (const char* name : {setting.environment, setting.flag}) {
    if (name != nullptr) names += std::format(" {}", name);
  }
  return names.empty() ? line + '\n' : std::format("{:<40} #{}\n", line, names);
}

std::string config_text(const Config& config) {
  std::string text =
      "# The settings that umad would use, from defaults, file, environment and flags. umad accepts this as a configuration "
      "file.\n";
  std::vector<std::string_view> sections = {""};
  for (const Setting& setting : settings()) {
    if (!std::ranges::contains(sections, setting.section)) sections.push_back(setting.section);
  }
  for (const std::string_view section : sections) {
    std::string lines;
    for (const Setting& setting : settings()) {
      const bool is_here = setting.section == section && !is_other_name(setting);
      if (is_here && setting.access.show != nullptr) lines += setting_line(setting, config);
    }
    if (!section.empty() && !lines.empty()) text += std::format("{}:\n", section);
    text += lines;
  }
  return text;
}

std::string_view source_name(SettingOrigin::Source source) {
  switch (source) {
    case SettingOrigin::Source::file:
      return "file";
    case SettingOrigin::Source::environment:
      return "environment";
    case SettingOrigin::Source::flag:
      return "flag";
    case SettingOrigin::Source::passed:
      return "passed";
    case SettingOrigin::Source::derived:
      break;
  }
  return "derived";
}

// Walks the two levels of a configuration file. Aliases are harmless, because nothing below the second level is followed.
class YamlReader {
 public:
  YamlReader(Config& config, std::string_view file) : config_(config), file_(file) {}

  std::vector<std::string> read(const std::string& text) {
    try {
      const YAML::Node root = YAML::Load(text);
      if (!root.IsNull()) read_map(root, "");
    } catch (const YAML::Exception& problem) {
      report(problem.mark, problem.msg);
    }
    return std::move(problems_);
  }

 private:
  void read_map(const YAML::Node& map, std::string_view section) {
    if (!map.IsMap()) {
      report(map.Mark(), section.empty() ? std::string("expected keys and values, as in `model: path`")
                                         : std::format("{}: expected keys and values", section));
      return;
    }
    std::vector<std::string> seen;
    for (const auto& entry : map) {
      const YAML::Node& key = entry.first;
      if (!key.IsScalar()) {
        report(key.Mark(), "expected the name of a setting as key");
        continue;
      }
      if (std::ranges::find(seen, key.Scalar()) != seen.end()) {
        report(key.Mark(), std::format("{} is set twice", full_name(section, key.Scalar())));
        continue;
      }
      seen.push_back(key.Scalar());
      read_entry(section, key, entry.second);
    }
  }

  void read_entry(std::string_view section, const YAML::Node& key, const YAML::Node& value) {
    const Setting* setting = find_setting(section, key.Scalar());
    // `http` is an address or a section, `models` a file or a section.
    if (section.empty() && is_section(key.Scalar()) && (setting == nullptr || !value.IsScalar())) {
      if (!value.IsNull()) read_map(value, key.Scalar());
      return;
    }
    if (setting == nullptr) {
      report(key.Mark(), std::format("unknown key \"{}\"{}; known: {}", key.Scalar().substr(0, 100),
                                     section.empty() ? "" : std::format(" in {}", section), known_keys(section)));
      return;
    }
    read_value(*setting, key, value);
  }

  void read_value(const Setting& setting, const YAML::Node& key, const YAML::Node& value) {
    std::string list;
    const bool is_list = setting.takes_list && value.IsSequence() &&
                         std::ranges::all_of(value, [](const auto& item) { return item.IsScalar() && !item.Scalar().empty(); });
    if (is_list) {
      for (const YAML::Node& item : value) list += std::format("{}{}", list.empty() ? "" : "\n", item.Scalar());
    }
    const std::string_view kind = is_list              ? ""
                                  : value.IsNull()     ? "nothing"
                                  : value.IsMap()      ? "a map"
                                  : value.IsSequence() ? "a list"
                                                       : "";
    if (!kind.empty()) {
      report(value.Mark(), std::format("{}: expected one value, got {}", setting.name(), kind));
      return;
    }
    const std::string& text = is_list ? list : value.Scalar();
    SettingOrigin origin{SettingOrigin::Source::file, std::format("{}:{}", file_, key.Mark().line + 1)};
    if (const auto expected = accept(config_, setting, text, std::move(origin))) {
      report(value.Mark(), std::format("{}: {}", setting.name(), mismatch(setting, *expected, text)));
      return;
    }
    note_effect(config_, setting);
  }

  static std::string full_name(std::string_view section, std::string_view key) {
    return section.empty() ? std::string(key) : std::format("{}.{}", section, key);
  }

  void report(const YAML::Mark& mark, std::string_view what) {
    problems_.push_back(mark.is_null() ? std::format("{}: {}", file_, what)
                                       : std::format("{}:{}:{}: {}", file_, mark.line + 1, mark.column + 1, what));
  }

  Config& config_;
  std::string_view file_;
  std::vector<std::string> problems_;
};

std::vector<std::string> apply_file(Config& config, const std::string& path) {
  constexpr std::int64_t kBytesMax = 1 << 20;
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) return {std::format("{}: {}", path, std::strerror(errno))};
  // Reading a pipe could block for ever, and a device may have no end.
  if (!S_ISREG(facts.st_mode)) return {std::format("{}: not a regular file", path)};
  if (facts.st_size > kBytesMax)
    return {std::format("{}: the file has {} bytes, but a configuration may have at most 1 MiB", path, facts.st_size)};
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return {std::format("{}: {}", path, std::strerror(errno))};
  return apply_yaml(config, text.str(), path);
}

void apply_environment(Config& config, const Environment& environment, std::vector<std::string>& problems) {
  for (const Setting& setting : settings()) {
    if (setting.environment == nullptr) continue;
    const std::optional<std::string> value = environment(setting.environment);
    if (!value || value->empty()) continue;  // An empty variable counts as unset.
    if (const auto expected = accept(config, setting, *value, {SettingOrigin::Source::environment, setting.environment})) {
      problems.push_back(std::format("{}: {}", setting.environment, mismatch(setting, *expected, *value)));
    }
  }
}

constexpr const char* kFooter =
    "Signals:     TERM and INT stop umad after the requests in flight; a second one stops it at once. HUP reads models.yaml\n"
    "             again. USR1 writes metrics.json to the data folder.\n"
    "\nExample: umad, then in another terminal: uma-cli chat\n"
    "         umad tune finds the fastest settings for this model and machine (umad tune --help)\n"
    "         umad devices lists the GPUs\n"
    "         umad check examines the installation (umad check --help)\n"
    "         umad key new NAME makes a key for HTTP clients";

// Describes the order of the sources and the environment variables in the table of settings.
std::string environment_help() {
  constexpr std::size_t kColumns = 110;
  constexpr std::string_view kIndent = "\n             ";
  std::vector<std::string> names;
  for (const Setting& setting : settings()) {
    if (setting.environment == nullptr) continue;
    names.push_back(setting.flag != nullptr ? setting.environment
                                            : std::format("{} ({})", setting.environment, setting.name()));
  }
  names.insert(names.end(), {"UMA_CONFIG (the YAML file)", "UMA_DEBUG=1 (log more)"});
  std::string text = "\nOrder: defaults, then the YAML file, then the environment, then flags; the later one wins.\n";
  std::string line = "Environment:";
  for (const std::string& name : names) {
    if (line.size() + 1 + name.size() > kColumns) {
      text += line;
      line = kIndent;
    } else {
      line += ' ';
    }
    line += name;
  }
  return text + line + '\n';
}

constexpr const char* kTuneFooter =
    "\nMeasures thread counts, ubatch, flash attention, layout and type of the KV cache, and lanes for prompts; prints the\n"
    "results, and stores the choice in the data folder. At its start umad takes every value from there that is not set\n"
    "otherwise. The machine should be idle meanwhile. Ctrl-C stops the measurement; nothing is stored then.\n"
    "\nExit codes: 0 measured and stored; 1 a mistake, no such model, no memory, a busy machine; 130 interrupted.";

constexpr const char* kCheckFooter =
    "\nSettings are read as umad reads them: give the same file, environment and flags. It runs before umad starts or beside "
    "it,\n"
    "changes nothing, and needs a few seconds.\n"
    "\nExit codes: 0 there is no problem; 1 there is one, or a mistake in the settings.";

// The settings that are flags of `umad tune`, too.
bool is_for_tune(const Setting& setting) {
  constexpr std::array<std::string_view, 10> kKeys = {"model",    "n_ctx",   "cells",      "slots", "threads",
                                                      "data_dir", "devices", "gpu_layers", "split", "main_device"};
  return setting.section == "rope" || std::ranges::contains(kKeys, setting.key);
}

// The parsed command line: the text of each setting's flag, in the order of settings().
struct Flags {
  std::vector<std::pair<const Setting*, std::string>> values;
  std::string config_path;
  std::optional<TuneOptions> tune;
  std::optional<CheckOptions> check;
  bool prints_config = false;
  bool supervises = false;
};

// The arguments with a value behind each flag that was given without its optional one.
std::vector<std::string> with_values(std::span<const std::string> arguments) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    all.push_back(arguments[i]);
    const auto setting = std::ranges::find_if(settings(), [&](const Setting& known) {
      return known.alone != nullptr && known.flag != nullptr && known.flag == arguments[i];
    });
    const bool is_alone = i + 1 == arguments.size() || arguments[i + 1].starts_with('-');
    if (setting != settings().end() && is_alone) all.emplace_back(setting->alone);
  }
  return all;
}

std::expected<Flags, Exit> parse_flags(std::span<const std::string> arguments) {
  const bool is_tune = !arguments.empty() && arguments.front() == "tune";
  const bool is_check = !arguments.empty() && arguments.front() == "check";
  const bool serves = !is_tune && !is_check;
  if (!serves) arguments = arguments.subspan(1);
  CLI::App app{is_tune    ? "umad tune: measures and stores the fastest settings for a model on this machine."
               : is_check ? "umad check: examines settings, models, data folder, listeners, the shared database and the shared "
                            "states, in sentences."
                          : "umad: serves language models to many conversations at once, over a Unix socket and HTTP.",
               is_tune    ? "umad tune"
               : is_check ? "umad check"
                          : "umad"};
  if (serves) app.set_version_flag("--version", "umad " UMA_VERSION);
  app.footer(is_tune ? std::string(kTuneFooter) : is_check ? std::string(kCheckFooter) : environment_help() + kFooter);
  app.get_formatter()->column_width(24);

  Flags flags;
  if (is_tune) {
    flags.tune.emplace();
    app.add_option("--seconds", flags.tune->seconds, "spend about this long measuring")
        ->type_name("SECONDS")
        ->capture_default_str()
        ->check(CLI::Range(1.0, 3600.0));
    app.add_flag("--allow-quantized-kv", flags.tune->allows_quantized_kv,
                 "allow K/V type q8_0: half the memory, slightly different answers");
    app.add_flag("--even-if-busy", flags.tune->even_if_busy,
                 "measure even if other programs compute; the result then fits a machine under that load");
  }
  if (is_check) {
    flags.check.emplace();
    app.add_flag("--json", flags.check->is_json, "print the findings as JSON");
  }
  app.add_option("--config", flags.config_path, "configuration file (YAML)")->type_name("FILE");
  if (serves) app.add_flag("--print-config", flags.prints_config, "print every setting with its value, and exit");
  if (serves) {
    app.add_flag("--supervise", flags.supervises,
                 "restart the daemon after a crash; a small process keeps its sockets open meanwhile");
  }
  std::vector<std::pair<CLI::Option*, const Setting*>> options;
  for (const Setting& setting : settings()) {
    if (setting.flag == nullptr || (is_tune && !is_for_tune(setting))) continue;
    const std::string help =
        setting.unset == nullptr ? setting.help : std::format("{}; left out: {}", setting.help, setting.unset);
    CLI::Option* option = app.add_option(setting.flag, help)->type_name("VALUE")->expected(1);
    option->default_str(setting.access.show(Config{}));
    options.emplace_back(option, &setting);
  }

  // CLI11 reads a vector from its end.
  std::vector<std::string> reversed = with_values(arguments);
  std::ranges::reverse(reversed);
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& problem) {
    std::ostringstream text;
    const bool is_question = app.exit(problem, text, text) == 0;
    return std::unexpected(Exit{is_question ? 0 : 1, text.str()});
  }
  for (const auto& [option, setting] : options) {
    if (!option->empty()) flags.values.emplace_back(setting, option->as<std::string>());
  }
  return flags;
}

// A base folder of the XDG specification, which tells programs to ignore relative paths; empty if there is none.
std::string folder_of(const Environment& environment, const char* variable, std::string_view in_home) {
  return xdg_folder(environment(variable).value_or(""), environment("HOME").value_or(""), in_home);
}

std::string error_text(const std::vector<std::string>& problems) {
  std::string text = problems.size() == 1 ? "umad: the configuration has an error\n"
                                          : std::format("umad: the configuration has {} errors\n", problems.size());
  for (const std::string& problem : problems) text += std::format("  {}\n", problem);
  return text;
}

}  // namespace

bool Config::is_given(std::string_view key) const {
  return std::ranges::contains(keys_given, key);
}

bool Config::asks_for_http() const {
  return std::ranges::any_of(keys_given, [](const std::string& key) { return key.starts_with("http"); });
}

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::vector<wire::SettingValue> setting_values(const Config& config) {
  std::vector<wire::SettingValue> values;
  for (const Setting& setting : settings()) {
    if (setting.access.show == nullptr || is_other_name(setting)) continue;
    const std::string value = setting.access.show(config);
    wire::SettingValue& shown =
        values.emplace_back(setting.name(), value.empty() ? value : yaml_value(setting, value), "default");
    const auto origin = config.origins.find(shown.key);
    if (origin == config.origins.end()) continue;
    shown.source = source_name(origin->second.source);
    shown.place = origin->second.place;
  }
  return values;
}

std::vector<std::string> apply_yaml(Config& config, const std::string& yaml, std::string_view name) {
  return YamlReader(config, name).read(yaml);
}

namespace {

// Requires keys and encryption for an address that other machines can reach.
void check_http(const Config& config, const HttpAddress& http, std::vector<std::string>& problems) {
  if (http.address.empty() || is_loopback(http)) return;
  if (config.http_keys_file.empty() && !config.http_shares_keys) {
    problems.push_back(
        std::format("http: other machines can reach {}, so clients need keys: give --http-keys FILE "
                    "(umad key new NAME makes one)",
                    http.address));
  } else if (!config.http_is_insecure && config.http_tls_certificate.empty()) {
    problems.push_back(std::format(
        "http: at {} keys and texts would cross the network unencrypted: set http.tls_certificate and http.tls_key, or "
        "http.insecure: true if the network is safe",
        http.address));
  }
}

// Whether only this user may write to the folder, so that nobody else can take a name in it first.
bool is_own_folder(const std::string& path) {
  struct stat facts{};
  return path.starts_with('/') && ::stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() &&
         (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void apply_passed(Config& config, const PassedAddresses& passed) {
  const auto apply = [&](const char* key, auto& value, const auto& address) {
    if (!address || *address == value) return;  // A supervisor passes what the settings say.
    value = *address;
    config.origins.insert_or_assign(key, SettingOrigin{SettingOrigin::Source::passed, "who opened the socket"});
  };
  apply("ipc.uds_path", config.socket_path, passed.socket_path);
  apply("http.address", config.http, passed.http);
  apply("http.socket", config.http_socket, passed.http_socket);
}

// Applies the requirements of reproducible answers (docs/decisions/0014).
void make_reproducible(Config& config, std::vector<std::string>& problems) {
  const bool is_strict = config.reproducible == Reproducible::strict;
  const auto refuse = [&](std::string_view why) {
    problems.push_back(std::format("scheduler.reproducible: {} {}", is_strict ? "strict" : "on", why));
  };
  if (config.is_given("kv.layout") && config.kv_layout == llm::KvLayout::unified) {
    refuse("needs split KV: leave out kv.layout: unified");
  }
  if (is_strict && config.is_given("kv.flash_attention") && config.flash_attention == llm::FlashAttention::on) {
    refuse("works without flash attention: leave out kv.flash_attention: on");
  }
  if (config.kv_types.is_quantized()) refuse("needs kv.type: f16");
  // The result of a row on a GPU depends on the rows beside it (docs/DEVICES.md).
  if (config.devices.are_named()) refuse("needs devices: none");
  config.devices.names.emplace();
  if (!config.draft_model.empty()) refuse("drafts tokens from the text only: leave out draft_model");
  config.kv_layout = llm::KvLayout::split;
  if (is_strict) config.flash_attention = llm::FlashAttention::off;
  for (const char* key : {"kv.layout", "kv.flash_attention", "kv.type"}) {
    if (!config.is_given(key)) config.keys_given.emplace_back(key);  // A given key overrides the profile.
  }
  const SettingOrigin derived{SettingOrigin::Source::derived, "scheduler.reproducible"};
  for (const char* key : {"kv.layout", "devices"}) config.origins.try_emplace(key, derived);
  if (is_strict) config.origins.try_emplace("kv.flash_attention", derived);
}

}  // namespace

std::expected<Config, Exit> load_config(std::span<const std::string> arguments, const Environment& environment,
                                        const PassedAddresses& passed) {
  std::expected<Flags, Exit> flags = parse_flags(arguments);
  if (!flags) return std::unexpected(std::move(flags.error()));

  Config config;
  config.tune = flags->tune;
  config.check = flags->check;
  config.supervises = flags->supervises;
  std::vector<std::string> problems;
  const std::string config_path =
      flags->config_path.empty() ? environment("UMA_CONFIG").value_or(std::string()) : flags->config_path;
  if (!config_path.empty()) problems = apply_file(config, config_path);
  apply_environment(config, environment, problems);
  for (const auto& [setting, text] : flags->values) {
    if (const auto expected = accept(config, *setting, text, {SettingOrigin::Source::flag, setting->flag})) {
      problems.push_back(std::format("{}: {}", setting->flag, mismatch(*setting, *expected, text)));
    }
  }
  if (const std::string runtime = environment("XDG_RUNTIME_DIR").value_or("");
      !config.is_given("ipc.uds_path") && is_own_folder(runtime)) {
    config.socket_path = runtime + "/uma.sock";
  }
  apply_passed(config, passed);
  if (config.kv_types.is_quantized() && config.flash_attention == llm::FlashAttention::off) {
    problems.push_back(std::format("kv.type {} needs flash attention: leave out kv.flash_attention, or set kv.type f16",
                                   llm::kv_types_text(config.kv_types)));
  }
  if (const auto expected = llm::check_rope(config.rope)) problems.push_back(std::format("rope: expected {}", *expected));
  for (const HttpAddress& http : {config.http, config.ollama}) check_http(config, http, problems);
  if (config.http_tls_certificate.empty() != config.http_tls_key.empty()) {
    problems.emplace_back("http: TLS needs both http.tls_certificate and http.tls_key");
  }
  if (config.http_shares_keys && config.catalog.empty()) {
    problems.emplace_back("http.shared_keys: the keys would be in the catalog's database, so set catalog: postgresql://…");
  }
  // Settings are shown to people and stand in files that others can read.
  if (kv::shown_address(config.catalog) != config.catalog) {
    problems.emplace_back("catalog: the address has a password, which belongs in ~/.pgpass, PGPASSFILE or PGPASSWORD");
  }
  if (!config.shared_states.empty() && config.catalog.empty()) {
    problems.emplace_back("shared_states: other umads find these states only if they share the sessions: set catalog, too");
  }
  if (kv::has_redis_password(config.shared_states)) {
    problems.emplace_back(
        "shared_states: the address has a password, which belongs in UMA_SHARED_STATES_PASSWORD, or in the file that "
        "UMA_SHARED_STATES_PASSWORD_FILE names");
  }
  if (auto password = shared_store_password(environment)) {
    config.shared_password = std::move(*password);
  } else if (!config.shared_states.empty()) {
    problems.push_back(std::move(password.error()));
  }
  if (config.reproducible != Reproducible::off) make_reproducible(config, problems);
  if (config.data_dir.empty()) {
    if (const std::string state = folder_of(environment, "XDG_STATE_HOME", ".local/state"); !state.empty()) {
      config.data_dir = state + "/uma";
    }
  }
  if (const std::string data = folder_of(environment, "XDG_DATA_HOME", ".local/share"); !data.empty()) {
    config.models_dir = data + "/uma/models";
  }
  if (config.models_file.empty()) {
    if (const std::string folder = folder_of(environment, "XDG_CONFIG_HOME", ".config"); !folder.empty()) {
      config.models_file = folder + "/uma/models.yaml";
    }
  }
  if (config.data_dir.empty()) {
    problems.emplace_back("no data folder: neither HOME nor XDG_STATE_HOME is set; give --data-dir FOLDER");
  }
  if (!problems.empty()) return std::unexpected(Exit{1, error_text(problems)});
  if (flags->prints_config) return std::unexpected(Exit{0, config_text(config)});
  return config;
}

std::string node_of(const Config& config) {
  return config.node.empty() ? host_name() : config.node;
}

}  // namespace uma::umad
