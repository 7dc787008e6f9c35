// The page's files: read from a folder, and served to browsers.
#include "server/http/handlers/page_files.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBrowser = "Accept: text/html,*/*;q=0.8\r\n";

class PageFilesTest : public HttpServerTest {
 protected:
  PageFilesTest() {
    fs::remove_all(folder_);
    write("index.html", "<html>");
    write("index.html.gz", "packed");
    write("page.js", "run()");
    write("chunks/maths-1a2b.js", "maths()");
  }
  ~PageFilesTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  PageFiles page() {
    auto read = PageFiles::read(folder_);
    EXPECT_TRUE(read.has_value()) << read.error().message;
    return read.value_or(PageFiles());
  }
  Answer answer(const std::string& path, const std::string& header = "") {
    HttpClient one = client();
    one.get(path, header);
    return one.answer();
  }

  const fs::path folder_ = fs::temp_directory_path() / ("uma_page_" + std::to_string(::getpid()));
};

TEST_F(PageFilesTest, AreThoseOfKnownTypes) {
  write("page.js.map", "secret");
  write("notes.bin", "secret");
  const PageFiles files = page();
  ASSERT_NE(files.find("/"), nullptr);
  EXPECT_EQ(files.find("/")->gzip, "packed");
  EXPECT_EQ(files.find("/page.js")->content_type, "text/javascript; charset=utf-8");
  EXPECT_TRUE(files.find("/page.js")->gzip.empty());
  EXPECT_FALSE(files.find("/page.js")->is_permanent);
  EXPECT_TRUE(files.find("/chunks/maths-1a2b.js")->is_permanent);
  EXPECT_NE(files.find("/page.js")->etag, files.find("/")->etag);
  for (const char* other : {"/index.html", "/index.html.gz", "/page.js.map", "/notes.bin", "/chunks", "/../page.js", ""}) {
    EXPECT_EQ(files.find(other), nullptr) << other;
  }
}

TEST_F(PageFilesTest, AreNoPageWithoutAFolderOrAnIndex) {
  fs::remove(folder_ / "index.html");
  EXPECT_TRUE(page().empty());
  fs::remove_all(folder_);
  EXPECT_TRUE(page().empty());
}

TEST_F(PageFilesTest, AreRefusedBeyondWhatAPageHas) {
  write("page.css", std::string(std::size_t{17} << 20, 'x'));
  const auto read = PageFiles::read(folder_);
  ASSERT_FALSE(read.has_value());
  EXPECT_THAT(read.error().message, HasSubstr(folder_.string()));
}

TEST_F(PageFilesTest, ReachBrowsersWithTheRulesThatKeepThemSafe) {
  start({.page = page()});
  const Answer index = answer("/", kBrowser);
  EXPECT_EQ(index.status, 200);
  EXPECT_EQ(index.body, "<html>");
  EXPECT_THAT(index.head, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(index.head, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self';"));
  EXPECT_THAT(index.head, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(index.head, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(index.head, HasSubstr("Cache-Control: no-cache\r\n"));
  EXPECT_THAT(answer("/chunks/maths-1a2b.js").head, HasSubstr("immutable"));
  EXPECT_EQ(answer("/chunks/other.js").status, 404);
  EXPECT_EQ(answer("/chunks/%2e%2e%2fpage.js").status, 404);
  EXPECT_EQ(answer("/page.css").status, 404);
}

TEST_F(PageFilesTest, LeaveTheTextThatOllamasClientsLookFor) {
  start({.page = page()});
  EXPECT_EQ(answer("/").body, "Ollama is running");
  EXPECT_EQ(answer("/", "Accept: */*\r\n").body, "Ollama is running");
}

TEST_F(PageFilesTest, AreCompressedForThoseWhoReadThat) {
  start({.page = page()});
  const Answer packed = answer("/", std::string(kBrowser) + "Accept-Encoding: br, gzip\r\n");
  EXPECT_EQ(packed.body, "packed");
  EXPECT_THAT(packed.head, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_THAT(packed.head, HasSubstr("Vary: Accept, Accept-Encoding\r\n"));
  EXPECT_THAT(answer("/page.js", "Accept-Encoding: gzip\r\n").head, Not(HasSubstr("Content-Encoding")));
}

TEST_F(PageFilesTest, AreNotSentAgainToThoseWhoHaveThem) {
  PageFiles files = page();
  const std::string etag = files.find("/page.js")->etag;
  start({.page = std::move(files)});
  const Answer known = answer("/page.js", "If-None-Match: " + etag + "\r\n");
  EXPECT_EQ(known.status, 304);
  EXPECT_EQ(known.body, "");
  EXPECT_EQ(answer("/page.js", "If-None-Match: \"other\"\r\n").status, 200);
}

TEST_F(PageFilesTest, NeedNoKeyBecauseThePageAsksForIt) {
  start({.keys = {key_named("ci")}, .page = page()});
  EXPECT_EQ(answer("/", kBrowser).status, 200);
  EXPECT_EQ(answer("/page.js").status, 200);
  EXPECT_EQ(answer("/v1/models").status, 401);
  EXPECT_EQ(answer("/page.css").status, 401) << "this page has none, and who has no key learns nothing";
}

}  // namespace
}  // namespace uma::server
