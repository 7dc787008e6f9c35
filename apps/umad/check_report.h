// The findings of `umad check`: sentences, judged from facts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/catalog/postgres_facts.h"
#include "kv/shared/shared_facts.h"

namespace uma::umad {

struct Finding {
  // good: as it should be. note: works, and is worth knowing. problem: something fails or may lose data.
  enum class Level : std::uint8_t { good, note, problem };
  Level level = Level::good;
  std::string topic;  // "database"
  std::string text;   // A sentence without its final stop.
};

// A model as the daemons of a catalog compare it.
struct ComparedModel {
  std::string name;
  std::uint64_t bytes = 0;  // Size of its first file; 0: it is not downloaded.
  std::string identity;     // See llm::model_identity(); empty: it was not read.
  bool operator==(const ComparedModel&) const = default;
};
// A model a line, for PostgresCatalogOptions::models; and back. Lines that are none are left out.
[[nodiscard]] std::string models_text(std::span<const ComparedModel> models);
[[nodiscard]] std::vector<ComparedModel> read_models_text(std::string_view text);

// This daemon, as the others' rows are compared with it.
struct OwnMember {
  std::string node;
  std::string version;
  std::vector<ComparedModel> models{};
  bool is_running = false;         // A daemon uses the data folder now, so one living row may be its.
  std::string dead_incarnation{};  // The run that used the data folder last; see run_identity.h.
  std::string shared_states{};     // See shared_states_text().
};

// This daemon's settings of shared states.
struct OwnSharing {
  std::string store;  // See shared_states_text().
  bool is_encrypted = false;
  bool is_local = false;  // The server is on this machine.
  bool has_password = false;
  std::uint64_t bytes_max = 0;
};

// The database itself: version, rights, tables, commits, clock, connections.
[[nodiscard]] std::vector<Finding> judge_database(const kv::DatabaseFacts& facts, kv::SchemaVersions own);
// The daemons that share it.
[[nodiscard]] std::vector<Finding> judge_members(const kv::DatabaseFacts& facts, const OwnMember& own);
// The store of shared states.
[[nodiscard]] std::vector<Finding> judge_shared_folder(const kv::SharedFolderFacts& facts, const OwnSharing& own);
[[nodiscard]] std::vector<Finding> judge_redis(const kv::RedisFacts& facts, const OwnSharing& own);
// The free space of the data folder.
[[nodiscard]] Finding judge_space(const std::string& folder, std::uint64_t free_bytes);
[[nodiscard]] Finding judge_certificate(const std::string& file, double days_left);

[[nodiscard]] bool is_well(std::span<const Finding> findings);
// A line for each finding, below its topic, and a last line that counts problems.
[[nodiscard]] std::string report_text(std::span<const Finding> findings);
// {"ok":…,"findings":[{"topic":…,"level":"good","text":…}]} and a newline.
[[nodiscard]] std::string report_json(std::span<const Finding> findings);

}  // namespace uma::umad
