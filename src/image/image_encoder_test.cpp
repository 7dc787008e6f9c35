#include "image/image_encoder.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "image/image_id.h"
#include "llm/media/image_tokens.h"
#include "testing/fake_model.h"
#include "testing/image_bytes.h"
#include "testing/picture_files.h"
#include "testing/sim_clock.h"

namespace uma::image {
namespace {

namespace fs = std::filesystem;
using testing::bmp_of_one_pixel;
using testing::image_of_one_pixel;

const TenantId kTenant{"t"};

class ImageEncoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("uma-vision-test-" + std::to_string(::getpid()));
    restart(10'000);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void restart(std::uint64_t cache_bytes_max) {
    encoder_ =
        std::make_shared<ImageEncoder>(std::make_unique<testing::FakeProjector>(),
                                       ImageEncoderOptions{.allowed_dirs = {},
                                                           .cache_bytes_max = cache_bytes_max,
                                                           .kept = std::make_shared<KeptImages>(folder_.string(), 1 << 20)},
                                       clock_);
  }
  Expected<ImageEmbeddings> embed(std::vector<ImageSource> images, TimePoint deadline = kNever) {
    std::optional<Expected<ImageEmbeddings>> made;
    encoder_->embed(work_, kTenant, std::move(images), {}, deadline,
                    [&](Expected<ImageEmbeddings> embeddings) { made = std::move(embeddings); });
    work();
    EXPECT_TRUE(made) << "a reply is called once";
    EXPECT_EQ(encoder_->stats().waiting_bytes.value(), 0);
    return std::move(*made);
  }
  void work() {
    while (work_.step() || encoder_->step()) {
    }
  }
  [[nodiscard]] std::uint64_t encoded() const { return encoder_->stats().images_encoded_total.value(); }

  fs::path folder_;
  testing::SimClock clock_;
  WorkPool work_;
  std::shared_ptr<ImageEncoder> encoder_;
};

TEST_F(ImageEncoderTest, AnImageIsMarksAndTokensOfItsOwn) {
  const auto image = encoder_->take(image_of_one_pixel('a'));
  ASSERT_TRUE(image) << image.error().message;
  const std::vector<Token>& tokens = (*image)->tokens;
  ASSERT_EQ(tokens.size(), 8u);
  EXPECT_EQ(tokens[0], '[');
  EXPECT_EQ(tokens[4], ',');
  EXPECT_EQ(tokens[5], llm::image_token(content_of((*image)->id), encoder_->identity(), 3));
  EXPECT_EQ((*image)->pieces_end, (std::vector<std::int32_t>{3, 5}));
  EXPECT_EQ(tokens, (*encoder_->take(image_of_one_pixel('a')))->tokens);
  EXPECT_NE(tokens[1], (*encoder_->take(image_of_one_pixel('b')))->tokens[1]);
}

TEST_F(ImageEncoderTest, AnImageOfTwoRequestsIsFoundUntilBothHaveEnded) {
  restart(0);
  auto first = *encoder_->take(image_of_one_pixel('a'));
  auto second = *encoder_->take(image_of_one_pixel('a'));
  const std::string id = first->id;
  second.reset();
  EXPECT_TRUE(encoder_->encode(kTenant, id));
  second = *encoder_->take(image_of_one_pixel('a'));
  first.reset();
  EXPECT_TRUE(encoder_->encode(kTenant, id));
  second.reset();
  EXPECT_FALSE(encoder_->find(id));
}

TEST_F(ImageEncoderTest, EncodesAnImageOnceWhileItFitsIntoTheCache) {
  const auto a = *encoder_->take(image_of_one_pixel('a'));
  const auto b = *encoder_->take(image_of_one_pixel('b'));
  const auto first = encoder_->encode(kTenant, a->id);
  ASSERT_TRUE(first);
  EXPECT_EQ((*first)->rows.size(), 10u);
  EXPECT_EQ(*encoder_->encode(kTenant, a->id), *first);
  EXPECT_EQ(encoded(), 1u);
  EXPECT_EQ(encoder_->stats().cache_hits_total.value(), 1u);
  EXPECT_EQ(encoder_->stats().cache_bytes.value(), 40);
  restart(40);
  const auto c = *encoder_->take(image_of_one_pixel('a'));
  const auto d = *encoder_->take(image_of_one_pixel('b'));
  ASSERT_TRUE(encoder_->encode(kTenant, c->id));
  ASSERT_TRUE(encoder_->encode(kTenant, d->id));
  ASSERT_TRUE(encoder_->encode(kTenant, c->id));
  EXPECT_EQ(encoded(), 3u) << "the cache has space for one";
  EXPECT_EQ(encoder_->stats().cache_bytes.value(), 40);
}

TEST_F(ImageEncoderTest, NobodyLearnsWhetherAnotherTenantHasAPicture) {
  const auto image = *encoder_->take(image_of_one_pixel('a'));
  const auto first = encoder_->encode(kTenant, image->id);
  const auto other = encoder_->encode(TenantId{"other"}, image->id);
  EXPECT_EQ((*first)->rows, (*other)->rows);
  EXPECT_EQ(encoded(), 2u);
  EXPECT_EQ(encoder_->stats().cache_hits_total.value(), 0u);
}

TEST_F(ImageEncoderTest, TheSamePictureInTwoFilesHasTheSameTokensAndRows) {
  const auto as_source = [](const std::string& file) {
    return ImageSource{.kind = ImageSource::Kind::data, .text = base64_of(file)};
  };
  const std::vector<std::uint8_t> rgba{1, 2, 3, 255, 9, 9, 9, 0};
  const auto png = *encoder_->take(as_source(testing::png_file(2, 1, {1, 2, 3, 255, 255, 255})));
  const auto webp = *encoder_->take(as_source(testing::webp_file(2, 1, rgba)));
  EXPECT_EQ(png->tokens, webp->tokens);
  EXPECT_EQ(content_of(png->id), content_of(webp->id));
  EXPECT_NE(file_of(png->id), file_of(webp->id)) << "each is kept, and shown again, as it came";
  EXPECT_EQ(*encoder_->encode(kTenant, png->id), *encoder_->encode(kTenant, webp->id));
  EXPECT_EQ(encoded(), 1u);
}

// Sessions of versions that made tokens from files name images by the file alone.
TEST_F(ImageEncoderTest, AnOldImageHasTheTokensOfItsFileAndIsNotTurned) {
  const std::string file = testing::jpeg_file(16, 8, std::vector<std::uint8_t>(16 * 8 * 3, 7), {.exif = testing::exif_with(6)});
  std::vector<Turns> asked;
  auto kept = std::make_shared<KeptImages>(folder_.string(), 1 << 20);
  const ImageEncoderOptions options{.allowed_dirs = {},
                                    .decode =
                                        [&](std::span<const std::byte> bytes, Turns turns, const std::stop_token&) {
                                          asked.push_back(turns);
                                          return decode_picture(bytes, turns);
                                        },
                                    .kept = kept};
  ImageEncoder encoder(std::make_unique<testing::FakeProjector>(), options, clock_);
  const auto image = *encoder.take({.kind = ImageSource::Kind::data, .text = base64_of(file)});
  ASSERT_TRUE(encoder.keep(kTenant, *image));
  const std::string old_id = file_of(image->id);
  const auto old = encoder.find(old_id);
  ASSERT_TRUE(old) << old.error().message;
  EXPECT_EQ((*old)->id, old_id);
  EXPECT_EQ((*old)->tokens[1], llm::image_token(old_id, encoder.identity(), 0));
  EXPECT_NE((*old)->tokens, image->tokens);
  EXPECT_TRUE(encoder.encode(kTenant, old_id));
  EXPECT_EQ(asked, (std::vector<Turns>{Turns::yes, Turns::no, Turns::no}));
}

TEST_F(ImageEncoderTest, AnEncodingThatNobodyWaitsForEnds) {
  const auto image = *encoder_->take(image_of_one_pixel('a'));
  std::stop_source end;
  end.request_stop();
  const auto ended = encoder_->encode(kTenant, image->id, end.get_token());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::limit_wait);
  EXPECT_EQ(encoded(), 0u);
  EXPECT_TRUE(encoder_->encode(kTenant, image->id));
  EXPECT_TRUE(encoder_->encode(kTenant, image->id, end.get_token())) << "it is there";
}

TEST_F(ImageEncoderTest, AKeptImageIsFoundInALaterLife) {
  std::string id;
  std::vector<Token> tokens;
  {
    const auto image = *encoder_->take(image_of_one_pixel('a'));
    ASSERT_TRUE(encoder_->keep(kTenant, *image));
    ASSERT_TRUE(encoder_->keep(kTenant, *image)) << "a second time";
    id = image->id;
    tokens = image->tokens;
  }
  restart(10'000);
  const auto found = encoder_->find(id);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ((*found)->tokens, tokens);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(ImageEncoderTest, AnImageThatIsGoneOrDamagedIsAnError) {
  ASSERT_FALSE(encoder_->find("0123"));
  EXPECT_EQ(encoder_->find("0123").error().code, ErrorCode::io_failed);
  std::string id;
  {
    const auto image = *encoder_->take(image_of_one_pixel('a'));
    ASSERT_TRUE(encoder_->keep(kTenant, *image));
    id = image->id;
  }
  std::ofstream(folder_ / file_of(id), std::ios::binary) << bmp_of_one_pixel('b');
  const auto found = encoder_->find(id);
  ASSERT_FALSE(found);
  EXPECT_TRUE(found.error().message.contains("damaged")) << found.error().message;
}

TEST_F(ImageEncoderTest, AFolderThatCannotBeWrittenIsAnError) {
  std::ofstream(folder_) << "a file";
  const auto kept = encoder_->keep(kTenant, **encoder_->take(image_of_one_pixel('a')));
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code, ErrorCode::io_failed);
}

TEST_F(ImageEncoderTest, VectorsAreOfLengthOneAndDifferByImage) {
  const auto made = embed({image_of_one_pixel('a'), image_of_one_pixel('b'), image_of_one_pixel('a')});
  ASSERT_TRUE(made) << made.error().message;
  const auto& vectors = made->embeddings;
  ASSERT_EQ(vectors.size(), 3u);
  EXPECT_EQ(vectors[0], vectors[2]);
  EXPECT_NE(vectors[0], vectors[1]);
  float length = 0;
  for (const float value : vectors[0]) length += value * value;
  EXPECT_NEAR(length, 1, 1e-5);
  EXPECT_EQ(encoded(), 2u);
}

TEST_F(ImageEncoderTest, ReportsWhichImageIsWrong) {
  const auto made = embed({image_of_one_pixel('a'), {.kind = ImageSource::Kind::data, .text = "aGVsbG8="}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::proto_field);
  EXPECT_TRUE(made.error().message.starts_with("images[1]: ")) << made.error().message;
}

TEST_F(ImageEncoderTest, EndsAtTheDeadline) {
  const auto made = embed({image_of_one_pixel('a')}, clock_.now());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::limit_wait);
  EXPECT_EQ(encoded(), 0u);
}

TEST_F(ImageEncoderTest, OneWithManyImagesDoesNotHoldUpOneWithFew) {
  std::vector<std::string> ended;
  const auto ask = [&](const char* name, std::vector<ImageSource> images) {
    encoder_->embed(work_, kTenant, std::move(images), {}, kNever,
                    [&ended, name](const Expected<ImageEmbeddings>&) { ended.emplace_back(name); });
  };
  ask("many", {image_of_one_pixel('a'), image_of_one_pixel('b'), image_of_one_pixel('c')});
  ask("one", {image_of_one_pixel('d')});
  work();
  EXPECT_EQ(ended, (std::vector<std::string>{"one", "many"}));
}

TEST_F(ImageEncoderTest, NothingIsEncodedAfterTheEnd) {
  const auto image = *encoder_->take(image_of_one_pixel('a'));
  encoder_->close();
  ASSERT_FALSE(encoder_->encode(kTenant, image->id));
  EXPECT_FALSE(encoder_->wait());
}

}  // namespace
}  // namespace uma::image
