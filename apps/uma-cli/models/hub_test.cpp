#include "uma-cli/models/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<HubFile> files(std::initializer_list<const char*> paths) {
  std::vector<HubFile> list;
  for (const char* path : paths) list.push_back({.path = path, .size = 1024, .sha256 = ""});
  return list;
}

// The model's files, and behind a plus its projector.
std::string chosen(const std::vector<HubFile>& list, const char* pick) {
  const auto model = choose_model(list, {.repo = "a/b", .pick = pick});
  if (!model) return "refused: " + model.error().message;
  std::string text;
  for (const HubFile& file : model->files) text += (text.empty() ? "" : ", ") + file.path;
  return text + (model->projector ? " + " + model->projector->path : "");
}

TEST(Hub, AsksForAddressesThatNamesCannotBreak) {
  const HubName name{.repo = "a/b", .pick = "", .revision = "refs/pr/1"};
  EXPECT_EQ(listing_url("https://hub", name), "https://hub/api/models/a/b/tree/refs%2Fpr%2F1?recursive=true");
  EXPECT_EQ(file_url("https://hub", name, "sub/x y?.gguf"), "https://hub/a/b/resolve/refs%2Fpr%2F1/sub/x%20y%3F.gguf");
}

TEST(Hub, ReadsItsListing) {
  const std::string sum(64, 'A');
  const auto list = parse_listing(R"([{"type":"directory","path":"d"},
      {"type":"file","path":"a.gguf","size":5,"lfs":{"oid":")" +
                                  sum + R"("}},
      {"type":"file","path":"b.gguf","size":-1,"lfs":{"oid":"short"}}, 7, {"size":3}])");
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ((*list)[0].path, "a.gguf");
  EXPECT_EQ((*list)[0].size, 5u);
  EXPECT_EQ((*list)[0].sha256, std::string(64, 'a'));
  EXPECT_EQ((*list)[1].size, std::nullopt);
  EXPECT_EQ((*list)[1].sha256, "");
  EXPECT_FALSE(parse_listing("{}").has_value());
  EXPECT_FALSE(parse_listing("<html>").has_value());
}

TEST(Hub, FollowsItsPages) {
  EXPECT_EQ(next_page(R"(<https://hub/1>; rel="prev", <https://hub/3?a=b>; rel="next")"), "https://hub/3?a=b");
  EXPECT_EQ(next_page(R"(<https://hub/1>; rel="prev")"), "");
  EXPECT_EQ(next_page("<<<"), "");
  EXPECT_EQ(next_page(""), "");
}

TEST(ChooseModel, TakesTheOnlyModelOrTheUsualQuant) {
  EXPECT_EQ(chosen(files({"README.md", "m.gguf", "imatrix.gguf"}), ""), "m.gguf");
  EXPECT_EQ(chosen(files({"m-Q4_K_M.gguf", "m-Q8_0.gguf"}), ""), "m-Q4_K_M.gguf");
  EXPECT_THAT(chosen(files({"m-Q8_0.gguf", "m-F16.gguf"}), ""),
              AllOf(HasSubstr("several models"), HasSubstr("  m-F16.gguf   1.0 KiB")));
  EXPECT_THAT(chosen(files({"README.md"}), ""), HasSubstr("no model"));
}

TEST(ChooseModel, TakesAQuantAsAWholeWordInEitherCase) {
  const auto list =
      files({"m.Q4_0.gguf", "m.Q4_0_4_4.gguf", "m.IQ4_XS.gguf", "m.Q5_K_M.gguf", "m.Q5_K_S.gguf", "imatrix-Q8_0.gguf"});
  EXPECT_EQ(chosen(list, "q4_0"), "m.Q4_0.gguf");
  EXPECT_EQ(chosen(list, "q4_0_4_4"), "m.Q4_0_4_4.gguf");
  EXPECT_EQ(chosen(list, "iq4_xs"), "m.IQ4_XS.gguf");
  EXPECT_THAT(chosen(list, "q4_xs"), HasSubstr("no models of a/b match"));
  EXPECT_THAT(chosen(list, "q8_0"), HasSubstr("no models"));
  EXPECT_THAT(chosen(list, "q5_k"), AllOf(HasSubstr("several models"), HasSubstr("Q5_K_M"), Not(HasSubstr("Q4_0"))));
}

TEST(ChooseModel, TakesAnExactNameBeforeAnything) {
  const auto list = files({"a/m-q8_0.gguf", "b/m-q8_0.gguf", "mmproj-m.gguf"});
  EXPECT_EQ(chosen(list, "b/m-q8_0.gguf"), "b/m-q8_0.gguf + mmproj-m.gguf");
  EXPECT_EQ(chosen(list, "mmproj-m.gguf"), "mmproj-m.gguf");
  const auto pictures = files({"model_index.json", "sd.safetensors", "unet/part.safetensors"});
  EXPECT_EQ(chosen(pictures, "sd.safetensors"), "sd.safetensors");
  EXPECT_EQ(chosen(pictures, "unet/part.safetensors"), "unet/part.safetensors");
  EXPECT_THAT(chosen(pictures, ""), HasSubstr("a safetensors file of Stable Diffusion by its whole name"));
  EXPECT_THAT(chosen(list, "m-q8_0.gguf"), HasSubstr("several models"));
}

TEST(ChooseModel, TakesAllPiecesOfASplitModel) {
  const auto list = files({"m-q8_0-00002-of-00002.gguf", "m-q2_k.gguf", "m-q8_0-00001-of-00002.gguf"});
  const std::string both = "m-q8_0-00001-of-00002.gguf, m-q8_0-00002-of-00002.gguf";
  EXPECT_EQ(chosen(list, "q8_0"), both);
  EXPECT_EQ(chosen(list, "m-q8_0-00002-of-00002.gguf"), both);
  EXPECT_THAT(chosen(list, ""), AllOf(HasSubstr("several models"), HasSubstr("m-q8_0-00001-of-00002.gguf  2.0 KiB")));
  const auto without_second = files({"m-00001-of-00003.gguf", "m-00003-of-00003.gguf", "m-00003-of-00003.gguf"});
  EXPECT_THAT(chosen(without_second, ""), HasSubstr("only 2 of the 3 pieces of m-00001-of-00003.gguf"));
}

TEST(ChooseModel, AddsItsProjector) {
  EXPECT_EQ(chosen(files({"m-Q4_K_M.gguf", "mmproj-BF16.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf"}), ""),
            "m-Q4_K_M.gguf + mmproj-F16.gguf");
  const auto two = files({"a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-a-f16.gguf", "mmproj-b-q8_0.gguf", "mmproj-b-f32.gguf"});
  EXPECT_EQ(chosen(two, "a-Q8_0.gguf"), "a-Q8_0.gguf + mmproj-a-f16.gguf");
  EXPECT_EQ(chosen(two, "b-Q8_0.gguf"), "b-Q8_0.gguf + mmproj-b-q8_0.gguf");
  EXPECT_EQ(chosen(files({"c-Q8_0.gguf", "mmproj-a-f16.gguf", "mmproj-b-f16.gguf"}), ""), "c-Q8_0.gguf");
  EXPECT_EQ(chosen(files({"c-Q8_0.gguf", "mmproj-a-f16.gguf"}), ""), "c-Q8_0.gguf + mmproj-a-f16.gguf");
}

TEST(ChooseModel, ListsChoicesSafely) {
  EXPECT_THAT(chosen(files({"x\x1b[2J-q8_0.gguf", "y.gguf"}), ""), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace uma::cli
