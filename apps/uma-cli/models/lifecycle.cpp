#include "uma-cli/models/lifecycle.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <iostream>
#include <unistd.h>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "base/clock.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/models/models.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/progress.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

Result<bool> is_known(Client& client, const std::string& name) {
  const auto answer = client.call({{"type", "models"}}, "models");
  if (!answer) return std::unexpected(answer.error());
  return std::ranges::any_of(array_field(*answer, "models"), [&](const boost::json::value& model) {
    return model.is_object() && is_called(model.get_object(), name);
  });
}

// Lets the daemon pull the model. Returns its name.
Result<std::string> pull_by_daemon(Client& client, const std::string& source, Interrupts& interrupts) {
  const auto id = client.send({{"type", "pull_model"}, {"source", source}}, "ack");
  if (!id) return std::unexpected(id.error());
  const SteadyClock clock;
  Progress progress(progress_style(/*is_quiet=*/false, /*as_json=*/false), clock);
  std::string file;
  while (true) {
    auto frame = client.receive();
    if (!frame) return std::unexpected(frame.error());
    if (!*frame) {
      if (!interrupts.pending()) continue;
      client.disconnect();  // The daemon ends the download and keeps what it has.
      return interrupted();
    }
    if (text_field(**frame, "event") == "error") return std::unexpected(failure_of(**frame));
    if (text_field(**frame, "event") == "ack") {
      progress.end();
      return text_field(**frame, "model");
    }
    const std::string name = text_field(**frame, "file");
    if (name.empty()) continue;
    const auto total = static_cast<std::uint64_t>(int_field(**frame, "total"));
    if (name != file) progress.begin(name, total > 0 ? std::optional(total) : std::nullopt);
    file = name;
    if (total > 0) progress.set_total(total);
    progress.update(static_cast<std::uint64_t>(int_field(**frame, "done")));
  }
}

std::string until_text(const boost::json::object& model) {
  const double idle_s = number_field(model, "idle_unload_s");
  return idle_s > 0 ? std::format("idle for {}", human_duration(std::ceil(idle_s))) : "stopped";
}

}  // namespace

Result<std::string> load_or_pull(Client& client, const std::string& model, Interrupts& interrupts) {
  const auto known = is_known(client, model);
  if (!known) return std::unexpected(known.error());
  std::string name = model;
  if (!*known && model.contains('/')) {
    auto pulled = pull_by_daemon(client, model, interrupts);
    if (!pulled) return pulled;
    name = *std::move(pulled);
  }
  if (auto loaded = load_model(client, name); !loaded) return std::unexpected(loaded.error());
  return name;
}

Result<void> load_model(Client& client, const std::string& model) {
  const auto answer = client.call({{"type", "load_model"}, {"model", model}}, "ack");
  if (!answer) return std::unexpected(answer.error());
  return {};
}

Result<void> stop_model(Client& client, const std::string& model) {
  const auto answer = client.call({{"type", "unload_model"}, {"model", model}}, "ack");
  if (!answer) return std::unexpected(answer.error());
  return {};
}

Result<void> print_loaded(Client& client, Output& output, bool as_json) {
  auto answer = client.call({{"type", "models"}}, "models");
  if (!answer) return std::unexpected(answer.error());
  Table table({{"NAME"}, {"STATE"}, {"SIZE", Align::right}, {"WINDOW", Align::right}, {"SLOTS", Align::right}, {"UNTIL"}});
  boost::json::array loaded;
  for (const boost::json::value& value : array_field(*answer, "models")) {
    if (!value.is_object()) continue;
    const boost::json::object& model = value.get_object();
    const std::string state = text_field(model, "state");
    if (state != "ready" && state != "loading") continue;
    loaded.push_back(model);
    table.add({text_field(model, "name"), state, human_bytes(number_field(model, "bytes")),
               std::to_string(int_field(model, "sequence_tokens_max")), std::to_string(int_field(model, "slots")),
               until_text(model)});
  }
  if (as_json) return print(output, boost::json::serialize(boost::json::object{{"models", std::move(loaded)}}) + '\n');
  return print(output, table.text());
}

}  // namespace uma::cli
