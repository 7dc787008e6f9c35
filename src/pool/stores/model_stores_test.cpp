#include "pool/stores/model_stores.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "pool/model_registry.h"
#include "pool/stores/repository_files.h"
#include "testing/gguf_bytes.h"

namespace uma::pool {
namespace {

using testing::GgufBytes;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

const std::string kCommit = "0123456789012345678901234567890123456789";

std::string hash_number(int number) {
  return std::format("{:064x}", number);
}

// A home folder with stores.
class ModelStores : public ::testing::Test {
 protected:
  ModelStores() : home_(fs::path(::testing::TempDir()) / std::format("uma-stores-{}", ::getpid())) {
    fs::create_directories(home_);
  }
  ~ModelStores() override { fs::remove_all(home_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((home_ / path).parent_path());
    std::ofstream(home_ / path) << text;
  }
  // `title`: models with different titles differ.
  void write_model(const std::string& path, const std::string& title) const {
    fs::create_directories((home_ / path).parent_path());
    GgufBytes file = GgufBytes::small_model();
    file.text("general.description", title).write(home_ / path);
  }
  void write_projector(const std::string& path, std::uint32_t width) const {
    fs::create_directories((home_ / path).parent_path());
    GgufBytes file;
    file.text("general.architecture", "clip").u32("clip.vision.projection_dim", width).tensor("v.patch_embd.weight", {8, 8});
    file.write(home_ / path);
  }
  // A file of a repository as huggingface_hub keeps it.
  void put_in_hub(const std::string& repository, const std::string& name, int hash, const std::string& title) const {
    const fs::path folder = fs::path(".cache/huggingface/hub") / repository;
    write_model((folder / "blobs" / hash_number(hash)).string(), title);
    write((folder / "refs" / "main").string(), kCommit);
    const fs::path link = home_ / folder / "snapshots" / kCommit / name;
    fs::create_directories(link.parent_path());
    const fs::path up = name.contains('/') ? "../../../blobs" : "../../blobs";
    fs::create_symlink(up / hash_number(hash), link);
  }
  // A layer of a manifest of Ollama; `text` is its content.
  std::string layer(const std::string& kind, int hash, const std::string& text) const {
    write(".ollama/models/blobs/sha256-" + hash_number(hash), text);
    return layer(kind, hash);
  }
  static std::string layer(const std::string& kind, int hash) {
    return std::format(R"({{"mediaType": "application/vnd.ollama.image.{}", "digest": "sha256:{}", "size": 1}})", kind,
                       hash_number(hash));
  }
  void put_in_ollama(const std::string& place, const std::string& layers) const {
    write(".ollama/models/manifests/" + place, std::format(R"({{"schemaVersion": 2, "layers": [{}]}})", layers));
  }
  [[nodiscard]] StoreFolders folders() const {
    return usual_stores([this](const char* name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::string() : found->second;
    });
  }
  // Those of the test alone.
  [[nodiscard]] StoreFolders own_folders() const {
    StoreFolders stores = folders();
    std::erase(stores.ollama, "/usr/share/ollama/.ollama/models");
    return stores;
  }
  [[nodiscard]] StoreContents read() const { return read_stores(own_folders()); }
  [[nodiscard]] std::shared_ptr<const ModelRegistry> registry() const {
    auto registry = ModelRegistry::read(
        {.cards_file = (home_ / "models.yaml").string(), .folders = {(home_ / "own").string()}, .stores = own_folders()});
    EXPECT_TRUE(registry.has_value());
    return registry ? *registry : nullptr;
  }
  [[nodiscard]] static const RegisteredModel& model(const ModelRegistry& registry, std::string_view name) {
    const auto found = registry.find(name);
    EXPECT_TRUE(found.has_value()) << name;
    static const RegisteredModel none;
    return found ? **found : none;
  }

  const fs::path home_;
  std::map<std::string, std::string> variables_{{"HOME", home_.string()}};
};

TEST_F(ModelStores, WithoutStoresThereAreNoModels) {
  EXPECT_TRUE(read().models.empty());
  variables_.clear();
  variables_["OLLAMA_MODELS"] = "relative";
  EXPECT_TRUE(read().models.empty());
}

TEST_F(ModelStores, VariablesSayWhereStoresAre) {
  variables_ = {{"HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}};
  EXPECT_EQ(folders().hub, Names{"/c/huggingface/hub"});
  EXPECT_EQ(folders().llama_cpp, Names{"/c/llama.cpp"});
  EXPECT_EQ(folders().ollama, (Names{"/h/.ollama/models", "/usr/share/ollama/.ollama/models"}));
  EXPECT_EQ(folders().lm_studio, (Names{"/h/.lmstudio/models", "/c/lm-studio/models"}));
  variables_ = {{"HOME", "/h"}, {"HF_HOME", "/f"}, {"OLLAMA_MODELS", "/o"}, {"LLAMA_CACHE", "/l"}};
  EXPECT_EQ(folders().hub, Names{"/f/hub"});
  EXPECT_EQ(folders().llama_cpp, Names{"/l"});
  EXPECT_EQ(folders().ollama, Names{"/o"});
  variables_["HF_HUB_CACHE"] = "/b";
  EXPECT_EQ(folders().hub, Names{"/b"});
}

TEST_F(ModelStores, AFileOfTheHubHasItsOwnNameAndThatOfItsRepository) {
  put_in_hub("models--owner--Great-1B-GGUF", "great-1b-Q4_K_M.gguf", 1, "one");
  put_in_hub("models--owner--Great-1B-GGUF", "Q8/great-1b-Q8_0-00001-of-00002.gguf", 2, "two");
  put_in_hub("models--owner--Great-1B-GGUF", "Q8/great-1b-Q8_0-00002-of-00002.gguf", 3, "three");
  put_in_hub("models--owner--single", "one.gguf", 4, "four");
  put_in_hub("datasets--owner--texts", "data.gguf", 5, "five");
  const StoreContents contents = read();
  ASSERT_EQ(contents.models.size(), 3u);
  EXPECT_EQ(contents.models[0].names, (Names{"great-1b-Q8_0", "owner/Great-1B-GGUF:Q8_0"}));
  EXPECT_EQ(contents.models[1].names, (Names{"great-1b-Q4_K_M", "owner/Great-1B-GGUF:Q4_K_M"}));
  EXPECT_EQ(contents.models[1].sha256, hash_number(1));
  EXPECT_EQ(contents.models[1].store, "Hugging Face");
  EXPECT_EQ(contents.models[2].names, (Names{"one", "owner/single"}));
}

TEST_F(ModelStores, ANewerCommitOfTheHubReplacesTheOlder) {
  put_in_hub("models--o--r", "old.gguf", 1, "one");
  const fs::path folder = home_ / ".cache/huggingface/hub/models--o--r";
  fs::create_directories(folder / "snapshots" / "another");
  fs::create_symlink("../../blobs/" + hash_number(1), folder / "snapshots" / "another" / "new.gguf");
  EXPECT_EQ(read().models.front().names.front(), "old") << "`main` is the other one";
  std::ofstream(folder / "refs" / "main") << "another";
  ASSERT_EQ(read().models.size(), 1u);
  EXPECT_EQ(read().models.front().names.front(), "new");
  fs::remove_all(folder / "refs");
  EXPECT_EQ(read().models.size(), 1u);
  std::ofstream(folder / "refs") << "../../../..";
  EXPECT_EQ(read().models.size(), 1u);
}

TEST_F(ModelStores, FilesOfLmStudioAreOfTheirRepository) {
  write_model(".lmstudio/models/owner/Great-GGUF/great-Q4_0.gguf", "one");
  write_model(".lmstudio/models/owner/Great-GGUF/deeper/no.gguf", "two");
  write(".lmstudio/models/owner/Great-GGUF/config.json", "{}");
  const StoreContents contents = read();
  ASSERT_EQ(contents.models.size(), 1u);
  EXPECT_EQ(contents.models[0].names, (Names{"great-Q4_0", "owner/Great-GGUF:Q4_0", "owner/Great-GGUF"}));
}

TEST_F(ModelStores, FilesOfLlamaCppLoseTheirRepositorysName) {
  write_model(".cache/llama.cpp/own_er_Great-GGUF_great-Q4_0.gguf", "one");
  write(".cache/llama.cpp/manifest=own_er=Great-GGUF=latest.json", "{}");
  write_model(".cache/llama.cpp/by_hand.gguf", "two");
  write(".cache/llama.cpp/manifest=x", "{}");
  const StoreContents contents = read();
  ASSERT_EQ(contents.models.size(), 2u);
  EXPECT_EQ(contents.models[0].names, Names{"by_hand"});
  EXPECT_EQ(contents.models[1].names, (Names{"great-Q4_0", "own_er/Great-GGUF:Q4_0", "own_er/Great-GGUF"}));
}

TEST_F(ModelStores, AModelOfOllamaHasItsNameSystemAndParameters) {
  put_in_ollama("registry.ollama.ai/library/great/4b",
                layer("model", 1, "weights") + "," + layer("system", 2, "Be brief.") + "," +
                    layer("params", 3, R"({"temperature": 0.6, "top_k": 20, "num_ctx": 8192, "stop": ["x"], "min_p": "bad"})"));
  put_in_ollama("registry.ollama.ai/someone/great/latest", layer("model", 4, "others"));
  put_in_ollama("hf.co/owner/Great-GGUF/Q4_0", layer("model", 5, "third"));
  const StoreContents contents = read();
  ASSERT_EQ(contents.models.size(), 3u);
  EXPECT_EQ(contents.models[0].names, Names{"hf.co/owner/Great-GGUF:Q4_0"});
  const StoredModel& own = contents.models[1];
  EXPECT_EQ(own.names, Names{"great:4b"});
  EXPECT_EQ(own.path, (home_ / ".ollama/models/blobs" / ("sha256-" + hash_number(1))).string());
  EXPECT_EQ(own.defaults.system, "Be brief.");
  EXPECT_EQ(own.defaults.sampling[SamplingField::temperature], 0.6);
  EXPECT_EQ(own.defaults.sampling[SamplingField::top_k], 20);
  EXPECT_FALSE(own.defaults.sampling[SamplingField::min_p]);
  EXPECT_EQ(own.sequence_cells, 8192);
  EXPECT_EQ(contents.models[2].names, (Names{"someone/great:latest", "someone/great"}));
}

TEST_F(ModelStores, AManifestThatIsNoneIsARemark) {
  const std::string place = "registry.ollama.ai/library/";
  put_in_ollama(place + "empty/a", "");
  put_in_ollama(place + "outside/a",
                R"({"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/x"})");
  put_in_ollama(place + "number/a", R"({"mediaType": 7, "digest": "sha256:"})");
  put_in_ollama(place + "adapted/a", layer("model", 1, "weights") + "," + layer("adapter", 2, "more"));
  write(".ollama/models/manifests/" + place + "text/a", "not JSON");
  write(".ollama/models/manifests/" + place + "large/a", std::string(2 << 20, '['));
  write(".ollama/models/manifests/stray", "{}");
  const StoreContents contents = read();
  EXPECT_TRUE(contents.models.empty());
  EXPECT_EQ(contents.remarks.size(), 6u);
}

TEST_F(ModelStores, QuantizationsAreAtTheEndOfNames) {
  EXPECT_EQ(quantization_in("great-1b-Q4_K_M"), "Q4_K_M");
  EXPECT_EQ(quantization_in("great.iq3_xxs"), "iq3_xxs");
  EXPECT_EQ(quantization_in("great-BF16"), "BF16");
  EXPECT_EQ(quantization_in("gpt-oss-20b-mxfp4"), "mxfp4");
  EXPECT_EQ(quantization_in("great-qwen3"), "");
  EXPECT_EQ(quantization_in("q"), "");
  EXPECT_EQ(quantization_in(""), "");
}

TEST_F(ModelStores, AFileInSeveralStoresIsOneModelWithAllItsNames) {
  write_model("own/mine.gguf", "one");
  put_in_hub("models--owner--Great-GGUF", "great-Q4_0.gguf", 1, "one");
  write_model(".lmstudio/models/owner/Great-GGUF/great-Q4_0.gguf", "one");
  write_model(".lmstudio/models/owner/Other-GGUF/other-Q4_0.gguf", "two");
  const auto known = registry();
  ASSERT_EQ(known->models().size(), 2u);
  const RegisteredModel& mine = model(*known, "mine");
  EXPECT_EQ(mine.card.aliases, (Names{"great-Q4_0", "owner/Great-GGUF:Q4_0", "owner/Great-GGUF"}));
  EXPECT_EQ(mine.store, "");
  EXPECT_EQ(&model(*known, "owner/Great-GGUF:Q4_0"), &mine);
  EXPECT_EQ(model(*known, "other-Q4_0").store, "LM Studio");
  EXPECT_EQ(info_of(model(*known, "other-Q4_0")).store, "LM Studio");
}

TEST_F(ModelStores, OneFileWithTwoSystemMessagesIsThreeModels) {
  write_model(".ollama/models/blobs/sha256-" + hash_number(1), "one");
  const std::string place = "registry.ollama.ai/library/";
  put_in_ollama(place + "great/4b", layer("model", 1));
  put_in_ollama(place + "great/latest", layer("model", 1));
  put_in_ollama(place + "pirate/latest", layer("model", 1) + "," + layer("system", 2, "You are a pirate."));
  put_in_ollama(place + "poet/latest", layer("model", 1) + "," + layer("system", 3, "You are a poet."));
  const auto known = registry();
  ASSERT_EQ(known->models().size(), 3u);
  EXPECT_EQ(&model(*known, "great"), &model(*known, "great:4b"));
  EXPECT_EQ(model(*known, "great").card.defaults.system, "");
  EXPECT_EQ(model(*known, "poet").card.defaults.system, "You are a poet.");
}

TEST_F(ModelStores, ACardKeepsItsSettings) {
  write_model(".ollama/models/blobs/sha256-" + hash_number(1), "one");
  put_in_ollama("registry.ollama.ai/library/great/4b", layer("model", 1) + "," + layer("system", 2, "Be brief."));
  write("models.yaml", std::format("mine:\n  path: {}\n  system: Be long.\n",
                                   (home_ / ".ollama/models/blobs" / ("sha256-" + hash_number(1))).string()));
  const auto known = registry();
  ASSERT_EQ(known->models().size(), 1u);
  EXPECT_EQ(model(*known, "great:4b").card.defaults.system, "Be long.");
}

TEST_F(ModelStores, AProjectorOfTheRightWidthBelongsToEveryModelOfItsRepository) {
  const std::string folder = ".lmstudio/models/owner/Seeing-GGUF/";
  write_model(folder + "seeing-Q4_0.gguf", "one");
  write_model(folder + "seeing-Q8_0.gguf", "two");
  write_projector(folder + "mmproj-F32.gguf", 1);
  const auto width = static_cast<std::uint32_t>(model(*registry(), "seeing-Q4_0").header()->embedding_length);
  EXPECT_EQ(model(*registry(), "seeing-Q4_0").projector_path, "") << "the width differs";
  write_projector(folder + "mmproj-BF16.gguf", width);
  write_projector(folder + "mmproj-F16.gguf", width);
  const auto known = registry();
  ASSERT_EQ(known->models().size(), 2u);
  for (const RegisteredModel& each : known->models()) {
    EXPECT_TRUE(each.projector_path.ends_with("/mmproj-F16.gguf")) << each.card.name;
    EXPECT_EQ(each.capability, Capability::vision);
  }
}

TEST_F(ModelStores, AFileThatIsMissingOrBrokenSaysSo) {
  put_in_hub("models--o--gone", "gone.gguf", 1, "one");
  fs::remove(home_ / ".cache/huggingface/hub/models--o--gone/blobs" / hash_number(1));
  write(".lmstudio/models/owner/bad/bad.gguf", "GGUF, but not really");
  const auto known = registry();
  ASSERT_EQ(known->models().size(), 2u);
  EXPECT_TRUE(model(*known, "gone").problem.ends_with("no such file; Hugging Face may not have fetched it to its end"));
  EXPECT_FALSE(model(*known, "bad").problem.empty());
}

TEST_F(ModelStores, WhatIsFetchedLaterIsSeen) {
  const auto before = registry();
  put_in_hub("models--o--r", "late.gguf", 1, "one");
  put_in_ollama("registry.ollama.ai/library/late/1b", layer("model", 1));
  write_model(".ollama/models/blobs/sha256-" + hash_number(1), "two");
  EXPECT_TRUE(before->have_folders_changed());
  const auto after = before->rescan();
  EXPECT_EQ(&model(*after, "late"), &model(*after, "late:1b")) << "they have the same hash";
}

}  // namespace
}  // namespace uma::pool
