#include "uma-cli/chat/one_shot.h"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <utility>

#include <boost/json/array.hpp>

#include "uma-cli/chat/turn.h"
#include "uma-cli/fields.h"
#include "uma-cli/models/models.h"
#include "uma-cli/sessions.h"

namespace uma::cli {
namespace {

// In a session the daemon knows whether it expects a message or plain text; a one-shot request has to state it.
Result<boost::json::object> one_shot_request(Client& client, const OneShot& command, Interrupts& interrupts) {
  boost::json::object request = {{"type", "generate"}};
  command.generation.add_to(request);
  const Attachments& attachments = command.attachments;
  if (!attachments.empty()) {
    if (command.is_raw) {
      return fail(ExitCode::usage,
                  "--raw continues a text, which has neither images nor sound: leave out --raw, or --image and --audio");
    }
    auto parts = read_parts(attachments);
    if (!parts) return std::unexpected(parts.error());
    for (const Media media : {Media::image, Media::audio}) {
      if ((media == Media::image ? attachments.images : attachments.clips).empty()) continue;
      const bool is_sessions = !command.session.empty() && command.model.empty();
      auto reads = is_sessions ? check_any_reads(client, media) : check_reads(client, command.model, media);
      if (!reads) return std::unexpected(reads.error());
    }
    request["messages"] = messages_with(std::move(*parts), command.prompt);
    request["deadline_ms"] = kImageDeadlineMs;
  }
  if (!command.session.empty()) {
    request["session_id"] = command.session;
    if (attachments.empty()) request["prompt"] = command.prompt;
    return request;
  }
  if (!command.model.empty()) request["model"] = command.model;
  if (!attachments.empty()) return request;
  bool is_chat = false;
  if (!command.is_raw) {
    auto model = find_model(client, command.model, interrupts);
    if (!model) return std::unexpected(model.error());
    is_chat = bool_field(*model, "has_chat_template");
  }
  if (is_chat) {
    request["messages"] = boost::json::array{boost::json::object{{"role", "user"}, {"content", command.prompt}}};
  } else {
    request["prompt"] = command.prompt;
  }
  return request;
}

Result<TurnEnd> run_in_session(Client& client, const OneShot& command, boost::json::object request, Output& output,
                               Interrupts& interrupts) {
  auto end = run_turn(client, request, output, interrupts);
  if (end || end.error().server_code != kUnknownSession || is_session_id(command.session)) return end;
  CreateSession create;
  create.name = command.session;
  create.model = command.model;
  create.is_raw = command.is_raw;
  if (auto created = create_session(client, create); !created) {
    // Another client may have created the session just now; if not, the daemon's error is the better message.
    auto again = run_turn(client, std::move(request), output, interrupts);
    if (!again && again.error().server_code == kUnknownSession) return std::unexpected(created.error());
    return again;
  }
  return run_turn(client, std::move(request), output, interrupts);
}

}  // namespace

Result<void> run_one_shot(Client& client, const OneShot& command, Output& output, Interrupts& interrupts) {
  auto request = one_shot_request(client, command, interrupts);
  if (!request) return std::unexpected(request.error());
  auto end = command.session.empty() ? run_turn(client, std::move(*request), output, interrupts)
                                     : run_in_session(client, command, std::move(*request), output, interrupts);
  if (!end) return std::unexpected(end.error());
  if (command.shows_usage && !end->usage.empty()) std::cerr << receipt_line(end->usage) << std::endl;
  if (end->is_interrupted) return interrupted();
  return {};
}

}  // namespace uma::cli
