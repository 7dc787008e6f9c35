#include "uma-cli/sessions.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <format>
#include <utility>
#include <vector>

#include <boost/json/serialize.hpp>

#include "base/clock.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

std::vector<const boost::json::object*> by_last_use(const boost::json::array& sessions) {
  std::vector<const boost::json::object*> sorted;
  for (const boost::json::value& session : sessions) {
    if (session.is_object()) sorted.push_back(&session.get_object());
  }
  std::ranges::stable_sort(sorted, std::ranges::greater(),
                           [](const boost::json::object* session) { return int_field(*session, "last_used_s"); });
  return sorted;
}

struct Tier {
  const char* header;
  const char* bytes;  // Name of the JSON field.
  const char* name;
};
constexpr std::array kTiers = {Tier{"HOT", "hot_bytes", "hot"}, Tier{"WARM", "warm_bytes", "warm"},
                               Tier{"COLD", "cold_bytes", "cold"}};

std::string last_use(const boost::json::object& session, std::int64_t now_s) {
  return bool_field(session, "busy") ? "now" : human_age(now_s - int_field(session, "last_used_s")) + " ago";
}

// The title that the page or another client has given the session; empty: none.
std::string title_of(const boost::json::object& session) {
  return text_field(object_field(session, "metadata"), "title");
}

// Text such as "hot 1.4 MiB, cold 1.4 MiB", or "none".
std::string kv_text(const boost::json::object& session) {
  std::string text;
  for (const Tier& tier : kTiers) {
    const double bytes = number_field(session, tier.bytes);
    if (bytes > 0) text += std::format("{}{} {}", text.empty() ? "" : ", ", tier.name, human_bytes(bytes));
  }
  return text.empty() ? "none" : text;
}

// The conversation, one paragraph per message; the whole text if the session has no messages.
std::string transcript(const boost::json::object& session) {
  std::string out;
  for (const boost::json::value& value : array_field(session, "messages")) {
    if (!value.is_object()) continue;
    const boost::json::object& message = value.get_object();
    out += std::format("\n[{}]\n{}\n", text_field(message, "role"), text_field(message, "content"));
  }
  if (const std::string text = text_field(session, "text"); !text.empty()) out += '\n' + text + '\n';
  return out;
}

Result<void> print_one(const Result<boost::json::object>& session, Output& output) {
  if (!session) return std::unexpected(session.error());
  return print(output, session_text(*session, unix_time_s()));
}

}  // namespace

bool is_session_id(std::string_view text) {
  return text.size() == 32 && std::ranges::all_of(text, [](unsigned char byte) { return std::isxdigit(byte) != 0; });
}

Result<boost::json::object> create_session(Client& client, const CreateSession& wanted) {
  boost::json::object request = {{"type", "create_session"}};
  if (!wanted.name.empty()) request["name"] = wanted.name;
  if (!wanted.model.empty()) request["model"] = wanted.model;
  if (!wanted.system.empty()) request["system"] = wanted.system;
  if (!wanted.on_full.empty()) request["on_full"] = wanted.on_full;
  if (wanted.ttl_s > 0) request["ttl_s"] = wanted.ttl_s;
  if (wanted.is_raw) request["mode"] = "text";
  return client.call(std::move(request), "session");
}

Result<boost::json::object> get_session(Client& client, std::string_view session) {
  return client.call({{"type", "get_session"}, {"session_id", session}}, "session");
}

Result<boost::json::object> fork_session(Client& client, std::string_view session, std::string_view name) {
  boost::json::object request = {{"type", "fork_session"}, {"session_id", session}};
  if (!name.empty()) request["name"] = name;
  return client.call(std::move(request), "session");
}

Result<boost::json::object> rename_session(Client& client, std::string_view session, std::string_view name) {
  return client.call({{"type", "update_session"}, {"session_id", session}, {"name", name}}, "ack");
}

Result<boost::json::object> rewind_session(Client& client, std::string_view session, std::int64_t turn) {
  return client.call({{"type", "rewind_session"}, {"session_id", session}, {"turn", turn}}, "ack");
}

Result<void> end_session(Client& client, std::string_view session) {
  auto answer = client.call({{"type", "end_session"}, {"session_id", session}}, "ack");
  if (!answer) return std::unexpected(answer.error());
  return {};
}

std::string session_table(const boost::json::array& sessions, std::int64_t now_s) {
  const std::vector<const boost::json::object*> sorted = by_last_use(sessions);
  // Ids take much space, so a tier without any bytes gets no column.
  std::vector<Tier> tiers;
  for (const Tier& tier : kTiers) {
    const auto has_some = [&](const boost::json::object* session) { return number_field(*session, tier.bytes) > 0; };
    if (std::ranges::any_of(sorted, has_some)) tiers.push_back(tier);
  }
  constexpr std::size_t kTitleColumns = 40;
  const auto shown_title = [](const boost::json::object* session) {
    return text_field(*session, "name").empty() ? title_of(*session) : "";
  };
  const bool has_titles = !std::ranges::all_of(sorted, &std::string::empty, shown_title);
  std::vector<Column> columns = {{"SESSION"}};
  if (has_titles) columns.push_back({"TITLE"});
  for (const Tier& tier : tiers) columns.push_back({tier.header, Align::right});
  columns.insert(columns.end(), {{"TOKENS", Align::right}, {"TURNS", Align::right}, {"MODE"}, {"LAST USED"}});
  Table table(std::move(columns));
  for (const boost::json::object* session : sorted) {
    const std::string name = text_field(*session, "name");
    std::vector<std::string> cells = {name.empty() ? text_field(*session, "session_id") : name};
    if (has_titles) cells.emplace_back(clip(printable_line(shown_title(session)), kTitleColumns));
    for (const Tier& tier : tiers) {
      const double bytes = number_field(*session, tier.bytes);
      cells.push_back(bytes > 0 ? short_bytes(bytes) : "-");
    }
    cells.insert(cells.end(), {std::to_string(int_field(*session, "tokens")), std::to_string(int_field(*session, "turns")),
                               text_field(*session, "mode"), last_use(*session, now_s)});
    table.add(std::move(cells));
  }
  return table.text();
}

std::string session_text(const boost::json::object& session, std::int64_t now_s) {
  Table table({{""}, {""}});
  table.add({"session", text_field(session, "session_id")});
  if (const std::string name = text_field(session, "name"); !name.empty()) table.add({"name", name});
  if (const std::string title = title_of(session); !title.empty()) table.add({"title", title});
  table.add({"model", text_field(session, "model")});
  table.add({"mode", text_field(session, "mode")});
  std::string turns = std::to_string(int_field(session, "turns"));
  if (const std::int64_t dropped = int_field(session, "dropped_turns"); dropped > 0)
    turns += std::format(", the oldest {} dropped when the context was full", dropped);
  table.add({"turns", turns});
  std::string tokens = std::to_string(int_field(session, "tokens"));
  if (const std::int64_t pending = int_field(session, "pending_tokens"); pending > 0)
    tokens += std::format(" and {} pending", pending);
  table.add({"tokens", tokens});
  table.add({"tier", text_field(session, "tier")});
  table.add({"KV", kv_text(session)});
  table.add({"state", bool_field(session, "busy") ? "busy" : "idle"});
  if (const std::string parent = text_field(session, "parent_id"); !parent.empty())
    table.add({"fork of", std::format("{}, from turn {}", parent, int_field(session, "fork_turn"))});
  table.add({"created", human_age(now_s - int_field(session, "created_s")) + " ago"});
  table.add({"last used", last_use(session, now_s)});
  return table.text() + transcript(session);
}

Result<void> print_sessions(Client& client, std::string_view search, Output& output, bool as_json) {
  boost::json::object request = {{"type", "list_sessions"}, {"order", "desc"}};
  if (!search.empty()) request["q"] = search;
  auto answer = client.call(request, "sessions");
  if (!answer) return std::unexpected(answer.error());
  while (bool_field(*answer, "has_more")) {
    request["after"] = text_field(*answer, "next");
    auto next = client.call(request, "sessions");
    if (!next) return std::unexpected(next.error());
    boost::json::array& listed = answer->at("sessions").as_array();
    for (boost::json::value& session : next->at("sessions").as_array()) listed.push_back(std::move(session));
    next->at("sessions") = std::move(listed);
    answer = std::move(next);
  }
  if (as_json) return print(output, boost::json::serialize(*answer) + '\n');
  return print(output, session_table(array_field(*answer, "sessions"), unix_time_s()));
}

Result<void> print_session(Client& client, std::string_view session, Output& output, bool as_json) {
  auto answer = get_session(client, session);
  if (answer && as_json) return print(output, boost::json::serialize(*answer) + '\n');
  return print_one(answer, output);
}

Result<void> print_renamed(Client& client, std::string_view session, std::string_view name, Output& output) {
  return print_one(rename_session(client, session, name), output);
}

Result<void> print_rewound(Client& client, std::string_view session, std::int64_t turn, Output& output) {
  return print_one(rewind_session(client, session, turn), output);
}

Result<void> print_forked(Client& client, std::string_view session, std::string_view name, Output& output) {
  return print_one(fork_session(client, session, name), output);
}

}  // namespace uma::cli
