// Every part of Stable Diffusion's networks, against the reference in PyTorch.
#include "llm/picture/diffusion_graph.h"

#include <filesystem>
#include <optional>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "llm/llama_model.h"
#include "llm/picture/clip_tokens.h"
#include "llm/picture/diffusion_test_support.h"
#include "llm/picture/time_waves.h"

namespace uma::llm {
namespace {

using ::testing::HasSubstr;

// A small model's tensors in memory, and the results of its graphs.
class SmallNetwork {
 public:
  explicit SmallNetwork(const SmallDiffusion& model, std::size_t column_bytes_max = 64ul << 20)
      : path_(std::filesystem::temp_directory_path() / std::format("uma-diffusion-graph-{}.safetensors", ::getpid())) {
    init_llama();
    model.write_safetensors(path_);
    PictureSource source{.path = path_.string()};
    auto head = read_safetensors_header(path_.string());
    std::vector<GgufHeader> heads = {*std::move(head)};
    const bool is_whole = heads.front().is_diffusion();
    std::map<std::string, DiffusionTensor> tensors;
    if (is_whole) {
      const auto file = diffusion_file_of(source, heads);
      EXPECT_TRUE(file.has_value()) << (file ? "" : file.error().message);
      network_.family = file->family;
      network_.text_layers = file->text_layers;
      tensors = file->tensors;
    } else {
      for (const GgufTensor& tensor : heads.front().tensors) {
        const std::size_t dot = tensor.name.find('.');
        const std::string ours = std::format("tae.{}{}", std::stoi(tensor.name.substr(0, dot)) - 1, tensor.name.substr(dot));
        tensors[ours] = {.name = tensor.name, .sizes = tensor.sizes, .offset = heads.front().data_offset + tensor.offset};
      }
    }
    network_.column_bytes_max = column_bytes_max;
    context_.reset(ggml_init({.mem_size = tensors.size() * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
    for (const auto& [name, tensor] : tensors) {
      const std::vector<std::int64_t> sizes = sizes_in_memory(tensor);
      network_.tensors[name] = ggml_new_tensor(context_.get(), GGML_TYPE_F32, static_cast<int>(sizes.size()), sizes.data());
    }
    auto* const cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(cpu)));
    std::ifstream data(path_, std::ios::binary);
    for (const auto& [name, tensor] : tensors) {
      std::vector<float> read(static_cast<std::size_t>(ggml_nelements(network_.tensors[name])));
      data.seekg(static_cast<std::streamoff>(tensor.offset));
      data.read(reinterpret_cast<char*>(read.data()), static_cast<std::streamsize>(read.size() * sizeof(float)));
      set_numbers(network_.tensors[name], read);
    }
    runner_.emplace(nullptr, *Backends::on(nullptr), 2);
  }
  ~SmallNetwork() { std::filesystem::remove(path_); }

  // Every result of the graph, by its name; the last one is `out` of the graph, under `name`.
  template <class Graph, class Make, class Give>
  std::map<std::string, std::vector<float>> compute(const std::string& name, ggml_tensor* Graph::* out, const Make& make,
                                                    const Give& give) {
    GraphObserver observer{.used = {}, .keeps_results = true, .results = {}};
    std::map<std::string, std::vector<float>> found;
    const auto done = runner_->run<Graph>(
        nullptr, [](const Graph&) { return false; }, [&] { return make(network_, &observer); }, give,
        [&](const Graph& graph) {
          for (const auto& [part, tensor] : observer.results) found[part] = numbers_of(tensor);
          found[name] = numbers_of(graph.*out);
        });
    EXPECT_TRUE(done && *done) << (done ? "" : done.error().message);
    return found;
  }

  std::map<std::string, std::vector<float>> text() {
    return compute<TextGraph>("text", &TextGraph::text, make_text_graph, [](const TextGraph& graph) {
      const auto tokens = SmallDiffusion::input_tokens(kClipLength, kClipTokens);
      ggml_backend_tensor_set(graph.tokens, tokens.data(), 0, std::span(tokens).size_bytes());
    });
  }
  std::map<std::string, std::vector<float>> noise(const std::vector<float>& text) {
    return compute<NoiseGraph>(
        "predicted", &NoiseGraph::predicted,
        [](const DiffusionNetwork& network, GraphObserver* observer) {
          return make_noise_graph(network, SmallDiffusion::kWidth, SmallDiffusion::kHeight, kClipLength, observer);
        },
        [&](const NoiseGraph& graph) {
          set_numbers(graph.latent, latent());
          set_numbers(graph.waves, time_waves(SmallDiffusion::kTime, static_cast<std::size_t>(graph.waves->ne[0])));
          set_numbers(graph.text, text);
        });
  }
  std::map<std::string, std::vector<float>> decoded(const std::string& name) {
    return compute<DecodeGraph>(
        name, &DecodeGraph::picture,
        [](const DiffusionNetwork& network, GraphObserver* observer) {
          return make_decode_graph(network, SmallDiffusion::kWidth, SmallDiffusion::kHeight, observer);
        },
        [&](const DecodeGraph& graph) { set_numbers(graph.latent, latent()); });
  }
  std::map<std::string, std::vector<float>> encoded() {
    return compute<EncodeGraph>(
        "encoded", &EncodeGraph::latent,
        [](const DiffusionNetwork& network, GraphObserver* observer) {
          return make_encode_graph(network, SmallDiffusion::kWidth, SmallDiffusion::kHeight, observer);
        },
        [&](const EncodeGraph& graph) {
          set_numbers(graph.picture, SmallDiffusion::input("picture", static_cast<std::size_t>(ggml_nelements(graph.picture))));
        });
  }

 private:
  static std::vector<float> latent() {
    return SmallDiffusion::input("latent", std::size_t{kLatentChannels} * SmallDiffusion::kWidth * SmallDiffusion::kHeight);
  }

  const std::filesystem::path path_;
  DiffusionNetwork network_;
  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
  std::optional<GraphRunner> runner_;
};

// Expects that `found` has what the reference has computed under these names, and nothing else. Returns how many there were.
std::size_t expect_equal(const std::map<std::string, std::vector<float>>& found, const SmallDiffusion& model) {
  constexpr double kBound = 1e-3;
  for (const auto& [name, numbers] : found) {
    const auto expected = model.results.find(name);
    EXPECT_NE(expected, model.results.end()) << name;
    if (expected == model.results.end()) continue;
    const SmallDiffusion::Result& result = expected->second;
    EXPECT_EQ(numbers.size(), result.count) << name;
    if (numbers.size() != result.count) continue;
    double sum = 0;
    double squares = 0;
    for (const float number : numbers) {
      sum += static_cast<double>(number);
      squares += static_cast<double>(number) * static_cast<double>(number);
    }
    const auto count = static_cast<double>(numbers.size());
    EXPECT_NEAR(sum / count, result.mean, kBound) << name;
    EXPECT_NEAR(std::sqrt(squares / count), result.rms, kBound) << name;
    const std::size_t apart = std::max<std::size_t>(1, numbers.size() / result.samples.size());
    for (std::size_t i = 0; i < result.samples.size(); ++i)
      EXPECT_NEAR(numbers[i * apart], result.samples[i], kBound) << name << " at " << i * apart;
  }
  return found.size();
}

class DiffusionGraphTest : public ::testing::Test {
 protected:
  DiffusionGraphTest() { init_log(LogLevel::error); }
};

TEST_F(DiffusionGraphTest, TheFirstFamilyComputesWhatTheReferenceDoes) {
  const SmallDiffusion model("sd1");
  SmallNetwork network(model);
  const auto text = network.text();
  const std::size_t parts = expect_equal(text, model) + expect_equal(network.noise(text.at("text")), model) +
                            expect_equal(network.decoded("picture"), model) + expect_equal(network.encoded(), model);
  EXPECT_EQ(parts, model.results.size()) << "a part is not compared";
}

TEST_F(DiffusionGraphTest, TheSecondFamilyComputesWhatTheReferenceDoes) {
  const SmallDiffusion model("sd2");
  SmallNetwork network(model);
  const auto text = network.text();
  const std::size_t parts = expect_equal(text, model) + expect_equal(network.noise(text.at("text")), model) +
                            expect_equal(network.decoded("picture"), model);
  EXPECT_EQ(parts, model.results.size()) << "a part is not compared";
}

TEST_F(DiffusionGraphTest, TheSmallDecoderComputesWhatTheReferenceDoes) {
  const SmallDiffusion model("tae");
  SmallNetwork network(model);
  EXPECT_EQ(expect_equal(network.decoded("small_picture"), model), model.results.size());
}

// Bands of one row to all of them, with and without a rest.
TEST_F(DiffusionGraphTest, ConvolutionsInBandsComputeTheSame) {
  const SmallDiffusion model("sd1");
  for (const std::size_t column_bytes_max : {1ul, 50'000ul, 300'000ul, 1'000'000ul}) {
    SmallNetwork network(model, column_bytes_max);
    EXPECT_GT(expect_equal(network.decoded("picture"), model), 10u);
    EXPECT_GT(expect_equal(network.encoded(), model), 10u);
  }
}

// The first problem of the graphs if `change` changes the sizes of the tensors, by their names; no sizes: it is missing.
template <class Change>
std::string problem_with(const DiffusionFile& file, const Change& change) {
  const ggml_context_ptr context(
      ggml_init({.mem_size = file.tensors.size() * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  DiffusionNetwork network{.text_layers = file.text_layers, .tensors = {}};
  for (const auto& [name, tensor] : file.tensors) {
    std::vector<std::int64_t> sizes = sizes_in_memory(tensor);
    change(name, sizes);
    if (sizes.empty()) continue;
    network.tensors[name] = ggml_new_tensor(context.get(), GGML_TYPE_F32, static_cast<int>(sizes.size()), sizes.data());
  }
  std::string problem;
  const auto take = [&](const auto& made) {
    if (!made && problem.empty()) problem = made.error().message;
  };
  take(make_text_graph(network));
  take(make_noise_graph(network, 8, 8, kClipLength));
  take(make_decode_graph(network, 8, 8));
  take(make_encode_graph(network, 8, 8));
  return problem;
}

TEST_F(DiffusionGraphTest, NamesATensorThatIsMissingOrDoesNotFit) {
  using Sizes = std::vector<std::int64_t>;
  init_llama();
  GgufHeader head;
  for (const SmallDiffusion::Tensor& tensor : SmallDiffusion("sd1").tensors)
    head.tensors.push_back({.name = tensor.name, .sizes = {tensor.sizes.rbegin(), tensor.sizes.rend()}, .type = 0});
  const auto file = diffusion_file_of({.path = "small.gguf"}, {head});
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(problem_with(*file, [](const std::string&, Sizes&) {}), "");
  // Each tensor in turn has other rows, or more of them.
  for (const auto& [wrong, tensor] : file->tensors) {
    EXPECT_NE(problem_with(*file,
                           [&](const std::string& name, Sizes& sizes) {
                             if (name == wrong) sizes = {7};
                           }),
              "")
        << wrong;
    EXPECT_NE(problem_with(*file,
                           [&](const std::string& name, Sizes& sizes) {
                             if (name == wrong) sizes.back() += 32;
                           }),
              "")
        << wrong;
  }
  const auto problem_without = [&](std::string_view missing) {
    return problem_with(*file, [missing](const std::string& name, Sizes& sizes) {
      if (name == missing) sizes.clear();
    });
  };
  for (const char* name :
       {"text.embeddings.token_embedding.weight", "text.encoder.layers.0.layer_norm1.weight", "unet.time_embed.2.bias",
        "unet.middle_block.1.transformer_blocks.0.attn2.to_v.weight", "unet.out.2.weight", "vae.decoder.conv_in.weight",
        "vae.decoder.mid.attn_1.q.weight", "vae.encoder.conv_out.bias"}) {
    EXPECT_EQ(problem_without(name), std::format("tensor {} is missing", name));
  }
  EXPECT_THAT(problem_without("unet.output_blocks.3.0.in_layers.0.weight"), HasSubstr("input blocks have no output block"));
  EXPECT_THAT(problem_without("unet.input_blocks.3.0.in_layers.0.weight"), HasSubstr("unet."));
}

// Files that would make the library end the process, or never end.
TEST_F(DiffusionGraphTest, EndlessModelsAreRefused) {
  init_llama();
  GgufHeader head;
  for (const SmallDiffusion::Tensor& tensor : SmallDiffusion("sd1").tensors)
    head.tensors.push_back({.name = tensor.name, .sizes = {tensor.sizes.rbegin(), tensor.sizes.rend()}, .type = 0});
  const auto file = diffusion_file_of({.path = "small.gguf"}, {head});
  ASSERT_TRUE(file.has_value());
  const ggml_context_ptr context(
      ggml_init({.mem_size = (file->tensors.size() + 8) * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  const auto described = describe_network(*file, context.get());
  ASSERT_TRUE(described.has_value());
  const auto problem_of = [](const auto& made) { return made ? std::string() : made.error().message; };

  DiffusionNetwork deep = *described;
  deep.text_layers = 10'000;
  for (const auto& [name, tensor] : described->tensors) {
    const std::string first = "text.encoder.layers.0.";
    if (!name.starts_with(first)) continue;
    for (int i = 1; i < deep.text_layers; ++i)
      deep.tensors[std::format("text.encoder.layers.{}.{}", i, name.substr(first.size()))] = tensor;
  }
  EXPECT_THAT(problem_of(make_text_graph(deep)), HasSubstr("more layers than a model of its kind"));

  DiffusionNetwork large = *described;
  ggml_tensor* const kernel = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 9 * 32, 32);
  ggml_tensor* const bias = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 32);
  for (int i = 1; i < 30; ++i) {
    large.tensors[std::format("unet.input_blocks.0.{}.conv.weight", i)] = kernel;
    large.tensors[std::format("unet.input_blocks.0.{}.conv.bias", i)] = bias;
  }
  EXPECT_THAT(problem_of(make_noise_graph(large, 8, 8, kClipLength)), HasSubstr("enlarges pictures more often"));

  DiffusionNetwork doubling;
  doubling.tensors["tae.0.weight"] = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 9 * 4, 32);
  doubling.tensors["tae.0.bias"] = bias;
  doubling.tensors["tae.55.weight"] = kernel;
  EXPECT_THAT(problem_of(make_decode_graph(doubling, 8, 8)), HasSubstr("enlarges pictures more often"));
}

}  // namespace
}  // namespace uma::llm
