#include "image/message_images.h"

#include <gtest/gtest.h>

namespace uma::image {
namespace {

const std::string kA(64, 'a');
const std::string kB(64, 'b');

TEST(MessageImages, AreReadAsTheyWereWritten) {
  const std::vector<MessageImage> images{{0, kA}, {3, kB + kA}, {3, kA + kB}};
  const ChatMessage message{.role = "user", .content = "xyz", .extra = with_images("", images)};
  EXPECT_EQ(images_of(message), images);
  EXPECT_EQ(image_ids(message.extra), (std::vector<std::string>{kA, kB + kA, kA + kB}));
  EXPECT_EQ(image_files(message.extra), (std::vector<std::string>{kA, kB, kA}));
}

TEST(MessageImages, StandBesideOtherFields) {
  const std::string extra = with_images(R"({"tool_call_id":"1"})", std::vector<MessageImage>{{0, kA}});
  EXPECT_EQ(extra, R"({"tool_call_id":"1","images":[{"at":0,"sha256":")" + kA + R"("}]})");
  EXPECT_EQ(with_images(extra, {}), R"({"tool_call_id":"1"})");
  EXPECT_EQ(with_images(with_images("", std::vector<MessageImage>{{0, kA}}), {}), "");
}

TEST(MessageImages, OfOtherExtrasAreNone) {
  for (const std::string& extra : {std::string(), std::string(R"({"tool_call_id":"images"})"), std::string(R"({"images":7})"),
                                   std::string(R"({"images":[7]})"), std::string(R"({"images":[{"at":0}]})"),
                                   std::string("{\"images\""), R"({"images":[{"at":4,"sha256":")" + kA + "\"}]}"}) {
    EXPECT_TRUE(images_of({.role = "user", .content = "xyz", .extra = extra}).empty()) << extra;
  }
}

}  // namespace
}  // namespace uma::image
