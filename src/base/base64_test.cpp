#include "base/base64.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "base/random.h"

namespace uma {
namespace {

std::string encoded(std::string_view text) {
  std::string out;
  append_base64(out, std::as_bytes(std::span(text)));
  return out;
}

TEST(Base64, IsThatOfRfc4648) {
  EXPECT_EQ(encoded(""), "");
  EXPECT_EQ(encoded("f"), "Zg==");
  EXPECT_EQ(encoded("fo"), "Zm8=");
  EXPECT_EQ(encoded("foo"), "Zm9v");
  EXPECT_EQ(encoded("foob"), "Zm9vYg==");
  EXPECT_EQ(encoded("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encoded("\xfb\xff\xbf"), "+/+/");
}

TEST(Base64, GivesBackEveryByte) {
  Random random(1);
  for (std::size_t size = 0; size < 300; ++size) {
    Bytes bytes(size);
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random.next_below(256)); });
    std::string text;
    append_base64(text, bytes);
    const auto decoded = decode_base64(text);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(*decoded, bytes);
  }
}

TEST(Base64, RefusesWhatItNeverWrites) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "=", "====", "Zg==Zg==", "Z===", "Zm9v\n", "Zm 9", "Zm-_", "Zh==", "Zm9=", "\xff\xff\xff\xff"}) {
    EXPECT_FALSE(decode_base64(text)) << text;
  }
}

TEST(AnyBase64, IsWhatEncodersOfOthersWrite) {
  Random random(2);
  for (std::size_t size = 0; size < 100; ++size) {
    Bytes bytes(size);
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random.next_below(256)); });
    std::string text;
    append_base64(text, bytes);
    EXPECT_EQ(decode_any_base64(text), bytes);
    std::string wrapped = " ";
    for (std::size_t i = 0; i < text.size(); i += 3) wrapped += text.substr(i, 3) + "\r\n";
    EXPECT_EQ(decode_any_base64(wrapped), bytes) << wrapped;
    std::ranges::replace(text, '+', '-');
    std::ranges::replace(text, '/', '_');
    text.resize(std::min(text.size(), text.find('=')));
    EXPECT_EQ(decode_any_base64(text), bytes) << text;
  }
  for (const char* text : {"Z", "Zm9vZ", "Zg=a", "Zg===", "Z!==", "\xff\xff\xff\xff"}) {
    EXPECT_FALSE(decode_any_base64(text)) << text;
  }
}

}  // namespace
}  // namespace uma
