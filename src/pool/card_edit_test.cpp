#include "pool/card_edit.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::pool {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A folder with two files that are no models, which is no matter to their cards.
class CardEdit : public ::testing::Test {
 protected:
  CardEdit() : folder_(std::filesystem::path(::testing::TempDir()) / ("uma-cards-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    for (const char* name : {"a.gguf", "b.gguf"}) write(name, "none");
    write("models.yaml", "# mine\na: {path: a.gguf, aliases: [alpha]}\n");
  }
  ~CardEdit() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] std::string cards() const {
    std::ostringstream all;
    all << std::ifstream(folder_ / "models.yaml").rdbuf();
    return all.str();
  }
  [[nodiscard]] std::shared_ptr<const ModelRegistry> registry(const std::string& model_path = "") const {
    return ModelRegistry::read({.cards_file = folder_ / "models.yaml", .model_path = model_path, .folders = {folder_.string()}})
        .value();
  }
  [[nodiscard]] std::string refusal(const std::string& model, const std::string& card) const {
    const std::string before = cards();
    const auto stored = store_card(*registry(), model, card);
    EXPECT_EQ(cards(), before);
    return stored ? "stored" : stored.error().message;
  }

  const std::filesystem::path folder_;
};

TEST_F(CardEdit, ACardIsStoredInItsPlace) {
  EXPECT_EQ(read_card(*registry(), "a").value(), "{path: a.gguf, aliases: [alpha]}\n");
  EXPECT_EQ(store_card(*registry(), "a", "path: a.gguf\ntop_k: 3  # few").value(), "path: a.gguf\ntop_k: 3  # few\n");
  EXPECT_EQ(cards(), "# mine\na:\n  path: a.gguf\n  top_k: 3  # few\n");
  EXPECT_EQ(registry()->find("a").value()->sampling.size(), 1U);
}

TEST_F(CardEdit, AModelOfAFolderGetsACard) {
  const std::string card = read_card(*registry(), "b").value();
  EXPECT_EQ(card, "path: " + (folder_ / "b.gguf").string() + "\n");
  ASSERT_TRUE(store_card(*registry(), "b", card + "pin: true\n").has_value());
  EXPECT_THAT(cards(), StartsWith("# mine\na: {path: a.gguf, aliases: [alpha]}\nb:\n  path: "));
  EXPECT_TRUE(registry()->find("b").value()->card.is_pinned);
  EXPECT_EQ(registry()->models().size(), 2U);
}

TEST_F(CardEdit, ACardThatWasChangedMeanwhileIsNotReplaced) {
  const std::string seen = read_card(*registry(), "a").value();
  ASSERT_TRUE(store_card(*registry(), "a", "path: a.gguf\npin: true\n", seen));
  const std::string before = cards();
  const auto late = store_card(*registry(), "a", "path: a.gguf\ntop_k: 3\n", seen);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::session_busy);
  EXPECT_EQ(cards(), before);
  EXPECT_TRUE(store_card(*registry(), "a", "path: a.gguf\ntop_k: 3\n", read_card(*registry(), "a").value()));
  // A model of a folder has no card yet.
  EXPECT_FALSE(store_card(*registry(), "b", "path: b.gguf\n", ""));
  EXPECT_TRUE(store_card(*registry(), "b", "path: b.gguf\n", read_card(*registry(), "b").value()));
}

TEST_F(CardEdit, AMistakeIsToldWithItsLine) {
  EXPECT_THAT(refusal("a", "path: a.gguf\nnothing: 1\n"), StartsWith("line 2: unknown key \"nothing\" in a"));
  EXPECT_THAT(refusal("a", "path: a.gguf\ntop_k: many\npin: 7\n"), HasSubstr("; line 3: a.pin: expected true or false"));
  EXPECT_THAT(refusal("a", "path: [\n"), StartsWith("line "));
  EXPECT_THAT(refusal("a", "top_k: 1\n"), HasSubstr("a: expected the key path or url"));
  EXPECT_THAT(refusal("a", ""), HasSubstr("a: expected a map"));
  EXPECT_THAT(refusal("a", "path: " + std::string(70'000, 'x')), HasSubstr("the limit is 65536"));
  EXPECT_THAT(refusal("a", "path: a.gguf\nsystem: " + std::string(10'000, '[')), StartsWith("line "));
}

TEST_F(CardEdit, TheWholeFileIsExamined) {
  write("models.yaml", "a: {path: a.gguf}\nc: {path: c.gguf, aliases: [gamma]}\n");
  EXPECT_THAT(refusal("a", "{path: a.gguf, aliases: [gamma]}"),
              HasSubstr("models.yaml:3:1: the name gamma is already used by a"));
}

TEST_F(CardEdit, AModelThatAnotherFileHasKeepsItsPath) {
  write("models.yaml", "");
  const std::string given = folder_ / "a.gguf";
  const auto stored = store_card(*registry(given), "a", "path: b.gguf\n");
  ASSERT_FALSE(stored.has_value());
  EXPECT_THAT(stored.error().message, HasSubstr("keep its path"));
  EXPECT_EQ(cards(), "");
  EXPECT_TRUE(store_card(*registry(given), "a", "path: a.gguf\n").has_value());
}

TEST_F(CardEdit, OnlyNamesOfModelsHaveCards) {
  EXPECT_EQ(read_card(*registry(), "nobody").error().code, ErrorCode::model_unknown);
  EXPECT_THAT(read_card(*registry(), "alpha").error().message, HasSubstr("another name of a"));
  EXPECT_EQ(store_card(*registry(), "nobody", "path: x\n").error().code, ErrorCode::model_unknown);
  const auto known = registry();
  write("models.yaml", "a: [\n");
  EXPECT_EQ(read_card(*known, "a").error().code, ErrorCode::io_failed);
  EXPECT_EQ(store_card(*known, "a", "path: a.gguf\n").error().code, ErrorCode::io_failed);
}

}  // namespace
}  // namespace uma::pool
