#include "uma-cli/chat/attachments.h"

#include <filesystem>
#include <format>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/serialize.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/base64.h"
#include "uma-cli/chat/one_shot.h"
#include "uma-cli/embed.h"
#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

const std::string kPng = "\x89PNG\r\n\x1a\nrest";
const std::string kWav = "RIFFrest";

// Lists two models, of which the second reads images where `sees`; answers the rest; collects what was asked.
FakeDaemon::Script serve_images(bool sees, std::vector<boost::json::object>& requests) {
  return [sees, &requests](FakeConnection& connection) {
    for (boost::json::object request = connection.read(); !request.empty(); request = connection.read()) {
      const std::string type = text_field(request, "type");
      if (type == "models") {
        connection.answer(
            request, "models",
            {{"models", boost::json::array{boost::json::object{{"name", "blind"}, {"state", "ready"}, {"reads_images", false}},
                                           boost::json::object{{"name", "eyes"},
                                                               {"aliases", boost::json::array{"look"}},
                                                               {"state", "unloaded"},
                                                               {"reads_images", sees},
                                                               {"reads_audio", sees}}}}});
        continue;
      }
      if (type == "embed_image") {
        boost::json::array vectors;
        for (const boost::json::value& image : array_field(request, "images")) {
          vectors.push_back(boost::json::array{static_cast<std::int64_t>(text_field(image.as_object(), "data").size())});
        }
        connection.answer(request, "embedding", {{"embeddings", vectors}});
      } else {
        connection.answer(request, "eos", {{"reason", "stop"}, {"text", "a cat"}});
      }
      requests.push_back(std::move(request));
    }
  };
}

class AttachmentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("uma-cli-images-" + std::to_string(::getpid()));
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  static std::string refusal(const std::string& name) {
    const auto read = read_images(std::span(&name, 1));
    EXPECT_FALSE(read);
    if (read) return "";
    EXPECT_EQ(read.error().exit_code, ExitCode::usage);
    return read.error().message;
  }
  template <class RunT>
  Result<void> with_client(bool sees, RunT run) {
    FakeDaemon daemon({serve_images(sees, requests_)});
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    return run(**client);
  }

  fs::path folder_;
  Interrupts interrupts_;
  Screen screen_{false, interrupts_};
  std::vector<boost::json::object> requests_;
};

TEST_F(AttachmentsTest, AFileGoesAsItsBytesAndAnAddressAsItself) {
  const std::vector<std::string> names = {file("a.png", kPng), "https://host/b.png"};
  const auto images = read_images(names);
  ASSERT_TRUE(images) << images.error().message;
  EXPECT_EQ(boost::json::serialize(images->at(0)), boost::json::serialize(boost::json::object{{"data", base64_of(kPng)}}));
  EXPECT_EQ(boost::json::serialize(images->at(1)), R"({"url":"https://host/b.png"})");
}

TEST_F(AttachmentsTest, WhatDoesNotFitIsNamedByItsPath) {
  const std::string large = kPng + std::string(6u << 20, 'x');
  file("first.png", large);
  const std::vector<std::string> names = {folder_ / "first.png", file("second.png", large), file("third.png", kPng)};
  const auto images = read_images(names);
  ASSERT_TRUE(images);
  EXPECT_TRUE(images->at(0).contains("data"));
  EXPECT_EQ(text_field(images->at(1), "path"), fs::canonical(folder_ / "second.png").string());
  EXPECT_TRUE(images->at(2).contains("data"));
}

TEST_F(AttachmentsTest, WhatIsNoImageIsRefusedByItsName) {
  EXPECT_THAT(refusal(folder_ / "absent.png"), HasSubstr("absent.png: No such file"));
  EXPECT_THAT(refusal(folder_), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal(file("notes.txt", "hello")), HasSubstr("notes.txt: is not a PNG, JPEG, WebP, GIF or BMP file"));
  EXPECT_THAT(refusal(file("empty.png", "")), HasSubstr("is not a PNG"));
  EXPECT_THAT(refusal("ftp://host/a.png"), HasSubstr("No such file"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder_ / "pipe"), HasSubstr("is not a regular file"));
  file("huge.png", kPng);
  fs::resize_file(folder_ / "huge.png", (32u << 20) + 1);
  EXPECT_THAT(refusal(folder_ / "huge.png"), HasSubstr("at most"));
}

TEST_F(AttachmentsTest, AQuestionHasItsImagesBeforeIt) {
  OneShot command;
  command.prompt = "What?";
  command.model = "look";
  command.attachments.images = {file("a.png", kPng), "http://host/b"};
  ASSERT_TRUE(with_client(true, [&](Client& client) { return run_one_shot(client, command, screen_.output(), interrupts_); }));
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(boost::json::serialize(array_field(requests_[0], "messages")),
            R"([{"role":"user","content":[{"data":")" + base64_of(kPng) +
                R"(","type":"image"},{"url":"http://host/b","type":"image"},{"type":"text","text":"What?"}]}])");
  EXPECT_EQ(int_field(requests_[0], "deadline_ms"), 60'000);
  EXPECT_EQ(screen_.text(), "a cat\n");
  command.is_raw = true;
  const auto raw =
      with_client(true, [&](Client& client) { return run_one_shot(client, command, screen_.output(), interrupts_); });
  ASSERT_FALSE(raw);
  EXPECT_EQ(raw.error().exit_code, ExitCode::usage);
}

TEST_F(AttachmentsTest, ClipsComeBehindImages) {
  OneShot command;
  command.prompt = "What?";
  command.model = "look";
  command.attachments = {.images = {"http://host/b"},
                         .clips = {file("a.wav", kWav), file("b", "fLaC rest"), file("c", "ID3 rest")}};
  ASSERT_TRUE(with_client(true, [&](Client& client) { return run_one_shot(client, command, screen_.output(), interrupts_); }));
  ASSERT_EQ(requests_.size(), 1u);
  const auto clip = [](std::string_view bytes, std::string_view format) {
    return std::format(R"({{"type":"input_audio","input_audio":{{"data":"{}","format":"{}"}}}},)", base64_of(bytes), format);
  };
  EXPECT_EQ(boost::json::serialize(array_field(requests_[0], "messages")),
            R"([{"role":"user","content":[{"url":"http://host/b","type":"image"},)" + clip(kWav, "wav") +
                clip("fLaC rest", "flac") + clip("ID3 rest", "mp3") + R"({"type":"text","text":"What?"}]}])");
  EXPECT_EQ(int_field(requests_[0], "deadline_ms"), 60'000);
  command.attachments = {.clips = {file("large.wav", kWav + std::string(6u << 20, 'x')), folder_ / "large.wav"}};
  const auto large =
      with_client(true, [&](Client& client) { return run_one_shot(client, command, screen_.output(), interrupts_); });
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().exit_code, ExitCode::usage);
  EXPECT_THAT(large.error().message, HasSubstr("may have 11534336 together"));
}

TEST_F(AttachmentsTest, AFileIsWhatItWasGivenAs) {
  EXPECT_THAT(refusal(file("a.wav", kWav)), HasSubstr("is not a PNG, JPEG, WebP, GIF or BMP file"));
  const auto parts = read_parts({.clips = {file("a.png", kPng)}});
  ASSERT_FALSE(parts);
  EXPECT_EQ(parts.error().exit_code, ExitCode::usage);
  EXPECT_THAT(parts.error().message, HasSubstr("a.png: is not a WAV, MP3 or FLAC file"));
}

TEST_F(AttachmentsTest, AModelThatReadsNoneIsNotAsked) {
  OneShot command;
  command.prompt = "What?";
  command.attachments.images = {file("a.png", kPng)};
  const auto ask = [&](bool sees) {
    const auto asked =
        with_client(sees, [&](Client& client) { return run_one_shot(client, command, screen_.output(), interrupts_); });
    EXPECT_FALSE(asked);
    return asked ? "" : asked.error().message;
  };
  EXPECT_THAT(ask(true), HasSubstr("the model \"blind\" reads no images; models that do: eyes"));
  EXPECT_THAT(ask(false), HasSubstr("--mmproj"));
  command.session = "work";
  EXPECT_THAT(ask(false), HasSubstr("--mmproj"));
  command.attachments = {.clips = {file("a.wav", kWav)}};
  EXPECT_THAT(ask(false), HasSubstr("this daemon cannot read sound: no model of this daemon reads sound"));
  EXPECT_TRUE(requests_.empty());
}

TEST_F(AttachmentsTest, AreDescribed) {
  DescribeOptions options;
  options.image = file("a.png", kPng);
  options.model = "eyes";
  options.generation.max_tokens = 7;
  ASSERT_TRUE(with_client(true, [&](Client& client) { return run_describe(client, options, screen_.output(), interrupts_); }));
  EXPECT_EQ(text_field(requests_[0], "type"), "describe_image");
  EXPECT_EQ(text_field(requests_[0], "data"), base64_of(kPng));
  EXPECT_EQ(text_field(requests_[0], "query"), "Describe this image.");
  EXPECT_EQ(int_field(requests_[0], "max_tokens"), 7);
  EXPECT_EQ(int_field(requests_[0], "deadline_ms"), 60'000);
  EXPECT_EQ(screen_.text(), "a cat\n");
}

TEST_F(AttachmentsTest, HaveVectorsAsManyAsFitInARequest) {
  EmbedOptions options;
  options.common.model = "eyes";
  options.images.assign(70, file("a.png", kPng));
  options.images.push_back(file("large.png", kPng + std::string(8u << 20, 'x')));
  options.images.push_back(options.images.back());
  ASSERT_TRUE(with_client(true, [&](Client& client) { return run_embed(client, options, screen_.output(), interrupts_); }));
  std::vector<std::size_t> counts;
  for (const boost::json::object& request : requests_) counts.push_back(array_field(request, "images").size());
  EXPECT_THAT(counts, ::testing::ElementsAre(64u, 7u, 1u));
  EXPECT_THAT(screen_.text(), ::testing::StartsWith("{\"image\":\"" + options.images[0] + "\",\"embedding\":[" +
                                                    std::to_string(base64_of(kPng).size()) + "]}\n"));
  options.task = "query";
  const auto mixed =
      with_client(true, [&](Client& client) { return run_embed(client, options, screen_.output(), interrupts_); });
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().exit_code, ExitCode::usage);
}

}  // namespace
}  // namespace uma::cli
