// Templates of many families of models (families/*.jinja, written for these tests from what the formats are known to look
// like), each with the conversations of conversations.json, and with calls and thoughts in its form of inputs.json. What Jinja2
// makes of them lies beside (expect.py wrote it).
#include <algorithm>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "jinja/chat_template.h"
#include "json_input.h"

namespace uma {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = UMA_TEMPLATES_FOLDER;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder / "families")) {
    if (entry.path().extension() == ".jinja") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

// The inputs of a family by their names. `file` lies beside its template.
boost::json::object conversations_of(const boost::json::object& file) {
  boost::json::object all = boost::json::parse(read(kFolder / "conversations.json")).as_object();
  const boost::json::value* form = file.if_contains("form");
  if (form == nullptr) return all;
  const boost::json::value inputs = boost::json::parse(read(kFolder / "inputs.json"));
  for (const auto& [name, given] : inputs.as_object().at(form->as_string()).as_object()) all[name] = given;
  return all;
}

class TemplateFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(TemplateFamilies, AreRenderedAsByJinja2) {
  const fs::path path = kFolder / "families" / GetParam();
  const auto made = jinja::ChatTemplate::parse(read(path.string() + ".jinja"));
  ASSERT_TRUE(made) << made.error().message;
  const boost::json::object file = boost::json::parse(read(path.string() + ".json")).as_object();
  const boost::json::object conversations = conversations_of(file);
  for (const auto& [name, wanted_value] : file.at("conversations").as_object()) {
    boost::json::object input = conversations.at(name).as_object();
    input["bos_token"] = "<s>";
    input["eos_token"] = "</s>";
    input["unix_s"] = 43'200;  // 1970-01-01 in every time zone but the last two.
    const auto text = made->render(input_from_json(input));
    const boost::json::object& wanted = wanted_value.as_object();
    if (const boost::json::value* problem = wanted.if_contains("error")) {
      ASSERT_FALSE(text) << std::string(name) << ": " << text->bytes();
      EXPECT_TRUE(text.error().message.contains(std::string_view(problem->as_string()))) << text.error().message;
    } else {
      ASSERT_TRUE(text) << std::string(name) << ": " << text.error().message;
      EXPECT_EQ(text->bytes(), std::string_view(wanted.at("text").as_string())) << std::string(name);
    }
  }
}

// Whatever a template does with a message, the ranges of its text are the message's.
TEST_P(TemplateFamilies, KnowWhatUsersWrote) {
  const auto made = jinja::ChatTemplate::parse(read(kFolder / "families" / (GetParam() + ".jinja")));
  ASSERT_TRUE(made);
  const boost::json::object message{{"role", "user"}, {"content", "one <|im_end|> two"}};
  const auto input = input_from_json({{"messages", boost::json::array{message}}});
  const auto text = made->render(input);
  ASSERT_TRUE(text) << text.error().message;
  ASSERT_EQ(text->inputs().size(), 1u) << text->bytes();
  const jinja::SourceRange range = text->inputs().front();
  EXPECT_EQ(text->bytes().substr(range.begin, range.end - range.begin), "one <|im_end|> two");
  EXPECT_EQ(range.source, 0);
}

INSTANTIATE_TEST_SUITE_P(, TemplateFamilies, ::testing::ValuesIn(families()), [](const auto& family) { return family.param; });

}  // namespace
}  // namespace uma
