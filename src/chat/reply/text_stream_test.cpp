#include "chat/reply/text_stream.h"

#include <gtest/gtest.h>

#include "testing/fake_model.h"

namespace uma::chat {
namespace {

struct Shown {
  std::string text;
  bool stopped = false;
  std::string rest;
};

// Streams `text` byte by byte, which are the fake vocabulary's tokens.
Shown show(const std::string& text, std::vector<std::string> stop_strings) {
  const testing::FakeVocab vocab;
  TextStream stream(vocab, std::move(stop_strings));
  Shown shown;
  for (const char c : text) {
    shown.stopped = stream.push(static_cast<unsigned char>(c), shown.text);
    if (shown.stopped) return shown;
  }
  stream.finish(shown.rest);
  return shown;
}

TEST(TextStream, CutsBeforeAStopStringThatComesInPieces) {
  const Shown shown = show("hello END world", {"END"});
  EXPECT_TRUE(shown.stopped);
  EXPECT_EQ(shown.text, "hello ");
}

TEST(TextStream, HoldsBackOnlyWhatCouldBecomeAStopString) {
  const Shown shown = show("abcEN", {"END"});
  EXPECT_FALSE(shown.stopped);
  EXPECT_EQ(shown.text, "abc");
  EXPECT_EQ(shown.rest, "EN");
}

TEST(TextStream, ReleasesAFalseStartAndFindsTheStopInsideIt) {
  EXPECT_EQ(show("xENENDx", {"END"}).text, "xEN");
  EXPECT_EQ(show("aaab", {"aab"}).text, "a");
}

TEST(TextStream, TheEarliestOfSeveralStopsWins) {
  EXPECT_EQ(show("one two three", {"three", "two"}).text, "one ");
}

TEST(TextStream, TellsWhichStopStringEndedIt) {
  const testing::FakeVocab vocab;
  TextStream stream(vocab, {"three", "wo"});
  std::string out;
  EXPECT_FALSE(stream.push('t', out));
  EXPECT_FALSE(stream.push('w', out));
  EXPECT_EQ(stream.stop_string(), "");
  EXPECT_TRUE(stream.push('o', out));
  EXPECT_EQ(stream.stop_string(), "wo");
}

TEST(TextStream, ShowsOnlyWholeCharacters) {
  const testing::FakeVocab vocab;
  TextStream stream(vocab, {});
  std::string out;
  EXPECT_FALSE(stream.push(0xe2, out));
  EXPECT_FALSE(stream.push(0x82, out));
  EXPECT_EQ(out, "");
  EXPECT_FALSE(stream.push(0xac, out));
  EXPECT_EQ(out, "\u20ac");
  EXPECT_FALSE(stream.push(0xe2, out));
  std::string rest;
  stream.finish(rest);
  EXPECT_EQ(rest, "\ufffd");
}

}  // namespace
}  // namespace uma::chat
