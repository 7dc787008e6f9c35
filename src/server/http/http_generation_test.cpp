#include "server/http/http_generation.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace uma::server {
namespace {

// Writes `first`, the texts and `last`, and keeps a copy, as a response does for its other readers.
class CopyingEncoder final : public AnswerEncoder {
 public:
  explicit CopyingEncoder(std::string& copy) : copy_(copy) {}

  void append_first(std::string& out) override { add(out, "first "); }
  void append_text(std::string& out, const TokenEvent& token) override { add(out, std::string(token.text) + " "); }
  void append_last(std::string& out, const EosEvent& /*eos*/) override { add(out, "last"); }
  std::string whole(const EosEvent& /*eos*/) override { return "whole"; }
  void append_keep_alive(std::string& out) override { add(out, "alive "); }

 private:
  void add(std::string& out, const std::string& text) {
    copy_ += text;
    out += text;
  }

  std::string& copy_;
};

class GenerationSinkTest : public ::testing::Test {
 protected:
  bool deliver(const std::string& text) { return sink_.deliver(TokenEvent{.text = text, .token = 1}); }
  std::string sent() {
    std::string bytes;
    std::vector<std::string> finished;
    outbox_->take(bytes, finished);
    outbox_->mark_written(bytes.size());
    return bytes;
  }

  std::string copy_;
  std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>(20, [] {});
  GenerationSink sink_{"id", outbox_, std::make_unique<CopyingEncoder>(copy_), /*stream=*/true};
};

TEST_F(GenerationSinkTest, OtherReadersMissNothingWhenTheConnectionHasEnded) {
  EXPECT_TRUE(deliver("one"));
  outbox_->seal();
  deliver("two");
  sink_.keep_alive();
  deliver("three");
  sink_.deliver(EosEvent{});
  EXPECT_EQ(copy_, "first one two alive three last");
}

TEST_F(GenerationSinkTest, OtherReadersGetWhatTheConnectionIsTooSlowFor) {
  EXPECT_TRUE(deliver("one"));
  EXPECT_TRUE(deliver("two"));
  EXPECT_TRUE(deliver("three"));
  EXPECT_FALSE(deliver("four"));
  EXPECT_EQ(sent(), "first one two three ");
  EXPECT_EQ(copy_, "first one two three four ");
}

TEST_F(GenerationSinkTest, AStreamBeginsWithItsFirstEventAlsoIfThatWasRefused) {
  outbox_->append([](std::string& out) { out += "another choice fills the outbox"; });
  outbox_->append_unless_full([](std::string& out) { out += "x"; });
  EXPECT_FALSE(deliver("one"));
  sent();
  EXPECT_TRUE(deliver("two"));
  sink_.deliver(EosEvent{});
  EXPECT_EQ(sent(), "first two last");
  EXPECT_EQ(copy_, "first one two last");
}

// A sink whose long ends wait until the test runs them.
class LongEndTest : public ::testing::Test {
 protected:
  std::shared_ptr<GenerationSink> sink(bool stream) {
    return std::make_shared<GenerationSink>(
        "id", outbox_, std::make_unique<CopyingEncoder>(copy_), stream,
        [this](std::size_t, MoveOnlyFunction<void()> work) { works_.push_back(std::move(work)); },
        memory_->open(TenantId{"a"}));
  }
  static EosEvent eos_of(std::size_t bytes) {
    return {.reason = FinishReason::stop, .usage = {}, .text = std::string(bytes, 'x'), .error = std::nullopt};
  }
  // The bytes that the outbox has, and whether the generation has ended for it.
  std::pair<std::string, bool> taken() {
    std::string bytes;
    std::vector<std::string> finished;
    outbox_->take(bytes, finished);
    return {bytes, !finished.empty()};
  }
  void run_works() {
    for (auto& work : std::exchange(works_, {})) work();
  }

  std::string copy_;
  std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>(1 << 20, [] {});
  std::shared_ptr<TenantBudget> memory_ = std::make_shared<TenantBudget>(1 << 20, "holders", "the limit");
  std::vector<MoveOnlyFunction<void()>> works_;
};

TEST_F(LongEndTest, AShortEndIsWrittenAtOnce) {
  const auto short_one = sink(/*stream=*/false);
  short_one->deliver(eos_of(kApartBytes - 1));
  EXPECT_TRUE(works_.empty());
  EXPECT_EQ(taken(), std::pair(std::string("whole"), true));
}

TEST_F(LongEndTest, ALongWholeAnswerIsWrittenApartAndCounted) {
  const auto whole = sink(/*stream=*/false);
  whole->deliver(eos_of(kApartBytes));
  EXPECT_EQ(taken(), std::pair(std::string(), false));
  EXPECT_GE(memory_->bytes_used(), kApartBytes);
  whole->keep_alive();
  EXPECT_EQ(whole->session(), "") << "neither waits for the end";
  run_works();
  EXPECT_EQ(taken(), std::pair(std::string("whole"), true));
  EXPECT_EQ(whole->failure(), nullptr);
  whole->give_back_share();
  EXPECT_EQ(memory_->bytes_used(), 0U);
}

TEST_F(LongEndTest, TheLongEndOfAStreamIsWrittenBehindItsBeginning) {
  const auto stream = sink(/*stream=*/true);
  stream->deliver(TokenEvent{.text = "one", .token = 1});
  stream->deliver(eos_of(kApartBytes));
  EXPECT_EQ(taken(), std::pair(std::string("first one "), false));
  run_works();
  EXPECT_EQ(taken(), std::pair(std::string("last"), true));
  EXPECT_EQ(copy_, "first one last");
}

TEST_F(LongEndTest, AnEndThatThereIsNoRoomForIsAFailure) {
  const RequestShare others = memory_->open(TenantId{"b"});
  ASSERT_TRUE(others->grow((1 << 19) - 1));
  const RequestShare own = memory_->open(TenantId{"a"});
  ASSERT_TRUE(own->grow(1 << 18));
  const auto whole = sink(/*stream=*/false);
  whole->deliver(eos_of(1 << 17));
  run_works();
  EXPECT_EQ(taken(), std::pair(std::string(), true));
  ASSERT_NE(whole->failure(), nullptr);
  EXPECT_EQ(whole->failure()->code, ErrorCode::limit_wait);
}

TEST_F(LongEndTest, AnEndThatIsNotWrittenIsAFailure) {
  const auto whole = sink(/*stream=*/false);
  whole->deliver(eos_of(kApartBytes));
  works_.clear();
  EXPECT_EQ(taken(), std::pair(std::string(), true));
  EXPECT_NE(whole->failure(), nullptr);
}

TEST_F(LongEndTest, AFailedStreamEndsWithItsFailure) {
  const auto stream = sink(/*stream=*/true);
  stream->deliver(TokenEvent{.text = "one", .token = 1});
  stream->deliver(FailureEvent{{ErrorCode::runtime_decode, "it broke"}});
  EXPECT_EQ(taken(), std::pair(std::string("first one "), true));
  ASSERT_NE(stream->failure(), nullptr);
  std::string end;
  stream->append_failure(end);
  EXPECT_EQ(end, "last");
}

}  // namespace
}  // namespace uma::server
