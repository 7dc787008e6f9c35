#include "wire/openai/picture_codec.h"

#include <algorithm>
#include <array>
#include <format>
#include <optional>
#include <utility>
#include <variant>

#include "base/base64.h"
#include "base/read_number.h"
#include "json/json_writer.h"
#include "wire/generate_fields.h"
#include "wire/own/request_codec.h"
#include "wire/request_fields.h"

namespace uma::wire {
namespace {

constexpr double kStrengthMin = 0.01;
constexpr std::size_t kChunkBytes = 48ul << 10;  // 64 KiB as base64.

void write_base64(json::ObjectWriter& object, std::string_view name, std::string_view bytes) {
  std::string& out = object.begin(name);
  out += '"';
  append_base64(out, std::as_bytes(std::span(bytes)));
  out += '"';
}

// A whole number of pixels, from 1.
std::int32_t side_field(json::FieldReader& fields, std::string_view name) {
  return static_cast<std::int32_t>(fields.integer(name, 1, kPictureSideMax).value_or(0));
}

// "512x512"; "auto": as the model draws.
void size_field(json::FieldReader& fields, PictureOptions& options) {
  const auto size = fields.text("size", {.max = 32});
  if (!size || *size == "auto") return;
  const std::size_t at = std::min(size->find('x'), size->size());
  std::int32_t width = 0;
  std::int32_t height = 0;
  const auto reads = [](std::string_view text, std::int32_t& side) {
    const auto end = read_number(text.data(), text.data() + text.size(), side);
    return end.ec == std::errc() && end.ptr == text.data() + text.size() && side > 0 && side <= kPictureSideMax;
  };
  const std::string_view whole = *size;
  const bool is_size = at < whole.size() && reads(whole.substr(0, at), width) && reads(whole.substr(at + 1), height);
  if (!is_size) {
    return fields.fail_field(
        "size",
        std::format("must be \"auto\", or a width and a height of up to {0} pixels, such as \"{0}x{0}\"", kPictureSideMax));
  }
  options.width = width;
  options.height = height;
}

// A sampler or a schedule, by its name or its label; nullopt: absent, or refused.
std::optional<PictureSampler> sampler_field(json::FieldReader& fields, std::string_view name) {
  const auto text = fields.text(name, {.max = 64});
  if (!text) return std::nullopt;
  const auto sampler = sampler_of(*text);
  if (!sampler) fields.fail_field(name, "must be one of " + sampler_names());
  return sampler;
}

std::optional<NoiseSchedule> schedule_field(json::FieldReader& fields, std::string_view name) {
  const auto text = fields.text(name, {.max = 64});
  if (!text) return std::nullopt;
  const auto schedule = schedule_of(*text);
  if (!schedule) fields.fail_field(name, "must be one of " + schedule_names());
  return schedule;
}

// Reads what OpenAI's API does not have.
void read_own_fields(json::FieldReader& fields, PictureRequest& request) {
  PictureOptions& options = request.options;
  if (auto negative = fields.text("negative_prompt", {.max = kCaptionBytesMax}))
    request.negative_caption = *std::move(negative);
  if (const auto steps = fields.integer("steps", 1, kPictureStepsMax)) options.steps = static_cast<std::int32_t>(*steps);
  for (const std::string_view name : {"guidance", "cfg_scale"}) {
    if (const auto guidance = fields.number(name, {1, kPictureGuidanceMax})) options.guidance = static_cast<float>(*guidance);
  }
  if (const auto seed = fields.unsigned_integer("seed")) options.seed = seed;
  if (const auto sampler = sampler_field(fields, "sampler")) options.sampler = sampler;
  if (const auto schedule = schedule_field(fields, "schedule")) options.schedule = schedule;
  if (const auto* image = fields.object("image")) {
    json::FieldReader inner(*image, "image.");
    request.begin = ImageSource{.kind = ImageSource::Kind::data, .text = inner.required_text("data")};
    if (!inner.ok()) fields.fail_as(inner);
  }
  if (const auto strength = fields.number("strength", {kStrengthMin, 1})) {
    options.strength = static_cast<float>(*strength);
    if (!request.begin) fields.fail_field("strength", "needs a picture to begin with, as \"image\"");
  }
  if (const auto metadata = fields.boolean("metadata")) options.has_metadata = *metadata;
  refuse_field(fields, RequestRoute::images, "device");
  if (fields.find("class") != nullptr) request.request_class = class_field(fields);
  if (const auto deadline = fields.integer("deadline_ms", 0, kTimeMsMax)) request.deadline_ms = deadline;
}

// The fields of every request for pictures, whatever its API calls the size.
PictureRequest common_fields(json::FieldReader& fields) {
  PictureRequest request;
  request.model = fields.text("model", {0, kModelBytesMax}).value_or("");
  request.caption = fields.required_text("prompt", {.max = kCaptionBytesMax});
  PictureOptions& options = request.options;
  options.count = static_cast<std::int32_t>(fields.integer("n", 1, kPicturesMax).value_or(1));
  options.partial_pictures = static_cast<std::int32_t>(fields.integer("partial_images", 0, kPartialPicturesMax).value_or(0));
  read_own_fields(fields, request);
  return request;
}

// Refuses another value of a field than those in `served`, with the reason.
void check_choice(json::FieldReader& fields, std::string_view name, std::span<const std::string_view> served,
                  std::string_view reason) {
  const auto value = fields.text(name, {.max = 64});
  if (value && !std::ranges::contains(served, *value)) fields.fail_field(name, reason);
}

ImagesCall images_fields(json::FieldReader& fields) {
  static constexpr std::array<std::string_view, 1> kFormats = {"png"};
  static constexpr std::array<std::string_view, 1> kResponses = {"b64_json"};
  static constexpr std::array<std::string_view, 2> kBackgrounds = {"opaque", "auto"};
  check_choice(fields, "output_format", kFormats, "must be \"png\", the only format that is written");
  check_choice(fields, "response_format", kResponses, "must be \"b64_json\": no picture is stored, so there is no URL");
  check_choice(fields, "background", kBackgrounds, "must be \"opaque\" or \"auto\": pictures have no transparency");
  ImagesCall call{.request = common_fields(fields), .is_stream = fields.boolean("stream").value_or(false)};
  size_field(fields, call.request.options);
  if (const auto* own = fields.object("uma")) {
    json::FieldReader inner(*own, "uma.");
    read_own_fields(inner, call.request);
    if (!inner.ok()) fields.fail_as(inner);
  }
  if (call.request.options.partial_pictures > 0 && !call.is_stream) {
    fields.fail_field("partial_images", "needs \"stream\": true");
  }
  return call;
}

void write_image_usage(json::ObjectWriter& parent, std::int64_t caption_tokens, std::int64_t picture_tokens) {
  json::ObjectWriter usage(parent.begin("usage"));
  usage.field("input_tokens", caption_tokens);
  usage.field("output_tokens", picture_tokens);
  usage.field("total_tokens", caption_tokens + picture_tokens);
  json::ObjectWriter details(usage.begin("input_tokens_details"));
  details.field("text_tokens", caption_tokens);
  details.field("image_tokens", 0);
  details.close();
  usage.close();
}

// umad's own field.
void write_seed(json::ObjectWriter& parent, std::uint64_t seed) {
  json::ObjectWriter own(parent.begin("uma"));
  own.field("seed", seed);
  own.close();
}

void write_picture_kind(json::ObjectWriter& object, const PictureBegun& begun) {
  object.field("output_format", "png");
  object.field("background", "opaque");
  object.field("quality", "auto");
  object.field("size", std::format("{}x{}", begun.width, begun.height));
}

}  // namespace

// --- The socket

PictureRequest picture_fields(json::FieldReader& fields) {
  PictureRequest request = common_fields(fields);
  request.options.width = side_field(fields, "width");
  request.options.height = side_field(fields, "height");
  return request;
}

void append_picture_event(std::string& out, const FrameHead& head, const PictureEvent& event) {
  if (const auto* begun = std::get_if<PictureBegun>(&event)) {
    return append_reply(out, head, "image_begin", [&](json::ObjectWriter& object) {
      object.field("width", begun->width);
      object.field("height", begun->height);
      object.field("images", begun->pictures);
      object.field("steps", begun->steps);
      object.field("seed", begun->seed);
    });
  }
  if (const auto* step = std::get_if<PictureStep>(&event)) {
    return append_reply(out, head, "progress", [&](json::ObjectWriter& object) {
      object.field("stage", "draw");
      object.field("image", step->picture);
      object.field("done", step->step);
      object.field("total", step->steps);
      object.field("eta_ms", step->eta_ms);
    });
  }
  const auto& picture = std::get<DrawnPicture>(event);
  const std::size_t parts = std::max<std::size_t>(1, (picture.png.size() + kChunkBytes - 1) / kChunkBytes);
  for (std::size_t part = 0; part < parts; ++part) {
    append_reply(out, head, "image_chunk", [&](json::ObjectWriter& object) {
      object.field("image", picture.picture);
      if (picture.partial > 0) object.field("partial", picture.partial);
      object.field("seed", picture.seed);
      object.field("format", "png");
      object.field("part", part);
      object.field("parts", parts);
      write_base64(object, "data", picture.png.substr(part * kChunkBytes, kChunkBytes));
    });
  }
}

void append_picture_eos(std::string& out, const FrameHead& head, const PictureReceipt& receipt) {
  append_reply(out, head, "eos", [&](json::ObjectWriter& object) {
    object.field("reason", finish_reason_name(receipt.reason));
    if (receipt.error) {
      object.field("code", code_name(receipt.error->code));
      object.field("message", receipt.error->message);
    }
    json::ObjectWriter usage(object.begin("usage"));
    usage.field("model", receipt.model);
    usage.field("images", receipt.pictures);
    usage.field("width", receipt.width);
    usage.field("height", receipt.height);
    usage.field("steps", receipt.steps);
    usage.field("guidance", static_cast<double>(receipt.guidance));
    usage.field("sampler", sampler_name(receipt.sampler));
    if (receipt.schedule) usage.field("schedule", schedule_name(*receipt.schedule));
    usage.field("seed", receipt.seed);
    usage.field("prompt_tokens", receipt.caption_tokens);
    usage.field("image_tokens", receipt.picture_tokens);
    usage.field("queue_ms", receipt.queue_ms);
    usage.field("draw_ms", receipt.draw_ms);
    usage.close();
  });
}

// --- OpenAI

std::expected<ImagesCall, RejectedBody> decode_images_call(std::string_view body) {
  return decode_request<ImagesCall>(RequestRoute::images, body, images_fields);
}

std::string images_json(const ImagesHead& head, std::span<const PngFile> pictures) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("created", head.created_s);
  json::append_array(object.begin("data"), pictures, [&](const PngFile& picture) {
    json::ObjectWriter entry(out);
    write_base64(entry, "b64_json", picture.bytes);
    write_seed(entry, picture.seed);
    entry.close();
  });
  write_picture_kind(object, head.begun);
  write_image_usage(object, head.begun.caption_tokens, head.begun.picture_tokens * std::ssize(pictures));
  object.close();
  return out;
}

std::string images_event(const ImagesHead& head, const DrawnPicture& picture) {
  const bool is_partial = picture.partial > 0;
  const std::string_view type = is_partial ? "image_generation.partial_image" : "image_generation.completed";
  std::string out = std::format("event: {}\ndata: ", type);
  json::ObjectWriter object(out);
  object.field("type", type);
  write_base64(object, "b64_json", picture.png);
  if (is_partial) object.field("partial_image_index", picture.partial - 1);
  object.field("created_at", head.created_s);
  write_seed(object, picture.seed);
  write_picture_kind(object, head.begun);
  if (!is_partial) write_image_usage(object, head.begun.caption_tokens, head.begun.picture_tokens);
  object.close();
  return out += "\n\n";
}

}  // namespace uma::wire
