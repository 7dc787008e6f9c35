// How a context rotates queries and keys by their positions (RoPE), where this differs from what the model's file says. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace uma::llm {

enum class RopeScaling : std::uint8_t { of_model, none, linear, yarn };

// A number that is absent is the one of the model's file, or else of the library.
struct RopeOptions {
  RopeScaling scaling = RopeScaling::of_model;
  std::optional<double> scale{};            // How many times longer the context becomes.
  std::optional<double> freq_scale{};       // 1 / scale, in its place.
  std::optional<double> freq_base{};        // The base of the angles' frequencies.
  std::optional<double> yarn_orig_ctx{};    // Tokens that the model was trained for before it is scaled.
  std::optional<double> yarn_ext_factor{};  // 0: all frequencies are scaled; 1: high ones are not.
  std::optional<double> yarn_attn_factor{};
  std::optional<double> yarn_beta_slow{};
  std::optional<double> yarn_beta_fast{};

  // How many times longer the context becomes, if it is given in either way.
  [[nodiscard]] std::optional<double> given_scale() const { return freq_scale ? 1 / *freq_scale : scale; }
  // False: everything is as the model's file says.
  [[nodiscard]] bool is_given() const { return *this != RopeOptions{}; }
  bool operator==(const RopeOptions&) const = default;
};

// A number of the options: its name in configurations, and its limits.
struct RopeNumber {
  std::string_view name;
  std::optional<double> RopeOptions::* value;
  double min = 0;
  double max = 0;
  bool is_whole = false;
};
inline constexpr std::array<RopeNumber, 8> kRopeNumbers{{
    {"scale", &RopeOptions::scale, 1, 1000},
    {"freq_scale", &RopeOptions::freq_scale, 0.001, 1},
    {"freq_base", &RopeOptions::freq_base, 2, 1e12},
    {"yarn_orig_ctx", &RopeOptions::yarn_orig_ctx, 128, 1 << 24, true},
    {"yarn_ext_factor", &RopeOptions::yarn_ext_factor, 0, 1},
    {"yarn_attn_factor", &RopeOptions::yarn_attn_factor, 0.01, 100},
    {"yarn_beta_slow", &RopeOptions::yarn_beta_slow, 0.01, 10'000},
    {"yarn_beta_fast", &RopeOptions::yarn_beta_fast, 0.01, 10'000},
}};

// The keys of the options, as "scaling, scale, …".
[[nodiscard]] std::string rope_keys();
// Stores the value of a key, "scaling" or one of kRopeNumbers, as a configuration writes it. Returns what was expected if the
// key or the value is none.
[[nodiscard]] std::optional<std::string> set_rope(RopeOptions& options, std::string_view key, std::string_view text);
// The inverse; empty: the key is not given. Requires: a key of rope_keys().
[[nodiscard]] std::string rope_value(const RopeOptions& options, std::string_view key);

// The correction that the options need, as a text that follows "expected"; nullopt: they fit together.
[[nodiscard]] std::optional<std::string> check_rope(const RopeOptions& options);

// The options that are given, as "scaling yarn, scale 4, yarn_orig_ctx 32768"; equal only for equal options.
[[nodiscard]] std::string rope_text(const RopeOptions& options);

// The length of a model's context as its file states it, in tokens.
struct ContextLengths {
  std::int64_t train = 0;     // 0: unknown.
  std::int64_t original = 0;  // Before the scaling that the file states; 0: it states none.
};

// The most tokens of a sequence that a model supports with these options. 0: unknown. With another base of the frequencies only
// the user knows it, so `wanted` tokens count, if they are more.
[[nodiscard]] std::int64_t supported_tokens(const RopeOptions& options, const ContextLengths& lengths, std::int64_t wanted);

}  // namespace uma::llm
