#include "wire/own/frame.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma::wire {
namespace {

std::string framed(std::string_view body) {
  std::string out;
  append_frame(out, body);
  return out;
}

// Takes every frame that is whole now; a refused stream ends the test.
std::vector<std::string> take_frames(FrameReader& reader) {
  std::vector<std::string> frames;
  while (true) {
    const auto next = reader.next();
    EXPECT_TRUE(next.has_value());
    if (!next || !*next) return frames;
    frames.emplace_back(**next);
  }
}

TEST(Frame, LengthIsLittleEndianAndComesFirst) {
  EXPECT_EQ(framed("{}"), std::string("\x02\0\0\0{}", 6));
  EXPECT_EQ(framed(std::string(0x0102, 'x')).substr(0, 4), std::string("\x02\x01\0\0", 4));
}

TEST(FrameReader, GivesTheSameFramesCutAtEveryBytePosition) {
  const std::string stream = framed("first") + framed("") + framed(std::string(300, 'x')) + framed("last");
  const std::vector<std::string> expected = {"first", "", std::string(300, 'x'), "last"};
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    FrameReader reader(1000);
    std::vector<std::string> frames;
    for (const std::string_view piece : {std::string_view(stream).substr(0, cut), std::string_view(stream).substr(cut)}) {
      reader.append(piece);
      for (std::string& body : take_frames(reader)) frames.push_back(std::move(body));
    }
    EXPECT_EQ(frames, expected) << "cut at " << cut;
  }
}

TEST(FrameReader, GivesTheSameFramesByteByByte) {
  const std::string stream = framed("a") + framed("bc") + framed("");
  FrameReader reader(10);
  std::vector<std::string> frames;
  for (const char byte : stream) {
    reader.append({&byte, 1});
    for (std::string& body : take_frames(reader)) frames.push_back(std::move(body));
  }
  EXPECT_EQ(frames, (std::vector<std::string>{"a", "bc", ""}));
}

TEST(FrameReader, GivesTheSameFramesInRandomPieces) {
  Random random(7);
  for (int round = 0; round < 50; ++round) {
    std::string stream;
    std::vector<std::string> expected;
    for (int i = 0; i < 40; ++i) {
      expected.emplace_back(random.next_below(2000), static_cast<char>('a' + i % 26));
      append_frame(stream, expected.back());
    }
    FrameReader reader(2000);
    std::vector<std::string> frames;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t size = 1 + random.next_below(5000);
      reader.append(std::string_view(stream).substr(at, size));
      at += size;
      // Sometimes frames are left waiting, as a paused connection does.
      if (random.next_below(3) == 0) continue;
      for (std::string& body : take_frames(reader)) frames.push_back(std::move(body));
    }
    for (std::string& body : take_frames(reader)) frames.push_back(std::move(body));
    EXPECT_EQ(frames, expected);
  }
}

TEST(FrameReader, RefusesTooLongAFrameFromItsHeaderAlone) {
  FrameReader reader(16);
  reader.append(std::string_view("\x11\0\0", 3));
  ASSERT_TRUE(reader.next().has_value());
  reader.append(std::string_view("\0", 1));
  const auto refused = reader.next();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::proto_frame);
  EXPECT_EQ(refused.error().message, "the frame has 17 bytes, but the limit is 16 (limits.max_frame_bytes)");
  reader.append("more");
  EXPECT_FALSE(reader.next().has_value()) << "a refused stream stays refused";
}

TEST(FrameReader, TakesWhatItRefusedWhenTheLimitIsRaised) {
  FrameReader reader(16);
  const std::string body(17, 'x');
  reader.append(framed(body));
  ASSERT_FALSE(reader.next().has_value());
  reader.raise_limit(17);
  EXPECT_EQ(take_frames(reader), std::vector<std::string>{body});
  reader.raise_limit(3);
  reader.append(framed(body));
  EXPECT_EQ(take_frames(reader), std::vector<std::string>{body}) << "it never falls";
}

TEST(FrameReader, AcceptsAFrameOfExactlyTheLimit) {
  FrameReader reader(16);
  reader.append(framed(std::string(16, 'x')));
  EXPECT_EQ(take_frames(reader), std::vector<std::string>{std::string(16, 'x')});
}

TEST(FrameReader, GivesFramesBeforeATooLongOne) {
  FrameReader reader(16);
  reader.append(framed("good") + std::string("\xff\xff\xff\xff", 4));
  const auto first = reader.next();
  ASSERT_TRUE(first.has_value() && first->has_value());
  EXPECT_EQ(**first, "good");
  EXPECT_FALSE(reader.next().has_value());
}

}  // namespace
}  // namespace uma::wire
