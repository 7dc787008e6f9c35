// The JSON of requests that administer a daemon over HTTP: models' cards, API keys and the configuration
// (docs/protocol/administration.md). Pure.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "wire/json_body.h"

namespace uma::wire {

// A new card for a model: {"text": CARD, "was": CARD}.
struct CardChange {
  std::string text;
  std::optional<std::string> was{};  // The card that the client has changed; nullopt: any.
};
[[nodiscard]] std::expected<CardChange, RejectedBody> decode_card(std::string_view body);
[[nodiscard]] std::string card_json(std::string_view text);

// An API key without what is secret.
struct KeyInfo {
  std::string name;
  std::string tenant{};                       // In a request, empty: the key's own.
  std::int64_t requests_per_minute = 0;       // 0: no limit.
  std::int64_t tokens_per_minute = 0;         // 0: no limit.
  std::optional<std::int64_t> deadline_ms{};  // Nullopt: that of the configuration; 0: none.
  bool is_admin = false;
};
[[nodiscard]] std::expected<KeyInfo, RejectedBody> decode_new_key(std::string_view body);
[[nodiscard]] std::string keys_json(std::span<const KeyInfo> keys);
// The answer to a new key: the key itself, and its line in the keys file.
[[nodiscard]] std::string new_key_json(std::string_view key, std::string_view line);

// One setting of the daemon.
struct SettingValue {
  std::string key;      // "section.key".
  std::string value;    // Text that `umad --print-config` prints; empty: not set.
  std::string source;   // "default", "file", "environment", "flag", "passed" or "derived".
  std::string place{};  // "FILE:LINE", the variable, the flag, who passed it, or the setting that it follows; empty: a default.
};
[[nodiscard]] std::string settings_json(std::span<const SettingValue> settings);

}  // namespace uma::wire
