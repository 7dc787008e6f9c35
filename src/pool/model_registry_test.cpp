#include "pool/model_registry.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <format>
#include <fstream>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "testing/gguf_bytes.h"

namespace uma::pool {
namespace {

using testing::GgufBytes;
namespace fs = std::filesystem;

class Registry : public ::testing::Test {
 protected:
  Registry() : folder_(fs::path(::testing::TempDir()) / ("uma-registry-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_ / "models");
  }
  ~Registry() override { fs::remove_all(folder_); }

  void write_cards(const std::string& yaml) const { std::ofstream(folder_ / "models.yaml") << yaml; }
  void write_model(const std::string& name) const { GgufBytes::small_model().write(folder_ / "models" / name); }
  void write_projector(const std::string& name, std::uint32_t width) const {
    GgufBytes file;
    file.text("general.architecture", "clip").u32("clip.vision.projection_dim", width).tensor("v.patch_embd.weight", {8, 8});
    file.write(folder_ / "models" / name);
  }
  [[nodiscard]] RegistryOptions options() const {
    return {.cards_file = (folder_ / "models.yaml").string(), .folders = {(folder_ / "models").string()}};
  }
  [[nodiscard]] std::shared_ptr<const ModelRegistry> read() const {
    auto registry = ModelRegistry::read(options());
    EXPECT_TRUE(registry.has_value()) << (registry ? "" : registry.error().front());
    return registry ? *registry : nullptr;
  }
  [[nodiscard]] static std::vector<std::string> names(const ModelRegistry& registry) {
    std::vector<std::string> all;
    for (const RegisteredModel& model : registry.models()) all.push_back(model.card.name);
    return all;
  }
  [[nodiscard]] static const RegisteredModel& model(const ModelRegistry& registry, std::string_view name) {
    const auto found = registry.find(name);
    EXPECT_TRUE(found.has_value()) << name;
    static const RegisteredModel none;
    return found ? **found : none;
  }
  // The only mistake of these cards.
  [[nodiscard]] std::string mistake(const std::string& yaml) const {
    write_cards(yaml);
    const auto registry = ModelRegistry::read(options());
    EXPECT_FALSE(registry.has_value()) << yaml;
    if (registry) return "";
    EXPECT_EQ(registry.error().size(), 1u) << registry.error().back();
    const std::string prefix = options().cards_file + ":";
    EXPECT_TRUE(registry.error().front().starts_with(prefix)) << registry.error().front();
    return registry.error().front().substr(prefix.size());
  }

  const fs::path folder_;
};

TEST_F(Registry, WithoutFilesThereAreNoModels) {
  const auto registry = read();
  EXPECT_TRUE(registry->models().empty());
  RegistryOptions strict = options();
  strict.needs_cards_file = true;
  const auto refused = ModelRegistry::read(strict);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().front().ends_with("models.yaml: No such file or directory"));
  strict.cards_file = folder_.string();
  EXPECT_FALSE(ModelRegistry::read(strict).has_value());
}

TEST_F(Registry, DescribesAFileThatIsNotLoaded) {
  GgufBytes file = GgufBytes::small_model();
  file.u32("general.file_type", 15).write(folder_ / "models" / "a.gguf");
  const auto registry = read();
  const ModelInfo info = info_of(model(*registry, "a"));
  EXPECT_EQ(info.file.architecture, "llama");
  EXPECT_FALSE(info.file.title.empty());
  EXPECT_EQ(info.file.quantization, "Q4_K_M");
  EXPECT_GT(info.file.embedding_length, 0);
  EXPECT_EQ(info.file.bytes, fs::file_size(folder_ / "models" / "a.gguf"));
  EXPECT_GT(info.file.modified_s, 1'600'000'000);
}

TEST_F(Registry, ReadsWhatACardSays) {
  write_model("a.gguf");
  write_projector("eyes.gguf", 99);
  write_cards(R"(
assistant:
  path: models/a.gguf
  capability: vision
  aliases: [gpt-4o, default]
  n_ctx: 8192
  slots: 4
  kv_type: q8_0
  devices: [Vulkan0, CUDA1]
  gpu_layers: 7
  split: [3, 1.5]
  main_device: CUDA1
  rope: {scaling: yarn, scale: 4, yarn_orig_ctx: 32768}
  pin: true
  preload: true
  workers_max: 3
  weights: replicated
  weight: 2.5
  draft_model: tiny
  projector: models/eyes.gguf
  tasks: {query: "search: ", document: ""}
  idle_unload_s: 600
  temperature: 0.6
  top_p: 0.95
  top_k: 20
  min_p: 0.05
  repeat_penalty: 1.1
  presence_penalty: 0.5
  frequency_penalty: -0.5
  repeat_last_n: -1
  dry_multiplier: 0.8
  dry_sequence_breakers: ["\n", "."]
  mirostat: 2
  system: "You are brief: always."
  thinking: false
  reasoning_effort: low
  thinking_budget: 2000
  family: gpt-oss
  deadline_ms: 5000
  speculation: off
)");
  const auto registry = read();
  EXPECT_EQ(names(*registry), (std::vector<std::string>{"assistant"}));
  const RegisteredModel& found = model(*registry, "gpt-4o");
  EXPECT_EQ(&found, &model(*registry, "assistant"));
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.path, (folder_ / "models/a.gguf").string());
  EXPECT_EQ(found.projector_path, (folder_ / "models/eyes.gguf").string());
  EXPECT_EQ(found.capability, Capability::vision);
  EXPECT_GT(found.weight_bytes(), 0u);
  EXPECT_EQ(found.card.sequence_cells, 8192);
  EXPECT_EQ(found.card.slots, 4);
  EXPECT_EQ(found.card.kv_types, llm::KvTypes::both(llm::KvType::q8_0));
  EXPECT_EQ(found.card.devices.value(), llm::DeviceNames({"Vulkan0", "CUDA1"}));
  EXPECT_EQ(found.card.gpu_layers.value(), llm::DeviceLayers(7));
  EXPECT_EQ(found.card.split.value(), (llm::DeviceSplit{3, 1.5}));
  EXPECT_EQ(found.card.main_device.value(), "CUDA1");
  EXPECT_EQ(found.card.rope, (llm::RopeOptions{.scaling = llm::RopeScaling::yarn, .scale = 4, .yarn_orig_ctx = 32'768}));
  EXPECT_TRUE(found.card.is_pinned && found.card.is_preloaded && found.card.replicates_weights);
  EXPECT_EQ(found.card.workers_max, 3);
  EXPECT_EQ(found.card.weight, 2.5);
  EXPECT_EQ(found.card.draft_model, "tiny");
  EXPECT_EQ(found.card.tasks.at("query"), "search: ");
  EXPECT_EQ(found.card.tasks.at("document"), "");
  EXPECT_EQ(found.card.idle_unload_s, 600);
  const ModelDefaults& defaults = found.card.defaults;
  SamplingValues sampling;
  sampling[SamplingField::temperature] = 0.6;
  sampling[SamplingField::top_p] = 0.95;
  sampling[SamplingField::top_k] = 20;
  sampling[SamplingField::min_p] = 0.05;
  sampling[SamplingField::repeat_penalty] = 1.1;
  sampling[SamplingField::presence_penalty] = 0.5;
  sampling[SamplingField::frequency_penalty] = -0.5;
  sampling[SamplingField::repeat_last_n] = -1;
  sampling[SamplingField::dry_multiplier] = 0.8;
  sampling[SamplingField::mirostat] = 2;
  EXPECT_EQ(defaults.sampling, sampling);
  EXPECT_EQ(defaults.dry_sequence_breakers, (std::vector<std::string>{"\n", "."}));
  EXPECT_EQ(defaults.system, "You are brief: always.");
  EXPECT_EQ(defaults.thinking, false);
  EXPECT_EQ(defaults.reasoning_effort, "low");
  EXPECT_EQ(defaults.thinking_budget, 2000);
  EXPECT_EQ(defaults.family, "gpt-oss");
  EXPECT_EQ(defaults.deadline_ms, 5000);
  EXPECT_EQ(defaults.speculates, false);
}

TEST_F(Registry, ACardChoosesDevicesAsTheConfigurationDoes) {
  write_model("a.gguf");
  write_cards(R"(
unset: {path: models/a.gguf}
all: {path: models/a.gguf, devices: auto, gpu_layers: auto}
none: {path: models/a.gguf, devices: none, gpu_layers: 0}
two: {path: models/a.gguf, devices: "Vulkan0, CUDA1"}
)");
  const auto registry = read();
  const auto card = [&](const char* name) { return model(*registry, name).card; };
  EXPECT_FALSE(card("unset").devices || card("unset").gpu_layers);
  EXPECT_EQ(card("all").devices.value(), llm::DeviceNames());
  EXPECT_EQ(card("all").gpu_layers.value(), llm::DeviceLayers());
  EXPECT_EQ(card("none").devices.value(), llm::DeviceNames(std::vector<std::string>()));
  EXPECT_EQ(card("none").gpu_layers.value(), llm::DeviceLayers(0));
  EXPECT_EQ(card("two").devices.value(), llm::DeviceNames({"Vulkan0", "CUDA1"}));
  for (const char* wrong :
       {"devices: []", "devices: [none, Vulkan0]", "devices: [A, A]", "devices: [[A]]", "devices: {A: 1}",
        "devices: \"A\\x01B\"", "devices:", "gpu_layers: -1", "gpu_layers: 99999999999", "gpu_layers: [1]", "gpu_layers: 1.5",
        "gpu_layers:", "split: [-1, 2]", "split: 0", "split: [[1]]", "main_device: none", "main_device: [A, B]"}) {
    const std::string message = mistake(std::format("a: {{path: x, {}}}", wrong));
    EXPECT_TRUE(message.contains("expected auto") || message.contains("expected a list of names")) << wrong << ": " << message;
  }
}

TEST_F(Registry, KnowsTheAdaptersOfACard) {
  write_model("a.gguf");
  GgufBytes adapter;
  adapter.text("general.type", "adapter").text("general.architecture", "llama").text("adapter.type", "lora");
  adapter.write(folder_ / "models/sql.gguf");
  adapter.write(folder_ / "models/unused.gguf");
  write_cards(R"(
base:
  path: models/a.gguf
  aliases: [other]
  adapters:
    sql: {path: models/sql.gguf, scale: 0.5}
    fr: models/fr.gguf
)");
  const auto registry = read();
  EXPECT_EQ(names(*registry), (std::vector<std::string>{"base"})) << "an adapter is no model";
  const RegisteredModel& found = model(*registry, "base");
  EXPECT_EQ(found.problem, "");
  ASSERT_EQ(found.adapters.size(), 2u);
  EXPECT_EQ(found.adapters[0].name, "sql");
  EXPECT_EQ(found.adapters[0].path, (folder_ / "models/sql.gguf").string());
  EXPECT_EQ(found.adapters[0].scale, 0.5);
  EXPECT_NE(found.adapters[0].version, "");
  EXPECT_EQ(found.adapters[1].scale, 1);
  EXPECT_EQ(found.adapters[1].version, "") << "there is no such file";
  EXPECT_EQ(&model(*registry, "base:sql"), &found);
  EXPECT_EQ(&model(*registry, "other:fr"), &found);
  ASSERT_EQ(info_of(found).adapters.size(), 2u);
  EXPECT_EQ(info_of(found).adapters[0].name, "sql");
  const auto says = [&](std::string_view part) {
    return std::ranges::any_of(registry->remarks(), [&](const std::string& remark) { return remark.contains(part); });
  };
  EXPECT_TRUE(says("unused.gguf: a LoRA adapter: name it under `adapters`"));
  EXPECT_FALSE(says("sql.gguf"));
  for (const char* wrong :
       {"x", "[x]", "{a b: x}", "{a: {scale: 1}}", "{a: {path: x, scale: 101}}", "{a: {path: x, colour: 1}}"}) {
    const std::string message = mistake(std::format("a: {{path: x, adapters: {}}}", wrong));
    EXPECT_TRUE(message.contains("a.adapters: expected a map of at most 64 adapters")) << message;
  }
}

TEST_F(Registry, SamplingIsTheCardsElseTheFilesElseTheFamilys) {
  GgufBytes file = GgufBytes::small_model("Magistral Small");
  file.f32("general.sampling.top_p", 0.9F).f32("general.sampling.min_p", 0.01F).u32("general.sampling.top_k", 30);
  file.write(folder_ / "models/a.gguf");
  write_cards("assistant: {path: models/a.gguf, top_k: 7, system: x}");
  const auto registry = read();
  const RegisteredModel& found = model(*registry, "assistant");
  EXPECT_EQ(found.family, "Magistral");
  EXPECT_EQ(found.sampling, (std::vector<SamplingDefault>{{SamplingField::temperature, 0.7, SamplingSource::family},
                                                          {SamplingField::top_p, 0.9, SamplingSource::file},
                                                          {SamplingField::top_k, 7, SamplingSource::card},
                                                          {SamplingField::min_p, 0.01, SamplingSource::file}}));
  const ModelDefaults defaults = defaults_of(found);
  EXPECT_EQ(defaults.sampling[SamplingField::temperature], 0.7);
  EXPECT_EQ(defaults.sampling[SamplingField::top_k], 7);
  EXPECT_EQ(defaults.sampling[SamplingField::repeat_penalty], std::nullopt);
  EXPECT_EQ(defaults.system, "x");
  EXPECT_EQ(info_of(found).sampling.values, found.sampling);
  EXPECT_EQ(info_of(found).sampling.family, "Magistral");
}

TEST_F(Registry, SaysEveryMistakeWithItsLine) {
  EXPECT_EQ(
      mistake("a: {path: x, colour: red}"),
      "1:14: unknown key \"colour\" in a; known: path, url, capability, aliases, n_ctx, slots, kv_type, rope, devices, "
      "gpu_layers, split, main_device, pin, "
      "preload, workers_max, weights, weight, draft_model, projector, vae, steps, guidance, sampler, schedule, prediction, "
      "adapters, "
      "tasks, pooling, frame, dry_sequence_breakers, "
      "system, "
      "thinking, "
      "reasoning_effort, thinking_budget, family, chat_template, "
      "deadline_ms, speculation, idle_unload_s, temperature, top_p, top_k, min_p, typical_p, repeat_penalty, repeat_last_n, "
      "presence_penalty, frequency_penalty, dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, "
      "xtc_probability, xtc_threshold, mirostat, mirostat_tau, mirostat_eta");
  EXPECT_EQ(mistake("a: {path: x, rope: yarn}"),
            "1:20: a.rope: expected a map, such as {scaling: yarn, scale: 4, yarn_orig_ctx: 32768}, got \"yarn\"");
  EXPECT_EQ(mistake("a: {path: x, rope: {scale: -4}}"), "1:20: a.rope: expected scale: a number from 1 to 1000");
  EXPECT_EQ(mistake("a: {path: x, rope: {scaling: none, scale: 4}}"), "1:20: a.rope: expected no scale with scaling none");
  EXPECT_TRUE(mistake("a: {path: x, rope: {factor: 4}}").contains("a.rope: expected factor: one of the keys scaling, scale"));
  EXPECT_EQ(mistake("a: {path: x, mirostat: 1.5}"), "1:24: a.mirostat: expected an integer from 0 to 2, got \"1.5\"");
  EXPECT_EQ(mistake("a: {path: x, min_p: 1}"), "1:21: a.min_p: expected a number from 0 to below 1, got \"1\"");
  EXPECT_EQ(mistake("a: {path: x, typical_p: 0}"), "1:25: a.typical_p: expected a number from above 0 to 1, got \"0\"");
  EXPECT_EQ(mistake("a: {path: x, dry_sequence_breakers: [\"\"]}"),
            "1:37: a.dry_sequence_breakers: expected a list of at most 32 texts of 1 to 64 bytes");
  EXPECT_EQ(mistake("a:\n  path: x\n  n_ctx: many\n"), "3:10: a.n_ctx: expected a number from 0 to 16777216, got \"many\"");
  EXPECT_EQ(mistake("a:\n  path: x\n  slots: 0\n"), "3:10: a.slots: expected a number from 1 to 256, got \"0\"");
  EXPECT_EQ(mistake("a: {path: x, weight: nan}"), "1:22: a.weight: expected a number from 0.001 to 1000, got \"nan\"");
  EXPECT_EQ(mistake("a: {path: [x]}").substr(0, 25), "1:11: a.path: expected a ");
  EXPECT_EQ(mistake("a: {path: x, pin: yes}"), "1:19: a.pin: expected true or false, got \"yes\"");
  EXPECT_EQ(mistake("a: {path: x, pin: true, pin: true}"), "1:25: a.pin is set twice");
  EXPECT_TRUE(
      mistake("a: {path: x, capability: magic}").contains("expected chat, text_embedding, rerank, vision or text_to_image"));
  EXPECT_TRUE(mistake("a: {path: x, aliases: [\"b c\"]}").contains("a list of names without blanks"));
  const std::string family = mistake("a: {path: x, family: gpt-9}");
  EXPECT_TRUE(family.starts_with("1:22: a.family: expected one of gpt-oss, seed-oss, ")) << family;
  EXPECT_TRUE(family.ends_with(", llama3.2, got \"gpt-9\"")) << family;
  EXPECT_EQ(mistake("a: {path: x, thinking_budget: -2}"),
            "1:31: a.thinking_budget: expected a number from -1 to 2147483647, got \"-2\"");
  EXPECT_EQ(mistake("a: {pin: true}"), "1:1: a: expected the key path or url");
  EXPECT_EQ(mistake("a: file.gguf"), "1:4: a: expected a map, such as {path: file.gguf}");
  for (const std::string nested : {"models:\n  a: {path: a.gguf}", "models:\n  - {name: a, path: a.gguf}"})
    EXPECT_TRUE(mistake(nested).starts_with("1:1: the file has no key \"models\" above its models")) << mistake(nested);
  EXPECT_EQ(mistake("models: {path: a.gguf, n_ctx: -1}").substr(0, 9), "1:31: mod") << "it may be a model's name";
  EXPECT_EQ(mistake("\"a b\": {path: x}"), "1:1: expected a model name of at most 128 bytes without blanks");
  EXPECT_EQ(mistake("a: {path: x}\na: {path: y}\n"), "2:1: the name a is already used by a in line 1");
  EXPECT_EQ(mistake("a: {path: x}\nb: {path: y, aliases: [a]}\n"), "2:1: the name a is already used by a in line 1");
  EXPECT_TRUE(mistake("- a\n").contains("expected the names of models"));
  EXPECT_TRUE(mistake("a: {path: [").contains("1:"));
  write_cards("a: {path: x, n_ctx: -1}\nb: {path: x, n_ctx: -1}\n");
  EXPECT_EQ(ModelRegistry::read(options()).error().size(), 2u);
}

TEST_F(Registry, FilesInFoldersAreModels) {
  write_model("b.gguf");
  write_model("a.GGUF");
  std::ofstream(folder_ / "models/notes.txt") << "no model";
  fs::create_directories(folder_ / "models/folder.gguf");
  const auto registry = read();
  EXPECT_EQ(names(*registry), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(model(*registry, "a").is_from_folder);
  EXPECT_EQ(model(*registry, "a").capability, Capability::chat);
}

TEST_F(Registry, ACardReplacesItsFileAndTheFirstFolderWins) {
  write_model("a.gguf");
  fs::create_directories(folder_ / "more");
  GgufBytes::small_model().write(folder_ / "more/a.gguf");
  GgufBytes::small_model().write(folder_ / "more/b.gguf");
  write_cards("named: {path: b}\n");
  RegistryOptions two = options();
  two.folders.push_back((folder_ / "more").string());
  const auto registry = ModelRegistry::read(two);
  ASSERT_TRUE(registry.has_value());
  EXPECT_EQ(names(**registry), (std::vector<std::string>{"named", "a"}));
  EXPECT_EQ(model(**registry, "a").path, (folder_ / "models/a.gguf").string());
  EXPECT_EQ(model(**registry, "named").path, (folder_ / "more/b.gguf").string());
  ASSERT_EQ((*registry)->remarks().size(), 1u);
  EXPECT_TRUE((*registry)->remarks()[0].contains("another model has that name"));
}

TEST_F(Registry, BadFilesAreListedWithTheirReason) {
  std::ofstream(folder_ / "models/broken.gguf") << "GGUFxxxx";
  write_cards("gone: {path: models/gone.gguf}\nremote: {url: \"https://host/x/far.gguf?download=1\"}\n");
  const auto registry = read();
  EXPECT_EQ(names(*registry), (std::vector<std::string>{"gone", "remote", "broken"}));
  EXPECT_TRUE(model(*registry, "broken").problem.contains("broken.gguf: its GGUF version"));
  EXPECT_TRUE(model(*registry, "gone").problem.ends_with("gone.gguf: no such file"));
  EXPECT_EQ(model(*registry, "remote").problem,
            "it was not downloaded yet: run uma-cli pull https://host/x/far.gguf?download=1");
  EXPECT_EQ(model(*registry, "remote").path, "");
  write_model("far.gguf");
  const auto fetched = registry->reload();
  ASSERT_TRUE(fetched.has_value());
  EXPECT_EQ(model(**fetched, "remote").problem, "");
  EXPECT_EQ(model(**fetched, "remote").path, (folder_ / "models/far.gguf").string());
}

TEST_F(Registry, WhatAModelCanDoIsInItsFile) {
  GgufBytes embeds = GgufBytes::small_model();
  embeds.u32("llama.pooling_type", 1).write(folder_ / "models/embeds.gguf");
  GgufBytes encodes = GgufBytes::small_model();
  encodes.boolean("llama.attention.causal", false).write(folder_ / "models/encodes.gguf");
  GgufBytes ranks = GgufBytes::small_model();
  ranks.u32("llama.pooling_type", 4).write(folder_ / "models/ranks.gguf");
  write_cards("other: {path: models/embeds.gguf, capability: chat}\n");
  const auto registry = read();
  EXPECT_EQ(model(*registry, "encodes").capability, Capability::text_embedding);
  EXPECT_EQ(model(*registry, "ranks").capability, Capability::rerank);
  EXPECT_EQ(model(*registry, "other").capability, Capability::chat);
}

TEST_F(Registry, AProjectorGoesToTheModelOfItsName) {
  write_model("Sees-4b-Q4_K_M.gguf");
  write_model("other.gguf");
  write_projector("mmproj-sees-4b-f16.gguf", 16);
  auto registry = read();
  EXPECT_EQ(names(*registry), (std::vector<std::string>{"Sees-4b-Q4_K_M", "other"}));
  EXPECT_EQ(model(*registry, "Sees-4b-Q4_K_M").projector_path, (folder_ / "models/mmproj-sees-4b-f16.gguf").string());
  EXPECT_EQ(model(*registry, "Sees-4b-Q4_K_M").capability, Capability::vision);
  EXPECT_EQ(model(*registry, "other").projector_path, "");
  EXPECT_TRUE(registry->remarks().empty());

  // Another quantization of the model shares it; of two projectors of that name, the first counts.
  write_model("sees-4b-q8_0.gguf");
  write_projector("mmproj-sees-4b-q8_0.gguf", 16);
  registry = read();
  for (const char* name : {"Sees-4b-Q4_K_M", "sees-4b-q8_0"})
    EXPECT_EQ(model(*registry, name).projector_path, (folder_ / "models/mmproj-sees-4b-f16.gguf").string());
  ASSERT_EQ(registry->remarks().size(), 1u);
  EXPECT_TRUE(registry->remarks()[0].contains("in its card"));
  fs::remove(folder_ / "models/mmproj-sees-4b-q8_0.gguf");

  // One without a name belongs to an only model.
  fs::rename(folder_ / "models/mmproj-sees-4b-f16.gguf", folder_ / "models/mmproj-f16.gguf");
  registry = read();
  EXPECT_EQ(model(*registry, "sees-4b-q8_0").projector_path, "");
  EXPECT_TRUE(registry->remarks()[0].contains("in its card"));
  fs::remove(folder_ / "models/mmproj-f16.gguf");

  // Of another width it fits neither.
  write_projector("mmproj-sees-4b-f16.gguf", 64);
  registry = read();
  EXPECT_TRUE(registry->remarks()[0].contains("without a model of the same name"));
}

TEST_F(Registry, AProjectorMakesVectorsOfImages) {
  write_model("chat.gguf");
  write_projector("mmproj-chat.gguf", 16);
  GgufBytes last = GgufBytes::small_model();
  last.u32("llama.pooling_type", 3).write(folder_ / "models" / "last.gguf");
  write_projector("mmproj-last.gguf", 16);
  GgufBytes mean = GgufBytes::small_model();
  mean.u32("llama.pooling_type", 1).write(folder_ / "models" / "mean.gguf");
  write_projector("mmproj-mean.gguf", 16);
  write_model("given.gguf");
  write_projector("eyes.gguf", 16);
  write_model("blind.gguf");
  write_cards("given: {path: models/given.gguf, projector: models/eyes.gguf, pooling: last, frame: plain}\n");
  const auto registry = read();
  const auto kind = [&](std::string_view name) { return info_of(model(*registry, name)).image_vectors; };
  EXPECT_EQ(kind("chat"), ImageVectors::projector);
  EXPECT_EQ(kind("last"), ImageVectors::shared);
  EXPECT_EQ(kind("mean"), ImageVectors::projector);
  EXPECT_EQ(kind("given"), ImageVectors::shared);
  EXPECT_EQ(kind("blind"), ImageVectors::none);
  for (const std::string_view name : {"last", "mean", "given"}) {
    EXPECT_EQ(model(*registry, name).capability, Capability::text_embedding) << name;
    EXPECT_TRUE(info_of(model(*registry, name)).reads_images) << name;
  }
  EXPECT_EQ(defaults_of(model(*registry, "given")).has_chat_frame, false);
  EXPECT_TRUE(mistake("a: {path: x, pooling: rank}").contains("expected mean, cls or last, got \"rank\""));
  EXPECT_TRUE(mistake("a: {path: x, frame: chatml}").contains("expected chat or plain"));
}

TEST_F(Registry, CardsSayHowAModelDraws) {
  EXPECT_TRUE(mistake("a: {path: x, sampler: ddim}").contains("expected one of euler, euler_a, dpm++_2m, lcm"));
  EXPECT_TRUE(mistake("a: {path: x, schedule: fast}").contains("expected one of discrete, karras, trailing"));
  EXPECT_TRUE(mistake("a: {path: x, prediction: both}").contains("expected noise or velocity"));
  EXPECT_TRUE(mistake("a: {path: x, steps: 0}").contains("expected a number from 1 to 150"));
}

TEST_F(Registry, AModelOfSeveralFilesIsOneModel) {
  for (std::uint32_t i = 0; i < 2; ++i) {
    GgufBytes part = i == 0 ? GgufBytes::small_model() : GgufBytes();
    part.u32("split.count", 2).u32("split.no", i).tensor("blk.0.part" + std::to_string(i) + ".weight", {16, 16});
    if (i == 0) part.write(folder_ / "models/big-00001-of-00002.gguf");
    if (i == 1) {
      const auto half = read();
      EXPECT_TRUE(model(*half, "big").problem.contains("big-00002-of-00002.gguf: No such file"));
      part.write(folder_ / "models/big-00002-of-00002.gguf");
      const auto whole = half->reload();
      ASSERT_TRUE(whole.has_value());
      EXPECT_EQ(names(**whole), (std::vector<std::string>{"big"}));
      EXPECT_EQ(model(**whole, "big").problem, "");
      EXPECT_EQ(model(**whole, "big").weight_bytes(), (16u * 4 + 16 + 2 * 16 * 16) * 4);
    }
  }
}

TEST_F(Registry, UnknownNamesAreAnsweredWithTheNearest) {
  for (const char* name : {"llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.3-70b", "qwen3-4b"}) {
    write_model(std::string(name) + ".gguf");
  }
  const auto registry = read();
  const auto message = [&](std::string_view name) {
    const auto found = registry->find(name);
    EXPECT_FALSE(found.has_value());
    if (found) return std::string();
    EXPECT_EQ(found.error().code, ErrorCode::model_unknown);
    return found.error().message;
  };
  EXPECT_EQ(message("lama-3.2-1b"),
            "no model \"lama-3.2-1b\" among 5; similar names: llama-3.2-1b, llama-3.2-3b, llama-3.1-8b");
  EXPECT_EQ(message("QWEN3-4B"), "no model \"QWEN3-4B\" among 5; similar names: qwen3-4b");
  EXPECT_EQ(message("qwen"), "no model \"qwen\" among 5; similar names: qwen3-4b");
  EXPECT_EQ(message("something else"), "no model \"something else\" among 5: list the models to see their names");
  EXPECT_EQ(message(""), "no model \"\" among 5: list the models to see their names");
  EXPECT_LT(message(std::string(1 << 20, 'x')).size(), 300u);
}

TEST_F(Registry, AReloadReadsOnlyWhatHasChanged) {
  write_model("a.gguf");
  write_model("b.gguf");
  write_cards("named: {path: models/a.gguf}\n");
  const auto first = read();
  write_cards("named: {path: models/a.gguf, pin: true}\n");
  GgufBytes changed = GgufBytes::small_model();
  changed.u32("llama.pooling_type", 1).write(folder_ / "models/b.gguf");
  const auto second = first->reload();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(model(**second, "named").file, model(*first, "named").file);
  EXPECT_NE(model(**second, "b").file, model(*first, "b").file);
  EXPECT_TRUE(model(**second, "named").card.is_pinned);
  EXPECT_EQ(model(**second, "b").capability, Capability::text_embedding);
  // The first is as it was, and stays where the next cannot be read.
  EXPECT_FALSE(model(*first, "named").card.is_pinned);
  write_cards("named: [\n");
  EXPECT_FALSE((*second)->reload().has_value());
  fs::remove(folder_ / "models/b.gguf");
  write_cards("");
  const auto third = (*second)->reload();
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(names(**third), (std::vector<std::string>{"a"}));
}

TEST_F(Registry, FilesThatComeAndGoAreSeen) {
  const auto age = [&] {  // The last change becomes so old that no later one can have the same time.
    fs::last_write_time(folder_ / "models", fs::last_write_time(folder_ / "models") - std::chrono::hours(1));
  };
  write_model("a.gguf");
  age();
  const auto first = read();
  EXPECT_FALSE(first->have_folders_changed());
  write_model("b.gguf");
  EXPECT_TRUE(first->have_folders_changed());
  const auto second = first->rescan();
  EXPECT_EQ(names(*second), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(second->have_folders_changed()) << "another file may have come in the same instant";
  age();
  const auto third = second->rescan();
  EXPECT_FALSE(third->have_folders_changed());
  fs::remove(folder_ / "models/a.gguf");
  EXPECT_EQ(names(*third->rescan()), (std::vector<std::string>{"b"}));
  fs::remove_all(folder_ / "models");
  EXPECT_TRUE(third->have_folders_changed());
  const auto none = third->rescan();
  EXPECT_TRUE(none->models().empty());
  EXPECT_FALSE(none->have_folders_changed());
  fs::create_directories(folder_ / "models");
  EXPECT_TRUE(none->have_folders_changed()) << "also a folder that did not exist";
}

// While it lives, the process can open no further file.
class NoFilesCanBeOpened {
 public:
  NoFilesCanBeOpened() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoFilesCanBeOpened() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoFilesCanBeOpened(const NoFilesCanBeOpened&) = delete;
  NoFilesCanBeOpened& operator=(const NoFilesCanBeOpened&) = delete;

 private:
  rlimit before_{};
};

TEST_F(Registry, AFolderThatCannotBeReadNowKeepsItsModels) {
  write_model("a.gguf");
  const auto first = read();
  write_model("b.gguf");
  std::shared_ptr<const ModelRegistry> second;
  {
    const NoFilesCanBeOpened limit;
    second = first->rescan();
  }
  EXPECT_EQ(names(*second), (std::vector<std::string>{"a"}));
  EXPECT_EQ(model(*second, "a").problem, "");
  EXPECT_TRUE(second->have_folders_changed());
  EXPECT_EQ(names(*second->rescan()), (std::vector<std::string>{"a", "b"}));
}

TEST_F(Registry, AFileThatCannotBeReadNowIsReadAgain) {
  write_model("a.gguf");
  const RegistryOptions one{.cards_file = "", .model_path = (folder_ / "models/a.gguf").string(), .folders = {}};
  std::shared_ptr<const ModelRegistry> unread;
  {
    const NoFilesCanBeOpened limit;
    unread = ModelRegistry::read(one).value();
  }
  EXPECT_NE(model(*unread, "a").problem, "");
  EXPECT_TRUE(unread->have_invalid_files_changed());
  EXPECT_EQ(model(*unread->rescan(), "a").problem, "");
}

TEST_F(Registry, AFileThatWasIncompleteIsReadAgain) {
  write_model("a.gguf");
  const auto whole = fs::file_size(folder_ / "models/a.gguf");
  fs::resize_file(folder_ / "models/a.gguf", 20);
  const auto first = read();
  EXPECT_NE(model(*first, "a").problem, "");
  EXPECT_FALSE(first->have_invalid_files_changed());
  write_model("a.gguf");
  ASSERT_EQ(fs::file_size(folder_ / "models/a.gguf"), whole);
  EXPECT_TRUE(first->have_invalid_files_changed());
  const auto second = first->rescan();
  EXPECT_EQ(model(*second, "a").problem, "");
  EXPECT_FALSE(second->have_invalid_files_changed());
}

TEST_F(Registry, FurtherNamesNeedAModelAndAreFree) {
  write_model("a.gguf");
  write_model("b.gguf");
  RegistryOptions with_names = options();
  with_names.aliases_file = (folder_ / "names").string();
  std::ofstream(with_names.aliases_file) << "owner/repo:q4 a\nb a\nx gone\n\nbroken\n";
  const auto registry = ModelRegistry::read(with_names).value();
  EXPECT_EQ(model(*registry, "owner/repo:q4").card.name, "a");
  EXPECT_EQ(model(*registry, "b").card.name, "b");
  EXPECT_FALSE(registry->find("x").has_value());
  EXPECT_FALSE(registry->find("broken").has_value());
  EXPECT_EQ(model(*registry, "a").card.aliases, (std::vector<std::string>{"owner/repo:q4"}));
}

// Thousands of cards and hundreds of files; what it takes is recorded, not judged.
TEST_F(Registry, ReadsThousandsOfModels) {
  constexpr int kCards = 5000;
  constexpr int kFiles = 500;
  std::string yaml;
  for (int i = 0; i < kCards; ++i) {
    yaml += std::format("card-{}:\n  path: models/file-{}.gguf\n  aliases: [alias-{}]\n  n_ctx: 4096\n", i, i % kFiles, i);
  }
  write_cards(yaml);
  for (int i = 0; i < kFiles; ++i) write_model(std::format("file-{}.gguf", i));
  auto ms = [begin = std::chrono::steady_clock::now()]() mutable {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(begin, now)).count();
  };
  RegistryOptions files_only = options();
  files_only.cards_file.clear();
  (void)ms();
  const auto of_files = ModelRegistry::read(files_only);
  RecordProperty("files_ms", std::to_string(ms()));
  const auto first = read();
  RecordProperty("cards_and_files_ms", std::to_string(ms()));
  const auto second = first->reload();
  RecordProperty("reload_ms", std::to_string(ms()));
  EXPECT_FALSE(first->find("alias-4999x-unknown").has_value());
  RecordProperty("unknown_name_ms", std::to_string(ms()));
  ASSERT_TRUE(of_files.has_value() && second.has_value());
  EXPECT_EQ((*of_files)->models().size(), static_cast<std::size_t>(kFiles));
  EXPECT_EQ(first->models().size(), static_cast<std::size_t>(kCards));
  EXPECT_EQ((*second)->models().size(), static_cast<std::size_t>(kCards));
  EXPECT_EQ(model(**second, "alias-4999").card.name, "card-4999");
  EXPECT_EQ(model(**second, "alias-4999").problem, "");
}

}  // namespace
}  // namespace uma::pool
