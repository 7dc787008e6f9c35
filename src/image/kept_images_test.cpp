#include "image/kept_images.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/sha256.h"
#include "image/image_references.h"

namespace uma::image {
namespace {

namespace fs = std::filesystem;

const TenantId kOne{"one"};
const TenantId kOther{"other"};

class KeptImagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    init_log(LogLevel::error);
    folder_ = fs::temp_directory_path() / ("uma-kept-images-test-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string id_of(const std::string& file) {
    Sha256 hash;
    hash.add(file);
    return hash.hex();
  }
  static Expected<KeptImages::Use> keep(KeptImages& images, const std::string& file, const TenantId& tenant = kOne) {
    return images.keep(tenant, id_of(file), std::as_bytes(std::span(file)));
  }
  static void remove(KeptImages& images, const std::string& file) { images.remove(std::array{id_of(file)}); }
  static bool has(KeptImages& images, const std::string& file) {
    const auto read = images.read(id_of(file));
    return read && std::ranges::equal(*read, std::as_bytes(std::span(file)));
  }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_F(KeptImagesTest, AreThereInALaterLife) {
  {
    KeptImages images(folder_.string(), 1000);
    ASSERT_TRUE(keep(images, "a picture"));
    ASSERT_TRUE(keep(images, "a picture", kOther)) << "the same";
    ASSERT_TRUE(keep(images, "another"));
    ASSERT_TRUE(images.sync());
    EXPECT_EQ(images.bytes(), 16u);
  }
  KeptImages images(folder_.string(), 1000);
  EXPECT_EQ(images.bytes(), 16u);
  EXPECT_TRUE(has(images, "a picture"));
  EXPECT_EQ(images.size_of(id_of("a picture")), 9u);
  images.remove_others({id_of("another")});
  EXPECT_FALSE(has(images, "a picture"));
  EXPECT_TRUE(has(images, "another"));
  EXPECT_EQ(images.bytes(), 7u);
  EXPECT_EQ(files(), 1);
}

// While the removal waited, another session got the image, and the request for it ended.
TEST_F(KeptImagesTest, StayWhereASessionHasThemAgain) {
  KeptImages images(folder_.string(), 1000);
  auto first = keep(images, "a picture");
  *first = nullptr;
  ImageReferences references;
  EXPECT_TRUE(references.set(SessionId{"s"}, {id_of("a picture")}).empty());
  const auto is_used = [&](const std::string& id) { return references.is_used(id); };
  images.remove(std::array{id_of("a picture")}, is_used);
  EXPECT_TRUE(has(images, "a picture"));
  EXPECT_EQ(references.set(SessionId{"s"}, {}), std::vector{id_of("a picture")});
  images.remove(std::array{id_of("a picture")}, is_used);
  EXPECT_FALSE(has(images, "a picture"));
}

TEST_F(KeptImagesTest, AreRemovedWhenUnused) {
  KeptImages images(folder_.string(), 1000);
  auto first = keep(images, "a picture");
  auto second = keep(images, "a picture", kOther);
  remove(images, "a picture");
  *first = nullptr;
  remove(images, "a picture");
  EXPECT_TRUE(has(images, "a picture"));
  *second = nullptr;
  remove(images, "a picture");
  remove(images, "a picture");
  EXPECT_FALSE(has(images, "a picture"));
  EXPECT_EQ(images.size_of(id_of("a picture")), std::nullopt);
  EXPECT_EQ(images.bytes(), 0u);
  EXPECT_EQ(files(), 0);
  ASSERT_TRUE(keep(images, "a picture")) << "and again";
  EXPECT_TRUE(has(images, "a picture"));
}

TEST_F(KeptImagesTest, ATenantLeavesSpaceForOthers) {
  KeptImages images(folder_.string(), 100);
  ASSERT_TRUE(keep(images, std::string(40, 'a')));
  const auto refused = keep(images, std::string(11, 'b'));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::limit_wait);
  EXPECT_EQ(files(), 1) << "nothing of it is left";
  EXPECT_TRUE(keep(images, std::string(20, 'c'), kOther));
}

TEST_F(KeptImagesTest, NeitherSuccessNorAnErrorTellsWhatOthersKeep) {
  KeptImages images(folder_.string(), 1000);
  ASSERT_TRUE(keep(images, std::string(100, 'a'), kOther));
  auto own = keep(images, std::string(440, 'b'));
  ASSERT_TRUE(own) << "of the 450 that it may have";
  const auto kept_by_another = keep(images, std::string(100, 'a'));
  const auto kept_by_nobody = keep(images, std::string(100, 'c'));
  ASSERT_FALSE(kept_by_another);
  ASSERT_FALSE(kept_by_nobody);
  EXPECT_EQ(kept_by_another.error().message, kept_by_nobody.error().message);
  EXPECT_TRUE(keep(images, std::string(440, 'b'))) << "what it keeps already costs nothing";
}

TEST_F(KeptImagesTest, EachTenantIsChargedUntilTheFileIsRemoved) {
  KeptImages images(folder_.string(), 100);
  const std::string picture(30, 'a');
  ASSERT_TRUE(keep(images, picture, kOther));
  ASSERT_TRUE(keep(images, picture));
  EXPECT_EQ(images.bytes(), 30u) << "it is one file";
  EXPECT_FALSE(keep(images, std::string(10, 'b'))) << "two charges leave 40, and the tenant has 30";
  remove(images, picture);
  EXPECT_TRUE(keep(images, std::string(50, 'c'))) << "nothing is charged any more";
}

TEST_F(KeptImagesTest, AFileOfAnEarlierLifeIsChargedToWhoKeepsItAgain) {
  const std::string picture(100, 'a');
  {
    ASSERT_TRUE(keep(*std::make_unique<KeptImages>(folder_.string(), 1000), picture));
  }
  KeptImages images(folder_.string(), 1000);
  ASSERT_TRUE(keep(images, picture));
  EXPECT_FALSE(keep(images, std::string(410, 'b'))) << "the tenant has 100 and leaves 900";
  EXPECT_TRUE(keep(images, std::string(450, 'c'), kOther)) << "the file is not counted twice";
}

TEST_F(KeptImagesTest, MissingAndDamagedFilesAreErrors) {
  KeptImages images(folder_.string(), 1000);
  ASSERT_TRUE(keep(images, "a picture"));
  for (const std::string content : {"A picture", "a pic", ""}) {
    std::ofstream(folder_ / id_of("a picture")) << content;
    const auto read = images.read(id_of("a picture"));
    ASSERT_FALSE(read);
    EXPECT_TRUE(read.error().message.contains("damaged")) << read.error().message;
  }
  fs::remove(folder_ / id_of("a picture"));
  EXPECT_FALSE(images.read(id_of("a picture")));
  EXPECT_FALSE(images.read("../../etc/passwd"));
}

TEST_F(KeptImagesTest, ErrorsNameNoPath) {
  std::ofstream(folder_.string()) << "a file";
  KeptImages images(folder_.string(), 1000);
  const auto kept = keep(images, "a picture");
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code, ErrorCode::io_failed);
  EXPECT_FALSE(kept.error().message.contains("/")) << kept.error().message;
}

// The folder as a cache of what daemons share.
class CachedImagesTest : public KeptImagesTest {
 protected:
  // A cache that fetches from `elsewhere_`.
  std::unique_ptr<KeptImages> open(std::uint64_t bytes_max = 1000) {
    return std::make_unique<KeptImages>(folder_.string(), bytes_max,
                                        [this](const std::string& id, MoveOnlyFunction<void(Expected<Bytes>)> done) {
                                          ++fetches_;
                                          const auto found = elsewhere_.find(id);
                                          if (found == elsewhere_.end()) return done(fail(ErrorCode::io_failed, "away"));
                                          const auto bytes = std::as_bytes(std::span(found->second));
                                          done(Bytes(bytes.begin(), bytes.end()));
                                        });
  }
  void have(const std::string& file) { elsewhere_[id_of(file)] = file; }
  static bool can_read(KeptImages& images, const std::string& file) {
    const auto read = images.read(id_of(file));
    return read && std::ranges::equal(*read, std::as_bytes(std::span(file)));
  }

  std::map<std::string, std::string> elsewhere_;
  int fetches_ = 0;
};

TEST_F(CachedImagesTest, AFileThatIsElsewhereIsFetchedOnce) {
  const auto images = open();
  have("a picture");
  EXPECT_FALSE(images->read_here(id_of("a picture")));
  EXPECT_TRUE(can_read(*images, "a picture"));
  EXPECT_TRUE(can_read(*images, "a picture"));
  EXPECT_EQ(fetches_, 1);
  EXPECT_EQ(images->read(id_of("another")).error().message, "away");
}

TEST_F(CachedImagesTest, AFetchedFileMustHaveItsHash) {
  const auto images = open();
  elsewhere_[id_of("a picture")] = "another";
  const auto read = images->read(id_of("a picture"));
  ASSERT_FALSE(read);
  EXPECT_TRUE(read.error().message.contains("another file")) << read.error().message;
  EXPECT_FALSE(images->size_of(id_of("a picture"))) << "it is not kept";
}

TEST_F(CachedImagesTest, ADamagedFileIsFetchedAgain) {
  const auto images = open();
  have("a picture");
  ASSERT_TRUE(can_read(*images, "a picture"));
  for (const std::string content : {"A picture", ""}) {
    std::ofstream(folder_ / id_of("a picture")) << content;
    EXPECT_TRUE(can_read(*images, "a picture"));
    EXPECT_TRUE(images->read_here(id_of("a picture"))) << "it was replaced";
  }
}

TEST_F(CachedImagesTest, TheFileThatWasNotUsedForLongestMakesRoom) {
  const auto images = open(100);
  const std::string first(30, '1');
  const std::string second(20, '2');
  auto use = keep(*images, first);
  ASSERT_TRUE(use);
  ASSERT_TRUE(keep(*images, second));
  ASSERT_TRUE(keep(*images, std::string(20, '3'))) << "the second one is removed";
  EXPECT_TRUE(images->read_here(id_of(first))) << "a request uses it";
  EXPECT_FALSE(images->read_here(id_of(second)));
  EXPECT_FALSE(keep(*images, std::string(40, '4'))) << "too large beside the first one";
  *use = nullptr;
  EXPECT_TRUE(keep(*images, std::string(40, '4')));
  EXPECT_EQ(images->bytes(), 40u);
}

TEST_F(CachedImagesTest, AFileWithoutRoomIsReadAllTheSame) {
  const auto images = open(10);
  have("a picture that is too large");
  EXPECT_TRUE(can_read(*images, "a picture that is too large"));
  EXPECT_EQ(images->bytes(), 0u);
}

TEST_F(CachedImagesTest, FilesAreBroughtUpToALimitAndToTheFirstFailure) {
  const auto images = open();
  for (const char* file : {"one", "two", "three", "four"}) have(file);
  ASSERT_TRUE(can_read(*images, "one"));
  int done = 0;
  images->bring({id_of("one"), id_of("two"), id_of("three"), id_of("four")}, 5, [&] { ++done; });
  EXPECT_EQ(done, 1);
  EXPECT_EQ(fetches_, 3) << "one is there, and two and three have more than 5 bytes";
  EXPECT_FALSE(images->size_of(id_of("four")));
  images->bring({id_of("missing"), id_of("four")}, 1000, [&] { ++done; });
  EXPECT_EQ(done, 2);
  EXPECT_FALSE(images->size_of(id_of("four")));
}

TEST_F(KeptImagesTest, WithoutAnotherPlaceNothingIsBroughtOrRemoved) {
  KeptImages images(folder_.string(), 100);
  ASSERT_TRUE(keep(images, std::string(40, 'a')));
  EXPECT_FALSE(keep(images, std::string(40, 'b')));
  bool done = false;
  images.bring({id_of("a picture")}, 100, [&] { done = true; });
  EXPECT_TRUE(done);
  EXPECT_TRUE(has(images, std::string(40, 'a')));
}

}  // namespace
}  // namespace uma::image
