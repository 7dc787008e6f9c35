#include "wire/sdapi_codec.h"

#include <algorithm>
#include <array>
#include <format>
#include <vector>

#include "base/base64.h"
#include "json/json_writer.h"
#include "wire/request_codec.h"

namespace uma::wire {
namespace {

// The pages' names of the only sampler.
constexpr std::array<std::string_view, 3> kSamplers = {"Euler", "euler", "k_euler"};

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
  const auto sampler = fields.text("sampler_name", {.max = 64});
  if (sampler && !sampler->empty() && !std::ranges::contains(kSamplers, *sampler)) {
    fields.fail_field("sampler_name", "must be \"Euler\", the only sampler there is");
  }
  if (const auto* settings = fields.object("override_settings")) {
    json::FieldReader inner(*settings, "override_settings.");
    request.model = inner.text("sd_model_checkpoint", {.max = kModelBytesMax}).value_or("");
    if (!inner.ok()) fields.fail_as(inner);
  }
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
  object.field("sampler_name", "Euler");
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

// [{"name": …}], with the other fields that pages read.
std::string one_choice_json(std::string_view name, std::string_view label) {
  std::string out = "[";
  json::ObjectWriter object(out);
  object.field("name", name);
  object.field("label", label);
  object.begin("aliases") += "[]";
  object.begin("options") += "{}";
  object.close();
  return out += "]";
}

}  // namespace

std::expected<PictureRequest, RejectedBody> decode_txt2img(std::string_view body) {
  return decode_body<PictureRequest>(body, txt2img_fields);
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
  return one_choice_json(kSamplers.front(), kSamplers.front());
}

std::string sd_schedulers_json() {
  return one_choice_json("automatic", "Automatic");
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
