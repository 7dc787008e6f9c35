// The agent of a program that asks, as the program names it. Agents of one run share the machine as one client, and what they
// have computed is kept by when they come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace uma {

struct Agent {
  static constexpr std::size_t kNameBytesMax = 256;

  std::string program{};  // "claude-code", "codex", "opencode", …; empty: unknown.
  std::string id{};       // Id of one conversation with the model; empty: the client does not say.
  std::string parent{};   // The agent that has begun this one; empty: none.
  std::string run{};      // Name that an agent and those that it has begun have in common.
  // The name is that of a person or program, which may have several conversations: it is only shown.
  bool is_shared = false;

  [[nodiscard]] bool is_known() const { return !id.empty(); }
  // For logs and people who watch: names may be secrets of proxies, or addresses of people.
  [[nodiscard]] static std::string shown(const std::string& name) { return name.substr(0, 8); }
  // The number of a client for fairness; 0: unknown. Different from those of connections, which are small.
  [[nodiscard]] std::uint64_t client() const { return number_of(run); }
  // For comparing agents of one tenant; 0: unknown.
  [[nodiscard]] std::uint64_t number() const { return number_of(id); }
  [[nodiscard]] std::uint64_t parent_number() const { return number_of(parent); }
  bool operator==(const Agent&) const = default;

 private:
  static std::uint64_t number_of(const std::string& name) {
    return name.empty() ? 0 : std::hash<std::string>()(name) | (std::uint64_t{1} << 63);
  }
};

}  // namespace uma
