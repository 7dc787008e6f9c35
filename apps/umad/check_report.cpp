#include "umad/check_report.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <map>
#include <ranges>
#include <utility>

#include "base/read_number.h"
#include "base/text.h"
#include "json/json_writer.h"

namespace uma::umad {
namespace {

constexpr std::string_view kDatabase = "database";
constexpr std::string_view kMembers = "members";
constexpr std::string_view kShared = "shared states";
constexpr double kFileClockNote_s = 60;         // States live for hours.
constexpr std::int64_t kOldestServer = 130000;  // pg_current_xact_id() and pg_xact_status() of xid8.
constexpr double kClockProblem_s = 2;
constexpr double kCommitNote_ms = 50;
constexpr std::uint64_t kSpaceProblem = std::uint64_t{64} << 20;
constexpr std::uint64_t kSpaceNote = std::uint64_t{1} << 30;
constexpr double kCertificateNote_days = 14;

Finding good(std::string_view topic, std::string text) {
  return {Finding::Level::good, std::string(topic), std::move(text)};
}
Finding note(std::string_view topic, std::string text) {
  return {Finding::Level::note, std::string(topic), std::move(text)};
}
Finding problem(std::string_view topic, std::string text) {
  return {Finding::Level::problem, std::string(topic), std::move(text)};
}

std::string_view name_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::good:
      return "good";
    case Finding::Level::note:
      return "note";
    case Finding::Level::problem:
      break;
  }
  return "problem";
}

Finding judge_tables(const kv::DatabaseFacts& facts, kv::SchemaVersions own) {
  if (!facts.sessions_schema || !facts.shared_schema) {
    if (facts.may_make_tables) return good(kDatabase, "it has no tables yet: the first umad makes them");
    return problem(kDatabase,
                   std::format("it has no tables, and user {} may not make them: GRANT CREATE ON SCHEMA public TO {}",
                               facts.user, facts.user));
  }
  const auto versions = std::format("sessions {}, shared {}", *facts.sessions_schema, *facts.shared_schema);
  if (*facts.sessions_schema > own.sessions || *facts.shared_schema > own.shared) {
    return problem(kDatabase,
                   std::format("its tables have versions {}, but this umad knows sessions {}, shared {}: install the umad "
                               "that made them",
                               versions, own.sessions, own.shared));
  }
  if (*facts.sessions_schema < own.sessions || *facts.shared_schema < own.shared) {
    if (!facts.may_make_tables) {
      return problem(kDatabase,
                     std::format("its tables have versions {}, and user {} may not migrate them to sessions {}, shared {}",
                                 versions, facts.user, own.sessions, own.shared));
    }
    return note(kDatabase, std::format("its tables have versions {}: this umad migrates them to sessions {}, shared {} when it "
                                       "starts, and older ones then cannot start again",
                                       versions, own.sessions, own.shared));
  }
  return good(kDatabase, std::format("its tables have the versions of this umad ({})", versions));
}

Finding judge_commits(const kv::DatabaseFacts& facts) {
  if (!facts.has_fsync) {
    return problem(kDatabase,
                   "fsync is off: a power failure of the server loses what was acknowledged, and may damage the database");
  }
  if (facts.synchronous_standbys.empty()) {
    return note(
        kDatabase,
        "a commit waits for this server's disk only: what was acknowledged is lost with the server (synchronous_standby_names "
        "is empty)");
  }
  return good(kDatabase, std::format("a commit waits for this server's disk and for a standby (synchronous_standby_names = {})",
                                     facts.synchronous_standbys));
}

Finding judge_clock(const kv::DatabaseFacts& facts) {
  const std::string_view direction = facts.clock_ahead_s < 0 ? "behind" : "ahead of";
  const double difference_s = std::abs(facts.clock_ahead_s);
  if (difference_s > kClockProblem_s + facts.clock_error_s) {
    return problem(kDatabase,
                   std::format("its clock is {:.1f} s {} this machine's: set both by NTP, because each machine counts "
                               "the times to live of sessions by its own",
                               difference_s, direction));
  }
  return good(kDatabase, std::format("its clock and this machine's differ by less than {:.1f} s",
                                     std::max(0.1, std::ceil(10 * (difference_s + facts.clock_error_s)) / 10)));
}

Finding judge_connections(const kv::DatabaseFacts& facts) {
  if (facts.connections_left < 1) {
    return problem(kDatabase,
                   "it takes no further connection, and each umad needs one, and up to two more for images and shared keys: "
                   "raise max_connections, or the limit of the "
                   "user or the database");
  }
  return good(kDatabase,
              std::format("it takes {} more connections; each umad needs one, and up to two more for images and shared keys",
                          facts.connections_left));
}

// The difference between two models of the same name; nullopt: nothing tells them apart.
std::optional<std::string> difference(const ComparedModel& one, const ComparedModel& other) {
  if (one.bytes == 0 || other.bytes == 0) return std::nullopt;
  if (one.bytes != other.bytes) return std::format("has {} bytes here and {} there", one.bytes, other.bytes);
  if (one.identity.empty() || other.identity.empty() || one.identity == other.identity) return std::nullopt;
  return "has as many bytes here as there, but others";
}

void judge_models(const kv::DatabaseMember& member, const OwnMember& own, std::vector<Finding>& findings) {
  std::string missing;
  std::size_t same_count = 0;
  const std::vector<ComparedModel> theirs = read_models_text(member.models);
  for (const ComparedModel& model : own.models) {
    const auto there = std::ranges::find(theirs, model.name, &ComparedModel::name);
    if (there == theirs.end()) {
      missing += std::format("{}{}", missing.empty() ? "" : ", ", model.name);
      continue;
    }
    const auto differs = difference(model, *there);
    same_count += differs ? 0 : 1;
    if (differs) {
      findings.push_back(problem(kMembers, std::format("model {} {} (node {}): a conversation would go on with another model, "
                                                       "and states cannot be shared",
                                                       model.name, *differs, member.node)));
    }
  }
  if (!missing.empty()) {
    findings.push_back(
        note(kMembers, std::format("node {} does not serve {}: it refuses conversations with that", member.node, missing)));
  }
  if (same_count > 0) {
    findings.push_back(good(kMembers, std::format("node {} serves {} of the {} models here, as far as sizes and samples of "
                                                  "the files tell",
                                                  member.node, same_count, own.models.size())));
  }
}

}  // namespace

std::string models_text(std::span<const ComparedModel> models) {
  std::string text;
  for (const ComparedModel& model : models)
    text += std::format("{} {} {}\n", model.bytes, model.identity.empty() ? "-" : model.identity, model.name);
  return text;
}

std::vector<ComparedModel> read_models_text(std::string_view text) {
  std::vector<ComparedModel> models;
  for (const auto part : std::views::split(text, '\n')) {
    const std::string_view line(part.begin(), part.end());
    const std::size_t first = line.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view number = line.substr(0, first);
    std::uint64_t bytes = 0;
    if (read_number(number.data(), number.data() + number.size(), bytes).ptr != number.data() + number.size()) continue;
    const std::string_view identity = line.substr(first + 1, second - first - 1);
    models.push_back({.name = std::string(line.substr(second + 1)),
                      .bytes = bytes,
                      .identity = identity == "-" ? "" : std::string(identity)});
  }
  return models;
}

std::vector<Finding> judge_database(const kv::DatabaseFacts& facts, kv::SchemaVersions own) {
  std::vector<Finding> findings;
  if (facts.version_number < kOldestServer) {
    findings.push_back(problem(kDatabase, std::format("PostgreSQL {} is too old: umad needs 13 or later", facts.version)));
  } else {
    findings.push_back(good(kDatabase, std::format("PostgreSQL {} lets user {} in", facts.version, facts.user)));
  }
  findings.push_back(judge_tables(facts, own));
  if (!facts.may_write) {
    findings.push_back(
        problem(kDatabase, std::format("user {} may not change the tables: let the user who made them run umad, or "
                                       "GRANT ALL on them",
                                       facts.user)));
  }
  findings.push_back(judge_commits(facts));
  if (facts.commit_ms) {
    std::string text = std::format("a commit takes {:.1f} ms, which every turn waits for", *facts.commit_ms);
    findings.push_back(*facts.commit_ms > kCommitNote_ms ? note(kDatabase, std::move(text)) : good(kDatabase, std::move(text)));
  }
  findings.push_back(judge_clock(facts));
  findings.push_back(judge_connections(facts));
  return findings;
}

std::vector<Finding> judge_members(const kv::DatabaseFacts& facts, const OwnMember& own) {
  std::vector<Finding> findings;
  std::map<std::string, int> living;
  for (const kv::DatabaseMember& member : facts.members) {
    const bool is_own_dead_run = !own.dead_incarnation.empty() && member.incarnation == own.dead_incarnation;
    if (is_own_dead_run && member.lease_left_s > 0) {
      findings.push_back(
          note(kMembers, std::format("the last run of this node was killed (run {}): its sessions are free as soon "
                                     "as it starts again",
                                     member.run)));
    } else if (member.lease_left_s > 0) {
      ++living[member.node];
      findings.push_back(good(kMembers, std::format("node {} lives: its lease ends in {:.0f} s (run {}, umad {})", member.node,
                                                    std::ceil(member.lease_left_s), member.run,
                                                    member.version.empty() ? "of an older version" : member.version)));
    } else {
      findings.push_back(
          note(kMembers, std::format("node {} ended without giving up its sessions, or is cut off: its lease ended "
                                     "{:.0f} s ago (run {}); others take its sessions",
                                     member.node, -member.lease_left_s, member.run)));
    }
  }
  for (const auto& [node, count] : living) {
    if (count > 1)
      findings.push_back(
          problem(kMembers, std::format("{} living daemons have the name {}: give each its own (--node), or wait "
                                        "15 s if one was started again after a crash",
                                        count, node)));
    if (count == 1 && node == own.node && !own.is_running)
      findings.push_back(
          problem(kMembers, std::format("a daemon with the name of this node, {}, lives elsewhere: give this one "
                                        "another (--node), or wait 15 s if it has just crashed here",
                                        node)));
  }
  if (living.empty()) findings.push_back(note(kMembers, "no daemon uses the database now"));
  for (const kv::DatabaseMember& member : facts.members) {
    if (member.lease_left_s <= 0 || member.node == own.node) continue;
    if (member.version != own.version) {
      findings.push_back(
          note(kMembers, std::format("node {} runs umad {}, this one is {}: upgrade one after the other, and soon", member.node,
                                     member.version.empty() ? "of an older version" : member.version, own.version)));
    }
    judge_models(member, own, findings);
    if (member.shared_states.empty() || own.shared_states.empty()) continue;
    if (member.shared_states == own.shared_states) {
      if (own.shared_states != "nothing")
        findings.push_back(good(kMembers, std::format("node {} shares states by {}, too", member.node, own.shared_states)));
    } else {
      findings.push_back(note(kMembers, std::format("node {} shares states by {}, and this one by {}: unless both are the same "
                                                    "store, each computes the other's conversations again",
                                                    member.node, member.shared_states, own.shared_states)));
    }
  }
  return findings;
}

std::vector<Finding> judge_shared_folder(const kv::SharedFolderFacts& facts, const OwnSharing& own) {
  std::vector<Finding> findings;
  findings.push_back(good(kShared, std::format("{} can be written: 64 KiB in {:.1f} ms, and read in {:.1f} ms", own.store,
                                               facts.write_ms, facts.read_ms)));
  findings.push_back(good(kShared, "no other user may write to it"));
  std::string space = std::format("it has {} free", readable_bytes(facts.free_bytes));
  if (facts.free_bytes < kSpaceNote) {
    findings.push_back(note(kShared, std::format("{}: states that do not fit are computed again", space)));
  } else {
    findings.push_back(good(kShared, std::move(space)));
  }
  if (std::abs(facts.clock_ahead_s) > kFileClockNote_s) {
    findings.push_back(
        note(kShared, std::format("its files get times {:.0f} s {} this machine's: states live longer or shorter "
                                  "than kv.shared_ttl says",
                                  std::abs(facts.clock_ahead_s), facts.clock_ahead_s < 0 ? "behind" : "ahead of")));
  }
  return findings;
}

std::vector<Finding> judge_redis(const kv::RedisFacts& facts, const OwnSharing& own) {
  std::vector<Finding> findings;
  findings.push_back(
      good(kShared, std::format("{} ({}) stores 64 KiB in {:.1f} ms, and reads them in {:.1f} ms", own.store,
                                facts.server.empty() ? "of an unknown version" : facts.server, facts.write_ms, facts.read_ms)));
  if (own.is_encrypted) {
    findings.push_back(good(kShared, "the connection has TLS, and its certificate is trusted"));
  } else if (!own.is_local) {
    findings.push_back(note(kShared, "the connection has no TLS: conversations can be read on the way (rediss://)"));
  }
  if (!own.has_password) {
    findings.push_back(note(kShared,
                            "the server asks for no password: whoever reaches it can make the library read any bytes "
                            "(UMA_SHARED_STATES_PASSWORD)"));
  }
  if (!facts.has_time_to_live)
    findings.push_back(problem(kShared, "its keys do not end by themselves, though they were stored with a time to live"));
  if (!facts.memory_bytes_max || facts.policy.empty()) {
    findings.push_back(note(kShared, "it does not tell its maxmemory and its policy: this user may not ask (INFO)"));
    return findings;
  }
  if (*facts.memory_bytes_max == 0) {
    findings.push_back(note(kShared, "maxmemory is 0: it grows until its machine has no memory left"));
  } else if (*facts.memory_bytes_max < own.bytes_max) {
    findings.push_back(note(kShared, std::format("maxmemory is {}, less than kv.shared_bytes_max ({}): it is full before umad "
                                                 "removes what is old",
                                                 readable_bytes(*facts.memory_bytes_max), readable_bytes(own.bytes_max))));
  } else {
    findings.push_back(good(kShared, std::format("maxmemory is {}", readable_bytes(*facts.memory_bytes_max))));
  }
  if (facts.policy == "noeviction" || facts.policy.starts_with("volatile-")) {
    findings.push_back(good(kShared, std::format("its policy is {}", facts.policy)));
  } else {
    findings.push_back(
        note(kShared, std::format("its policy is {}, which may remove the list of all states: then their bytes are "
                                  "not counted; use noeviction or volatile-lru",
                                  facts.policy)));
  }
  if (facts.has_append_log.value_or(false))
    findings.push_back(note(kShared, "it writes every state to its disk, too (appendonly): states need no persistence"));
  return findings;
}

Finding judge_space(const std::string& folder, std::uint64_t free_bytes) {
  std::string text = std::format("{} has {} free", folder, readable_bytes(free_bytes));
  if (free_bytes < kSpaceProblem) return problem("data folder", text + ": sessions and states cannot be stored");
  if (free_bytes < kSpaceNote) return note("data folder", text + ": stored states take at most a quarter of that");
  return good("data folder", std::move(text));
}

Finding judge_certificate(const std::string& file, double days_left) {
  if (days_left <= 0) return problem("listeners", std::format("the TLS certificate {} has ended: clients refuse it", file));
  std::string text = std::format("the TLS certificate {} and its key fit; it ends in {:.0f} days", file, std::floor(days_left));
  return days_left < kCertificateNote_days ? note("listeners", std::move(text)) : good("listeners", std::move(text));
}

bool is_well(std::span<const Finding> findings) {
  return std::ranges::none_of(findings, [](const Finding& finding) { return finding.level == Finding::Level::problem; });
}

std::string report_text(std::span<const Finding> findings) {
  std::string text;
  std::string_view topic;
  for (const Finding& finding : findings) {
    if (finding.topic != topic) text += std::format("{}\n", finding.topic);
    topic = finding.topic;
    text += std::format("  {:<8} {}\n", finding.level == Finding::Level::problem ? "PROBLEM" : name_of(finding.level),
                        finding.text);
  }
  const auto count = std::ranges::count(findings, Finding::Level::problem, &Finding::level);
  if (count == 0) return text + "all is well\n";
  return text + (count == 1 ? "1 problem\n" : std::format("{} problems\n", count));
}

std::string report_json(std::span<const Finding> findings) {
  std::string text;
  json::ObjectWriter report(text);
  report.field("ok", is_well(findings));
  json::append_array(report.begin("findings"), findings, [&](const Finding& finding) {
    json::ObjectWriter entry(text);
    entry.field("topic", finding.topic);
    entry.field("level", name_of(finding.level));
    entry.field("text", finding.text);
    entry.close();
  });
  report.close();
  return text + "\n";
}

}  // namespace uma::umad
