#include "wire/llama_server/sdapi_codec.h"

#include <format>
#include <span>
#include <vector>

#include "base/base64.h"
#include "base/text.h"
#include "json/json_writer.h"
#include "wire/own/request_codec.h"

namespace uma::wire {
namespace {

// The name by which pages call the usual schedule of a sampler.
constexpr std::string_view kAutomatic = "Automatic";

// The sampler, whose name may end with a schedule's, as older pages send it: "DPM++ 2M Karras".
void sampler_fields(json::FieldReader& fields, PictureOptions& options) {
  auto text = fields.text("sampler_name", {.max = 64}).value_or("");
  for (const NoiseSchedule schedule : all_schedules()) {
    const std::string ending = std::format(" {}", schedule_label(schedule));
    if (!text.ends_with(ending)) continue;
    options.schedule = schedule;
    text.resize(text.size() - ending.size());
  }
  if (!text.empty()) {
    options.sampler = sampler_of(text);
    if (!options.sampler) fields.fail_field("sampler_name", "must be one that /sdapi/v1/samplers lists");
  }
  const auto scheduler = fields.text("scheduler", {.max = 64}).value_or("");
  if (scheduler.empty() || lower_ascii(scheduler) == lower_ascii(kAutomatic)) return;
  options.schedule = schedule_of(scheduler);
  if (!options.schedule) fields.fail_field("scheduler", "must be one that /sdapi/v1/schedulers lists");
}

// -1 stands for a random seed.
std::optional<std::uint64_t> seed_field(json::FieldReader& fields) {
  const auto* const value = fields.find("seed");
  const bool is_random = value != nullptr && value->is_int64() && value->get_int64() == -1;
  return is_random ? std::nullopt : fields.unsigned_integer("seed");
}

PictureRequest txt2img_fields(json::FieldReader& fields) {
  PictureRequest request;
  request.caption = fields.required_text("prompt", {.max = kCaptionBytesMax});
  request.negative_caption = fields.text("negative_prompt", {.max = kCaptionBytesMax}).value_or("");
  PictureOptions& options = request.options;
  const auto whole = [&](std::string_view name, std::int64_t max) -> std::optional<std::int32_t> {
    const auto value = fields.integer(name, 1, max);
    return value ? std::optional(static_cast<std::int32_t>(*value)) : std::nullopt;
  };
  options.width = whole("width", kPictureSideMax).value_or(0);
  options.height = whole("height", kPictureSideMax).value_or(0);
  options.steps = whole("steps", kPictureStepsMax);
  if (const auto scale = fields.number("cfg_scale", {1, kPictureGuidanceMax})) options.guidance = static_cast<float>(*scale);
  options.seed = seed_field(fields);
  const std::int32_t together = whole("batch_size", kPicturesMax).value_or(1);
  const std::int32_t times = whole("n_iter", kPicturesMax).value_or(1);
  options.count = together * times;
  if (options.count > kPicturesMax) {
    fields.fail_field(
        "n_iter", std::format("times batch_size is {}, but a request has at most {} pictures", options.count, kPicturesMax));
  }
  sampler_fields(fields, options);
  if (fields.boolean("enable_hr").value_or(false)) fields.fail_field("enable_hr", "is not served: a picture is drawn once");
  if (const auto* settings = fields.object("override_settings")) {
    json::FieldReader inner(*settings, "override_settings.");
    request.model = inner.text("sd_model_checkpoint", {.max = kModelBytesMax}).value_or("");
    if (!inner.ok()) fields.fail_as(inner);
  }
  return request;
}

PictureRequest img2img_fields(json::FieldReader& fields) {
  PictureRequest request = txt2img_fields(fields);
  const auto* const images = fields.array("init_images");
  if (images == nullptr || images->size() != 1) {
    fields.fail_field("init_images", "must have one picture, as base64 or a data: URI");
    return request;
  }
  request.begin = ImageSource{.kind = ImageSource::Kind::data,
                              .text = fields.checked_text("init_images", images->front(), {.min = 1}).value_or("")};
  const auto strength = fields.number("denoising_strength", {0, 1});
  if (strength) request.options.strength = static_cast<float>(*strength);
  if (fields.find("mask") != nullptr) fields.fail_field("mask", "is not served: a picture is drawn anew as a whole");
  return request;
}

void write_parameters(json::ObjectWriter& object, const PictureRequest& asked, const PictureReceipt& receipt) {
  object.field("prompt", asked.caption);
  object.field("negative_prompt", asked.negative_caption);
  object.field("seed", receipt.seed);
  object.field("steps", receipt.steps);
  object.field("cfg_scale", static_cast<double>(receipt.guidance));
  object.field("width", receipt.width);
  object.field("height", receipt.height);
  object.field("sampler_name", sampler_label(receipt.sampler));
  object.field("scheduler", receipt.schedule ? schedule_label(*receipt.schedule) : kAutomatic);
  object.field("batch_size", asked.options.count);
}

std::string info_json(const PictureRequest& asked, const PictureReceipt& receipt, std::span<const PngFile> pictures) {
  std::string out;
  json::ObjectWriter object(out);
  write_parameters(object, asked, receipt);
  object.field("sd_model_name", receipt.model);
  json::append_array(object.begin("all_seeds"), pictures,
                     [&](const PngFile& picture) { json::append_integer(out, picture.seed); });
  json::append_array(object.begin("all_prompts"), pictures, [&](const PngFile&) { json::append_string(out, asked.caption); });
  json::append_array(object.begin("infotexts"), pictures,
                     [&](const PngFile& picture) { json::append_string(out, parameters_of(asked, receipt, picture.seed)); });
  object.field("index_of_first_image", 0);
  object.close();
  return out;
}

struct Choice {
  std::string_view name;
  std::string_view label;
};
// [{"name": …}], with the other fields that pages read.
std::string choices_json(std::span<const Choice> choices) {
  std::string out;
  json::append_array(out, choices, [&](const Choice& choice) {
    json::ObjectWriter object(out);
    object.field("name", choice.name);
    object.field("label", choice.label);
    object.begin("aliases") += "[]";
    object.begin("options") += "{}";
    object.close();
  });
  return out;
}

}  // namespace

std::expected<PictureRequest, RejectedBody> decode_txt2img(std::string_view body) {
  return decode_body<PictureRequest>(body, txt2img_fields);
}

std::expected<PictureRequest, RejectedBody> decode_img2img(std::string_view body) {
  return decode_body<PictureRequest>(body, img2img_fields);
}

std::string txt2img_json(const PictureRequest& asked, const PictureReceipt& receipt, std::span<const PngFile> pictures) {
  std::string out;
  json::ObjectWriter object(out);
  json::append_array(object.begin("images"), pictures,
                     [&](const PngFile& picture) { json::append_string(out, base64_of(picture.bytes)); });
  json::ObjectWriter parameters(object.begin("parameters"));
  write_parameters(parameters, asked, receipt);
  parameters.close();
  object.field("info", info_json(asked, receipt, pictures));
  object.close();
  return out;
}

std::expected<std::optional<std::string>, RejectedBody> decode_sd_options(std::string_view body) {
  return decode_body<std::optional<std::string>>(
      body, [](json::FieldReader& fields) { return fields.text("sd_model_checkpoint", {.max = kModelBytesMax}); });
}

std::string sd_options_json(std::string_view model) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("sd_model_checkpoint", model);
  object.field("samples_format", "png");
  object.close();
  return out;
}

std::string sd_models_json(std::span<const ModelInfo> models) {
  std::vector<std::string_view> names;
  for (const ModelInfo& model : models) {
    if (model.capability == Capability::text_to_image && model.problem.empty()) names.emplace_back(model.name);
  }
  std::string out;
  json::append_array(out, names, [&](std::string_view name) {
    json::ObjectWriter object(out);
    for (const std::string_view field : {"title", "model_name", "filename"}) object.field(field, name);
    object.null_field("hash");
    object.null_field("sha256");
    object.null_field("config");
    object.close();
  });
  return out;
}

std::string sd_samplers_json() {
  std::vector<Choice> choices;
  for (const PictureSampler sampler : all_samplers()) choices.push_back({sampler_label(sampler), sampler_label(sampler)});
  return choices_json(choices);
}

std::string sd_schedulers_json() {
  std::vector<Choice> choices = {{"automatic", kAutomatic}};
  for (const NoiseSchedule schedule : all_schedules()) choices.push_back({schedule_name(schedule), schedule_label(schedule)});
  return choices_json(choices);
}

std::string sd_progress_json(const std::optional<PictureStep>& step, double share) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("progress", step ? share : 0.0);
  object.field("eta_relative", step ? step->eta_ms / 1000 : 0.0);
  json::ObjectWriter state(object.begin("state"));
  state.field("sampling_step", step ? step->step : 0);
  state.field("sampling_steps", step ? step->steps : 0);
  state.field("job_count", step ? 1 : 0);
  state.close();
  object.null_field("current_image");
  object.null_field("textinfo");
  object.close();
  return out;
}

}  // namespace uma::wire
