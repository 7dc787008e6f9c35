#include "image/image_source.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "testing/audio_bytes.h"
#include "testing/image_bytes.h"

namespace uma::image {
namespace {

namespace fs = std::filesystem;

using testing::bmp_of_one_pixel;

TEST(ImageSource, IsWhatItClaimsToBe) {
  const std::string clip = testing::tone(100);
  const auto is_read = [](const std::string& file, Media media) {
    return read_image({.kind = ImageSource::Kind::file, .text = file, .media = media}, {}).has_value();
  };
  EXPECT_TRUE(is_read(clip, Media::audio));
  EXPECT_TRUE(is_read(clip, Media::any));
  EXPECT_FALSE(is_read(clip, Media::image));
  EXPECT_TRUE(is_read(testing::bmp_of_one_pixel(), Media::any));
  EXPECT_FALSE(is_read(testing::bmp_of_one_pixel(), Media::audio));
  const auto text = read_image({.kind = ImageSource::Kind::data, .text = "data:audio/wav;base64,!", .media = Media::audio}, {});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message, "the clip's data is not base64");
}

class ImagePaths : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("uma-image-test-" + std::to_string(::getpid()));
    fs::create_directories(root_ / "allowed/inner");
    fs::create_directories(root_ / "secret");
    for (const char* name : {"allowed/a.bmp", "allowed/inner/b.bmp", "secret/c.bmp", "allowed-not.bmp"}) {
      std::ofstream(root_ / name, std::ios::binary) << bmp_of_one_pixel();
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] Expected<Bytes> read(const fs::path& path) const {
    const std::vector<std::string> allowed{(root_ / "allowed").string()};
    return read_image({.kind = ImageSource::Kind::path, .text = path.string()}, allowed);
  }
  [[nodiscard]] bool is_refused(const fs::path& path) const {
    const auto bytes = read(path);
    return !bytes && bytes.error().code == ErrorCode::proto_field &&
           bytes.error().message.contains("not a file below vision.allowed_dirs");
  }

  fs::path root_;
};

TEST(ImageData, IsBase64AloneOrAsAUri) {
  const std::string base64 = base64_of(bmp_of_one_pixel());
  std::string escaped;
  for (const char c : base64) escaped += c == '+' ? "%2B" : c == '/' ? "%2F" : c == '=' ? "%3D" : std::string(1, c);
  for (const std::string& text :
       {base64, "data:image/bmp;base64," + base64, "data:;base64," + base64, " DATA:IMAGE/BMP;charset=utf-8; BASE64," + base64,
        "data:image/bmp;base64," + escaped, base64.substr(0, 8) + "\r\n" + base64.substr(8) + "\n"}) {
    const auto bytes = read_image({.kind = ImageSource::Kind::data, .text = text}, {});
    ASSERT_TRUE(bytes) << bytes.error().message;
    EXPECT_EQ(bytes->size(), bmp_of_one_pixel().size());
  }
}

TEST(ImageData, IsRefusedWhereItIsNoImage) {
  for (const char* text : {"", "%%%", "data:image/png,abc", "data:", "aGVsbG8="}) {
    const auto bytes = read_image({.kind = ImageSource::Kind::data, .text = text}, {});
    ASSERT_FALSE(bytes) << text;
    EXPECT_EQ(bytes.error().code, ErrorCode::proto_field);
  }
}

TEST(ImageUrl, IsNotFetched) {
  const auto bytes = read_image({.kind = ImageSource::Kind::url, .text = "http://127.0.0.1/a.png"}, {});
  ASSERT_FALSE(bytes);
  EXPECT_TRUE(bytes.error().message.contains("URLs")) << bytes.error().message;
}

TEST_F(ImagePaths, AreReadBelowAllowedFolders) {
  EXPECT_TRUE(read(root_ / "allowed/a.bmp"));
  EXPECT_TRUE(read(root_ / "allowed/inner/b.bmp"));
  EXPECT_TRUE(read(root_ / "allowed//inner/./b.bmp"));
}

TEST_F(ImagePaths, AreRefusedElsewhere) {
  EXPECT_TRUE(is_refused(root_ / "secret/c.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed-not.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed/../secret/c.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed/inner/../a.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed/absent.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed"));
  EXPECT_TRUE(is_refused(root_ / "allowed/inner"));
  EXPECT_TRUE(is_refused("allowed/a.bmp"));
  EXPECT_TRUE(is_refused(""));
  EXPECT_TRUE(is_refused("/etc/passwd"));
}

TEST_F(ImagePaths, AreRefusedThroughLinks) {
  fs::create_symlink(root_ / "secret/c.bmp", root_ / "allowed/link.bmp");
  fs::create_directory_symlink(root_ / "secret", root_ / "allowed/folder");
  fs::create_symlink("a.bmp", root_ / "allowed/near.bmp");
  EXPECT_TRUE(is_refused(root_ / "allowed/link.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed/folder/c.bmp"));
  EXPECT_TRUE(is_refused(root_ / "allowed/near.bmp"));
}

TEST_F(ImagePaths, AreOfRegularFilesOnly) {
  ASSERT_EQ(::mkfifo((root_ / "allowed/pipe").c_str(), 0600), 0);
  EXPECT_TRUE(is_refused(root_ / "allowed/pipe"));
  EXPECT_TRUE(is_refused("/dev/zero"));
}

TEST_F(ImagePaths, LeadToImagesOfLimitedSize) {
  const ImageSource source{.kind = ImageSource::Kind::path, .text = (root_ / "allowed/a.bmp").string()};
  const std::vector<std::string> allowed{(root_ / "allowed").string()};
  EXPECT_TRUE(read_image(source, allowed));
  const auto bytes = read_image(source, allowed, 0);
  ASSERT_FALSE(bytes);
  EXPECT_TRUE(bytes.error().message.contains("vision.image_pixels_max")) << bytes.error().message;
}

TEST_F(ImagePaths, AreRefusedWhereNoFolderIsAllowed) {
  const auto bytes = read_image({.kind = ImageSource::Kind::path, .text = (root_ / "allowed/a.bmp").string()}, {});
  ASSERT_FALSE(bytes);
  EXPECT_TRUE(bytes.error().message.contains("vision.allowed_dirs"));
}

}  // namespace
}  // namespace uma::image
