#include "uma-cli/why.h"

#include <format>

#include <boost/json/serialize.hpp>

#include "core/cache_miss.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"

namespace uma::cli {
namespace {

// "message 3 (user)"; empty: the place is in no message.
std::string message_of(const boost::json::object& miss) {
  if (!miss.contains("message")) return "";
  const std::string role = text_field(miss, "role");
  return std::format("message {}{}", int_field(miss, "message"), role.empty() ? "" : std::format(" ({})", role));
}

// Names the part that differs, as the beginning of a sentence.
std::string part_of(const boost::json::object& miss) {
  const std::string kind = text_field(miss, "kind");
  const std::string message = message_of(miss);
  if (kind == "settings") return "the options of the chat template differ";
  if (kind == "system") return std::format("the system prompt, {}, differs", message);
  if (kind == "tools") return "the tools differ";
  if (kind == "reasoning") return std::format("the reasoning of {} differs", message);
  if (kind == "call") return std::format("a tool call in {} differs", message);
  if (kind == "result") return std::format("the result of a tool, {}, differs", message);
  if (kind == "image") return std::format("an image of {} differs", message);
  if (kind == "template") return "the chat template's own text differs, which may have a date";
  if (kind == "tokens") return std::format("{} came back as the same text in other tokens", message);
  return std::format("{} differs", message.empty() ? "the text" : message);
}

std::string cause_of(const boost::json::object& miss) {
  const std::string cause = text_field(miss, "cause");
  if (cause == "refused") return "its stored KV could not be used, and the log says why";
  if (cause == "unloaded") return "the model was unloaded in between";
  if (cause == "window") return "this model's KV cannot be cut back to there";
  return "its KV is gone, or slower to read than to compute";
}

std::string difference_text(const boost::json::object& miss) {
  const std::string kind = text_field(miss, "kind");
  const std::string lost = count_of(int_field(miss, "lost_tokens"), "token") + " computed again";
  if (kind == "not_found") return "the reply that it should be compared with is not known";
  if (kind == "model") return std::format("another model, or other adapters, had computed it: {}", lost);
  if (kind == "not_held")
    return std::format("the prompt is known, but from token {} on {}: {}", int_field(miss, "token"), cause_of(miss), lost);
  return std::format("{} from token {} on: {}", part_of(miss), int_field(miss, "token"), lost);
}

}  // namespace

std::string why_text(const boost::json::object& usage) {
  const std::int64_t reused = int_field(usage, "reused_tokens");
  std::string text = std::format("{} of {} reused\n", reused, count_of(int_field(usage, "prompt_tokens"), "prompt token"));
  const boost::json::object& miss = object_field(usage, "cache_miss");
  if (miss.empty())
    return text + (reused > 0 ? "what was known of it was reused\n" : "no prompt is remembered that begins like it\n");
  text += difference_text(miss) + '\n';
  if (const std::string other = text_field(miss, "compared_with"); !other.empty())
    text += std::format("compared with the prompt of reply {}, {} with the reply\n", other,
                        count_of(int_field(miss, "known_tokens"), "token"));
  if (int_field(miss, "repeats") >= kClockRepeats) {
    text +=
        std::format("{} prompts have differed at this place, as with a clock or a counter: put it behind what stays the same\n",
                    int_field(miss, "repeats"));
  }
  return text;
}

Result<void> print_why(Client& client, const std::string& reply, Output& output, bool as_json) {
  auto answer = client.call({{"type", "get_receipt"}, {"reply", reply}}, "receipt");
  if (!answer) return std::unexpected(answer.error());
  return print(output, as_json ? boost::json::serialize(*answer) + '\n' : why_text(object_field(*answer, "usage")));
}

}  // namespace uma::cli
