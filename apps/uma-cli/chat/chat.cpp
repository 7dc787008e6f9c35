#include "uma-cli/chat/chat.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <format>
#include <fstream>
#include <iostream>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/clock.h"
#include "uma-cli/chat/turn.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/models/models.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/sessions.h"
#include "uma-cli/text_input.h"

namespace uma::cli {
namespace {

// A chat that is killed (kill -9) leaves its unnamed session behind; the daemon deletes that session after a week without use.
constexpr std::int64_t kUnnamedTtlS = 7 * 24 * 3600;

class Chat {
 public:
  Chat(Client& client, const ChatOptions& options, LineReader& lines, Output& output, Interrupts& interrupts)
      : client_(client),
        options_(options),
        lines_(lines),
        output_(output),
        interrupts_(interrupts),
        model_(options.model),
        shows_usage_(options.shows_usage) {
    lines.complete_with([this](const std::string& typed) { return completions_of(typed); });
  }
  // The reader outlives the chat.
  ~Chat() { lines_.complete_with(nullptr); }
  Chat(const Chat&) = delete;
  Chat& operator=(const Chat&) = delete;

  Result<void> run() {
    auto result = begin();
    if (result) result = loop();
    end_unnamed_sessions();
    return result;
  }

 private:
  struct Command {
    std::string_view name;
    std::string_view argument;
    std::string_view help;
    Result<void> (Chat::*run)(const std::string& argument);
  };
  static const std::array<Command, 16> kCommands;

  // --- the conversation

  Result<void> begin() {
    auto model = find_model(client_, model_, interrupts_);
    if (!model) return std::unexpected(model.error());
    for (const std::string& name : options_.attachments.images) {
      if (auto added = attach(name, Media::image); !added) return added;
    }
    for (const std::string& name : options_.attachments.clips) {
      if (auto added = attach(name, Media::audio); !added) return added;
    }
    if (options_.session.empty()) {
      if (auto started = start_session("", options_.system); !started) return started;
    } else if (auto entered = enter_or_create(options_.session); !entered) {
      return entered;
    }
    return say("/help lists the commands, Ctrl-D leaves\n");
  }

  Result<void> loop() {
    bool was_interrupted = false;
    while (!is_over_) {
      Line line = read_turn();
      switch (line.end) {
        case LineEnd::end_of_input:
          return {};
        case LineEnd::must_leave:
          return interrupted();
        case LineEnd::interrupted:
          if (!lines_.is_terminal()) return interrupted();
          if (was_interrupted) return {};
          was_interrupted = true;
          if (auto good = say("Ctrl-C again, or Ctrl-D, leaves\n"); !good) return good;
          continue;
        case LineEnd::discarded:
          was_interrupted = false;
          continue;
        case LineEnd::line:
          break;
      }
      was_interrupted = false;
      if (auto good = survive(obey_or_generate(line.text)); !good) return good;
    }
    return {};
  }

  // Reads one message. A line that ends in a backslash is continued on the next line.
  Line read_turn() {
    Line turn = lines_.read("> ");
    while (turn.end == LineEnd::line && turn.text.ends_with('\\')) {
      turn.text.back() = '\n';
      Line more = lines_.read(". ");
      if (more.end == LineEnd::end_of_input) return turn;
      turn.text += more.text;
      // Ctrl-C also discards the lines before this one.
      turn.end = more.end == LineEnd::interrupted ? LineEnd::discarded : more.end;
    }
    return turn;
  }

  Result<void> obey_or_generate(const std::string& text) {
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
    if (text.starts_with('/')) return obey(text);
    if (auto good = check_text(text, "this line"); !good) return std::unexpected(refused(good.error()));
    boost::json::object request = {{"type", "generate"}, {"session_id", id_}};
    if (parts_.empty()) {
      request["prompt"] = text;
    } else {
      request["messages"] = messages_with(std::exchange(parts_, {}), text);
      request["deadline_ms"] = kImageDeadlineMs;
    }
    return generate(std::move(request));
  }

  Result<void> generate(boost::json::object request) {
    options_.generation.add_to(request);
    auto end = run_turn(client_, std::move(request), output_, interrupts_);
    if (!end) return std::unexpected(end.error());
    // The user is always told that the oldest turns were dropped.
    const bool was_full = int_field(end->usage, "dropped_turns") > 0;
    if ((shows_usage_ || was_full) && !end->usage.empty()) std::cerr << receipt_line(end->usage) << std::endl;
    last_reply_ = end->text;
    if (end->is_output_closed) is_over_ = true;
    if (end->is_interrupted && (!lines_.is_terminal() || interrupts_.must_leave())) return interrupted();
    return {};
  }

  // Adds a file, or the URL of an image, to the next message.
  Result<void> attach(const std::string& name, Media media) {
    auto parts = read_parts(media == Media::image ? Attachments{.images = {name}} : Attachments{.clips = {name}});
    if (!parts) return std::unexpected(parts.error());
    if (auto reads = check_any_reads(client_, media); !reads) return reads;
    if (bytes_of_parts(*parts) + bytes_of_parts(parts_) > kFileBytesPerRequest) {
      return fail(ExitCode::usage, std::format("{}: the files of one message may have {} together", printable_line(name),
                                               human_bytes(kFileBytesPerRequest)));
    }
    parts_.push_back(std::move(parts->front()));
    return {};
  }

  // Reports a failure that the chat survives; returns one that ends the chat.
  Result<void> survive(Result<void> result) {
    if (result || !lines_.is_terminal()) return result;
    const Failure& failure = result.error();
    if (failure.exit_code == ExitCode::interrupted) {
      (void)interrupts_.take();
      if (interrupts_.must_leave()) return result;
      return {};
    }
    if (failure.server_code.empty()) return result;
    report(failure);
    if (failure.server_code == kUnknownSession) return say("/new starts a new session\n");
    return {};
  }

  // Makes a failure of the user's input look like a refusal of the daemon.
  static Failure refused(Failure failure) {
    failure.server_code = "not sent";
    return failure;
  }

  // --- sessions

  Result<void> start_session(const std::string& name, const std::string& system) {
    CreateSession create;
    create.name = name;
    create.model = model_;
    create.system = system;
    create.on_full = options_.on_full;
    if (name.empty()) create.ttl_s = kUnnamedTtlS;
    auto session = create_session(client_, create);
    if (!session) return std::unexpected(session.error());
    if (name.empty()) unnamed_ids_.push_back(text_field(*session, "session_id"));
    return enter(*session, "new session");
  }

  Result<void> enter_or_create(const std::string& id_or_name) {
    auto session = get_session(client_, id_or_name);
    if (!session && session.error().server_code == kUnknownSession && !is_session_id(id_or_name)) {
      return start_session(id_or_name, options_.system);
    }
    if (!session) return std::unexpected(session.error());
    if (!options_.system.empty()) std::cerr << "uma-cli: this session exists already, so --system is not used\n";
    return enter(*session, "resumed");
  }

  Result<void> enter(const boost::json::object& session, std::string_view how) {
    id_ = text_field(session, "session_id");
    if (id_.empty()) return fail(ExitCode::protocol, "the daemon described a session without its session_id");
    const std::string name = text_field(session, "name");
    return say(std::format("{} {}: {}, {}, model {}\n", how, name.empty() ? id_ : name,
                           count_of(int_field(session, "turns"), "turn"), count_of(int_field(session, "tokens"), "token"),
                           text_field(session, "model")));
  }

  // Best effort: without a daemon there is no session to delete.
  void end_unnamed_sessions() {
    interrupts_.dismiss();
    for (const std::string& id : unnamed_ids_) {
      auto ended = end_session(client_, id);
      if (!ended && ended.error().server_code.empty()) return;
    }
  }

  // Prints a remark about the conversation, at a terminal only.
  Result<void> say(std::string_view text) { return lines_.is_terminal() ? print(output_, text) : Result<void>(); }

  // --- commands

  Result<void> obey(const std::string& line) {
    const std::size_t space = std::min(line.find_first_of(" \t\n"), line.size());
    const std::string_view name = std::string_view(line).substr(1, space - 1);
    const std::size_t begin = std::min(line.find_first_not_of(" \t\n", space), line.size());
    const std::string argument = line.substr(begin, line.find_last_not_of(" \t\r\n") + 1 - begin);
    const auto* command = std::ranges::find(kCommands, name, &Command::name);
    if (command == kCommands.end()) {
      return refuse(
          std::format("there is no command /{}: /help lists them, and a space in front sends the line as text", name));
    }
    if (command->argument.empty() && !argument.empty()) return refuse(std::format("/{} takes nothing after it", name));
    if (command->argument.starts_with("TEXT") && argument.empty())
      return refuse("/system needs a text, as in /system You are brief");
    return (this->*command->run)(argument);
  }

  static Result<void> refuse(std::string message) {
    return std::unexpected(refused({ExitCode::usage, std::move(message), ""}));
  }

  Result<void> help(const std::string&) {
    std::string text;
    for (const Command& command : kCommands) {
      text += std::format("  {:<16}{}\n", std::format("/{} {}", command.name, command.argument), command.help);
    }
    return print(output_, text +
                              "  A line that ends in \\ continues on the next line. Tab completes, Ctrl-R searches, Ctrl-C "
                              "stops an answer, Ctrl-D leaves.\n");
  }

  Result<void> image(const std::string& name) {
    if (name.empty()) return refuse("/image needs a file or an http(s) URL");
    return attach_and_say(name, Media::image);
  }

  Result<void> audio(const std::string& name) {
    if (name.empty()) return refuse("/audio needs a WAV, MP3 or FLAC file");
    return attach_and_say(name, Media::audio);
  }

  Result<void> attach_and_say(const std::string& name, Media media) {
    if (auto added = attach(name, media); !added) return std::unexpected(refused(added.error()));
    return say(std::format("{} with the next message\n", count_of(static_cast<std::int64_t>(parts_.size()), "file")));
  }

  Result<void> new_session(const std::string& name) { return start_session(name, options_.system); }
  Result<void> new_system(const std::string& text) { return start_session("", text); }
  Result<void> list_sessions(const std::string&) { return print_sessions(client_, "", output_, false); }

  Result<void> switch_session(const std::string& id_or_name) {
    if (id_or_name.empty()) return refuse("/switch needs a name or an id: /sessions lists them");
    auto session = get_session(client_, id_or_name);
    if (!session) return std::unexpected(session.error());
    return enter(*session, "switched to");
  }

  Result<void> rewind(const std::string& number) {
    std::int64_t turn = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), turn);
    if (error != std::errc() || end != number.data() + number.size() || turn < 0) {
      return refuse("/rewind needs the number of the last turn to keep, counted from 0");
    }
    auto session = rewind_session(client_, id_, turn);
    if (!session) return std::unexpected(session.error());
    return say(std::format("{} left\n", count_of(int_field(*session, "turns"), "turn")));
  }

  Result<void> regenerate(const std::string&) { return generate({{"type", "regenerate"}, {"session_id", id_}}); }

  Result<void> fork(const std::string& name) {
    auto session = fork_session(client_, id_, name);
    if (!session) return std::unexpected(session.error());
    if (name.empty()) unnamed_ids_.push_back(text_field(*session, "session_id"));
    return enter(*session, "forked into");
  }

  Result<void> change_model(const std::string& name) {
    if (name.empty()) return refuse("/model needs a name: Tab lists them");
    auto models = client_.call({{"type", "models"}}, "models");
    if (!models) return std::unexpected(models.error());
    const bool is_known = std::ranges::any_of(array_field(*models, "models"), [&](const boost::json::value& model) {
      return model.is_object() && is_called(model.get_object(), name);
    });
    if (!is_known) return refuse(std::format("there is no model {}: Tab lists them", printable_line(name)));
    model_ = name;
    return start_session("", options_.system);
  }

  // A terminal puts what follows this code into the clipboard of the machine where it is shown.
  Result<void> copy_reply(const std::string&) {
    if (last_reply_.empty()) return refuse("there is no answer yet to copy");
    if (!lines_.is_terminal() || !output_.is_terminal()) return refuse("/copy needs a terminal");
    if (output_.write_verbatim("\x1b]52;c;" + base64_of(last_reply_) + "\x07") != WriteEnd::done) return {};
    return say(std::format("{} sent to the clipboard, if the terminal allows that\n",
                           count_of(static_cast<std::int64_t>(last_reply_.size()), "byte")));
  }

  Result<void> save(const std::string& path) {
    if (path.empty()) return refuse("/save needs the name of a file");
    auto session = get_session(client_, id_);
    if (!session) return std::unexpected(session.error());
    std::string text = text_field(*session, "text");
    for (const boost::json::value& each : array_field(*session, "messages")) {
      if (!each.is_object()) continue;
      const std::string role = text_field(each.get_object(), "role");
      const std::string_view heading = role == "user" ? "You" : role == "assistant" ? "Reply" : std::string_view(role);
      text += std::format("## {}\n\n{}\n\n", heading, text_field(each.get_object(), "content"));
    }
    std::ofstream file(path, std::ios::noreplace);
    if (file) file << text << std::flush;
    if (!file) return refuse(std::format("{} cannot be written: {}", printable_line(path), std::strerror(errno)));
    return say(std::format("saved {}\n", human_bytes(static_cast<double>(text.size()))));
  }

  // The Tab key completes a command, or the name after it.
  std::vector<std::string> completions_of(const std::string& typed) {
    std::vector<std::string> all;
    const auto add = [&](std::string line) {
      if (line.starts_with(typed)) all.push_back(std::move(line));
    };
    if (typed.starts_with("/model ")) {
      for (const std::string& name : names_of("models", "models", "name")) add("/model " + name);
    } else if (typed.starts_with("/switch ")) {
      for (const std::string& name : names_of("list_sessions", "sessions", "name")) add("/switch " + name);
    } else if (typed.starts_with('/')) {
      for (const Command& command : kCommands) add(std::format("/{}{}", command.name, command.argument.empty() ? "" : " "));
    }
    return all;
  }
  std::vector<std::string> names_of(std::string_view request, std::string_view answer, std::string_view field) {
    std::vector<std::string> names;
    const auto listed = client_.call({{"type", std::string(request)}}, answer);
    if (!listed) return names;
    for (const boost::json::value& each : array_field(*listed, answer)) {
      if (each.is_object() && !text_field(each.get_object(), field).empty())
        names.push_back(text_field(each.get_object(), field));
    }
    return names;
  }

  Result<void> toggle_usage(const std::string&) {
    shows_usage_ = !shows_usage_;
    return say(shows_usage_ ? "receipts are shown\n" : "receipts are not shown\n");
  }

  Result<void> leave(const std::string&) {
    is_over_ = true;
    return {};
  }

  Client& client_;
  const ChatOptions& options_;
  LineReader& lines_;
  Output& output_;
  Interrupts& interrupts_;
  std::string model_;  // New sessions have it; empty: the default model.
  std::string last_reply_;
  std::string id_;                        // Id of the current session.
  boost::json::array parts_;              // Images and clips to send with the next message.
  std::vector<std::string> unnamed_ids_;  // Sessions that are deleted when this chat ends.
  bool shows_usage_;
  bool is_over_ = false;
};

constexpr std::array<Chat::Command, 16> Chat::kCommands = {{
    {"help", "", "show this list", &Chat::help},
    {"image", "FILE", "attach an image to the next message", &Chat::image},
    {"audio", "FILE", "attach a clip of sound to the next message", &Chat::audio},
    {"new", "[NAME]", "start a session; without a name it is deleted when the chat ends", &Chat::new_session},
    {"system", "TEXT", "start a session with this system message", &Chat::new_system},
    {"sessions", "", "list all sessions", &Chat::list_sessions},
    {"switch", "NAME|ID", "continue another session", &Chat::switch_session},
    {"fork", "[NAME]", "continue in a copy of this session", &Chat::fork},
    {"rewind", "N", "keep turns 0 to N, forget the rest", &Chat::rewind},
    {"regenerate", "", "generate another answer to the last message", &Chat::regenerate},
    {"model", "NAME", "start a session with another model", &Chat::change_model},
    {"copy", "", "put the last answer into the clipboard", &Chat::copy_reply},
    {"save", "FILE", "write the conversation into a file, as Markdown", &Chat::save},
    {"usage", "", "show or hide the receipt of each answer", &Chat::toggle_usage},
    {"exit", "", "leave", &Chat::leave},
    {"quit", "", "leave", &Chat::leave},
}};

}  // namespace

Result<void> run_chat(Client& client, const ChatOptions& options, LineReader& lines, Output& output, Interrupts& interrupts) {
  return Chat(client, options, lines, output, interrupts).run();
}

}  // namespace uma::cli
