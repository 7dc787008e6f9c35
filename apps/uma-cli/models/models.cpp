#include "uma-cli/models/models.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <fstream>
#include <iostream>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <boost/json/serialize.hpp>

#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/models/model_head.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

constexpr int kLoadPollMs = 200;

boost::json::object entry_called(const boost::json::object& answer, const std::string& name) {
  for (const boost::json::value& entry : array_field(answer, "models")) {
    if (entry.is_object() && (name.empty() || is_called(entry.get_object(), name))) return entry.get_object();
  }
  return {};
}

// One line on standard error, redrawn while a model loads. Prints nothing if standard error is not a terminal.
class LoadLine {
 public:
  ~LoadLine() {
    if (is_shown_) std::cerr << "\r\x1b[K" << std::flush;
  }
  void show(const boost::json::object& model) {
    if (isatty(STDERR_FILENO) == 0) return;
    is_shown_ = true;
    std::cerr << std::format("\r\x1b[Kloading {}: {:.0f} %", printable_line(text_field(model, "name")),
                             100 * number_field(model, "load_progress"))
              << std::flush;
  }

 private:
  bool is_shown_ = false;
};

std::string state_of(const boost::json::object& model) {
  const std::string state = text_field(model, "state");
  return state == "loading" ? std::format("loading {:.0f} %", 100 * number_field(model, "load_progress")) : state;
}

// An older daemon reports no capability; its models are chat models.
std::string capability_of(const boost::json::object& model) {
  std::string capability = text_field(model, "capability");
  if (!capability.empty()) return capability;
  return bool_field(model, "has_chat_template") ? "chat" : "text";
}

std::string aliases_of(const boost::json::object& model) {
  std::string text;
  for (const boost::json::value& alias : array_field(model, "aliases")) {
    if (alias.is_string()) text += std::format("{}{}", text.empty() ? "" : ",", std::string_view(alias.get_string()));
  }
  return text;
}

// The model's defaults of sampling, such as "temperature 0.6 (file), top_k 20 (family)".
std::string sampling_of(const boost::json::object& model) {
  std::string text;
  for (const auto& [name, value] : object_field(model, "sampling")) {
    const boost::json::object* setting = value.if_object();
    const boost::json::value* number = setting == nullptr ? nullptr : setting->if_contains("value");
    if (number == nullptr || !number->is_number()) continue;
    text += std::format("{}{} {:.9g} ({})", text.empty() ? "" : ", ", std::string_view(name), number->to_number<double>(),
                        text_field(*setting, "source"));
  }
  return text;
}

// With the program that has stored the file, if it is another one's.
std::string description_of(const boost::json::object& model) {
  const std::string store = text_field(model, "store");
  return text_field(model, "description") + (store.empty() ? "" : std::format(" (from {})", store));
}

Result<std::string> models_file(const std::string& given) {
  return given.empty() ? default_models_file() : Result<std::string>(given);
}

Result<void> say_changed(Output& output, std::string_view what, const std::string& name, const std::string& file) {
  return print(output, std::format("{} {} in {}; umad reads the file at its start and when it receives SIGHUP (kill -HUP)\n",
                                   what, printable_line(name), printable_line(file)));
}

// The absolute path of a GGUF file, or a failure.
Result<std::string> checked_file(const std::string& path) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem)) {
    return fail(ExitCode::usage, std::format("{} is neither an existing file nor an http(s) URL", printable_line(path)));
  }
  std::string head(kModelHeadBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  if (const std::string why = why_not_model(head); !why.empty()) {
    return fail(ExitCode::usage, std::format("{} is not a GGUF model: {}", printable_line(path), why));
  }
  return std::filesystem::absolute(path, problem).lexically_normal().string();
}

}  // namespace

bool is_called(const boost::json::object& model, const std::string& name) {
  const auto is_same = [&](const boost::json::value& alias) { return alias.is_string() && alias.get_string() == name; };
  return text_field(model, "name") == name || std::ranges::any_of(array_field(model, "aliases"), is_same);
}

Result<boost::json::object> find_model(Client& client, const std::string& name, Interrupts& interrupts) {
  LoadLine line;
  while (true) {
    auto answer = client.call({{"type", "models"}}, "models");
    if (!answer) return std::unexpected(answer.error());
    boost::json::object model = entry_called(*answer, name);
    if (text_field(model, "state") != "loading") return model;
    line.show(model);
    if (interrupts.wait({}, kLoadPollMs) == Wake::signal && interrupts.pending()) return interrupted();
  }
}

Result<void> print_models(Client& client, Output& output, bool as_json) {
  auto answer = client.call({{"type", "models"}}, "models");
  if (!answer) return std::unexpected(answer.error());
  if (as_json) return print(output, boost::json::serialize(*answer) + '\n');
  Table table({{"NAME"},
               {"STATE"},
               {"CAPABILITY"},
               {"SIZE", Align::right},
               {"WINDOW", Align::right},
               {"SLOTS", Align::right},
               {"WORKERS", Align::right},
               {"ALIASES"},
               {"DESCRIPTION"},
               {"SAMPLING"}});
  for (const boost::json::value& value : array_field(*answer, "models")) {
    if (!value.is_object()) continue;
    const boost::json::object& model = value.get_object();
    table.add({text_field(model, "name"), state_of(model), capability_of(model), human_bytes(number_field(model, "bytes")),
               std::to_string(int_field(model, "sequence_tokens_max")), std::to_string(int_field(model, "slots")),
               std::to_string(int_field(model, "workers")), aliases_of(model), description_of(model), sampling_of(model)});
  }
  return print(output, table.text());
}

Result<void> add_model(const std::string& given, NewModel model, Output& output) {
  const auto file = models_file(given);
  if (!file) return std::unexpected(file.error());
  if (!model.source.starts_with("http://") && !model.source.starts_with("https://")) {
    auto path = checked_file(model.source);
    if (!path) return std::unexpected(path.error());
    model.source = *std::move(path);
  }
  auto edited = edit_file(*file, [&](const std::string& text) { return with_model(text, model); });
  if (!edited) return edited;
  return say_changed(output, "added", model.name, *file);
}

Result<void> remove_model(const std::string& given, const std::string& name, Output& output) {
  const auto file = models_file(given);
  if (!file) return std::unexpected(file.error());
  auto edited = edit_file(*file, [&](const std::string& text) { return without_model(text, name); });
  if (!edited) return edited;
  return say_changed(output, "removed", name, *file);
}

}  // namespace uma::cli
