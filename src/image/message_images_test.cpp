#include "image/message_images.h"

#include <gtest/gtest.h>

namespace uma::image {
namespace {

const std::string kA(64, 'a');
const std::string kB(64, 'b');

TEST(MessageImages, AreReadAsTheyWereWritten) {
  const std::vector<MessageImage> images{{0, kA}, {3, kB}, {3, kA}};
  const ChatMessage message{.role = "user", .content = "xyz", .extra = images_extra(images)};
  EXPECT_EQ(images_of(message), images);
  EXPECT_EQ(image_ids(message.extra), (std::vector<std::string>{kA, kB, kA}));
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
