#include "engine/router/adapter_choice.h"

#include <gtest/gtest.h>

namespace uma::engine {
namespace {

llm::ModelFacts facts_with_adapters() {
  llm::ModelFacts facts;
  facts.adapters = {{.source = {.name = "sql", .path = "a", .scale = 0.5}, .identity = "1"},
                    {.source = {.name = "tone:formal", .path = "b"}, .identity = "2"},
                    {.source = {.name = "bad", .path = "c"}, .problem = "it is damaged"}};
  return facts;
}

Expected<llm::AdapterSet> choose(std::vector<AdapterChoice> choices, std::string_view named = "") {
  GenerateOptions options;
  options.adapters = std::move(choices);
  return choose_adapters(options, named, "base", facts_with_adapters());
}

TEST(ChooseAdapters, ByNameByNumberAndByTheModelsName) {
  EXPECT_EQ(choose({})->identity, "");
  EXPECT_EQ(choose({{.name = "sql"}})->identity, "|lora 1*0.5");
  EXPECT_EQ(choose({{.name = "sql", .scale = 2}})->identity, "|lora 1*2");
  EXPECT_EQ(choose({{.number = 1}})->identity, "|lora 2*1");
  EXPECT_EQ(choose({{.number = 1}, {.name = "sql"}})->identity, "|lora 1*0.5+2*1");
  EXPECT_EQ(choose({{.number = 1}}, "sql")->identity, "|lora 1*0.5+2*1");
  EXPECT_TRUE(choose({{.name = "sql", .scale = 0}})->is_empty());
}

TEST(ChooseAdapters, RefusesWhatTheModelDoesNotHave) {
  EXPECT_EQ(choose({{.name = "fr"}}).error().message,
            "field \"lora\": model \"base\" has no adapter \"fr\": it has sql, tone:formal, bad");
  EXPECT_EQ(choose({{.number = 3}}).error().message,
            "field \"lora\": model \"base\" has no adapter with the id 3: it has sql, tone:formal, bad");
  EXPECT_EQ(choose({{.number = 3}}).error().field, "lora");
  EXPECT_EQ(choose({{.name = "sql"}, {.number = 0}}).error().message, "field \"lora\": adapter \"sql\" is chosen twice");
  EXPECT_EQ(choose({{.name = "bad"}}).error().message, "adapter \"bad\" of model \"base\" cannot be used: it is damaged");
  EXPECT_EQ(choose({{.name = "bad"}}).error().code, ErrorCode::model_load);
}

}  // namespace
}  // namespace uma::engine
