// uma-cli talks to umad over its Unix socket.
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <format>
#include <functional>
#include <iostream>
#include <langinfo.h>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "uma-cli/chat/attachments.h"
#include "uma-cli/chat/chat.h"
#include "uma-cli/chat/history.h"
#include "uma-cli/chat/imagine.h"
#include "uma-cli/chat/one_shot.h"
#include "uma-cli/embed.h"
#include "uma-cli/launch.h"
#include "uma-cli/metrics.h"
#include "uma-cli/models/lifecycle.h"
#include "uma-cli/models/models.h"
#include "uma-cli/models/models_file.h"
#include "uma-cli/models/pull.h"
#include "uma-cli/print.h"
#include "uma-cli/session_files.h"
#include "uma-cli/sessions.h"
#include "uma-cli/socket_path.h"
#include "uma-cli/text_input.h"
#include "uma-cli/top.h"
#include "uma-cli/why.h"

namespace uma::cli {
namespace {

constexpr const char* kFooter = R"(
The prompt comes from --prompt, from standard input if that is a pipe or a file, or from both
(`cat notes | uma-cli --prompt "Summarise:"`). A model with a chat template gets it as a user message; a model without one continues
it as a text, as does --raw.
The answer is printed as it arrives. On a terminal, control characters in it are made visible. It ends with a newline, which is added
on a terminal only if it is missing, and otherwise always.
Exit status: 0 success, 1 usage, 2 error of the daemon or no connection, 3 protocol error, 130 interrupted.
Environment: UMA_SOCKET is the default of --socket. Without both, uma-cli uses the first socket that answers:
$XDG_RUNTIME_DIR/uma.sock or /tmp/uma.sock if it belongs to you, $XDG_RUNTIME_DIR/uma-serve/umad.sock (your service),
/run/uma-serve/umad.sock (the system's service).)";

constexpr const char* kPullFooter = R"(
SOURCE is an http(s) URL, or OWNER/REPO[:FILE-OR-QUANT][@REVISION] on the hub (`someone/some-model-GGUF:q4_k_m`). All pieces of a split
model are fetched, and from the hub its projector (mmproj), too. The first file appears last, when the model is whole.
Run the same command again to resume an interrupted download. The file appears under its name once it is complete and, if a checksum
is known, verified. Without --out it goes to $XDG_DATA_HOME/uma/models, else to ~/.local/share/uma/models.
Exit status: 0 success, 1 usage, 2 the server, the network or the disk failed, 3 the file is not the requested one, 130 interrupted.
Environment: HF_ENDPOINT is the hub's URL (default: https://huggingface.co), HF_TOKEN the access token, which only that host receives.)";

// The parsed command line.
struct Flags {
  std::string socket;
  OneShot one_shot;
  bool has_prompt = false;
  ChatOptions chat;
  DescribeOptions describe;
  LaunchOptions launch;
  EmbedOptions embed;
  ImagineOptions imagine;
  RerankOptions rerank;
  std::string session;
  std::string reply;
  std::string name;
  std::string search;
  std::string model;
  std::vector<std::string> words;
  std::string file;
  bool with_kv = false;
  std::int64_t turn = 0;
  bool as_json = false;
  double interval_s = 1;
  double trace_s = 10;
  PullOptions pull;
  NewModel new_model;
  std::string models_file;
  // The chosen command if it needs no daemon.
  std::function<Result<void>(const Flags&, Output&, Interrupts&)> local;
};

struct Tools {
  Client& client;
  Output& output;
  Interrupts& interrupts;
};
using Action = std::function<Result<void>(const Flags&, Tools&)>;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> socket_paths(const Flags& flags) {
  return sockets_to_try({.from_flag = flags.socket,
                         .from_environment = environment("UMA_SOCKET"),
                         .runtime_folder = environment("XDG_RUNTIME_DIR"),
                         .user = ::geteuid()});
}

void add_generation_flags(CLI::App& app, GenerationFlags& flags) {
  app.add_option("--max-tokens", flags.max_tokens, "Limit the answer to this many tokens (default: until the context is full)");
  app.add_option("--temp", flags.temperature, "Set the sampling temperature; 0: always the most likely token")
      ->default_str("0");
  app.add_option("--top-p", flags.top_p, "Sample from the most likely tokens whose probabilities add up to this")
      ->default_str("1");
  app.add_option("--top-k", flags.top_k, "Sample from this many of the most likely tokens; 0: all")->default_str("0");
  app.add_option("--min-p", flags.min_p, "Sample from tokens that are at least this fraction as likely as the most likely one")
      ->default_str("0");
  app.add_option("--seed", flags.seed, "Random seed; left out: a new one for each request");
  app.add_option("--stop", flags.stop, "Stop the answer before any of these texts");
  app.add_flag("--no-stream", flags.no_stream, "Print the answer once it is complete");
}

void add_socket_flag(CLI::App& app, Flags& flags) {
  app.add_option("--socket", flags.socket, "Unix socket of the daemon; left out: $UMA_SOCKET, or the first that answers");
}

void add_json_flag(CLI::App& app, Flags& flags) {
  app.add_flag("--json", flags.as_json, "Print the daemon's answer as JSON");
}

CLI::App& add_command(CLI::App& app, Flags& flags, Action& action, const char* name, const char* description, Action run) {
  CLI::App& command = *app.add_subcommand(name, description);
  add_socket_flag(command, flags);
  command.callback([&action, run = std::move(run)] {
    if (!action) action = run;  // The callback of the innermost command runs first.
  });
  return command;
}

Result<void> chat_command(const Flags& flags, Tools& tools) {
  std::FILE* screen = tools.output.is_terminal() ? stdout : stderr;
  auto lines = isatty(STDIN_FILENO) != 0 ? edit_lines(screen, history_path(), tools.interrupts)
                                         : read_lines_from(STDIN_FILENO, tools.interrupts);
  return run_chat(tools.client, flags.chat, *lines, tools.output, tools.interrupts);
}

void add_chat(CLI::App& app, Flags& flags, Action& action) {
  CLI::App& chat =
      add_command(app, flags, action, "chat", "Chat in the terminal: one line a turn, /help lists the commands", chat_command);
  chat.add_option("--session", flags.chat.session, "Session to resume, by name or id, or the name of a new one");
  chat.add_option("--system", flags.chat.system, "System message of a new session");
  chat.add_option("--model", flags.chat.model, "Model of a new session; left out: the daemon's default");
  chat.add_option("--on-full", flags.chat.on_full,
                  "What happens when the context of a new session is full: error, or shift (drop the oldest turns)")
      ->check(CLI::IsMember({"error", "shift"}))
      ->default_str("error");
  chat.add_option("--image", flags.chat.attachments.images, "Images for the first message: files, or http(s) URLs");
  chat.add_option("--audio", flags.chat.attachments.clips, "Clips of sound for the first message: WAV, MP3 or FLAC files");
  chat.add_flag("--usage", flags.chat.shows_usage, "Print each answer's receipt to standard error");
  add_generation_flags(chat, flags.chat.generation);
}

void add_sessions(CLI::App& app, Flags& flags, Action& action) {
  const auto list = [](const Flags& given, Tools& tools) {
    return print_sessions(tools.client, given.search, tools.output, given.as_json);
  };
  CLI::App& sessions = add_command(app, flags, action, "sessions", "List, show, rename, copy, export or end sessions", list);
  sessions.require_subcommand(0, 1);
  CLI::App& all = add_command(sessions, flags, action, "list", "List all sessions, the last used first", list);
  for (CLI::App* command : {&sessions, &all}) {
    add_json_flag(*command, flags);
    command->add_option("--search", flags.search, "List only sessions with these words in name, title or tags");
  }

  CLI::App& show = add_command(
      sessions, flags, action, "show", "Show a session and its messages",
      [](const Flags& given, Tools& tools) { return print_session(tools.client, given.session, tools.output, given.as_json); });
  add_json_flag(show, flags);
  CLI::App& rename = add_command(
      sessions, flags, action, "rename", "Give a session another name",
      [](const Flags& given, Tools& tools) { return print_renamed(tools.client, given.session, given.name, tools.output); });
  CLI::App& end = add_command(sessions, flags, action, "end", "Delete a session",
                              [](const Flags& given, Tools& tools) { return end_session(tools.client, given.session); });
  CLI::App& rewind = add_command(
      sessions, flags, action, "rewind", "Drop the turns after a given one",
      [](const Flags& given, Tools& tools) { return print_rewound(tools.client, given.session, given.turn, tools.output); });
  CLI::App& fork = add_command(sessions, flags, action, "fork", "Copy a session", [](const Flags& given, Tools& tools) {
    return print_forked(tools.client, given.session, given.name, tools.output);
  });
  CLI::App& save = add_command(sessions, flags, action, "export", "Write a session to a file that another daemon can import",
                               [](const Flags& given, Tools& tools) {
                                 return export_session(tools.client, {given.session, given.file, given.with_kv}, tools.output,
                                                       tools.interrupts);
                               });
  CLI::App& load = add_command(sessions, flags, action, "import", "Create a session from an exported file",
                               [](const Flags& given, Tools& tools) {
                                 return import_session(tools.client, given.file, given.name, tools.output, tools.interrupts);
                               });
  for (CLI::App* command : {&show, &rename, &end, &rewind, &fork, &save}) {
    command->add_option("session", flags.session, "Id or name of the session")->required();
  }
  rename.add_option("name", flags.name, "New name; left out: the session has no name from now on");
  rewind.add_option("turn", flags.turn, "Last turn to keep, counted from 0")->required()->check(CLI::NonNegativeNumber);
  fork.add_option("name", flags.name, "Name of the copy");
  save.add_option("file", flags.file, "File to write; left out: standard output");
  save.add_flag("--kv", flags.with_kv,
                "Include the KV cache: hundreds of megabytes, usable by a daemon with the same model and settings");
  load.add_option("file", flags.file, "File to read; left out: standard input");
  load.add_option("--name", flags.name, "Name of the new session; left out: the name it had");
}

void add_views(CLI::App& app, Flags& flags, Action& action) {
  add_json_flag(
      add_command(app, flags, action, "metrics", "Print the daemon's metrics",
                  [](const Flags& given, Tools& tools) { return print_metrics(tools.client, tools.output, given.as_json); }),
      flags);
  CLI::App& top = add_command(
      app, flags, action, "top", "Watch the daemon; Ctrl-C ends it",
      [](const Flags& given, Tools& tools) { return run_top(tools.client, tools.output, tools.interrupts, given.interval_s); });
  top.add_option("--interval", flags.interval_s, "Seconds between refreshes")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  CLI::App& trace = add_command(
      app, flags, action, "trace", "Print what the daemon's threads did lately, as JSON for https://ui.perfetto.dev",
      [](const Flags& given, Tools& tools) { return print_trace(tools.client, given.trace_s, tools.output); });
  trace.add_option("--seconds", flags.trace_s, "How far back the trace goes")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  CLI::App& why = add_command(
      app, flags, action, "why", "Say why tokens of a prompt were computed again",
      [](const Flags& given, Tools& tools) { return print_why(tools.client, given.reply, tools.output, given.as_json); });
  why.add_option("reply", flags.reply, "Id of a recent reply, or id or name of a session; left out: the last reply");
  add_json_flag(why, flags);
  add_command(app, flags, action, "ping", "Check that the daemon answers",
              [](const Flags&, Tools& tools) { return print_ping(tools.client, tools.output); });
}

// `models` and `models list` ask the daemon; the other subcommands edit models.yaml.
void add_models(CLI::App& app, Flags& flags, Action& action) {
  const auto list = [](const Flags& given, Tools& tools) { return print_models(tools.client, tools.output, given.as_json); };
  CLI::App& models =
      add_command(app, flags, action, "models", "List the models that the daemon knows, or edit models.yaml", list);
  models.require_subcommand(0, 1);
  add_json_flag(models, flags);
  add_json_flag(add_command(models, flags, action, "list", "List the models that the daemon knows", list), flags);

  CLI::App& add = *models.add_subcommand("add", "Add a model to models.yaml");
  add.add_option("name", flags.new_model.name, "Name that clients will use")->required();
  add.add_option("source", flags.new_model.source, "Its GGUF file, or the URL that uma-cli pull fetches it from")->required();
  add.add_option("--alias", flags.new_model.aliases, "Other names for the model");
  add.callback([&flags] {
    flags.local = [](const Flags& given, Output& output, Interrupts&) {
      return add_model(given.models_file, given.new_model, output);
    };
  });
  CLI::App& remove = *models.add_subcommand("rm", "Remove a model from models.yaml; its file stays");
  remove.add_option("name", flags.new_model.name, "Name of the model")->required();
  remove.callback([&flags] {
    flags.local = [](const Flags& given, Output& output, Interrupts&) {
      return remove_model(given.models_file, given.new_model.name, output);
    };
  });
  for (CLI::App* command : {&add, &remove}) {
    command->add_option("--file", flags.models_file, "File to edit; left out: $XDG_CONFIG_HOME/uma/models.yaml");
  }
}

// The prompt from --prompt, standard input, or both.
Result<std::string> whole_prompt(const Flags& flags, Interrupts& interrupts) {
  const std::string& given = flags.one_shot.prompt;
  const bool is_from_input_only = !flags.has_prompt || given == "-";
  if (!is_from_input_only) {
    if (auto good = check_text(given, "--prompt"); !good) return std::unexpected(good.error());
  }
  std::string prompt = is_from_input_only ? "" : given;
  if (is_from_input_only || is_piped(STDIN_FILENO)) {
    auto input = read_whole(STDIN_FILENO, "standard input", !is_from_input_only, interrupts);
    if (!input) return input;
    if (!prompt.empty() && !input->empty()) prompt += "\n\n";
    prompt += *input;
  }
  if (prompt.empty()) return fail(ExitCode::usage, "the prompt is empty: give --prompt TEXT, or text on standard input");
  return prompt;
}

// Loads the model, then answers the prompt or begins a chat.
Result<void> run_command(const Flags& flags, Tools& tools) {
  auto model = load_or_pull(tools.client, flags.model, tools.interrupts);
  if (!model) return std::unexpected(model.error());
  Flags with_model = flags;
  with_model.chat.model = *model;
  if (flags.words.empty() && !is_piped(STDIN_FILENO)) return chat_command(with_model, tools);
  OneShot& command = with_model.one_shot;
  command.model = *model;
  command.generation = flags.chat.generation;
  for (const std::string& word : flags.words) command.prompt += (command.prompt.empty() ? "" : " ") + word;
  with_model.has_prompt = !flags.words.empty();
  auto prompt = whole_prompt(with_model, tools.interrupts);
  if (!prompt) return std::unexpected(prompt.error());
  command.prompt = *std::move(prompt);
  return run_one_shot(tools.client, command, tools.output, tools.interrupts);
}

void add_lifecycle(CLI::App& app, Flags& flags, Action& action) {
  CLI::App& run =
      add_command(app, flags, action, "run", "Load a model, which is pulled if it is not here, and chat with it", run_command);
  run.add_option("model", flags.model, "Name of the model, or its source: OWNER/REPO[:FILE-OR-QUANT], or a URL")->required();
  run.add_option("prompt", flags.words, "Print the answer to this instead of beginning a chat");
  add_generation_flags(run, flags.chat.generation);
  CLI::App& load = add_command(app, flags, action, "load", "Load a model",
                               [](const Flags& given, Tools& tools) { return load_model(tools.client, given.model); });
  CLI::App& stop = add_command(app, flags, action, "stop", "Unload a model; its sessions stay",
                               [](const Flags& given, Tools& tools) { return stop_model(tools.client, given.model); });
  for (CLI::App* command : {&load, &stop}) command->add_option("model", flags.model, "Name of the model")->required();
  add_json_flag(
      add_command(app, flags, action, "ps", "List the models in memory",
                  [](const Flags& given, Tools& tools) { return print_loaded(tools.client, tools.output, given.as_json); }),
      flags);
}

void add_imagine(CLI::App& app, Flags& flags, Action& action) {
  CLI::App& imagine =
      add_command(app, flags, action, "imagine", "Draw pictures from a caption", [](const Flags& given, Tools& tools) {
        return run_imagine(tools.client, given.imagine, tools.output, tools.interrupts);
      });
  ImagineOptions& options = flags.imagine;
  imagine.add_option("caption", options.caption, "What to draw")->required();
  imagine.add_option("-o,--output", options.file,
                     "PNG file to write; left out: a new one named after the caption; -: standard output");
  imagine.add_option("--negative", options.negative, "What the picture should not show");
  imagine.add_option("--model", options.model, "Model to use; left out: the daemon's choice of those that draw");
  imagine.add_option("--size", options.size, "Pixels of a side; left out: as the model draws")->check(CLI::PositiveNumber);
  imagine.add_option("--steps", options.steps, "Steps of the drawing; left out: the model's number")
      ->check(CLI::PositiveNumber);
  imagine.add_option("--guidance", options.guidance, "How far the caption is followed; left out: the model's number");
  imagine.add_option("--seed", options.seed, "Random seed of the first picture; left out: a new one for each request");
  imagine.add_option("--sampler", options.sampler, "euler, euler_a, dpm++_2m or lcm; left out: the model's");
  imagine.add_option("--schedule", options.schedule, "discrete, karras or trailing; left out: the sampler's usual one");
  imagine.add_option("--image", options.image, "A picture to begin with");
  imagine.add_option("--strength", options.strength, "How much of --image is drawn anew, up to 1; left out: 0.75");
  imagine.add_option("--count", options.count, "Number of pictures")->check(CLI::PositiveNumber)->default_str("1");
  imagine.add_flag("--background", options.is_background, "Let interactive requests go first");
  imagine.add_flag("--no-metadata", options.has_no_metadata, "Leave the caption and the options out of the file");
  imagine
      .add_option("--show", options.show,
                  "Show the picture in the terminal: auto, no, or by the protocol of kitty, iterm or sixel")
      ->check(CLI::IsMember({"auto", "no", "kitty", "iterm", "sixel"}))
      ->default_str("auto");
}

void add_texts_flags(CLI::App& app, TextsOptions& options, const char* texts, std::vector<std::string> long_inputs) {
  app.add_option("texts", options.texts, std::format("{}; without any, the lines of --file or of standard input", texts));
  app.add_option("--file", options.file, "Read them from this file, one per line; -: standard input");
  app.add_option("--model", options.model, "Model to use; left out: the daemon's default");
  app.add_option("--long-input", options.long_input, "What to do with a text that is longer than the model takes")
      ->check(CLI::IsMember(std::move(long_inputs)))
      ->default_str("refuse");
  app.add_flag("--background", options.is_background,
               "Let interactive requests go first, and wait up to five minutes instead of one");
  app.add_flag("--json", options.as_json, "Print one JSON object per line, also on a terminal");
}

void add_texts_commands(CLI::App& app, Flags& flags, Action& action) {
  CLI::App& embed = add_command(
      app, flags, action, "embed", "Compute embedding vectors of texts or images",
      [](const Flags& given, Tools& tools) { return run_embed(tools.client, given.embed, tools.output, tools.interrupts); });
  add_texts_flags(embed, flags.embed.common, "Texts to embed", {"refuse", "truncate", "chunk"});
  embed.add_option("--image", flags.embed.images, "Embed images instead: files, or http(s) URLs");
  embed.add_option("--task", flags.embed.task,
                   "Task whose prefix to use, by its name in the model's card (such as query or document)");
  embed.add_option("--dimensions", flags.embed.dimensions, "Keep only this many numbers of each vector, from its beginning")
      ->check(CLI::PositiveNumber);
  embed.add_flag("--raw", flags.embed.is_raw, "Print vectors as the model computes them, not scaled to length 1");

  CLI::App& rerank = add_command(
      app, flags, action, "rerank", "Sort documents by their relevance to a query",
      [](const Flags& given, Tools& tools) { return run_rerank(tools.client, given.rerank, tools.output, tools.interrupts); });
  add_texts_flags(rerank, flags.rerank.common, "Documents to sort", {"refuse", "truncate"});
  rerank.add_option("--query", flags.rerank.query, "Query that documents are compared with")->required();
  rerank.add_option("--top", flags.rerank.top_n, "Print only this many of the best documents")->check(CLI::PositiveNumber);
}

void add_describe(CLI::App& app, Flags& flags, Action& action) {
  CLI::App& describe = add_command(app, flags, action, "describe", "Describe an image, or answer a question about it",
                                   [](const Flags& given, Tools& tools) {
                                     return run_describe(tools.client, given.describe, tools.output, tools.interrupts);
                                   });
  describe.add_option("image", flags.describe.image, "File, or http(s) URL")->required();
  describe.add_option("--query", flags.describe.query, "Question or instruction")->capture_default_str();
  describe.add_option("--model", flags.describe.model, "Model to use; left out: the daemon's default");
  describe.add_flag("--usage", flags.describe.shows_usage, "Print the receipt to standard error");
  add_generation_flags(describe, flags.describe.generation);
}

void add_pull(CLI::App& app, Flags& flags) {
  CLI::App& pull = *app.add_subcommand("pull", "Download a model from the hub or a URL");
  pull.add_option("source", flags.pull.source, "URL, or OWNER/REPO[:FILE-OR-QUANT][@REVISION]")->required();
  pull.add_option("--out", flags.pull.out, "File to write; left out: its own name, in the models folder");
  pull.add_flag("!--no-projector", flags.pull.has_projector, "Without what encodes images or sound");
  pull.add_option("--folder", flags.pull.folder, "Folder to write to, under the file's own name; left out: the models folder");
  pull.add_option("--sha256", flags.pull.sha256, "Checksum that the file must have; left out: the one that the hub states");
  pull.add_option("--stall-timeout", flags.pull.stall_timeout_s, "Give up a connection after this many seconds without a byte")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  pull.add_flag("--force", flags.pull.is_forced, "Replace an existing file");
  pull.add_flag("--quiet", flags.pull.is_quiet, "Print only errors");
  pull.add_flag("--json", flags.pull.as_json, "Print progress and result as lines of JSON on standard output");
  pull.footer(kPullFooter);
  pull.callback([&flags] {
    flags.local = [](const Flags& given, Output& output, Interrupts& interrupts) {
      return run_pull(given.pull, output, interrupts);
    };
  });
}

void add_launch(CLI::App& app, Flags& flags, Action& action) {
  CLI::App& launch = add_command(
      app, flags, action, "launch", "Start a coding agent that uses this daemon",
      [](const Flags& given, Tools& tools) { return run_launch(tools.client, given.launch, tools.output, tools.interrupts); });
  launch.add_option("agent", flags.launch.agent, "The agent, which must be installed")
      ->required()
      ->check(CLI::IsMember(launch_agents()));
  launch.add_option("arguments", flags.launch.arguments, "Arguments for the agent, after --");
  launch.add_option("--model", flags.launch.model, "Model to use; left out: the daemon's default");
  launch.add_option("--url", flags.launch.url, "URL of the daemon's HTTP listener; left out: the daemon says it");
  launch.add_option("--key", flags.launch.key, "API key; left out: none is needed")->envname("UMA_API_KEY");
  launch.add_flag("--print", flags.launch.only_prints, "Only print what the agent would get, as commands for a shell");
}

void add_one_shot(CLI::App& app, Flags& flags) {
  app.add_option("--prompt", flags.one_shot.prompt, "The prompt; -: read it from standard input");
  app.add_option("--model", flags.one_shot.model, "Model to use; left out: the daemon's default");
  app.add_option("--image", flags.one_shot.attachments.images, "Images to ask about: files, or http(s) URLs");
  app.add_option("--audio", flags.one_shot.attachments.clips, "Clips of sound to ask about: WAV, MP3 or FLAC files");
  app.add_option("--session", flags.one_shot.session, "Ask within this session, by id or name; a new name creates it");
  app.add_flag("--raw", flags.one_shot.is_raw, "Continue the prompt as a text, without the model's chat template");
  app.add_flag("--usage", flags.one_shot.shows_usage, "Print the receipt to standard error: tokens, reuse, speed");
  add_generation_flags(app, flags.one_shot.generation);
}

// Without this check, flags of the one-shot mode before a command would be ignored silently.
void refuse_one_shot_flags(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && option->get_name() != "--socket") {
      throw CLI::ValidationError(option->get_name(), "does not belong before a command: give the command's own flags after it");
    }
  }
}

Result<void> run(Flags& flags, Action action) {
  Interrupts interrupts;
  Output output(STDOUT_FILENO, isatty(STDOUT_FILENO) != 0, interrupts);
  if (flags.local) return flags.local(flags, output, interrupts);
  if (!action) {
    auto prompt = whole_prompt(flags, interrupts);
    if (!prompt) return std::unexpected(prompt.error());
    flags.one_shot.prompt = std::move(*prompt);
    action = [](const Flags& given, Tools& tools) {
      return run_one_shot(tools.client, given.one_shot, tools.output, tools.interrupts);
    };
  }
  auto client = Client::connect(socket_paths(flags), interrupts);
  if (!client) return std::unexpected(client.error());
  Tools tools{**client, output, interrupts};
  return action(flags, tools);
}

// Opens the descriptors 0 to 2 that the parent closed. Otherwise the socket could get one of them, and the output would go to
// the daemon.
void open_standard_descriptors() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

// Uses UTF-8 even if the environment sets no locale.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::string_view(nl_langinfo(CODESET)) != "UTF-8")
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

int main_of(int argc, char** argv) {
  open_standard_descriptors();
  use_utf8();
  CLI::App app("Talks to a language model that umad serves.", "uma-cli");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", "uma-cli " UMA_VERSION);
  Flags flags;
  Action action;
  add_socket_flag(app, flags);
  add_one_shot(app, flags);
  add_chat(app, flags, action);
  add_lifecycle(app, flags, action);
  add_sessions(app, flags, action);
  add_models(app, flags, action);
  add_views(app, flags, action);
  add_texts_commands(app, flags, action);
  add_imagine(app, flags, action);
  add_describe(app, flags, action);
  add_launch(app, flags, action);
  add_pull(app, flags);
  app.footer(kFooter);  // Added last, because subcommands would inherit it.
  try {
    app.parse(argc, argv);
    if (action || flags.local) refuse_one_shot_flags(app);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? static_cast<int>(ExitCode::success) : static_cast<int>(ExitCode::usage);
  }
  flags.has_prompt = app.count("--prompt") > 0;
  if (!action && !flags.local && !flags.has_prompt && !is_piped(STDIN_FILENO)) {
    std::cerr << app.help();
    return static_cast<int>(ExitCode::usage);
  }
  const Result<void> result = run(flags, action);
  if (result) return static_cast<int>(ExitCode::success);
  report(result.error());
  return static_cast<int>(result.error().exit_code);
}

}  // namespace
}  // namespace uma::cli

int main(int argc, char** argv) {
  return uma::cli::main_of(argc, argv);
}
