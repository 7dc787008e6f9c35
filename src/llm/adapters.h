// The LoRA adapters of a model, and those that a computation uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace uma::llm {

inline constexpr std::size_t kAdaptersMax = 64;   // Adapters of a model.
inline constexpr char kAdapterMark[] = "|lora ";  // The beginning of AdapterSet::identity.

// An adapter that is loaded with its model.
struct AdapterSource {
  std::string name;
  std::string path;
  double scale = 1;       // For requests that state none.
  std::string version{};  // Changes with the file.
  std::string problem{};  // Why it must not be loaded, for clients; empty: it may.
  bool operator==(const AdapterSource&) const = default;
};

// An adapter of a loaded model.
struct AdapterFacts {
  AdapterSource source;
  std::string identity{};   // Identifies the contents of its file, as ModelFacts::identity.
  std::uint64_t bytes = 0;  // Memory of its weights.
  std::string problem{};    // Why it cannot be used, without folders; empty: it can.
};

struct AdapterUse {
  std::int32_t index = 0;  // In ModelFacts::adapters.
  float scale = 1;
};

// The adapters of a computation. KV that was computed with one set is useless with another.
struct AdapterSet {
  std::vector<AdapterUse> uses;  // By index, each adapter once and none with scale 0.
  std::string identity;          // Equal for equal sets; follows Context::state_identity() in the identity of a state.

  [[nodiscard]] bool is_empty() const { return uses.empty(); }
  friend bool operator==(const AdapterSet& left, const AdapterSet& right) { return left.identity == right.identity; }
};

// The set of these uses, each of another adapter. A use with scale 0 is left out.
[[nodiscard]] AdapterSet make_adapter_set(std::span<const AdapterFacts> adapters, std::vector<AdapterUse> uses);

}  // namespace uma::llm
