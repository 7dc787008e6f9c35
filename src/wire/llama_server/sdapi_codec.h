// The API of Stable Diffusion web UI (/sdapi/v1), as far as pages need it to have pictures drawn.
#pragma once

#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/picture.h"
#include "core/session_info.h"
#include "wire/json_body.h"
#include "wire/openai/picture_codec.h"

namespace uma::wire {

// The bodies of txt2img and img2img. The model is that of override_settings, or empty.
[[nodiscard]] std::expected<PictureRequest, RejectedBody> decode_txt2img(std::string_view body);
[[nodiscard]] std::expected<PictureRequest, RejectedBody> decode_img2img(std::string_view body);
[[nodiscard]] std::string txt2img_json(const PictureRequest& asked, const PictureReceipt& receipt,
                                       std::span<const PngFile> pictures);

// sd_model_checkpoint of the body of options; nullopt: it sets none.
[[nodiscard]] std::expected<std::optional<std::string>, RejectedBody> decode_sd_options(std::string_view body);
[[nodiscard]] std::string sd_options_json(std::string_view model);
// The list of those of `models` that draw.
[[nodiscard]] std::string sd_models_json(std::span<const ModelInfo> models);
[[nodiscard]] std::string sd_samplers_json();
[[nodiscard]] std::string sd_schedulers_json();
// `step`: the last step of the pictures that are being drawn; nullopt: none are.
[[nodiscard]] std::string sd_progress_json(const std::optional<PictureStep>& step, double share);

}  // namespace uma::wire
