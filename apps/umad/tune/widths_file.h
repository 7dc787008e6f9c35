// The times of decode calls by their number of rows that lanes have measured with one model on one machine, stored as a file in
// the data folder beside the model's profile, so that later starts need not measure them. Any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/lane/plan/kept_widths.h"
#include "umad/machine.h"

namespace uma::umad {

// The facts that all times of a file depend on.
struct WidthsOrigin {
  std::string model_identity;  // llm::ModelFacts::identity
  Machine machine;
  std::string backends;  // llm::backends_text(): the instructions that the library uses.

  bool operator==(const WidthsOrigin&) const = default;
};

// The times of one context with one number of threads.
struct WidthsEntry {
  std::string context;  // llm::Context::state_identity(): with the types of keys and values, flash attention and layout.
  std::int32_t threads = 1;
  sched::WidthTimes ms{};

  bool operator==(const WidthsEntry&) const = default;
};

// <data_dir>/profiles/<model identity>-<CPU>-<cores>-widths.yaml
[[nodiscard]] std::string widths_path(const std::string& data_dir, const WidthsOrigin& origin);
[[nodiscard]] std::string widths_text(const WidthsOrigin& origin, const std::vector<WidthsEntry>& entries);
// The error says whether the file is damaged, made by a newer version, or measured with another model, machine, library or
// instructions.
[[nodiscard]] std::expected<std::vector<WidthsEntry>, std::string> parse_widths(const std::string& text,
                                                                                const WidthsOrigin& origin);

class WidthsFile : public engine::KeptWidths {
 public:
  // The file's object, which all its users in this process share, so that none overwrites what another has kept.
  [[nodiscard]] static std::shared_ptr<WidthsFile> of(const std::string& data_dir, const WidthsOrigin& origin);

  static constexpr std::size_t kEntriesMax = 16;  // The oldest one gives way.

  // Reads the file. One that does not fit is logged as a warning and replaced by the next keep().
  WidthsFile(const std::string& data_dir, WidthsOrigin origin);

  [[nodiscard]] std::optional<sched::WidthTimes> find(const std::string& context, std::int32_t threads) const override;
  // Writes the file. A failure is logged once as a warning; the times are then found in this object only.
  void keep(const std::string& context, std::int32_t threads, const sched::WidthTimes& ms) override;

 private:
  const std::string path_;
  const WidthsOrigin origin_;
  mutable Mutex mutex_;
  std::vector<WidthsEntry> entries_ GUARDED_BY(mutex_);  // The oldest one first.
  bool has_failed_ GUARDED_BY(mutex_) = false;
};

}  // namespace uma::umad
