#include "umad/check_report.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace uma::umad {
namespace {

using enum Finding::Level;

constexpr kv::SchemaVersions kOwn{.sessions = 5, .shared = 2};

// A database where all is well.
kv::DatabaseFacts healthy() {
  kv::DatabaseFacts facts;
  facts.version = "15.8";
  facts.version_number = 150008;
  facts.user = "uma";
  facts.may_make_tables = true;
  facts.may_write = true;
  facts.sessions_schema = 5;
  facts.shared_schema = 2;
  facts.synchronous_standbys = "FIRST 1 (b)";
  facts.clock_ahead_s = 0.01;
  facts.clock_error_s = 0.001;
  facts.commit_ms = 1.5;
  facts.connections_left = 92;
  return facts;
}

// The finding with that text, or one that says that there is none.
Finding with(const std::vector<Finding>& findings, std::string_view text) {
  for (const Finding& finding : findings) {
    if (finding.text.contains(text)) return finding;
  }
  return {.level = problem, .topic = "none", .text = report_text(findings)};
}

void expect(const std::vector<Finding>& findings, Finding::Level level, std::string_view text) {
  const Finding found = with(findings, text);
  EXPECT_NE(found.topic, "none") << text << " is not in\n" << found.text;
  EXPECT_EQ(found.level, level) << found.text;
}

TEST(JudgeDatabase, FindsAllWell) {
  const auto findings = judge_database(healthy(), kOwn);
  EXPECT_TRUE(is_well(findings)) << report_text(findings);
  expect(findings, good, "PostgreSQL 15.8 lets user uma in");
  expect(findings, good, "differ by less than 0.1 s");
  expect(findings, good, "a commit takes 1.5 ms");
  expect(findings, good, "for a standby (synchronous_standby_names = FIRST 1 (b))");
}

TEST(JudgeDatabase, RefusesAnOldServer) {
  auto facts = healthy();
  facts.version = "12.3";
  facts.version_number = 120003;
  expect(judge_database(facts, kOwn), problem, "12.3 is too old");
}

TEST(JudgeDatabase, ComparesTheVersionsOfTheTables) {
  auto facts = healthy();
  facts.shared_schema = 3;
  expect(judge_database(facts, kOwn), problem, "versions sessions 5, shared 3, but this umad knows sessions 5, shared 2");
  facts.shared_schema = 1;
  expect(judge_database(facts, kOwn), note, "migrates them");
  facts.may_make_tables = false;
  expect(judge_database(facts, kOwn), problem, "may not migrate them");
}

TEST(JudgeDatabase, LetsTheFirstUmadMakeTheTables) {
  auto facts = healthy();
  facts.sessions_schema = facts.shared_schema = std::nullopt;
  expect(judge_database(facts, kOwn), good, "no tables yet");
  facts.may_make_tables = false;
  expect(judge_database(facts, kOwn), problem, "GRANT CREATE ON SCHEMA public TO uma");
}

TEST(JudgeDatabase, NeedsTheRightToWrite) {
  auto facts = healthy();
  facts.may_write = false;
  expect(judge_database(facts, kOwn), problem, "may not change the tables");
}

TEST(JudgeDatabase, SaysWhatACommitWaitsFor) {
  auto facts = healthy();
  facts.synchronous_standbys = "";
  expect(judge_database(facts, kOwn), note, "lost with the server");
  facts.has_fsync = false;
  expect(judge_database(facts, kOwn), problem, "fsync is off");
}

TEST(JudgeDatabase, ComparesTheClocksWithinTheTimeOfTheAnswer) {
  auto facts = healthy();
  facts.clock_ahead_s = -3;
  expect(judge_database(facts, kOwn), problem, "its clock is 3.0 s behind this machine's");
  facts.clock_ahead_s = 7200;
  expect(judge_database(facts, kOwn), problem, "its clock is 7200.0 s ahead of this machine's");
  facts.clock_ahead_s = 3;
  facts.clock_error_s = 2;  // The difference may be 1 s.
  expect(judge_database(facts, kOwn), good, "differ by less than 5.0 s");
}

TEST(JudgeDatabase, NotesSlowCommits) {
  auto facts = healthy();
  facts.commit_ms = 80;
  expect(judge_database(facts, kOwn), note, "a commit takes 80.0 ms");
}

TEST(JudgeDatabase, CountsConnections) {
  auto facts = healthy();
  expect(judge_database(facts, kOwn), good, "it takes 92 more connections");
  facts.connections_left = 0;
  expect(judge_database(facts, kOwn), problem, "it takes no further connection");
}

kv::DatabaseMember member(std::string node, double lease_left_s = 12, std::string models = "") {
  return {.run = 7, .node = std::move(node), .version = "1.0", .models = std::move(models), .lease_left_s = lease_left_s};
}

std::vector<Finding> judged(std::vector<kv::DatabaseMember> members, bool is_running = false,
                            std::vector<ComparedModel> models = {}) {
  auto facts = healthy();
  facts.members = std::move(members);
  return judge_members(facts, {.node = "a", .version = "1.0", .models = std::move(models), .is_running = is_running});
}

TEST(JudgeMembers, ListsWhoLives) {
  const auto findings = judged({member("a"), member("b"), member("c", -70)}, true);
  EXPECT_TRUE(is_well(findings)) << report_text(findings);
  expect(findings, good, "node b lives: its lease ends in 12 s");
  expect(findings, note, "node c ended without giving up its sessions, or is cut off: its lease ended 70 s ago");
  expect(judged({}), note, "no daemon uses the database");
}

TEST(JudgeMembers, FindsANameThatIsUsedTwice) {
  expect(judged({member("b"), member("b")}), problem, "2 living daemons have the name b");
  expect(judged({member("a")}), problem, "lives elsewhere");
  expect(judged({member("a")}, true), good, "node a lives");
  EXPECT_TRUE(is_well(judged({member("a"), member("a", -1)}, true)));
}

TEST(JudgeMembers, NotesOtherVersions) {
  auto old = member("b");
  old.version = "";
  expect(judged({old}), note, "node b runs umad of an older version, this one is 1.0");
}

TEST(JudgeMembers, ComparesModels) {
  const std::vector<ComparedModel> own = {{"m", 1000, "aa"}, {"n", 500, ""}};
  expect(judged({member("b", 12, models_text(own))}, false, own), good, "node b serves 2 of the 2 models");
  expect(judged({member("b", 12, "1001 aa m\n500 - n\n")}, false, own), problem, "model m has 1000 bytes here and 1001 there");
  expect(judged({member("b", 12, "1000 bb m\n")}, false, own), problem, "as many bytes here as there, but others");
  expect(judged({member("b", 12, "1000 aa m\n")}, false, own), note, "does not serve n");
  // The sizes are equal, and only one side has read the contents.
  expect(judged({member("b", 12, "1000 - m\n500 cc n\n")}, false, own), good, "2 of the 2");
}

TEST(JudgeMembers, KnowsItsOwnDeadRun) {
  auto facts = healthy();
  facts.members = {member("a"), member("b")};
  facts.members.front().incarnation = "0123";
  const OwnMember own{.node = "a", .version = "1.0", .dead_incarnation = "0123"};
  EXPECT_TRUE(is_well(judge_members(facts, own)));
  expect(judge_members(facts, own), note, "the last run of this node was killed (run 7)");
  facts.members.front().incarnation = "4567";
  expect(judge_members(facts, own), problem, "lives elsewhere");
  facts.members.front().incarnation = "";
  expect(judge_members(facts, {.node = "a", .version = "1.0"}), problem, "lives elsewhere");
}

TEST(JudgeMembers, ComparesWhereStatesAreShared) {
  auto facts = healthy();
  facts.members = {member("b")};
  OwnMember own{.node = "a", .version = "1.0", .shared_states = "the folder /mnt"};
  expect(judge_members(facts, own), good, "node b lives");  // An older one, which does not tell.
  facts.members.front().shared_states = "the folder /mnt";
  expect(judge_members(facts, own), good, "node b shares states by the folder /mnt, too");
  facts.members.front().shared_states = "nothing";
  expect(judge_members(facts, own), note, "node b shares states by nothing, and this one by the folder /mnt");
  own.shared_states = "nothing";
  EXPECT_EQ(with(judge_members(facts, own), "shares states").topic, "none");
}

TEST(JudgeSharedFolder, SaysWhatIsWrong) {
  const OwnSharing own{.store = "the folder /mnt"};
  kv::SharedFolderFacts facts{.write_ms = 1.5, .read_ms = 0.25, .clock_ahead_s = -1, .free_bytes = 5ul << 30};
  expect(judge_shared_folder(facts, own), good, "the folder /mnt can be written: 64 KiB in 1.5 ms, and read in 0.2 ms");
  expect(judge_shared_folder(facts, own), good, "it has 5");
  facts.free_bytes = 1000;
  facts.clock_ahead_s = -3600;
  expect(judge_shared_folder(facts, own), note, "states that do not fit are computed again");
  expect(judge_shared_folder(facts, own), note, "3600 s behind this machine's");
}

TEST(JudgeRedis, SaysWhatIsWrong) {
  OwnSharing own{.store = "redis://cache:6379/0", .is_encrypted = true, .has_password = true, .bytes_max = 1ul << 30};
  kv::RedisFacts facts{.server = "Redis 7.0.15",
                       .write_ms = 0.5,
                       .read_ms = 0.25,
                       .has_time_to_live = true,
                       .memory_bytes_max = 2ul << 30,
                       .policy = "noeviction",
                       .has_append_log = false};
  const auto well = judge_redis(facts, own);
  for (const Finding& finding : well) EXPECT_EQ(finding.level, good) << finding.text;
  expect(well, good, "redis://cache:6379/0 (Redis 7.0.15) stores 64 KiB in 0.5 ms");
  expect(well, good, "has TLS");
  own.is_encrypted = own.has_password = false;
  expect(judge_redis(facts, own), note, "has no TLS");
  expect(judge_redis(facts, own), note, "asks for no password");
  own.is_local = true;
  EXPECT_EQ(with(judge_redis(facts, own), "TLS").topic, "none") << "nobody is between";
  facts.policy = "allkeys-lru";
  expect(judge_redis(facts, own), note, "its policy is allkeys-lru");
  facts.memory_bytes_max = 0;
  expect(judge_redis(facts, own), note, "maxmemory is 0");
  facts.memory_bytes_max = 1ul << 20;
  expect(judge_redis(facts, own), note, "less than kv.shared_bytes_max");
  facts.has_append_log = true;
  expect(judge_redis(facts, own), note, "to its disk");
  facts.has_time_to_live = false;
  expect(judge_redis(facts, own), problem, "do not end by themselves");
  facts.memory_bytes_max.reset();
  expect(judge_redis(facts, own), note, "it does not tell its maxmemory");
}

TEST(ModelsText, ReadsWhatItWrites) {
  const std::vector<ComparedModel> models = {{"a model", 12, "00ff"}, {"b", 0, ""}};
  EXPECT_EQ(read_models_text(models_text(models)), models);
  EXPECT_TRUE(read_models_text("").empty());
  EXPECT_TRUE(read_models_text("x aa m\n12\n12 aa\n").empty());
}

TEST(JudgeSpace, KnowsWhatIsTooLittle) {
  EXPECT_EQ(judge_space("/data", 5ul << 30).level, good);
  EXPECT_EQ(judge_space("/data", 500ul << 20).level, note);
  EXPECT_EQ(judge_space("/data", 5ul << 20).level, problem);
}

TEST(JudgeCertificate, KnowsItsEnd) {
  EXPECT_EQ(judge_certificate("c.pem", 90.5).text, "the TLS certificate c.pem and its key fit; it ends in 90 days");
  EXPECT_EQ(judge_certificate("c.pem", 3).level, note);
  EXPECT_EQ(judge_certificate("c.pem", -1).level, problem);
}

TEST(Report, HasALineForEachFinding) {
  const std::vector<Finding> findings = {{good, "database", "it answers"}, {problem, "database", "it is \"full\""}};
  EXPECT_EQ(report_text(findings), "database\n  good     it answers\n  PROBLEM  it is \"full\"\n1 problem\n");
  EXPECT_EQ(report_json(findings),
            "{\"ok\":false,\"findings\":[{\"topic\":\"database\",\"level\":\"good\",\"text\":\"it answers\"},"
            "{\"topic\":\"database\",\"level\":\"problem\",\"text\":\"it is \\\"full\\\"\"}]}\n");
  EXPECT_EQ(report_text({}), "all is well\n");
}

}  // namespace
}  // namespace uma::umad
