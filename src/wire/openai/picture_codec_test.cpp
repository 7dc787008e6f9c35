#include "wire/openai/picture_codec.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/base64.h"
#include "wire/llama_server/sdapi_codec.h"
#include "wire/own/frame.h"
#include "wire/own/request_codec.h"

namespace uma::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PictureRequest decode(const std::string& fields) {
  const auto request = decode_request(R"({"id":"1","type":"generate_image",)" + fields + "}");
  EXPECT_TRUE(request.has_value()) << (request ? "" : request.error().error.message);
  return request ? std::get<PictureRequest>(request->body) : PictureRequest();
}
std::string picture_refusal(const std::string& fields) {
  const auto request = decode_request(R"({"id":"1","type":"generate_image",)" + fields + "}");
  return request ? "" : request.error().error.message;
}

TEST(PictureCodec, ReadsTheFieldsOfTheSocket) {
  const PictureRequest plain = decode(R"("prompt":"a cat")");
  EXPECT_EQ(plain.caption, "a cat");
  EXPECT_EQ(plain.options.width, 0);
  EXPECT_EQ(plain.options.count, 1);
  EXPECT_FALSE(plain.options.seed || plain.options.steps || plain.options.guidance || plain.deadline_ms);
  EXPECT_TRUE(plain.options.has_metadata);

  const PictureRequest whole =
      decode(R"("prompt":"a cat","negative_prompt":"dogs","model":"m","width":256,"height":128,"n":3,"steps":8,"guidance":1.5,)"
             R"("seed":18446744073709551615,"partial_images":2,"metadata":false,"class":"background","deadline_ms":5000)");
  EXPECT_EQ(whole.negative_caption, "dogs");
  EXPECT_EQ(whole.model, "m");
  EXPECT_EQ(whole.options.width, 256);
  EXPECT_EQ(whole.options.height, 128);
  EXPECT_EQ(whole.options.count, 3);
  EXPECT_EQ(whole.options.steps, 8);
  EXPECT_EQ(whole.options.guidance, 1.5F);
  EXPECT_EQ(whole.options.seed, 18446744073709551615U);
  EXPECT_EQ(whole.options.partial_pictures, 2);
  EXPECT_FALSE(whole.options.has_metadata);
  EXPECT_EQ(whole.request_class, RequestClass::background);
  EXPECT_EQ(whole.deadline_ms, 5000);
}

TEST(PictureCodec, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(picture_refusal(R"("prompt":7)"), HasSubstr("\"prompt\""));
  EXPECT_THAT(picture_refusal(R"("prompt":")" + std::string(4001, 'a') + "\""), HasSubstr("\"prompt\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","n":11)"), HasSubstr("\"n\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","n":0)"), HasSubstr("\"n\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","steps":151)"), HasSubstr("\"steps\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","guidance":0.5)"), HasSubstr("\"guidance\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","width":1025)"), HasSubstr("\"width\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","seed":-1)"), HasSubstr("\"seed\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","partial_images":4)"), HasSubstr("\"partial_images\""));
  EXPECT_THAT(picture_refusal(R"("prompt":"a","device":"Vulkan0")"), HasSubstr("\"device\""));
}

// The bodies of the frames.
std::vector<std::string> frames(const std::string& bytes) {
  FrameReader reader(1u << 24);
  reader.append(bytes);
  std::vector<std::string> bodies;
  for (auto next = reader.next(); next && *next; next = reader.next()) bodies.emplace_back(**next);
  return bodies;
}

TEST(PictureCodec, WritesALargePictureInParts) {
  const std::string png(100'000, 'x');
  std::string out;
  append_picture_event(out, FrameHead("7"), DrawnPicture{.picture = 1, .partial = 2, .seed = 5, .png = png});
  const auto parts = frames(out);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(
      parts[0],
      HasSubstr(R"({"id":"7","event":"image_chunk","image":1,"partial":2,"seed":5,"format":"png","part":0,"parts":3,)"));
  EXPECT_THAT(parts[2], HasSubstr(R"("part":2,"parts":3,"data":"eHh4)"));
  out.clear();
  append_picture_event(out, FrameHead("7"), DrawnPicture{.picture = 0, .seed = 5, .png = "abc"});
  EXPECT_THAT(frames(out),
              ::testing::ElementsAre(
                  R"({"id":"7","event":"image_chunk","image":0,"seed":5,"format":"png","part":0,"parts":1,"data":"YWJj"})"));
}

TEST(PictureCodec, WritesTheOtherEvents) {
  std::string out;
  append_picture_event(out, FrameHead("7"), PictureBegun{.width = 64, .height = 64, .pictures = 2, .steps = 16, .seed = 9});
  append_picture_event(out, FrameHead("7"), PictureStep{.picture = 1, .step = 3, .steps = 16, .eta_ms = 12.5});
  append_picture_eos(out, FrameHead("7"),
                     {.reason = FinishReason::error,
                      .error = Error{ErrorCode::limit_wait, "late"},
                      .model = "m",
                      .width = 64,
                      .height = 64,
                      .pictures = 1,
                      .steps = 16,
                      .guidance = 2.5F,
                      .seed = 9,
                      .caption_tokens = 4,
                      .picture_tokens = 64,
                      .queue_ms = 1,
                      .draw_ms = 2});
  EXPECT_THAT(
      frames(out),
      ::testing::ElementsAre(
          R"({"id":"7","event":"image_begin","width":64,"height":64,"images":2,"steps":16,"seed":9})",
          R"({"id":"7","event":"progress","stage":"draw","image":1,"done":3,"total":16,"eta_ms":12.5})",
          R"({"id":"7","event":"eos","reason":"error","code":"E_LIMIT_003","message":"late","usage":{"model":"m","images":1,)"
          R"("width":64,"height":64,"steps":16,"guidance":2.5,"sampler":"euler","seed":9,"prompt_tokens":4,"image_tokens":64,"queue_ms":1,"draw_ms":2}})"));
}

std::string images_refusal(const std::string& fields) {
  const auto call = decode_images_call("{" + fields + "}");
  return call ? "" : call.error().field;
}

TEST(PictureCodec, ReadsOpenAisBody) {
  const auto call = decode_images_call(
      R"({"prompt":"a cat","model":"dall-e-3","n":2,"size":"512x512","response_format":"b64_json","quality":"hd","style":"vivid",)"
      R"("user":"me","stream":true,"partial_images":1,"uma":{"steps":4,"seed":3,"negative_prompt":"dogs"}})");
  ASSERT_TRUE(call.has_value()) << call.error().error.message;
  EXPECT_TRUE(call->is_stream);
  EXPECT_EQ(call->request.options.width, 512);
  EXPECT_EQ(call->request.options.height, 512);
  EXPECT_EQ(call->request.options.count, 2);
  EXPECT_EQ(call->request.options.steps, 4);
  EXPECT_EQ(call->request.options.seed, 3U);
  EXPECT_EQ(call->request.negative_caption, "dogs");
  EXPECT_EQ(decode_images_call(R"({"prompt":"a","size":"auto"})")->request.options.width, 0);
  EXPECT_THAT(call->warnings, ElementsAre(HasSubstr("quality"), HasSubstr("style")));

  EXPECT_EQ(images_refusal(R"("n":1)"), "prompt");
  EXPECT_EQ(images_refusal(R"("prompt":"a","response_format":"url")"), "response_format");
  EXPECT_EQ(images_refusal(R"("prompt":"a","output_format":"webp")"), "output_format");
  EXPECT_EQ(images_refusal(R"("prompt":"a","background":"transparent")"), "background");
  EXPECT_EQ(images_refusal(R"("prompt":"a","partial_images":1)"), "partial_images");
  EXPECT_EQ(images_refusal(R"("prompt":"a","uma":{"steps":0})"), "uma.steps");
  EXPECT_EQ(images_refusal(R"("prompt":"a","device":"gpu")"), "device");
  EXPECT_EQ(images_refusal(R"("prompt":"a","uma":{"device":"gpu"})"), "uma.device");
  for (const char* size : {"512", "x", "512x", "0x0", "64x64x64", "2048x2048", "-1x5", "a64x64", "64x64 "}) {
    EXPECT_EQ(images_refusal(std::string(R"("prompt":"a","size":")") + size + "\""), "size") << size;
  }
}

const ImagesHead kHead{.created_s = 5, .begun = {.width = 64, .height = 64, .caption_tokens = 3, .picture_tokens = 64}};
constexpr const char* kKind = R"("output_format":"png","background":"opaque","quality":"auto","size":"64x64")";

TEST(PictureCodec, WritesOpenAisAnswers) {
  EXPECT_EQ(images_json(kHead, std::vector<PngFile>{{.seed = 1, .bytes = "abc"}, {.seed = 2, .bytes = "d"}}),
            std::string(R"({"created":5,"data":[{"b64_json":"YWJj","uma":{"seed":1}},{"b64_json":"ZA==","uma":{"seed":2}}],)") +
                kKind + R"(,"usage":{"input_tokens":3,"output_tokens":128,"total_tokens":131,)" +
                R"("input_tokens_details":{"text_tokens":3,"image_tokens":0}}})");
  EXPECT_EQ(images_event(kHead, {.picture = 0, .partial = 1, .seed = 2, .png = "abc"}),
            std::string("event: image_generation.partial_image\n") +
                R"(data: {"type":"image_generation.partial_image","b64_json":"YWJj","partial_image_index":0,"created_at":5,)" +
                R"("uma":{"seed":2},)" + kKind + "}\n\n");
  EXPECT_THAT(images_event(kHead, {.picture = 0, .seed = 2, .png = "abc"}),
              HasSubstr(R"("usage":{"input_tokens":3,"output_tokens":64,"total_tokens":67)"));
}

TEST(SdapiCodec, ReadsWhatPagesSend) {
  const auto asked = decode_txt2img(
      R"({"prompt":"a cat","negative_prompt":"dogs","width":512,"height":512,"steps":20,"cfg_scale":7,"seed":-1,"batch_size":2,)"
      R"("n_iter":3,"sampler_name":"Euler","override_settings":{"sd_model_checkpoint":"m"},"scheduler":"automatic"})");
  ASSERT_TRUE(asked.has_value()) << asked.error().error.message;
  EXPECT_EQ(asked->options.count, 6);
  EXPECT_EQ(asked->options.guidance, 7);
  EXPECT_FALSE(asked->options.seed.has_value());
  EXPECT_EQ(asked->model, "m");
  EXPECT_EQ(decode_txt2img(R"({"prompt":"a","seed":5})")->options.seed, 5U);
  const auto field_of = [](const char* body) { return decode_txt2img(body).error().field; };
  EXPECT_EQ(field_of(R"({"prompt":"a","batch_size":5,"n_iter":3})"), "n_iter");
  EXPECT_EQ(field_of(R"({"prompt":"a","sampler_name":"DDIM"})"), "sampler_name");
  EXPECT_EQ(field_of(R"({"prompt":"a","scheduler":"fast"})"), "scheduler");
  EXPECT_EQ(field_of(R"({"prompt":"a","seed":-2})"), "seed");
  EXPECT_EQ(field_of(R"({"prompt":"a","override_settings":{"sd_model_checkpoint":7}})"),
            "override_settings.sd_model_checkpoint");
}

TEST(SdapiCodec, ReadsSamplersByAnyOfTheirNames) {
  const auto options_of = [](const char* body) { return decode_txt2img(body)->options; };
  EXPECT_EQ(options_of(R"({"prompt":"a","sampler_name":"Euler a"})").sampler, PictureSampler::euler_ancestral);
  EXPECT_EQ(options_of(R"({"prompt":"a","sampler_name":"k_euler"})").sampler, PictureSampler::euler);
  EXPECT_EQ(options_of(R"({"prompt":"a","sampler_name":"k_dpmpp_2m"})").sampler, PictureSampler::dpmpp_2m);
  EXPECT_EQ(options_of(R"({"prompt":"a","scheduler":"uniform"})").schedule, NoiseSchedule::discrete);
  const PictureOptions karras = options_of(R"({"prompt":"a","sampler_name":"DPM++ 2M Karras"})");
  EXPECT_EQ(karras.sampler, PictureSampler::dpmpp_2m);
  EXPECT_EQ(karras.schedule, NoiseSchedule::karras);
  EXPECT_EQ(options_of(R"({"prompt":"a","scheduler":"SGM Uniform"})").schedule, NoiseSchedule::trailing);
  EXPECT_EQ(options_of(R"({"prompt":"a","scheduler":"Automatic","sampler_name":""})").schedule, std::nullopt);
}

TEST(SdapiCodec, ReadsAPictureToBeginWith) {
  const auto asked = decode_img2img(R"({"prompt":"a","init_images":["data:image/png;base64,YQ=="],"denoising_strength":0.5})");
  ASSERT_TRUE(asked.has_value()) << asked.error().error.message;
  ASSERT_TRUE(asked->begin.has_value());
  EXPECT_EQ(asked->begin->text, "data:image/png;base64,YQ==");
  EXPECT_EQ(asked->options.strength, 0.5F);
  EXPECT_EQ(decode_img2img(R"({"prompt":"a","init_images":["YQ=="]})")->options.strength, kPictureStrength);
  const auto field_of = [](const char* body) { return decode_img2img(body).error().field; };
  EXPECT_EQ(field_of(R"({"prompt":"a"})"), "init_images");
  EXPECT_EQ(field_of(R"({"prompt":"a","init_images":["YQ==","YQ=="]})"), "init_images");
  EXPECT_EQ(field_of(R"({"prompt":"a","init_images":[7]})"), "init_images");
  EXPECT_EQ(field_of(R"({"prompt":"a","init_images":["YQ=="],"mask":"YQ=="})"), "mask");
  EXPECT_EQ(field_of(R"({"prompt":"a","init_images":["YQ=="],"denoising_strength":2})"), "denoising_strength");
}

TEST(SdapiCodec, WritesWhatPagesRead) {
  PictureRequest asked;
  asked.caption = "a \"cat\"";
  const PictureReceipt receipt{
      .error = std::nullopt, .model = "m", .width = 64, .height = 64, .pictures = 1, .steps = 8, .guidance = 2.5F, .seed = 3};
  const std::string answer = txt2img_json(asked, receipt, std::vector<PngFile>{{.seed = 3, .bytes = "abc"}});
  EXPECT_THAT(answer, HasSubstr(R"({"images":["YWJj"],"parameters":{"prompt":"a \"cat\"","negative_prompt":"","seed":3,)"));
  EXPECT_THAT(answer, HasSubstr(R"("info":"{\"prompt\":\"a \\\"cat\\\"\")"));
  EXPECT_THAT(answer, HasSubstr(R"(\"all_seeds\":[3])"));
  EXPECT_THAT(
      sd_models_json(std::vector<ModelInfo>{{.name = "chat"}, {.name = "draws", .capability = Capability::text_to_image}}),
      ::testing::StartsWith(R"([{"title":"draws","model_name":"draws")"));
  EXPECT_EQ(*decode_sd_options(R"({"sd_model_checkpoint":"m","x":1})"), "m");
  EXPECT_EQ(*decode_sd_options("{}"), std::nullopt);
  EXPECT_THAT(sd_progress_json(PictureStep{.picture = 0, .step = 3, .steps = 8, .eta_ms = 1500}, 0.25),
              HasSubstr(R"({"progress":0.25,"eta_relative":1.5,"state":{"sampling_step":3,"sampling_steps":8,)"));
  EXPECT_THAT(sd_progress_json(std::nullopt, 0), HasSubstr(R"({"progress":0,)"));
}

}  // namespace
}  // namespace uma::wire
