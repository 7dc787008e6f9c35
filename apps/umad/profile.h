// What `umad tune` found best for one model on one machine, as a file in the data folder. umad reads it at start and takes from
// it what is not set by flag, environment or configuration file.
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
  std::string model_name;      // for people
  Machine machine;

  std::int32_t decode_threads = 1;
  std::int32_t prefill_threads = 1;
  std::int32_t ubatch_rows = 512;
  llm::FlashAttention flash_attention = llm::FlashAttention::automatic;
  llm::KvLayout kv_layout = llm::KvLayout::automatic;
  llm::KvType kv_type = llm::KvType::f16;
  bool lanes = false;  // long prompts in a lane beside the one that decodes
  // Threads of the two lanes while both work; 1 each where there is only one lane.
  std::int32_t decode_threads_beside_prefill = 1;
  std::int32_t prefill_threads_beside_decode = 1;

  bool operator==(const Profile&) const = default;
};

// <data_dir>/profiles/<model identity>-<CPU>-<cores>.yaml
[[nodiscard]] std::string profile_path(const std::string& data_dir, const std::string& model_identity, const Machine& machine);

// The words of the file, which are those of the configuration.
[[nodiscard]] std::string_view word_of(llm::FlashAttention value);
[[nodiscard]] std::string_view word_of(llm::KvLayout value);
[[nodiscard]] std::string_view word_of(llm::KvType value);

[[nodiscard]] std::string profile_text(const Profile& profile);
// Reads such a text. What is wrong with it, otherwise: it is damaged, made by a newer version, or for another model, machine or
// library.
[[nodiscard]] std::expected<Profile, std::string> parse_profile(const std::string& text, const std::string& model_identity,
                                                                const Machine& machine);

// Writes the file and its folder; it is whole and on the disk, or absent. Errors: E_IO_001 with path and reason.
[[nodiscard]] Expected<Unit> write_profile(const std::string& path, const Profile& profile);
// The profile, or nothing where there is no file; or what is wrong, as parse_profile says.
[[nodiscard]] std::expected<std::optional<Profile>, std::string> read_profile(const std::string& path,
                                                                              const std::string& model_identity,
                                                                              const Machine& machine);

}  // namespace uma::umad
