#include "umad/tune/profile.h"

#include <cctype>
#include <filesystem>
#include <format>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "umad/config_value.h"
#include "umad/data_dir.h"
#include "umad/yaml_map.h"

namespace uma::umad {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kThreadsMax = 256;
constexpr std::int64_t kUbatchRowsMax = 2048;

std::string slug(std::string_view text) {
  constexpr std::size_t kLettersMax = 60;
  std::string slug;
  for (const char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0) slug += static_cast<char>(std::tolower(letter));
    if (std::isalnum(letter) == 0 && !slug.empty() && slug.back() != '-') slug += '-';
    if (slug.size() == kLettersMax) break;
  }
  while (slug.ends_with('-')) slug.pop_back();
  return slug;
}

std::int32_t take_threads(MapReader& reader, const char* key) {
  return static_cast<std::int32_t>(reader.take(key, integer(1, kThreadsMax)));
}

std::expected<Profile, std::string> read_root(const YAML::Node& root) {
  std::string problem;
  MapReader top(root, problem);
  if (auto checked = check_version(top, problem, kVersion); !checked) return std::unexpected(std::move(checked.error()));

  Profile profile;
  MapReader choice(root["choice"], problem);
  profile.decode_threads = take_threads(choice, "decode_threads");
  profile.prefill_threads = take_threads(choice, "prefill_threads");
  profile.ubatch_rows = static_cast<std::int32_t>(choice.take("ubatch", integer(16, kUbatchRowsMax)));
  const std::string flash = choice.take("flash_attention", one_of({"auto", "on", "off"}));
  const std::string layout = choice.take("layout", one_of({"auto", "split", "unified"}));
  const std::string type = choice.take("type", any_text());
  const auto types = llm::kv_types_of(type);
  // Profiles of earlier versions do not say it.
  if (root["choice"]["devices"]) profile.uses_devices = choice.take("devices", one_of({"auto", "none"})) == "auto";
  profile.lanes = choice.take("lanes", one_of({"on", "off"})) == "on";
  profile.decode_threads_beside_prefill = take_threads(choice, "decode_threads_beside_prefill");
  profile.prefill_threads_beside_decode = take_threads(choice, "prefill_threads_beside_decode");
  choice.finish(0);
  profile.flash_attention = flash == "on"    ? llm::FlashAttention::on
                            : flash == "off" ? llm::FlashAttention::off
                                             : llm::FlashAttention::automatic;
  profile.kv_layout = layout == "split"     ? llm::KvLayout::split
                      : layout == "unified" ? llm::KvLayout::unified
                                            : llm::KvLayout::automatic;
  profile.kv_types = types.value_or(llm::KvTypes());
  if (problem.empty() && !types) problem = std::format("choice.type is not {}", llm::kv_types_expected());
  if (problem.empty() && types->is_quantized() && flash == "off") problem = std::format("type {} needs flash attention", type);

  MapReader model(root["model"], problem);
  profile.model_name = model.take("name", any_text());
  profile.model_identity = model.take("identity", any_text());
  model.finish(0);
  MapReader machine(root["machine"], problem);
  profile.machine = take_machine(machine, kThreadsMax);
  machine.finish(0);
  top.finish(3);
  if (!problem.empty()) return std::unexpected("it is damaged: " + problem);
  return profile;
}

}  // namespace

std::string_view word_of(llm::FlashAttention value) {
  switch (value) {
    case llm::FlashAttention::on:
      return "on";
    case llm::FlashAttention::off:
      return "off";
    case llm::FlashAttention::automatic:
      return "auto";
  }
  std::unreachable();
}

std::string_view word_of(llm::KvLayout value) {
  switch (value) {
    case llm::KvLayout::split:
      return "split";
    case llm::KvLayout::unified:
      return "unified";
    case llm::KvLayout::automatic:
      return "auto";
  }
  std::unreachable();
}

std::string profile_path(const std::string& data_dir, const std::string& model_identity, const Machine& machine) {
  return profile_stem(data_dir, model_identity, machine) + ".yaml";
}

std::string profile_stem(const std::string& data_dir, const std::string& model_identity, const Machine& machine) {
  return std::format("{}/profiles/{}-{}-{}", data_dir, model_identity, slug(machine.cpu), machine.cores);
}

std::string profile_text(const Profile& profile) {
  return std::format(
      "# Made by umad tune. umad takes from it, at its start, all values that are not set otherwise. Delete it to use the "
      "defaults.\n"
      "version: {}\n"
      "choice:\n"
      "  decode_threads: {}\n"
      "  prefill_threads: {}\n"
      "  ubatch: {}\n"
      "  flash_attention: {}\n"
      "  layout: {}\n"
      "  type: {}\n"
      "  devices: {}\n"
      "  lanes: {}\n"
      "  decode_threads_beside_prefill: {}\n"
      "  prefill_threads_beside_decode: {}\n"
      "model:\n"
      "  name: {}\n"
      "  identity: {}\n"
      "machine:\n"
      "  cpu: {}\n"
      "  cores: {}\n"
      "  library: {}\n",
      kVersion, profile.decode_threads, profile.prefill_threads, profile.ubatch_rows, word_of(profile.flash_attention),
      word_of(profile.kv_layout), llm::kv_types_text(profile.kv_types), profile.uses_devices ? "auto" : "none",
      profile.lanes ? "on" : "off", profile.decode_threads_beside_prefill, profile.prefill_threads_beside_decode,
      yaml_string(profile.model_name), yaml_string(profile.model_identity), yaml_string(profile.machine.cpu),
      profile.machine.cores, yaml_string(profile.machine.library));
}

std::expected<Profile, std::string> parse_profile(const std::string& text, const std::string& model_identity,
                                                  const Machine& machine) {
  std::expected<Profile, std::string> profile = std::unexpected(std::string());
  try {
    profile = read_root(YAML::Load(text));
  } catch (const YAML::Exception& problem) {
    return std::unexpected(std::format("it is damaged: {}", problem.msg));
  }
  if (!profile) return profile;
  if (auto checked = check_origin(profile->model_identity, profile->machine, model_identity, machine); !checked) {
    return std::unexpected(std::move(checked.error()));
  }
  if (profile->machine.library != machine.library) {
    return std::unexpected(
        std::format("it was measured with {}, this is {}: run umad tune again", profile->machine.library, machine.library));
  }
  return profile;
}

Expected<Unit> write_profile(const std::string& path, const Profile& profile) {
  if (auto made = prepare_data_dir(std::filesystem::path(path).parent_path().string()); !made) return made;
  return write_file_durably(path, profile_text(profile));
}

std::expected<std::optional<Profile>, std::string> read_profile(const std::string& path, const std::string& model_identity,
                                                                const Machine& machine) {
  const auto text = read_small_file(path);
  if (!text) return std::unexpected(text.error());
  if (!*text) return std::nullopt;
  auto profile = parse_profile(**text, model_identity, machine);
  if (!profile) return std::unexpected(std::move(profile.error()));
  return *std::move(profile);
}

}  // namespace uma::umad
