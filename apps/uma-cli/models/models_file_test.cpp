#include "uma-cli/models/models_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace uma::cli {
namespace {

std::string added(const std::string& text, const NewModel& model) {
  const auto result = with_model(text, model);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return result.value_or("");
}
std::string removed(const std::string& text, const std::string& name) {
  const auto result = without_model(text, name);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return result.value_or("");
}
std::string refusal(const Result<std::string>& result) {
  EXPECT_FALSE(result.has_value());
  if (result) return "";
  EXPECT_EQ(result.error().exit_code, ExitCode::usage);
  return result.error().message;
}

TEST(ModelsFile, AModelIsAddedAtTheEnd) {
  EXPECT_EQ(added("", {"a", "/models/a.gguf", {}}), "a:\n  path: /models/a.gguf\n");
  EXPECT_EQ(added("# mine\nb: {path: b}", {"a", "https://host/a.gguf", {"x", "y:1"}}),
            "# mine\nb: {path: b}\na:\n  url: \"https://host/a.gguf\"\n  aliases: [x, \"y:1\"]\n");
  EXPECT_EQ(added("", {"null", "/with blank/\"a\"\\.gguf", {}}), "\"null\":\n  path: \"/with blank/\\\"a\\\"\\\\.gguf\"\n");
  EXPECT_EQ(added("", {"größe-7b", "/a", {"1.5b"}}), "\"größe-7b\":\n  path: /a\n  aliases: [\"1.5b\"]\n");
}

TEST(ModelsFile, NamesAreTakenOnce) {
  const std::string text = "a:\n  path: a\n  aliases: [b]\n";
  EXPECT_EQ(refusal(with_model(text, {"a", "x", {}})), "the name a is already taken: choose another one");
  EXPECT_EQ(refusal(with_model(text, {"b", "x", {}})), "the name b is already taken: choose another one");
  EXPECT_EQ(refusal(with_model(text, {"c", "x", {"a"}})), "the name a is already taken: choose another one");
  EXPECT_EQ(refusal(with_model(text, {"c", "x", {"c"}})), "the name c is already taken: choose another one");
  EXPECT_TRUE(refusal(with_model(text, {"c d", "x", {}})).starts_with("\"c d\" is not a valid model name"));
  EXPECT_TRUE(refusal(with_model(text, {"", "x", {}})).contains("not a valid model name"));
  EXPECT_TRUE(refusal(with_model(text, {std::string(129, 'x'), "x", {}})).contains("not a valid model name"));
}

TEST(ModelsFile, OnlyItsBlockGoes) {
  const std::string text =
      "# All my models.\n"
      "a:  # the first\n"
      "  path: a\n"
      "  # a remark on a\n"
      "  tasks:\n"
      "    query: \"q: \"\n"
      "\n"
      "# The second.\n"
      "\"b\":\n"
      "  path: b\n"
      "c: {path: c}\n"
      "# The end.\n";
  EXPECT_EQ(removed(text, "a"), "# All my models.\n\n# The second.\n\"b\":\n  path: b\nc: {path: c}\n# The end.\n");
  EXPECT_EQ(removed(text, "b"),
            "# All my models.\na:  # the first\n  path: a\n  # a remark on a\n  tasks:\n    query: \"q: \"\n\n# The second.\n"
            "c: {path: c}\n# The end.\n");
  EXPECT_TRUE(removed(text, "c").ends_with("  path: b\n# The end.\n"));
  EXPECT_EQ(refusal(without_model(text, "d")), "the file has no model d");
}

TEST(ModelsFile, WhatIsAddedCanBeRemoved) {
  std::string text = "# mine\n";
  for (const char* name : {"a", "on", "x/y:z", "größe", "12", "a'b\"c"}) text = added(text, {name, "/p", {}});
  for (const char* name : {"on", "12", "a", "a'b\"c", "größe", "x/y:z"}) text = removed(text, name);
  EXPECT_EQ(text, "# mine\n");
}

TEST(ModelsFile, WhatIsWrittenOtherwiseIsLeftAlone) {
  EXPECT_TRUE(refusal(without_model("{a: {path: a}, b: {path: b}}\n", "a")).contains("edit it by hand"));
  EXPECT_TRUE(refusal(with_model("{a: {path: a}}\n", {"b", "x", {}})).contains("edit it by hand"));
  EXPECT_TRUE(refusal(with_model("- a\n", {"b", "x", {}})).contains("must map the names of models"));
  EXPECT_TRUE(refusal(with_model("a: [\n", {"b", "x", {}})).starts_with("line "));
  EXPECT_TRUE(refusal(without_model("? a\n: {path: a}\n", "a")).contains("edit it by hand"));
}

class ModelsFileOnDisk : public ::testing::Test {
 protected:
  ModelsFileOnDisk() : folder_(std::filesystem::path(::testing::TempDir()) / ("uma-models-" + std::to_string(::getpid()))) {}
  ~ModelsFileOnDisk() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path() const { return (folder_ / "uma/models.yaml").string(); }
  [[nodiscard]] std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path()).rdbuf();
    return all.str();
  }
  [[nodiscard]] Result<void> add(const std::string& name) const {
    return edit_file(path(), [&](const std::string& old) { return with_model(old, {name, "/p", {}}); });
  }
  const std::filesystem::path folder_;
};

TEST_F(ModelsFileOnDisk, IsMadeAndKeepsItsModeAndItsLink) {
  ASSERT_TRUE(add("a").has_value());
  EXPECT_EQ(text(), "a:\n  path: /p\n");
  std::filesystem::rename(path(), folder_ / "real.yaml");
  std::filesystem::create_symlink(folder_ / "real.yaml", path());
  ASSERT_EQ(::chmod((folder_ / "real.yaml").c_str(), 0640), 0);
  ASSERT_TRUE(add("b").has_value());
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(text(), "a:\n  path: /p\nb:\n  path: /p\n");
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(ModelsFileOnDisk, AnEditThatFailsChangesNothing) {
  ASSERT_TRUE(add("a").has_value());
  const auto refused = add("a");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, path() + ": the name a is already taken: choose another one");
  EXPECT_EQ(text(), "a:\n  path: /p\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "uma"), {}), 1);
}

TEST_F(ModelsFileOnDisk, EditsFollowOneAnother) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int j = 0; j < 10; ++j) EXPECT_TRUE(add("m" + std::to_string(i) + "-" + std::to_string(j)).has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string all = text();
  EXPECT_EQ(std::ranges::count(all, '\n'), 80);
}

}  // namespace
}  // namespace uma::cli
