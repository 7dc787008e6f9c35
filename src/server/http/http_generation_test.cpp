#include "server/http/http_generation.h"

#include <memory>
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

}  // namespace
}  // namespace uma::server
