#include "uma-cli/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::cli {
namespace {

const Wanted kWanted{.url = {.text = "https://h/m.gguf", .origin = "https://h:443", .host = "h", .path = "/m.gguf"},
                     .name = "m.gguf",
                     .size = {},
                     .sha256 = {},
                     .is_on_hub = false};
const PartState kState{.url = "https://h/m.gguf", .etag = "\"v1\"", .last_modified = "then", .size = 100, .sha256 = ""};

Wanted wanted(std::optional<std::uint64_t> size, const std::string& sha256 = "") {
  Wanted copy = kWanted;
  copy.size = size;
  copy.sha256 = sha256;
  return copy;
}

TEST(PartState, SurvivesItsFile) {
  const auto copy = parse_state(state_text(kState));
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(copy->url, kState.url);
  EXPECT_EQ(copy->etag, kState.etag);
  EXPECT_EQ(copy->last_modified, kState.last_modified);
  EXPECT_EQ(copy->size, kState.size);
  EXPECT_EQ(parse_state("{\"url\":"), std::nullopt);
  EXPECT_EQ(parse_state(""), std::nullopt);
}

TEST(PlanRequest, GoesOnWhereThePartEnds) {
  const Plan plan = plan_request(&kState, 40, kWanted);
  EXPECT_EQ(plan.offset, 40u);
  EXPECT_EQ(plan.if_range, "\"v1\"");
  EXPECT_FALSE(plan.is_whole);
  EXPECT_TRUE(plan_request(&kState, 100, kWanted).is_whole);
}

TEST(PlanRequest, StartsOverWithAPartOfSomethingElse) {
  EXPECT_EQ(plan_request(nullptr, 40, kWanted).offset, 0u);
  EXPECT_EQ(plan_request(&kState, 0, kWanted).offset, 0u);
  EXPECT_EQ(plan_request(&kState, 101, kWanted).offset, 0u);
  EXPECT_EQ(plan_request(&kState, 40, wanted(99)).offset, 0u);
  PartState other = kState;
  other.url += "x";
  EXPECT_EQ(plan_request(&other, 40, kWanted).offset, 0u);
  other = kState;
  other.sha256 = "a";
  EXPECT_EQ(plan_request(&other, 40, wanted(100, "b")).offset, 0u);
  EXPECT_EQ(plan_request(&other, 40, wanted(100, "a")).offset, 40u);
}

TEST(PlanRequest, NeedsAnETagADateOrAChecksum) {
  PartState weak = kState;
  weak.etag = "W/\"v1\"";
  EXPECT_EQ(plan_request(&weak, 40, kWanted).if_range, "then");
  weak.last_modified = "";
  EXPECT_EQ(plan_request(&weak, 40, kWanted).offset, 0u);
  EXPECT_EQ(plan_request(&weak, 40, wanted({}, "a")).offset, 40u);
  EXPECT_EQ(plan_request(&weak, 40, wanted({}, "a")).if_range, "");
}

TEST(PlanRequest, SendsNothingThatEndsItsHeaderLine) {
  PartState state = kState;
  state.etag = "\"v1\r\nEvil: 1\"";
  EXPECT_EQ(plan_request(&state, 40, kWanted).if_range, "then");
  state.last_modified = "then\nEvil: 1";
  EXPECT_EQ(plan_request(&state, 40, kWanted).offset, 0u);
}

TEST(ContentRange, IsReadStrictly) {
  EXPECT_EQ(parse_content_range("bytes 40-99/100")->last, 99u);
  EXPECT_EQ(parse_content_range("bytes 40-99/*")->total, std::nullopt);
  EXPECT_EQ(parse_content_range("bytes */100")->total, 100u);
  for (const char* bad :
       {"", "bytes", "bytes 40-99", "bytes 40-39/100", "bytes 40-100/100", "bytes -1-5/10", "bytes 40-99/100x",
        "items 40-99/100", "bytes 0-18446744073709551615/*", "bytes 99999999999999999999-1/2"}) {
    EXPECT_EQ(parse_content_range(bad), std::nullopt) << bad;
  }
}

class Judge : public ::testing::Test {
 protected:
  Result<Judgement> judged(const Wanted& what = kWanted) const { return judge(head, plan, &kState, what); }
  Verdict verdict(const Wanted& what = kWanted) const { return judged(what).value().verdict; }

  Plan plan{.is_whole = false, .offset = 40, .if_range = "\"v1\""};
  HttpHead head{
      .status = 206, .content_range = "bytes 40-99/100", .etag = "\"v1\"", .content_length = 60, .is_delimited = true};
};

TEST_F(Judge, AppendsTheRangeThatWasAskedFor) {
  EXPECT_EQ(verdict(), Verdict::append);
  EXPECT_EQ(judged()->total, 100u);
  head.content_range = "bytes 40-59/100";
  head.content_length = 20;
  EXPECT_EQ(verdict(), Verdict::append) << "a server may send less";
  EXPECT_EQ(judged()->limit, 60u);
}

TEST_F(Judge, AsksAnewWhenTheRangeDoesNotFit) {
  for (const char* range : {"", "bytes 0-99/100", "bytes 41-99/100", "bytes 40-99/101", "bytes */100", "nonsense"}) {
    head.content_range = range;
    head.content_length = {};
    EXPECT_EQ(verdict(), Verdict::ask_anew) << range;
  }
}

TEST_F(Judge, AsksAnewWhenTheFileChangedOrTheLengthsDisagree) {
  head.etag = "\"v2\"";
  EXPECT_EQ(verdict(), Verdict::ask_anew);
  head.etag = "";
  EXPECT_EQ(verdict(), Verdict::append);
  head.content_length = 61;
  EXPECT_EQ(verdict(), Verdict::ask_anew);
}

TEST_F(Judge, TakesAWholeAnswerForANewFile) {
  head = {.status = 200, .content_length = 70, .is_delimited = true};
  EXPECT_EQ(verdict(), Verdict::write_new);
  EXPECT_EQ(judged()->limit, 70u);
  head.content_length = {};
  EXPECT_EQ(judged(wanted(80))->limit, 80u);
}

TEST_F(Judge, RefusesALengthThatTheHubDoesNotSay) {
  head = {.status = 200, .content_length = 70, .is_delimited = true};
  EXPECT_EQ(judged(wanted(71)).error().exit_code, ExitCode::protocol);
}

TEST_F(Judge, RefusesABodyWhoseEndNothingTells) {
  head = {.status = 200};
  EXPECT_EQ(judged().error().exit_code, ExitCode::server);
  EXPECT_EQ(judged(wanted({}, "a")).value().verdict, Verdict::write_new);
}

TEST_F(Judge, RefusesAPackedBody) {
  head = {.status = 200, .content_encoding = "gzip", .content_length = 70, .is_delimited = true};
  EXPECT_FALSE(judged().has_value());
}

TEST_F(Judge, BelievesThatThePartIsAllOnlyWhereNobodySaidOtherwise) {
  head = {.status = 416, .content_range = "bytes */40"};
  EXPECT_EQ(verdict(), Verdict::ask_anew) << "100 bytes were announced";
  PartState unsized = kState;
  unsized.size.reset();
  EXPECT_EQ(judge(head, plan, &unsized, kWanted)->verdict, Verdict::is_whole);
  head.content_range = "bytes */41";
  EXPECT_EQ(judge(head, plan, &unsized, kWanted)->verdict, Verdict::ask_anew);
}

TEST_F(Judge, AnswersThatNobodyAskedForAreErrors) {
  plan = {};
  EXPECT_FALSE(judged().has_value());
  head.status = 416;
  EXPECT_FALSE(judged().has_value());
}

TEST_F(Judge, AsksBusyServersAgainAndSaysWhatOthersMean) {
  for (const int status : {429, 500, 503}) {
    head.status = status;
    EXPECT_EQ(verdict(), Verdict::retry);
  }
  Wanted on_hub = kWanted;
  on_hub.is_on_hub = true;
  head.status = 401;
  EXPECT_THAT(judged(on_hub).error().message, ::testing::HasSubstr("HF_TOKEN"));
  EXPECT_THAT(judged().error().message, ::testing::Not(::testing::HasSubstr("HF_TOKEN")));
  head.status = 404;
  head.url = "https://h/\x1b[2J?token=secret";
  EXPECT_EQ(judged().error().message, "https://h/^[[2J does not exist on the server (404)");
  EXPECT_EQ(judged().error().exit_code, ExitCode::server);
}

TEST(Patience, DoublesItsWaitsAndEnds) {
  Patience patience;
  for (const int ms : {200, 400, 800, 1600}) EXPECT_EQ(patience.wait_ms(false, 0), ms);
  EXPECT_EQ(patience.wait_ms(false, 0), std::nullopt);
}

TEST(Patience, BeginsAnewAfterProgress) {
  Patience patience;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(patience.wait_ms(false, 0), 200);
    EXPECT_EQ(patience.wait_ms(true, 0), 200);
  }
  EXPECT_EQ(patience.wait_ms(false, 3), 3000) << "the server asked for it";
  EXPECT_EQ(patience.wait_ms(false, 1'000'000'000'000), 30000);
}

}  // namespace
}  // namespace uma::cli
