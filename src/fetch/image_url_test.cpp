#include "fetch/image_url.h"

#include <arpa/inet.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace uma::fetch {
namespace {

std::vector<unsigned char> address_of(const std::string& text) {
  const bool is_v6 = text.contains(':');
  std::vector<unsigned char> bytes(is_v6 ? 16 : 4);
  EXPECT_EQ(::inet_pton(is_v6 ? AF_INET6 : AF_INET, text.c_str(), bytes.data()), 1) << text;
  return bytes;
}
std::string described(const Expected<ImageUrl>& url) {
  return url ? url->authority() + (url->is_secure ? " s " : " ") + url->target : url.error().message;
}
std::string parsed(const std::string& text) {
  return described(parse_image_url(text));
}
std::string after(const std::string& base, const std::string& location) {
  return described(redirected(parse_image_url(base).value(), location));
}

TEST(ImageUrl, HasAHostAPortAndATarget) {
  EXPECT_EQ(parsed("http://host"), "host:80 /");
  EXPECT_EQ(parsed("HTTPS://Host.Example/A/b.png?q=1#part"), "host.example:443 s /A/b.png?q=1");
  EXPECT_EQ(parsed("http://host:8080?q"), "host:8080 /?q");
  EXPECT_EQ(parsed("http://[2001:DB8::1]:81/x"), "[2001:db8::1]:81 /x");
  EXPECT_EQ(parsed("http://127.0.0.1/x"), "127.0.0.1:80 /x");
}

TEST(ImageUrl, AmbiguousUrlsAreRefused) {
  for (const std::string text : {"",
                                 "host/a.png",
                                 "ftp://host/a",
                                 "file:///etc/passwd",
                                 "http:host",
                                 "http:///a",
                                 "http://:80/",
                                 "http://host:/",
                                 "http://host:0/",
                                 "http://host:65536/",
                                 "http://host:8x/",
                                 "http://host:-1/",
                                 "http://user@host/",
                                 "http://user:pass@host/",
                                 "http://a@b@c/",
                                 "http://host\\@evil/",
                                 "http://ho st/",
                                 "http://host/a b",
                                 "http://host/\r\nX: y",
                                 "http://host/\x7f",
                                 "http://h\xc3\xb6st/",
                                 "http://host/\xc3\xb6",
                                 "http://[::1/",
                                 "http://[]/",
                                 "http://[::1]x/",
                                 "http://[fe80::1%25eth0]/",
                                 "http://[127.0.0.1]/",
                                 "http://ho%73t/",
                                 "http://.host/",
                                 "http://*/",
                                 "javascript://host/"}) {
    const auto url = parse_image_url(text);
    ASSERT_FALSE(url) << text << " is " << described(url);
    EXPECT_EQ(url.error().code, ErrorCode::proto_field);
  }
  EXPECT_FALSE(parse_image_url("http://host/" + std::string(kImageUrlBytesMax, 'a')));
  EXPECT_TRUE(parsed("http://user:secret@host/").contains("password"));
  EXPECT_FALSE(parsed("http://user:secret@host/").contains("secret"));
}

TEST(ImageUrl, RedirectsAreReadAsBrowsersDo) {
  const std::string base = "http://host:81/a/b.png?q";
  EXPECT_EQ(after(base, "https://other/x"), "other:443 s /x");
  EXPECT_EQ(after(base, "//other/x"), "other:80 /x");
  EXPECT_EQ(after(base, "/x?y"), "host:81 /x?y");
  EXPECT_EQ(after(base, "c.png"), "host:81 /a/c.png");
  EXPECT_EQ(after(base, "?r"), "host:81 /a/b.png?r");
  EXPECT_EQ(after("https://host/a", "b"), "host:443 s /b");
  EXPECT_TRUE(after("https://host/a", "http://host/a").contains("from https to http"));
  for (const std::string location :
       {"file:///etc/passwd", "gopher://x", "data:image/png;base64,AA==", "http://a@b/", "/a b", "//"}) {
    EXPECT_FALSE(redirected(parse_image_url(base).value(), location)) << location;
  }
}

TEST(ImageUrl, OnlyTheOpenInternetIsPublic) {
  for (const char* address :
       {"1.1.1.1",         "8.8.8.8",         "100.63.255.255", "100.128.0.0",     "172.15.255.255",  "172.32.0.0",
        "192.0.1.0",       "192.167.255.255", "192.169.0.0",    "198.17.255.255",  "198.20.0.0",      "11.0.0.0",
        "126.255.255.255", "128.0.0.0",       "169.253.0.0",    "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888",
        "2a00::1",         "2003::1",         "2001:200::1"}) {
    EXPECT_TRUE(is_public(address_of(address))) << address;
  }
  for (const char* address :
       {"0.0.0.0",     "0.1.2.3",          "10.0.0.1",        "10.255.255.255", "100.64.0.0",      "100.127.255.255",
        "127.0.0.1",   "127.255.255.255",  "169.254.169.254", "172.16.0.1",     "172.31.255.255",  "192.0.0.8",
        "192.0.2.1",   "192.88.99.1",      "192.168.1.1",     "198.18.0.1",     "198.19.255.255",  "198.51.100.7",
        "203.0.113.9", "224.0.0.1",        "239.255.255.255", "240.0.0.1",      "255.255.255.255", "::",
        "::1",         "::ffff:127.0.0.1", "::ffff:8.8.8.8",  "::127.0.0.1",    "64:ff9b::7f00:1", "64:ff9b:1::1",
        "100::1",      "fe80::1",          "fec0::1",         "fc00::1",        "fd12::1",         "ff02::1",
        "2001::1",     "2001:10::1",       "2001:1ff::1",     "2001:db8::1",    "2002:7f00:1::1",  "3fff::1",
        "4000::1",     "e000::1"}) {
    EXPECT_FALSE(is_public(address_of(address))) << address;
  }
  EXPECT_FALSE(is_public({})) << "an address of another kind";
}

TEST(ImageUrl, RulesDecideWhichHostsAreAllowed) {
  const auto url = [](const char* text) { return parse_image_url(text).value(); };
  const auto loopback = address_of("127.0.0.1");
  const auto open = address_of("8.8.8.8");
  const ImageUrlRules off;
  EXPECT_FALSE(off.allow_any());
  EXPECT_FALSE(check_allowed(url("http://host/"), off));
  const ImageUrlRules listed{.hosts = {"host:8080"}};
  EXPECT_TRUE(listed.allow_any());
  EXPECT_TRUE(check_allowed(url("http://host:8080/"), listed));
  EXPECT_TRUE(is_allowed_at(url("http://HOST:8080/"), loopback, listed, {})) << "wherever it is";
  EXPECT_FALSE(check_allowed(url("http://host/"), listed)) << "another port";
  EXPECT_FALSE(check_allowed(url("http://other:8080/"), listed));
  EXPECT_FALSE(is_allowed_at(url("http://other/"), open, listed, {}));
  const ImageUrlRules on{.allows_public = true, .hosts = {}};
  EXPECT_TRUE(check_allowed(url("https://host/"), on));
  EXPECT_FALSE(check_allowed(url("http://host:22/"), on));
  EXPECT_TRUE(is_allowed_at(url("https://host/"), open, on, {}));
  EXPECT_FALSE(is_allowed_at(url("https://host/"), loopback, on, {})) << "whatever its name is";
  EXPECT_FALSE(is_allowed_at(url("http://host:22/"), open, on, {}));

  const auto network = [](const std::vector<unsigned char>& address, unsigned bits) {
    return std::vector{Network{address, bits}};
  };
  EXPECT_FALSE(is_allowed_at(url("https://host/"), open, on, network(open, 32))) << "the daemon's own address";
  auto neighbour = open;
  neighbour.back() ^= 1;
  EXPECT_TRUE(is_allowed_at(url("https://host/"), open, on, network(neighbour, 32)));
  EXPECT_FALSE(is_allowed_at(url("https://host/"), open, on, network(neighbour, 24))) << "of the same network";
  EXPECT_TRUE(is_allowed_at(url("http://HOST:8080/"), open, listed, network(open, 32))) << "the configuration names it";
}

}  // namespace
}  // namespace uma::fetch
