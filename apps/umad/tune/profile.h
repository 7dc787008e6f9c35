// The best settings that `umad tune` found for one model on one machine, stored as a file in the data folder. At its start umad
// takes from it every value that no flag, environment variable or configuration file sets.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "llm/model.h"
#include "umad/machine.h"

namespace uma::umad {

struct Profile {
  std::string model_identity;  // llm::ModelFacts::identity
  std::string model_name;      // Model name for people.
  Machine machine;

  std::int32_t decode_threads = 1;
  std::int32_t prefill_threads = 1;
  std::int32_t ubatch_rows = 512;
  llm::FlashAttention flash_attention = llm::FlashAttention::automatic;
  llm::KvLayout kv_layout = llm::KvLayout::automatic;
  llm::KvTypes kv_types{};
  bool uses_devices = true;  // False: it is computed by the CPU alone.
  bool lanes = false;        // Long prompts get a separate lane.
  // Threads of the two lanes while both work; 1 each if there is only one lane.
  std::int32_t decode_threads_beside_prefill = 1;
  std::int32_t prefill_threads_beside_decode = 1;

  bool operator==(const Profile&) const = default;
};

// <data_dir>/profiles/<model identity>-<CPU>-<cores>.yaml
[[nodiscard]] std::string profile_path(const std::string& data_dir, const std::string& model_identity, const Machine& machine);
// The profile's path without its ending, for other files about this model and machine.
[[nodiscard]] std::string profile_stem(const std::string& data_dir, const std::string& model_identity, const Machine& machine);

// Value names in the file, which equal those of the configuration.
[[nodiscard]] std::string_view word_of(llm::FlashAttention value);
[[nodiscard]] std::string_view word_of(llm::KvLayout value);

[[nodiscard]] std::string profile_text(const Profile& profile);
// Parses a profile. The error says whether it is damaged, made by a newer version, or made for another model, machine or
// library.
[[nodiscard]] std::expected<Profile, std::string> parse_profile(const std::string& text, const std::string& model_identity,
                                                                const Machine& machine);

// Writes the file, and its folder if needed, atomically and synced. Errors: E_IO_001 with path and reason.
[[nodiscard]] Expected<Unit> write_profile(const std::string& path, const Profile& profile);
// Reads the profile; nullopt if the file does not exist. Errors as in parse_profile.
[[nodiscard]] std::expected<std::optional<Profile>, std::string> read_profile(const std::string& path,
                                                                              const std::string& model_identity,
                                                                              const Machine& machine);

}  // namespace uma::umad
