// Stable Diffusion's files, as models that draw.
#include <filesystem>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "llm/llama_model.h"
#include "llm/picture/clip_tokens.h"
#include "llm/picture/diffusion_drawing.h"
#include "llm/picture/diffusion_file.h"
#include "llm/picture/diffusion_test_support.h"
#include "llm/picture/picture_model.h"

namespace uma::llm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const DeviceOptions kCpu{.names = std::vector<std::string>()};

class DiffusionModelTest : public ::testing::Test {
 protected:
  DiffusionModelTest() : folder_(std::filesystem::temp_directory_path() / std::format("uma-diffusion-{}", ::getpid())) {
    init_log(LogLevel::error);
    init_llama();
    std::filesystem::create_directories(folder_);
  }
  ~DiffusionModelTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }
  static std::shared_ptr<const PictureModel> load(const PictureSource& source) {
    auto model = load_picture_model(source, kCpu);
    EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
    return model.value_or(nullptr);
  }
  static std::string load_error(const PictureSource& source) {
    const auto model = load_picture_model(source, kCpu);
    EXPECT_FALSE(model.has_value());
    if (model) return "";
    EXPECT_EQ(model.error().code, ErrorCode::model_load);
    return model.error().message;
  }

  const std::filesystem::path folder_;
};

Caption read(PictureContext& context, const PictureModel& model, std::string_view text) {
  Caption caption;
  const auto tokens = model.read_caption(text);
  EXPECT_TRUE(tokens.has_value()) << (tokens ? "" : tokens.error().message);
  EXPECT_TRUE(*context.read_caption(*tokens, nullptr, caption));
  return caption;
}

// Draws a whole picture.
std::vector<std::uint8_t> draw(PictureContext& context, const PictureModel& model, const DrawingOptions& options,
                               std::string_view text, const DrawingStart& start = {}) {
  const Caption caption = read(context, model, text);
  const Caption negative = read(context, model, "");
  const auto drawing = context.new_drawing(options, start);
  while (!drawing->wants_decoding()) {
    std::vector<DenoiseRow> rows = {{drawing->noisy(), drawing->time(), options.width, options.height, &caption}};
    if (drawing->needs_negative()) {
      rows.push_back(rows.front());
      rows.back().caption = &negative;
    }
    std::vector<float> predicted;
    EXPECT_TRUE(*context.denoise(rows, nullptr, predicted));
    const std::size_t numbers = drawing->noisy().size();
    drawing->advance(std::span(predicted).first(numbers), std::span(predicted).subspan(numbers));
  }
  EXPECT_FALSE(drawing->is_done());
  EXPECT_TRUE(*context.decode(*drawing, nullptr));
  EXPECT_TRUE(drawing->is_done());
  return drawing->levels();
}

TEST_F(DiffusionModelTest, DrawsTheSamePictureAgain) {
  SmallDiffusion("sd1").write_safetensors(path("small.safetensors"));
  SmallDiffusion("sd2").write_gguf(path("small.gguf"));
  SmallDiffusion("tae").write_safetensors(path("taesd.safetensors"));
  std::vector<std::vector<std::uint8_t>> pictures;
  for (const PictureSource& source :
       {PictureSource{.path = path("small.safetensors")}, PictureSource{.path = path("small.gguf")},
        PictureSource{.path = path("small.gguf"), .vae_path = path("taesd.safetensors")}}) {
    const auto model = load(source);
    ASSERT_NE(model, nullptr);
    const auto context = model->new_context({.rows_max = 2, .threads = 2});
    ASSERT_TRUE(context.has_value()) << context.error().message;
    const DrawingOptions options{.width = 64, .height = 128, .steps = 3, .guidance = 4, .seed = 5};
    const auto picture = draw(**context, *model, options, "a (red:1.3) cat");
    EXPECT_THAT(picture, SizeIs(64 * 128 * 3));
    EXPECT_EQ(draw(**context, *model, options, "a (red:1.3) cat"), picture);
    EXPECT_NE(draw(**context, *model, options, "a red cat"), picture) << "weights count";
    pictures.push_back(picture);
  }
  EXPECT_NE(pictures[1], pictures[2]) << "another decoder";
}

TEST_F(DiffusionModelTest, BeginsWithAPicture) {
  SmallDiffusion small("sd1");
  small.write_safetensors(path("small.safetensors"));
  const auto model = load({.path = path("small.safetensors")});
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->facts().reads_pictures);
  const auto context = model->new_context({.rows_max = 2, .threads = 2});
  ASSERT_TRUE(context.has_value());
  std::vector<std::uint8_t> levels(64 * 128 * 3);
  for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<std::uint8_t>(i * 7 % 256);
  std::vector<float> latent;
  ASSERT_TRUE(*(*context)->encode(levels, 64, 128, nullptr, latent));
  ASSERT_THAT(latent, SizeIs(4 * 8 * 16));
  const DrawingOptions options{.width = 64, .height = 128, .steps = 4, .guidance = 1, .seed = 5};
  const auto begun = draw(**context, *model, options, "a cat", {.picture = latent, .first_step = 2});
  EXPECT_THAT(begun, SizeIs(levels.size()));
  EXPECT_NE(begun, draw(**context, *model, options, "a cat", {.picture = latent, .first_step = 1}));
  EXPECT_NE(begun, draw(**context, *model, options, "a cat"));
  std::erase_if(small.tensors, [](const auto& tensor) { return tensor.name.starts_with("first_stage_model.encoder."); });
  small.write_safetensors(path("decoder.safetensors"));
  EXPECT_FALSE(load({.path = path("decoder.safetensors")})->facts().reads_pictures);
}

TEST_F(DiffusionModelTest, TellsWhatItIs) {
  SmallDiffusion("sd1").write_safetensors(path("small.safetensors"));
  const auto model = load({.path = path("small.safetensors")});
  ASSERT_NE(model, nullptr);
  const PictureFacts& facts = model->facts();
  EXPECT_THAT(facts.description, AllOf(HasSubstr("Stable Diffusion 1"), HasSubstr("predicts noise")));
  EXPECT_EQ(facts.sizes, (PictureSizes{.native = 512, .multiple = 64, .pixels_max = 512 * 768, .pixels_per_place = 8}));
  EXPECT_TRUE(facts.sizes.contain(512, 768));
  EXPECT_FALSE(facts.sizes.contain(768, 768));
  EXPECT_FALSE(facts.sizes.contain(500, 512));
  EXPECT_EQ(facts.sizes.places_of(512, 64), 64 * 8);
  EXPECT_TRUE(facts.has_samplers);
  EXPECT_EQ(facts.defaults.steps, 20);
  EXPECT_EQ(facts.defaults.guidance, 7);
  EXPECT_EQ(facts.defaults.sampler, PictureSampler::euler_ancestral);
  EXPECT_GT(facts.parameters, 3'000'000u);
  EXPECT_FALSE(facts.identity.empty());
}

TEST_F(DiffusionModelTest, ItsMemoryIsKnownBefore) {
  SmallDiffusion("sd1").write_safetensors(path("small.safetensors"), GGML_TYPE_F16);
  const PictureSource source{.path = path("small.safetensors")};
  const auto need = measure_picture_model(source, kCpu, {.rows_max = 2});
  ASSERT_TRUE(need.has_value()) << need.error().message;
  const auto model = load(source);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(need->weights.all, model->facts().bytes.all);
  const auto context = model->new_context({.rows_max = 2, .threads = 2});
  ASSERT_TRUE(context.has_value()) << context.error().message;
  EXPECT_EQ(need->context.all, (*context)->memory().all);
  (void)draw(**context, *model, {.width = 64, .height = 64, .steps = 1, .guidance = 1, .seed = 1}, "a");
  EXPECT_EQ(need->context.all, (*context)->memory().all) << "a picture needs nothing more";
}

// The relative error, as a root of mean squares over the reference's samples.
double error_of(std::span<const float> found, const SmallDiffusion::Result& expected) {
  double error = 0;
  double size = 0;
  const std::size_t apart = std::max<std::size_t>(1, found.size() / expected.samples.size());
  for (std::size_t i = 0; i < expected.samples.size(); ++i) {
    error += std::pow(static_cast<double>(found[i * apart]) - expected.samples[i], 2);
    size += std::pow(expected.samples[i], 2);
  }
  return std::sqrt(error / size);
}

// The bounds are about three times what was found.
TEST_F(DiffusionModelTest, NarrowTypesGiveNearlyTheSame) {
  const SmallDiffusion small("sd2");
  const auto tokens = SmallDiffusion::input_tokens(77, kClipTokens);
  const std::vector<float> latent =
      SmallDiffusion::input("latent", std::size_t{4} * SmallDiffusion::kWidth * SmallDiffusion::kHeight);
  const auto expect_near = [&](const std::string& name, double bound) {
    const auto model = load({.path = path(name)});
    ASSERT_NE(model, nullptr) << name;
    const auto context = model->new_context({.rows_max = 2, .threads = 2});
    Caption caption;
    ASSERT_TRUE(*(*context)->read_caption({.ids = tokens, .weights = {}}, nullptr, caption));
    EXPECT_LT(error_of(caption.text, small.results.at("text")), bound) << name;
    std::vector<float> predicted;
    const DenoiseRow row{latent, SmallDiffusion::kTime, 8 * SmallDiffusion::kWidth, 8 * SmallDiffusion::kHeight, &caption};
    ASSERT_TRUE(*(*context)->denoise({&row, 1}, nullptr, predicted));
    EXPECT_LT(error_of(predicted, small.results.at("predicted")), bound) << name;
  };
  small.write_gguf(path("f32.gguf"));
  expect_near("f32.gguf", 1e-4);
  small.write_safetensors(path("f16.safetensors"), GGML_TYPE_F16);
  expect_near("f16.safetensors", 5e-3);
  small.write_safetensors(path("bf16.safetensors"), GGML_TYPE_BF16);
  expect_near("bf16.safetensors", 4e-2);
  small.write_gguf(path("q8.gguf"), GGML_TYPE_Q8_0);
  expect_near("q8.gguf", 4e-2);
}

class EndsAtOnce final : public CallMonitor {
 public:
  bool wants_end() override { return true; }
};

TEST_F(DiffusionModelTest, ACallIsEndedEarlyAndTheNextOneIsWhole) {
  SmallDiffusion("sd1").write_gguf(path("small.gguf"));
  const auto model = load({.path = path("small.gguf")});
  ASSERT_NE(model, nullptr);
  const auto context = model->new_context({.rows_max = 2, .threads = 2});
  ASSERT_TRUE(context.has_value());
  const DrawingOptions options{.width = 64, .height = 64, .steps = 1, .guidance = 1, .seed = 5};
  const auto whole = draw(**context, *model, options, "a cat");
  EndsAtOnce end;
  Caption caption;
  EXPECT_FALSE(*(*context)->read_caption(*model->read_caption("a cat"), &end, caption));
  caption = read(**context, *model, "a cat");
  const auto drawing = (*context)->new_drawing(options, {});
  std::vector<float> predicted;
  const DenoiseRow row{drawing->noisy(), drawing->time(), 64, 64, &caption};
  EXPECT_FALSE(*(*context)->denoise({&row, 1}, &end, predicted));
  EXPECT_TRUE(*(*context)->denoise({&row, 1}, nullptr, predicted));
  drawing->advance(predicted, {});
  EXPECT_FALSE(*(*context)->decode(*drawing, &end));
  EXPECT_FALSE(drawing->is_done());
  EXPECT_TRUE(*(*context)->decode(*drawing, nullptr));
  EXPECT_EQ(drawing->levels(), whole);
}

TEST_F(DiffusionModelTest, ReadsCaptionsInPieces) {
  SmallDiffusion("sd1").write_gguf(path("small.gguf"));
  const auto model = load({.path = path("small.gguf")});
  ASSERT_NE(model, nullptr);
  const auto empty = model->read_caption("");
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->count, 0);
  EXPECT_EQ(empty->ids.front(), kClipStart);
  EXPECT_THAT(std::span(empty->ids).subspan(1), AllOf(SizeIs(76), Each(kClipEnd)));
  const auto cat = model->read_caption("a [cat]");
  EXPECT_EQ(cat->count, 2);
  EXPECT_THAT(std::vector(cat->ids.begin(), cat->ids.begin() + 4), ElementsAre(kClipStart, 320, 2368, kClipEnd));
  EXPECT_THAT(std::vector(cat->weights.begin(), cat->weights.begin() + 4),
              ElementsAre(1, 1, ::testing::FloatNear(1 / 1.1F, 1e-6F), 1));
  std::string words;
  for (int i = 0; i < 76; ++i) words += "cat ";
  EXPECT_THAT(model->read_caption(words)->ids, SizeIs(2 * 77));
  EXPECT_THAT(model->read_caption("cat BREAK cat")->ids, SizeIs(2 * 77));
  const auto context = model->new_context({.rows_max = 2, .threads = 2});
  ASSERT_TRUE(context.has_value());
  const Caption caption = read(**context, *model, "cat BREAK cat");
  const Caption single = read(**context, *model, "cat");
  ASSERT_EQ(caption.text.size(), 2 * single.text.size());
  EXPECT_TRUE(std::equal(single.text.begin(), single.text.end(), caption.text.begin()));
  EXPECT_TRUE(std::equal(single.text.begin(), single.text.end(),
                         caption.text.begin() + static_cast<std::ptrdiff_t>(single.text.size())));
  const auto long_one = model->read_caption(words + words + words + words);
  ASSERT_FALSE(long_one.has_value());
  EXPECT_EQ(long_one.error().code, ErrorCode::proto_field);
  EXPECT_THAT(long_one.error().message, HasSubstr("304 tokens in 5 pieces, and the model reads 3 of 75"));
}

// --- Files

GgufHeader head_of(std::string_view model) {
  GgufHeader head;
  for (const SmallDiffusion::Tensor& tensor : SmallDiffusion(model).tensors)
    head.tensors.push_back({.name = tensor.name, .sizes = {tensor.sizes.rbegin(), tensor.sizes.rend()}, .type = 0});
  return head;
}

TEST(DiffusionFileTest, DefaultsFollowFromTheNameAndTheCard) {
  const GgufHeader first = head_of("sd1");
  const GgufHeader second = head_of("sd2");
  const auto file = [](const PictureSource& source, const GgufHeader& head) {
    auto made = diffusion_file_of(source, {head});
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message);
    return *std::move(made);
  };
  EXPECT_EQ(file({.path = "/m/sd-v1-5.safetensors"}, first).predicts_velocity, false);
  EXPECT_EQ(file({.path = "/m/v2-1_512-ema-pruned.safetensors"}, second).predicts_velocity, std::nullopt);
  EXPECT_EQ(file({.path = "/m/v2-1_512-ema-pruned.safetensors"}, second).sizes.native, 512);
  EXPECT_EQ(file({.path = "/m/v2-1_768-ema-pruned.safetensors"}, second).sizes.native, 768);
  EXPECT_EQ(file({.path = "/m/768.safetensors"}, first).sizes.native, 512);
  const auto velocity = file({.path = "/m/a.gguf", .predicts_velocity = true}, second);
  EXPECT_EQ(velocity.sizes.native, 768);
  EXPECT_EQ(velocity.predicts_velocity, true);
  const auto turbo = file({.path = "/turbo/SD_Turbo.safetensors"}, second).defaults;
  EXPECT_EQ(turbo.steps, 1);
  EXPECT_EQ(turbo.guidance, 1);
  EXPECT_EQ(turbo.schedule, NoiseSchedule::trailing);
  EXPECT_EQ(file({.path = "/turbo/other.safetensors"}, second).defaults.steps, 20) << "a folder's name is not the file's";
  EXPECT_EQ(file({.path = "/m/dreamshaper_8LCM.gguf"}, first).defaults.sampler, PictureSampler::lcm);
  EXPECT_EQ(file({.path = "/m/realcmix.gguf"}, first).defaults.steps, 20) << "no word of the name";
  const auto given =
      file({.path = "/m/sd_turbo.gguf", .steps = 3, .guidance = 2, .sampler = PictureSampler::euler}, second).defaults;
  EXPECT_EQ(given.steps, 3);
  EXPECT_EQ(given.guidance, 2);
  EXPECT_EQ(given.sampler, PictureSampler::euler);
}

TEST(DiffusionFileTest, SaysWhichOtherModelItIs) {
  const auto refused = [](const auto& change) {
    GgufHeader head = head_of("sd1");
    change(head.tensors);
    const auto file = diffusion_file_of({.path = "a.gguf"}, {head});
    EXPECT_FALSE(file.has_value());
    return file ? "" : file.error().message;
  };
  using Tensors = std::vector<GgufTensor>;
  const auto with = [&](const char* name) {
    return refused([&](Tensors& tensors) { tensors.push_back({.name = name, .sizes = {4}}); });
  };
  const auto without = [&](std::string_view part) {
    return refused(
        [&](Tensors& tensors) { std::erase_if(tensors, [&](const GgufTensor& each) { return each.name.contains(part); }); });
  };
  EXPECT_THAT(with("conditioner.embedders.1.model.ln_final.bias"), HasSubstr("Stable Diffusion XL"));
  EXPECT_THAT(with("model.diffusion_model.label_emb.0.0.bias"), HasSubstr("Stable Diffusion XL"));
  EXPECT_THAT(with("model.diffusion_model.joint_blocks.0.x"), HasSubstr("Stable Diffusion 3"));
  EXPECT_THAT(with("model.diffusion_model.double_blocks.0.x"), HasSubstr("FLUX"));
  EXPECT_THAT(without("middle_block.1."), HasSubstr("distilled"));
  EXPECT_THAT(without("input_blocks.0.0.weight"), HasSubstr("tensor model.diffusion_model.input_blocks.0.0.weight is missing"));
  EXPECT_THAT(refused([](Tensors& tensors) {
                for (GgufTensor& tensor : tensors)
                  if (tensor.name.ends_with("input_blocks.0.0.weight")) tensor.sizes[2] = 9;
              }),
              HasSubstr("fill in or edit"));
  GgufHeader diffusers;
  diffusers.tensors.push_back({.name = "decoder.up_blocks.0.resnets.0.conv1.weight", .sizes = {4}});
  const auto file = diffusion_file_of({.path = "a.gguf", .vae_path = "vae.safetensors"}, {head_of("sd1"), diffusers});
  ASSERT_FALSE(file.has_value());
  EXPECT_THAT(file.error().message, HasSubstr("vae.safetensors: its tensors have the names of the diffusers library"));
  GgufHeader other;
  other.tensors.push_back({.name = "encoder.layers.0.weight", .sizes = {4}});
  const auto unknown = diffusion_file_of({.path = "a.gguf", .vae_path = "vae.safetensors"}, {head_of("sd1"), other});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().message, HasSubstr("vae.safetensors: it has no decoder"));
}

TEST(DiffusionFileTest, AnotherFilesDecoderStandsForItsOwn) {
  GgufHeader decoder;
  decoder.tensors.push_back({.name = "decoder.conv_in.weight", .sizes = {3, 3, 4, 64}, .type = 1, .offset = 64, .bytes = 4608});
  decoder.tensors.push_back({.name = "loss.logvar", .sizes = {1}});
  const auto file = diffusion_file_of({.path = "a.gguf", .vae_path = "b.safetensors"}, {head_of("sd1"), decoder});
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->tensors.at("vae.decoder.conv_in.weight").file, 1u);
  EXPECT_EQ(file->tensors.at("vae.decoder.conv_out.weight").file, 0u);
  EXPECT_THAT(file->paths, ElementsAre("a.gguf", "b.safetensors"));
}

TEST_F(DiffusionModelTest, RefusesFilesThatItCannotCompute) {
  const auto write_without = [&](std::string_view part, std::string_view name) {
    SmallDiffusion small("sd1");
    std::erase_if(small.tensors, [&](const SmallDiffusion::Tensor& tensor) { return tensor.name.contains(part); });
    small.write_gguf(path(name));
  };
  write_without("first_stage_model", "no-decoder.gguf");
  EXPECT_THAT(load_error({.path = path("no-decoder.gguf")}),
              HasSubstr("no-decoder.gguf: tensor vae.post_quant_conv.weight is missing"));
  write_without("cond_stage_model", "no-text.gguf");
  EXPECT_THAT(load_error({.path = path("no-text.gguf")}),
              HasSubstr("tensor text.embeddings.token_embedding.weight is missing"));
  // A type that is not read, of a tensor that is needed.
  SmallDiffusion("sd1").write_safetensors(path("f8.safetensors"), GGML_TYPE_F16);
  {
    std::fstream file(path("f8.safetensors"), std::ios::binary | std::ios::in | std::ios::out);
    std::string bytes(300'000, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const std::size_t at = bytes.find("model.diffusion_model.out.2.bias");
    ASSERT_NE(at, std::string::npos);
    const std::size_t type = bytes.find("\"F16\"", at);
    file.seekp(static_cast<std::streamoff>(type));
    file << "\"I16\"";
  }
  EXPECT_THAT(load_error({.path = path("f8.safetensors")}),
              HasSubstr("tensor model.diffusion_model.out.2.bias has a type that is not read"));
  EXPECT_THAT(load_error({.path = path("missing.safetensors")}), HasSubstr("missing.safetensors"));
  // Integers, which the library would multiply with, and end the process.
  testing::GgufBytes integers;
  for (const SmallDiffusion::Tensor& tensor : SmallDiffusion("sd1").tensors) {
    const bool is_wrong = tensor.name.ends_with("input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight");
    integers.tensor(tensor.name, {tensor.sizes.rbegin(), tensor.sizes.rend()}, is_wrong ? 26 : 0);
  }
  integers.write(path("integers.gguf"));
  EXPECT_THAT(load_error({.path = path("integers.gguf")}), HasSubstr("attn1.to_q.weight has a type that is not read"));
}

TEST_F(DiffusionModelTest, FindsOutWhatIsPredicted) {
  SmallDiffusion("sd2").write_gguf(path("small.gguf"));
  EXPECT_THAT(load({.path = path("small.gguf")})->facts().description, HasSubstr("Stable Diffusion 2"));
  EXPECT_THAT(load({.path = path("small.gguf"), .predicts_velocity = true})->facts().description,
              HasSubstr("predicts velocities"));
  // A network whose last bias makes it predict about the opposite of its input.
  SmallDiffusion small("sd2");
  for (SmallDiffusion::Tensor& tensor : small.tensors) {
    if (tensor.name == "model.diffusion_model.out.2.bias") tensor.add = -2;
  }
  small.write_gguf(path("velocity.gguf"));
  EXPECT_THAT(load({.path = path("velocity.gguf")})->facts().description, HasSubstr("predicts velocities"));
}

}  // namespace
}  // namespace uma::llm
