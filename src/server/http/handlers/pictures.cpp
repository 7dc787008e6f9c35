// /v1/images/generations, and of Stable Diffusion web UI's API (/sdapi/v1) what pages need to have pictures drawn.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <format>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/capability.h"
#include "server/http/handlers/picture_state.h"
#include "server/http/http_connection.h"
#include "server/http/routes.h"
#include "server/server_state.h"
#include "wire/llama_server/sdapi_codec.h"
#include "wire/openai/openai_codec.h"
#include "wire/openai/picture_codec.h"

namespace uma::server {
namespace {

using handlers::Answer;

// Without a name the service chooses a model that draws.
void choose_model(HttpConnection& connection, PictureRequest& request) {
  if (!request.model.empty()) request.model = connection.choose_model(request.model, Capability::text_to_image);
}

RequestId start_drawing(HttpConnection& connection, PictureRequest request, const std::shared_ptr<PictureState>& state) {
  return connection.draw(std::move(request), state,
                         [state](Expected<PictureReceipt> receipt) { state->end(std::move(receipt)); });
}

// Charged for the pictures of a request until they are written, so that none is drawn whose answer there is no room for.
Expected<RequestShare> hold_pictures(HttpConnection& connection, const PictureRequest& request) {
  constexpr std::size_t kPixelBytes = 4;  // Size of a pixel that no compression makes smaller, in base64.
  const PictureOptions& options = request.options;
  const auto name = connection.service().choose_model(request.model, Capability::text_to_image);
  const std::vector<ModelInfo> models = connection.service().models();
  const auto info = std::ranges::find(models, name.value_or(request.model), &ModelInfo::name);
  const std::int32_t own = info != models.end() && info->picture_size > 0 ? info->picture_size : kPictureSideMax;
  const auto side = [own](std::int32_t asked) { return static_cast<std::size_t>(asked > 0 ? asked : own); };
  return connection.hold(static_cast<std::size_t>(options.count) * side(options.width) * side(options.height) * kPixelBytes);
}

// Draws to the end; nullopt if the client has left. on_start(id) is called at once.
template <class OnStart>
Awaitable<std::optional<Expected<PictureReceipt>>> draw_whole(HttpConnection& connection, PictureRequest request,
                                                              std::shared_ptr<PictureState> state, OnStart on_start) {
  auto receipt = co_await connection.ask_cancelling<PictureReceipt>([&](Promise<PictureReceipt> reply) {
    state->tell_end(std::move(reply));
    const RequestId id = start_drawing(connection, std::move(request), state);
    on_start(id);
    return id;
  });
  if (receipt && *receipt && (*receipt)->error) receipt = std::unexpected(*(*receipt)->error);
  co_return receipt;
}

struct DrawnFiles {
  std::vector<wire::PngFile> files;
  std::size_t bytes = 0;
};

DrawnFiles files_of(PictureState& state) {
  DrawnFiles drawn;
  for (PictureState::Untaken& each : state.take()) {
    if (each.partial > 0) continue;
    drawn.bytes += each.file.bytes.size();
    drawn.files.push_back(std::move(each.file));
  }
  return drawn;
}

// The next events of a stream; false after the last one.
bool append_events(PictureState& state, std::string& out) {
  const auto receipt = state.receipt();  // Taken first, so that no picture comes after it.
  for (const PictureState::Untaken& each : state.take()) out += each.file.bytes;
  if (!receipt) return true;
  std::optional<Error> error;
  if (!*receipt) {
    error = receipt->error();
  } else if ((*receipt)->error) {
    error = (*receipt)->error;
  } else if ((*receipt)->reason == FinishReason::slow_consumer) {
    error = Error{ErrorCode::limit_wait, "the client read too slowly"};
  }
  if (error) out += "event: error\ndata: " + wire::error_json(*error, http_status(error->code), error->field) + "\n\n";
  return false;
}

// The status says whether the request can be drawn at all; what fails later is an event.
Answer stream_pictures(HttpConnection& connection, const HttpRequest& request, PictureRequest asked) {
  auto share = hold_pictures(connection, asked);
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  const auto state =
      std::make_shared<PictureState>(connection.waker(), connection.server().options.limits.tx_bytes_max,
                                     [created_s = unix_time_s()](const PictureBegun& begun, const DrawnPicture& picture) {
                                       return wire::images_event({.created_s = created_s, .begun = begun}, picture);
                                     });
  PictureGuard guard(connection.service(), *state);
  const auto begun = co_await connection.ask_until_gone<Unit>([&](Promise<Unit> reply) {
    state->tell_begun(std::move(reply));
    guard.set(start_drawing(connection, std::move(asked), state));
  });
  if (!begun) co_return false;
  if (!*begun) {
    co_return co_await connection.respond_failed(begun->error(), request, begun->error().field);
  }
  co_return co_await connection.stream(
      "text/event-stream",
      [state, share = *std::move(share), has_begun = false](std::string& out) mutable {
        if (!std::exchange(has_begun, true)) out += ": the captions are read\n\n";
        return append_events(*state, out);
      },
      request);
}

// The model's name, if it draws.
Expected<std::string> check_draws(Service& service, const std::string& name) {
  auto known = service.resolve_model(name);
  if (!known) return known;
  for (const ModelInfo& model : service.models()) {
    if (model.name == *known && model.capability != Capability::text_to_image)
      return fail(ErrorCode::model_capability, std::format("model \"{}\" does not draw pictures", *known));
  }
  return known;
}

// txt2img and img2img.
Answer draw_for_page(HttpConnection& connection, const HttpRequest& request,
                     std::expected<PictureRequest, wire::RejectedBody> asked) {
  if (!asked) co_return co_await connection.respond_rejected(asked.error(), request);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  const auto& chosen = connection.server().sd_models;
  if (const auto found = chosen.find(connection.tenant().value); asked->model.empty() && found != chosen.end()) {
    asked->model = found->second;
  }
  choose_model(connection, *asked);
  auto share = hold_pictures(connection, *asked);
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  const auto state = std::make_shared<PictureState>(connection.waker(), std::numeric_limits<std::size_t>::max());
  auto begin = std::exchange(asked->begin, std::nullopt);  // The answer does not repeat it.
  PictureRequest drawn = *asked;
  drawn.begin = std::move(begin);
  auto receipt = co_await draw_whole(connection, std::move(drawn), state, [&](RequestId id) {
    connection.server().drawing[connection.tenant().value] = {id, state};
  });
  DrawnFiles made = files_of(*state);
  co_return co_await connection.respond_with(std::move(receipt), request,
                                             [shown = *std::move(asked), files = std::move(made.files)](
                                                 const PictureReceipt& done) { return wire::txt2img_json(shown, done, files); },
                                             nullptr, {.bytes = made.bytes, .share = *std::move(share)});
}

}  // namespace

Answer handlers::create_images(HttpConnection& connection, const HttpRequest& request) {
  auto call = co_await connection.read_body(request.body, wire::decode_images_call);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  connection.warn(call->warnings);
  if (connection.server().draining) co_return co_await connection.respond_error(503, stopping_error(), false);
  choose_model(connection, call->request);
  if (call->is_stream) co_return co_await stream_pictures(connection, request, std::move(call->request));
  auto share = hold_pictures(connection, call->request);
  if (!share) co_return co_await connection.respond_failed(share.error(), request);
  const auto state = std::make_shared<PictureState>(connection.waker(), std::numeric_limits<std::size_t>::max());
  auto receipt = co_await draw_whole(connection, std::move(call->request), state, [](RequestId) {});
  if (receipt && *receipt && (*receipt)->reason != FinishReason::stop)
    receipt = fail(ErrorCode::limit_wait, "the request was cancelled");
  DrawnFiles made = files_of(*state);
  co_return co_await connection.respond_with(
      std::move(receipt), request,
      [head = wire::ImagesHead{.created_s = unix_time_s(), .begun = state->begun()},
       files = std::move(made.files)](const PictureReceipt&) { return wire::images_json(head, files); },
      nullptr, {.bytes = made.bytes, .share = *std::move(share)});
}

Answer handlers::sd_txt2img(HttpConnection& connection, const HttpRequest& request) {
  auto asked = co_await connection.read_body(request.body, wire::decode_txt2img);
  co_return co_await draw_for_page(connection, request, std::move(asked));
}

Answer handlers::sd_img2img(HttpConnection& connection, const HttpRequest& request) {
  auto asked = co_await connection.read_body(request.body, wire::decode_img2img);
  co_return co_await draw_for_page(connection, request, std::move(asked));
}

Answer handlers::get_sd_options(HttpConnection& connection, const HttpRequest& request) {
  const auto& chosen = connection.server().sd_models;
  std::string model;
  if (const auto found = chosen.find(connection.tenant().value); found != chosen.end()) {
    model = found->second;
  } else {
    model = connection.service().choose_model("", Capability::text_to_image).value_or("");
  }
  co_return co_await connection.respond(200, kJson, wire::sd_options_json(model), request.keep_alive);
}

// The chosen model is that of the tenant's later requests, until the daemon ends.
Answer handlers::set_sd_options(HttpConnection& connection, const HttpRequest& request) {
  const auto model = co_await connection.read_body(request.body, wire::decode_sd_options);
  if (!model) co_return co_await connection.respond_rejected(model.error(), request);
  auto& chosen = connection.server().sd_models;
  if (*model && (*model)->empty()) {
    chosen.erase(connection.tenant().value);
  } else if (*model) {
    const auto known = check_draws(connection.service(), **model);
    if (!known) {
      co_return co_await connection.respond_error(http_status(known.error().code), known.error(), request.keep_alive,
                                                  "sd_model_checkpoint");
    }
    chosen[connection.tenant().value] = *known;
  }
  co_return co_await connection.respond(200, kJson, "null", request.keep_alive);
}

Answer handlers::list_sd_models(HttpConnection& connection, const HttpRequest& request) {
  co_return co_await connection.respond(200, kJson, wire::sd_models_json(connection.service().models()), request.keep_alive);
}

Answer handlers::list_sd_samplers(HttpConnection& connection, const HttpRequest& request) {
  co_return co_await connection.respond(200, kJson, wire::sd_samplers_json(), request.keep_alive);
}

Answer handlers::list_sd_schedulers(HttpConnection& connection, const HttpRequest& request) {
  co_return co_await connection.respond(200, kJson, wire::sd_schedulers_json(), request.keep_alive);
}

// The progress of the tenant's last request.
Answer handlers::get_sd_progress(HttpConnection& connection, const HttpRequest& request) {
  const auto& drawing = connection.server().drawing;
  const auto found = drawing.find(connection.tenant().value);
  const auto state = found == drawing.end() ? nullptr : found->second.state.lock();
  const std::string body = wire::sd_progress_json(state ? state->last_step() : std::nullopt, state ? state->share_done() : 0);
  co_return co_await connection.respond(200, kJson, body, request.keep_alive);
}

Answer handlers::interrupt_sd(HttpConnection& connection, const HttpRequest& request) {
  const auto& drawing = connection.server().drawing;
  const auto found = drawing.find(connection.tenant().value);
  if (found != drawing.end() && !found->second.state.expired()) {
    connection.service().cancel(found->second.id, [](Expected<bool>) {});
  }
  co_return co_await connection.respond(200, kJson, "null", request.keep_alive);
}

}  // namespace uma::server
