#include "uma-cli/models/pull_source.h"

#include <gtest/gtest.h>

#include "uma-cli/models/model_head.h"

namespace uma::cli {
namespace {

HubName hub_name(const std::string& text) {
  auto source = parse_source(text);
  return source && std::holds_alternative<HubName>(*source) ? std::get<HubName>(*source) : HubName{};
}

TEST(Source, IsAnAddressOrANameOnTheHub) {
  EXPECT_EQ(std::get<Url>(parse_source("https://h/a.gguf").value()).text, "https://h/a.gguf");
  const HubName whole = hub_name("some.one/a-b_c:q4_k_m@refs/pr/1");
  EXPECT_EQ(whole.repo, "some.one/a-b_c");
  EXPECT_EQ(whole.pick, "q4_k_m");
  EXPECT_EQ(whole.revision, "refs/pr/1");
  EXPECT_EQ(hub_name("a/b").revision, "main");
  EXPECT_EQ(hub_name("a/b:sub/x.gguf").pick, "sub/x.gguf");
}

TEST(Source, RefusesWhatIsNeither) {
  for (const char* text :
       {"", "model", "a/b/c", "a/", "/b", "../b", "a/..", "a/b:", "a/b@", "a b/c", "a/b\n", "file:///etc/passwd",
        "ftp://h/x.gguf", "https://me:secret@h/x.gguf", "https://", "http://h h/x.gguf"}) {
    const auto source = parse_source(text);
    ASSERT_FALSE(source.has_value()) << text;
    EXPECT_EQ(source.error().exit_code, ExitCode::usage) << text;
  }
}

TEST(Url, ComparesOriginsWithTheirPorts) {
  EXPECT_EQ(parse_url("HTTPS://Host/x")->origin, "https://host:443");
  EXPECT_EQ(parse_url("https://host:443/y?z#f")->origin, "https://host:443");
  EXPECT_EQ(parse_url("https://host:443/y?z#f")->text, "https://host:443/y?z");
  EXPECT_EQ(shown_url("https://host:443/y/m.gguf?token=secret#f"), "https://host:443/y/m.gguf");
  EXPECT_EQ(shown_url("https://me:secret@host/a@b"), "https://host/a@b");
  EXPECT_EQ(shown_url("owner/repo"), "owner/repo");
  EXPECT_EQ(parse_url("https://me:secret@host/x?token=secret").error().message,
            "https://host/x contains a user name: give a URL without one");
  EXPECT_NE(parse_url("http://host/")->origin, parse_url("http://host:81/")->origin);
  EXPECT_EQ(parse_url("https://hub@evil/").has_value(), false);
}

TEST(Url, IsNotFollowedFromHttpsToHttp) {
  const Url safe = parse_url("https://a/").value();
  const Url plain = parse_url("http://a/").value();
  EXPECT_FALSE(may_follow(safe, plain));
  EXPECT_TRUE(may_follow(plain, safe));
  EXPECT_TRUE(may_follow(plain, plain));
  EXPECT_TRUE(may_follow(safe, safe));
}

TEST(FileName, IsTheLastComponentDecoded) {
  const auto name = [](const char* url) { return file_name_of_url(parse_url(url).value()); };
  EXPECT_EQ(name("https://h/a/b/model.gguf?download=true").value(), "model.gguf");
  EXPECT_EQ(name("https://h/my%20model.GGUF").value(), "my model.GGUF");
  for (const char* url : {"https://h/", "https://h/a/", "https://h/.gguf", "https://h/.hidden.gguf", "https://h/..%2Fx.gguf",
                          "https://h/a%00.gguf", "https://h/%1b[2J.gguf", "https://h/%ff.gguf", "https://h/x.bin",
                          "https://h/%zz.gguf", "https://h/x%2"}) {
    EXPECT_FALSE(name(url).has_value()) << url;
  }
  EXPECT_FALSE(safe_file_name(std::string(300, 'a') + ".gguf").has_value());
}

TEST(UrlsOfModel, AreThoseOfAllItsPieces) {
  const auto urls = [](const char* text) {
    const auto all = urls_of_model(*parse_url(text));
    std::vector<std::string> texts;
    for (const Url& url : *all) texts.push_back(url.text);
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(urls("https://h/a/m-00002-of-00003.gguf?key=/m"),
            (Texts{"https://h/a/m-00001-of-00003.gguf?key=/m", "https://h/a/m-00002-of-00003.gguf?key=/m",
                   "https://h/a/m-00003-of-00003.gguf?key=/m"}));
  EXPECT_EQ(urls("https://h/m.gguf?file=m-00001-of-00003.gguf"), (Texts{"https://h/m.gguf?file=m-00001-of-00003.gguf"}));
}

TEST(ProjectorName, PairsItWithTheModel) {
  EXPECT_EQ(projector_name("mmproj-F16.gguf", "Sees-4b-Q4_K_M.gguf"), "mmproj-sees-4b.gguf");
  EXPECT_EQ(projector_name("mmproj-F16.gguf", "Sees-4b-Q4_K_M-00001-of-00005.gguf"), "mmproj-sees-4b.gguf");
  EXPECT_EQ(projector_name("mmproj-sees-4b-F16.gguf", "Sees-4b-Q4_K_M.gguf"), "mmproj-sees-4b-F16.gguf");
  EXPECT_EQ(projector_name("mmproj-F16.gguf", "model-q4_0.gguf"), "mmproj-F16.gguf");
}

TEST(ModelsFolder, IsUnderTheDataHome) {
  EXPECT_EQ(models_folder("/data", "/home/u"), "/data/uma/models");
  EXPECT_EQ(models_folder("", "/home/u"), "/home/u/.local/share/uma/models");
  EXPECT_EQ(models_folder("relative", "/home/u"), "/home/u/.local/share/uma/models");
  EXPECT_EQ(models_folder("", ""), "");
}

TEST(ShellWord, QuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(shell_word("/a/b-c_1.gguf"), "/a/b-c_1.gguf");
  EXPECT_EQ(shell_word("/a b/it's"), "'/a b/it'\\''s'");
}

TEST(Checksum, IsReadInEitherCase) {
  const std::string known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // FIPS 180-4: "abc"
  EXPECT_EQ(parse_sha256("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD").value(), known);
  EXPECT_FALSE(parse_sha256(known.substr(1)).has_value());
  EXPECT_FALSE(parse_sha256(known.substr(1) + "g").has_value());
}

TEST(ModelHead, RefusesWhatIsNoModel) {
  const auto head = [](char version, char tensors, char pairs, char high = 0) {
    return std::string("GGUF") + std::string{version, 0, 0, 0, tensors, 0, 0, 0, 0, 0, 0, high, pairs, 0, 0, 0, 0, 0, 0, 0};
  };
  EXPECT_EQ(why_not_model(head(3, 5, 7)), "");
  EXPECT_EQ(why_not_model(head(2, 0, 1)), "") << "a vocabulary has no tensors";
  EXPECT_EQ(why_not_model(head(3, 5, 0)), "") << "Stable Diffusion has no metadata";
  const std::string safetensors = std::string("\x40\x0d\x03\0\0\0\0\0", 8) + R"({"model.diffusion)";
  EXPECT_EQ(why_not_model(safetensors), "");
  for (const std::string& bad :
       {std::string("<!DOCTYPE html><html lang="), std::string(), head(1, 5, 7), head(4, 5, 7), head(3, 0, 0), head(3, 5, 7, 1),
        head(3, 5, 7).substr(0, 23), safetensors.substr(0, 23), std::string(8, '\x40') + safetensors.substr(8)}) {
    EXPECT_NE(why_not_model(bad), "");
  }
}

}  // namespace
}  // namespace uma::cli
