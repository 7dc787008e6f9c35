#include "uma-bench/agent_texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <format>
#include <string_view>

#include "json/json_writer.h"

namespace uma::bench {

namespace {

constexpr std::array<std::string_view, 5> kToolNames{"read_file", "edit_file", "run_command", "search_text", "list_folder"};

std::string tool_name(int number) {
  const auto index = static_cast<std::size_t>(number) % kToolNames.size();
  const auto round = static_cast<std::size_t>(number) / kToolNames.size();
  return round == 0 ? std::string(kToolNames[index]) : std::format("{}_{}", kToolNames[index], round + 1);
}

// Two parameters each, as OpenAI's API has them.
void append_tool(std::string& out, int number, int description_words, PromptMaker& prompts) {
  constexpr std::size_t kParameterWords = 12;
  const auto append_parameter = [&](json::ObjectWriter& properties, std::string_view name) {
    json::ObjectWriter parameter(properties.begin(name));
    parameter.field("type", "string");
    parameter.field("description", prompts.make_unique(kParameterWords));
    parameter.close();
  };
  json::ObjectWriter tool(out);
  tool.field("type", "function");
  json::ObjectWriter function(tool.begin("function"));
  function.field("name", tool_name(number));
  function.field("description", prompts.make_unique(static_cast<std::size_t>(description_words)));
  json::ObjectWriter parameters(function.begin("parameters"));
  parameters.field("type", "object");
  json::ObjectWriter properties(parameters.begin("properties"));
  append_parameter(properties, "path");
  append_parameter(properties, "text");
  properties.close();
  parameters.begin("required") += R"(["path"])";
  parameters.close();
  function.close();
  tool.close();
}

std::string make_tools(const AgentOptions& options, PromptMaker& prompts) {
  std::string tools = "[";
  for (int number = 0; number < options.tools; ++number) {
    if (number > 0) tools += ',';
    append_tool(tools, number, scaled(options.tool_words, options.scale), prompts);
  }
  return tools + "]";
}

}  // namespace

int scaled(int length, double scale) {
  return std::max(1, static_cast<int>(std::lround(length * scale)));
}

int draw_length(int min, int max, Random& random) {
  const double length = min * std::pow(static_cast<double>(max) / min, random.next_unit());
  return std::clamp(static_cast<int>(std::lround(length)), min, max);
}

AgentTexts make_agent_texts(const AgentOptions& options, PromptMaker& prompts, Random& random) {
  const auto words = [&](int count) { return prompts.make_unique(static_cast<std::size_t>(scaled(count, options.scale))); };
  AgentTexts texts{.system = words(options.system_words),
                   .tools = make_tools(options, prompts),
                   .title_system = words(options.side_system_words),
                   .summary_system = words(options.side_system_words),
                   .turns = {}};
  for (int agent = 0; agent < options.agents; ++agent) {
    std::vector<AgentTurn>& turns = texts.turns.emplace_back();
    for (int number = 0; number < options.turns; ++number) {
      AgentTurn turn{.begins_task = number % options.task_turns == 0, .text = {}, .call = {}, .summarized = {}};
      if (turn.begins_task) {
        turn.text = words(options.task_words);
        if (number > 0) turn.summarized = words(options.summary_words);
      } else {
        turn.text = words(draw_length(options.result_words_min, options.result_words_max, random));
        turn.call = {.id = std::format("call_{}_{}", agent, number),
                     .name = tool_name(static_cast<int>(random.next_below(static_cast<std::uint64_t>(options.tools)))),
                     .arguments = std::format(R"({{"path": "{}"}})", prompts.make_unique(4))};
      }
      turns.push_back(std::move(turn));
    }
  }
  return texts;
}

}  // namespace uma::bench
