// The texts of a coding agent's afternoon, with the shapes of real agents: a system prompt with tools, tasks, and results of
// tools. Pure: the same seed gives the same texts.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "uma-bench/chat_client.h"
#include "uma-bench/prompts.h"

namespace uma::bench {

// Lengths are those of a real afternoon, in words of prompts and tokens of replies; `scale` multiplies those of the agents and
// of the requests beside them. The chat keeps its lengths.
struct AgentOptions {
  int agents = 2;
  int turns = 30;       // Turns of each agent; each ends with a reply.
  int task_turns = 10;  // Turns of a task. The first one begins with a user's text, the others with a tool's result.
  double scale = 0.25;
  int system_words = 8000;
  int tools = 10;
  int tool_words = 400;  // Words of a tool's description.
  int task_words = 150;
  int result_words_min = 200;
  int result_words_max = 4000;
  int tokens = 200;             // New tokens of each turn.
  int side_system_words = 500;  // The instructions of a title or summary request.
  int summary_words = 1500;
  int title_tokens = 40;
  int summary_tokens = 200;
  int chat_words = 30;  // Words of each turn of the chat beside the agents.
  int chat_tokens = 64;
  double chat_every_s = 10;    // A turn of the chat begins this long after the last one began, or as soon as that one ends.
  int chat_turns = 8;          // Then the user of the chat begins a new conversation.
  bool restore_space = false;  // See ChatConversation.
};

// The part of a conversation that one turn of an agent adds.
struct AgentTurn {
  bool begins_task = false;
  std::string text;        // The user's text, or the tool's result.
  ToolCall call;           // The call that this result answers; empty if the turn begins a task.
  std::string summarized;  // The text of a summary request beside this turn; empty: none.
};

struct AgentTexts {
  std::string system;
  std::string tools;  // A JSON array.
  std::string title_system;
  std::string summary_system;
  std::vector<std::vector<AgentTurn>> turns;  // Turns of each agent.
};

// `length` × `scale`, at least 1.
[[nodiscard]] int scaled(int length, double scale);

// A length between `min` and `max` whose logarithm is uniform: most results are short, few are long.
[[nodiscard]] int draw_length(int min, int max, Random& random);

[[nodiscard]] AgentTexts make_agent_texts(const AgentOptions& options, PromptMaker& prompts, Random& random);

}  // namespace uma::bench
