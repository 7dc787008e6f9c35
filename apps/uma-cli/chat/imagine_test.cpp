#include "uma-cli/chat/imagine.h"

#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <png.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/base64.h"
#include "uma-cli/chat/terminal_image.h"
#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A picture of two by two pixels: red, green, blue and white.
std::string small_png() {
  const std::vector<std::uint8_t> levels = {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255};
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = 2;
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  png_image_write_get_memory_size(image, size, 0, levels.data(), 0, nullptr);
  std::string file(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, file.data(), &size, 0, levels.data(), 0, nullptr), 0);
  file.resize(size);
  return file;
}

class ImagineTest : public ::testing::Test {
 protected:
  ImagineTest() : folder_(std::filesystem::temp_directory_path() / std::format("uma-imagine-{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_);
  }
  ~ImagineTest() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }

  // The daemon draws what is asked for; each file comes in two parts.
  static void draw(FakeConnection& connection, const boost::json::object& request) {
    connection.answer(request, "image_begin", {{"images", int_field(request, "n")}});
    for (std::int64_t picture = 0; picture < int_field(request, "n"); ++picture) {
      connection.answer(request, "progress", {{"image", picture}, {"done", 1}, {"total", 1}, {"eta_ms", 0}});
      const std::string png = small_png();
      for (const std::int64_t part : {0, 1}) {
        connection.answer(request, "image_chunk",
                          {{"image", picture},
                           {"part", part},
                           {"parts", 2},
                           {"data", base64_of(part == 0 ? png.substr(0, 20) : png.substr(20))}});
      }
    }
    connection.answer(request, "eos", {{"reason", "stop"}, {"usage", boost::json::object{{"images", 1}}}});
  }
  Result<void> imagine(const ImagineOptions& options, bool is_terminal = true,
                       std::function<void(FakeConnection&, const boost::json::object&)> serve = draw) {
    FakeDaemon daemon({[&](FakeConnection& connection) {
      request_ = connection.read();
      if (!request_.empty()) serve(connection, request_);
    }});
    Screen screen(is_terminal, interrupts_);
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    auto done = run_imagine(**client, options, screen.output(), interrupts_);
    shown_ = screen.text();
    return done;
  }
  [[nodiscard]] static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  Interrupts interrupts_;
  const std::filesystem::path folder_;
  std::filesystem::path before_;
  boost::json::object request_;
  std::string shown_;
};

ImagineOptions of(std::string caption) {
  ImagineOptions options;
  options.caption = std::move(caption);
  options.show = "no";
  return options;
}

TEST_F(ImagineTest, NamesFilesAfterTheCaptionAndReplacesNone) {
  ASSERT_TRUE(imagine(of("A red circle!")));
  EXPECT_EQ(shown_, "a-red-circle.png\n");
  ASSERT_TRUE(imagine(of("a red  circle")));
  EXPECT_EQ(shown_, "a-red-circle_2.png\n");
  EXPECT_EQ(read("a-red-circle_2.png"), small_png());
  EXPECT_THAT(files(), ElementsAre("a-red-circle.png", "a-red-circle_2.png"));
}

TEST_F(ImagineTest, SendsTheOptionsAndReplacesTheFileThatIsNamed) {
  ImagineOptions options = of("a cat");
  options.file = "out.png";
  std::ofstream("out.png") << "old";
  options.negative = "dogs";
  options.model = "m";
  options.size = 64;
  options.steps = 8;
  options.guidance = 1.5;
  options.seed = 7;
  options.sampler = "euler_a";
  options.schedule = "karras";
  options.image = "begin.png";
  options.strength = 0.5;
  std::ofstream("begin.png") << small_png();
  options.is_background = true;
  options.has_no_metadata = true;
  ASSERT_TRUE(imagine(options));
  EXPECT_EQ(read("out.png"), small_png());
  EXPECT_THAT(files(), ElementsAre("begin.png", "out.png"));
  EXPECT_EQ(boost::json::serialize(request_.at("prompt")), "\"a cat\"");
  EXPECT_EQ(text_field(request_, "sampler"), "euler_a");
  EXPECT_EQ(text_field(request_, "schedule"), "karras");
  EXPECT_EQ(text_field(object_field(request_, "image"), "data"), base64_of(small_png()));
  EXPECT_EQ(number_field(request_, "strength"), 0.5);
  EXPECT_EQ(text_field(request_, "negative_prompt"), "dogs");
  EXPECT_EQ(text_field(request_, "model"), "m");
  EXPECT_EQ(int_field(request_, "width"), 64);
  EXPECT_EQ(int_field(request_, "height"), 64);
  EXPECT_EQ(int_field(request_, "steps"), 8);
  EXPECT_EQ(number_field(request_, "guidance"), 1.5);
  EXPECT_EQ(int_field(request_, "seed"), 7);
  EXPECT_EQ(text_field(request_, "class"), "background");
  EXPECT_FALSE(bool_field(request_, "metadata"));
}

TEST_F(ImagineTest, NumbersSeveralPictures) {
  ImagineOptions options = of("a cat");
  options.count = 2;
  options.file = "cats.png";
  ASSERT_TRUE(imagine(options));
  EXPECT_EQ(shown_, "cats-1.png\ncats-2.png\n");
}

TEST_F(ImagineTest, APipeGetsTheFileItself) {
  ASSERT_TRUE(imagine(of("a cat"), /*is_terminal=*/false));
  EXPECT_EQ(shown_, small_png());
  EXPECT_TRUE(files().empty());
  ImagineOptions two = of("a cat");
  two.count = 2;
  EXPECT_EQ(imagine(two, false).error().exit_code, ExitCode::usage);
  ImagineOptions dash = of("a cat");
  dash.file = "-";
  EXPECT_EQ(imagine(dash, true).error().exit_code, ExitCode::usage);
}

TEST_F(ImagineTest, SaysWhatWentWrong) {
  const auto error = imagine(of("a cta"), true, [](FakeConnection& connection, const boost::json::object& request) {
    connection.answer(request, "error", {{"code", "E_PROTO_003"}, {"message", "no such word"}});
  });
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().message, "no such word");
  const auto early = imagine(of("a cat"), true, [](FakeConnection& connection, const boost::json::object& request) {
    connection.answer(request, "eos", {{"reason", "cancelled"}});
  });
  ASSERT_FALSE(early);
  EXPECT_THAT(early.error().message, HasSubstr("cancelled"));
  const auto broken = imagine(of("a cat"), true, [](FakeConnection& connection, const boost::json::object& request) {
    connection.answer(request, "image_chunk", {{"image", 0}, {"part", 1}, {"parts", 2}, {"data", "AAAA"}});
  });
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().exit_code, ExitCode::protocol);
  ImagineOptions nowhere = of("a cat");
  nowhere.file = "missing/cat.png";
  EXPECT_THAT(imagine(nowhere).error().message, StartsWith("missing/cat.png"));
  EXPECT_TRUE(files().empty());
}

TEST_F(ImagineTest, ShowsThePictureAboveItsName) {
  ImagineOptions options = of("a cat");
  options.show = "kitty";
  ASSERT_TRUE(imagine(options));
  EXPECT_EQ(shown_, "\x1b_Ga=T,f=100,q=2,c=32,m=0;" + base64_of(small_png()) + "\x1b\\\na-cat.png\n");
}

TEST(FileStem, KeepsLettersAndDigits) {
  EXPECT_EQ(file_stem_of("A red circle, left of 2 BLUE squares!"), "a-red-circle-left-of-2-blue-squares");
  EXPECT_EQ(file_stem_of("../../etc/passwd"), "etc-passwd");
  EXPECT_EQ(file_stem_of("\xE6\xB4\x9E"), "picture");
  EXPECT_EQ(file_stem_of(std::string(100, 'a')).size(), 40u);
}

TEST(TerminalImage, KnowsTerminalsByTheirNames) {
  EXPECT_EQ(protocol_by_names({.term = "xterm-kitty", .program = ""}), ImageProtocol::kitty);
  EXPECT_EQ(protocol_by_names({.term = "xterm-256color", .program = "WezTerm"}), ImageProtocol::kitty);
  EXPECT_EQ(protocol_by_names({.term = "", .program = "", .is_kitty_window = true}), ImageProtocol::kitty);
  EXPECT_EQ(protocol_by_names({.term = "", .program = "iTerm.app"}), ImageProtocol::iterm);
  EXPECT_EQ(protocol_by_names({.term = "xterm-256color", .program = ""}), ImageProtocol::none);
  EXPECT_EQ(protocol_by_names({.term = "xterm-kitty", .program = "", .is_in_multiplexer = true}), ImageProtocol::none);
  EXPECT_TRUE(says_sixel("\x1b[?62;4;22c"));
  EXPECT_TRUE(says_sixel("\x1b[?4c"));
  EXPECT_FALSE(says_sixel("\x1b[?64;1;2;6;22c"));
  EXPECT_FALSE(says_sixel("\x1b[?62;4"));
  EXPECT_FALSE(says_sixel(""));
}

TEST(TerminalImage, WritesSixels) {
  const auto shown = terminal_image(small_png(), ImageProtocol::sixel, 32, 6);
  ASSERT_TRUE(shown);
  EXPECT_THAT(*shown, StartsWith("\x1bPq\"1;1;6;6"));
  EXPECT_THAT(*shown, HasSubstr("#180;2;100;0;0")) << "red is 5, 0, 0 of 6 x 6 x 6";
  // One band: the upper left three columns of three lines are red, the lower left blue, the lower right white.
  EXPECT_THAT(*shown, HasSubstr("#180FFF???$"));
  EXPECT_THAT(*shown, HasSubstr("#5www???$"));
  EXPECT_THAT(*shown, HasSubstr("#30???FFF$"));
  EXPECT_THAT(*shown, HasSubstr("#215???www$-"));
}

TEST(TerminalImage, RefusesWhatIsNoPicture) {
  for (const ImageProtocol protocol : {ImageProtocol::kitty, ImageProtocol::iterm, ImageProtocol::sixel}) {
    EXPECT_FALSE(terminal_image("no picture", protocol, 32, 64));
    EXPECT_FALSE(terminal_image(small_png().substr(0, 40), protocol, 32, 64));
  }
}

}  // namespace
}  // namespace uma::cli
