#include "uma-cli/models.h"

#include <format>
#include <iostream>
#include <unistd.h>
#include <utility>

#include <boost/json/serialize.hpp>

#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

namespace json = boost::json;

constexpr int kLoadPollMs = 200;

json::object entry_called(const json::object& answer, const std::string& name) {
  for (const json::value& entry : array_field(answer, "models")) {
    if (entry.is_object() && (name.empty() || text_field(entry.get_object(), "name") == name)) return entry.get_object();
  }
  return {};
}

// One line on standard error that is written over while a model loads; nothing where standard error is not a terminal.
class LoadLine {
 public:
  ~LoadLine() {
    if (is_shown_) std::cerr << "\r\x1b[K" << std::flush;
  }
  void show(const json::object& model) {
    if (isatty(STDERR_FILENO) == 0) return;
    is_shown_ = true;
    std::cerr << std::format("\r\x1b[Kloading {}: {:.0f} %", printable_line(text_field(model, "name")),
                             100 * number_field(model, "load_progress"))
              << std::flush;
  }

 private:
  bool is_shown_ = false;
};

std::string state_of(const json::object& model) {
  const std::string state = text_field(model, "state");
  return state == "loading" ? std::format("loading {:.0f} %", 100 * number_field(model, "load_progress")) : state;
}

}  // namespace

Result<json::object> find_model(Client& client, const std::string& name, Interrupts& interrupts) {
  LoadLine line;
  while (true) {
    auto answer = client.call({{"type", "models"}}, "models");
    if (!answer) return std::unexpected(answer.error());
    json::object model = entry_called(*answer, name);
    if (text_field(model, "state") != "loading") return model;
    line.show(model);
    if (interrupts.wait({}, kLoadPollMs) == Wake::signal && interrupts.pending()) return interrupted();
  }
}

Result<void> print_models(Client& client, Output& output, bool as_json) {
  auto answer = client.call({{"type", "models"}}, "models");
  if (!answer) return std::unexpected(answer.error());
  if (as_json) return print(output, json::serialize(*answer) + '\n');
  Table table({{"NAME"},
               {"STATE"},
               {"SIZE", Align::right},
               {"CONTEXT", Align::right},
               {"SLOTS", Align::right},
               {"WORKERS", Align::right},
               {"CHAT"},
               {"DESCRIPTION"}});
  for (const json::value& value : array_field(*answer, "models")) {
    if (!value.is_object()) continue;
    const json::object& model = value.get_object();
    table.add({text_field(model, "name"), state_of(model), human_bytes(number_field(model, "bytes")),
               std::to_string(int_field(model, "context_tokens")), std::to_string(int_field(model, "slots")),
               std::to_string(int_field(model, "workers")), bool_field(model, "has_chat_template") ? "yes" : "no",
               text_field(model, "description")});
  }
  return print(output, table.text());
}

}  // namespace uma::cli
