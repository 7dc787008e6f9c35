// Fields of requests about thoughts, by the names that clients of each API know: whether, how hard, and for how many tokens at
// most.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <boost/json/object.hpp>

#include "core/request.h"
#include "json/field_reader.h"

namespace uma::wire {

// The first are budgets in tokens: the names of umad, of llama-server's Anthropic clients, of vLLM and of llama-server, in the
// order in which they win.
inline constexpr std::array<std::string_view, 10> kThinkingFields = {"thinking_budget",
                                                                     "thinking_budget_tokens",
                                                                     "thinking_token_budget",
                                                                     "reasoning_budget",
                                                                     "reasoning_budget_tokens",
                                                                     "enable_thinking",
                                                                     "think",
                                                                     "reasoning_effort",
                                                                     "reasoning",
                                                                     "thinking"};
inline constexpr std::size_t kBudgetFields = 5;

// Reads these fields. Adds them to the arguments of the template, which win, and to `options`.
void read_thinking(json::FieldReader& fields, boost::json::object& arguments, ChatOptions& options);

}  // namespace uma::wire
