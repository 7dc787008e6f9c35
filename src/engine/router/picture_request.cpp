#include "engine/router/picture_request.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <string>
#include <utility>
#include <vector>

#include "base/thrown.h"
#include "engine/lane/run/picture_lane.h"
#include "image/picture_reader.h"
#include "image/png_writer.h"

namespace uma::engine {
namespace {

// The picture that the model draws for the size that is asked for, and how much it is enlarged: as little as possible, and none
// that is much smaller than its usual ones.
struct Fit {
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::int32_t scale = 1;
};

Expected<Fit> fit_size(const PictureOptions& options, const llm::PictureSizes& sizes) {
  const std::int32_t width = options.width > 0 ? options.width : std::max(options.height, 0);
  const std::int32_t height = options.height > 0 ? options.height : width;
  if (width == 0) return Fit{.width = sizes.native, .height = sizes.native};
  const std::int32_t side_max = std::max(kPictureSideMax, sizes.native);
  for (std::int32_t scale = 1; scale <= std::min(width, height) && std::max(width, height) <= side_max; ++scale) {
    const bool is_usual = scale == 1 || 2 * std::min(width, height) / scale >= sizes.native;
    if (is_usual && width % scale == 0 && height % scale == 0 && sizes.contain(width / scale, height / scale))
      return Fit{.width = width / scale, .height = height / scale, .scale = scale};
  }
  const std::string drawn = sizes.multiple == 0 ? std::format("of {0} × {0} pixels", sizes.native)
                                                : std::format("of up to {} pixels, with sides that are multiples of {}",
                                                              sizes.pixels_max, sizes.multiple);
  const std::string text = std::format(
      "the model draws pictures {}, which can be enlarged to whole multiples of that up to {} × {}: {} × {} is not possible",
      drawn, side_max / sizes.native * sizes.native, side_max / sizes.native * sizes.native, width, height);
  return std::unexpected(Error{.code = ErrorCode::proto_field, .message = text, .field = "size"});
}

// The number of the unfinished picture to deliver after a step, from 1; 0: none. They come at equal distances.
std::int32_t partial_after(std::int32_t step, std::int32_t steps, std::int32_t wanted) {
  if (step == steps) return 0;
  const auto due = [&](std::int32_t done) { return done * (wanted + 1) / steps; };
  return due(step) > due(step - 1) ? due(step) : 0;
}

// Delivers the pictures of one request. Lives in the lane until its outcome.
class Delivery {
 public:
  Delivery(PictureRequest call, PictureReceipt receipt, std::int32_t steps, std::int32_t scale, std::int64_t picture_tokens,
           std::shared_ptr<PictureSink> sink)
      : call_(std::move(call)),
        receipt_(std::move(receipt)),
        steps_(steps),
        scale_(scale),
        picture_tokens_(picture_tokens),
        sink_(std::move(sink)) {}

  // The handler for PictureTask::OnStep. False also if a picture cannot be written: problem_ says why.
  bool deliver(const PictureTask::Step& step) {
    const std::int32_t done = step.drawing.steps_done() - (receipt_.steps - steps_);
    if (!step.is_decoding)
      (void)sink_->deliver(PictureStep{.picture = step.picture, .step = done, .steps = steps_, .eta_ms = step.eta_ms});
    const std::int32_t partial = partial_after(done, steps_, call_.options.partial_pictures);
    if (partial == 0 && !step.drawing.is_done()) return true;
    const llm::DrawingOptions& drawn = step.drawing.options();
    const std::uint64_t seed = drawn.seed;
    const std::vector<std::uint8_t> levels = step.drawing.levels();
    const auto png = image::write_png({.levels = levels, .width = drawn.width, .height = drawn.height, .scale = scale_},
                                      call_.options.has_metadata ? parameters_of(call_, receipt_, seed) : "");
    if (!png) {
      problem_ = png.error();
      return false;
    }
    const bool is_read = sink_->deliver(DrawnPicture{.picture = step.picture, .partial = partial, .seed = seed, .png = *png});
    if (is_read && partial == 0) ++receipt_.pictures;
    has_delivered_ |= is_read;
    return is_read;
  }

  // The answer: an error only if nothing was delivered.
  Expected<PictureReceipt> receipt(const PictureOutcome& outcome) {
    receipt_.queue_ms = outcome.queue_ms;
    receipt_.draw_ms = outcome.draw_ms;
    receipt_.picture_tokens = (picture_tokens_ * outcome.steps_done + receipt_.steps - 1) / receipt_.steps;
    switch (outcome.end) {
      case PictureOutcome::End::done:
        break;
      case PictureOutcome::End::cancelled:
        receipt_.reason = FinishReason::cancelled;
        break;
      case PictureOutcome::End::slow_consumer:
        receipt_.reason = problem_ ? FinishReason::error : FinishReason::slow_consumer;
        receipt_.error = problem_;
        break;
      case PictureOutcome::End::failed:
        receipt_.reason = FinishReason::error;
        receipt_.error = outcome.error;
        break;
    }
    if (receipt_.error && !has_delivered_) return std::unexpected(*receipt_.error);
    return std::move(receipt_);
  }

 private:
  const PictureRequest call_;
  PictureReceipt receipt_;
  const std::int32_t steps_;  // That are drawn of each picture.
  const std::int32_t scale_;
  const std::int64_t picture_tokens_;  // Tokens of one picture.
  const std::shared_ptr<PictureSink> sink_;
  bool has_delivered_ = false;  // A picture, finished or not.
  std::optional<Error> problem_;
};

// The input that a request's drawings are made from.
struct PictureInput {
  llm::CaptionTokens caption;
  llm::CaptionTokens negative;
  std::vector<std::uint8_t> begin;  // Levels; empty: noise.
};

struct Asked {
  std::string caption;
  std::string negative_caption;
  std::optional<ImageSource> begin;
};

Expected<PictureInput> read_input(const llm::PictureModel& model, const Asked& call, const Fit& fit,
                                  const image::DecodePicture& decode) {
  auto read = model.read_caption(call.caption);
  if (!read) {
    read.error().field = "prompt";
    return std::unexpected(read.error());
  }
  auto read_negative = model.read_caption(call.negative_caption);
  if (!read_negative) {
    read_negative.error().message = "in the negative prompt: " + read_negative.error().message;
    read_negative.error().field = "negative_prompt";
    return std::unexpected(read_negative.error());
  }
  PictureInput input{.caption = *std::move(read), .negative = *std::move(read_negative), .begin = {}};
  if (!call.begin) return input;
  auto begin = image::read_fitted(*call.begin, fit.width, fit.height, decode);
  if (!begin) {
    begin.error().field = "image";
    return std::unexpected(begin.error());
  }
  input.begin = *std::move(begin);
  return input;
}

// The step that a drawing begins at whose picture is drawn anew to this part.
std::int32_t first_step_of(float strength, std::int32_t steps) {
  const auto drawn = static_cast<std::int32_t>(std::lround(strength * static_cast<float>(steps)));
  return steps - std::clamp(drawn, 1, steps);
}

}  // namespace

void PictureRequests::draw(RequestId id, const TenantId& tenant, PictureRequest call, std::shared_ptr<PictureSink> sink,
                           Promise<PictureReceipt> reply) {
  const auto shared =
      std::make_shared<Promise<PictureReceipt>>(std::move(reply));  // Shared by the request's task and on_abort.
  InFlight& request = parts_.in_flight.begin({
      .id = id,
      .flow = {tenant.value, call.client},
      .received = parts_.clock.now(),
      .deadline_ms = call.deadline_ms,
      .sinks = {},
      .is_background = call.request_class == RequestClass::background,
      .share = call.share,
      .end = {},
      .lease = {},
      .on_abort =
          [shared](const Abort& how) {
            if (how.reason == FinishReason::error) return (*shared)(std::unexpected(how.error));
            (*shared)(PictureReceipt{.reason = how.reason, .error = std::nullopt, .model = {}});
          },
  });
  parts_.in_flight.start(request, run(request, std::move(call), std::move(sink), shared));
}

Task<> PictureRequests::run(InFlight& request, PictureRequest call, std::shared_ptr<PictureSink> sink,
                            std::shared_ptr<Promise<PictureReceipt>> reply) {
  Expected<PictureReceipt> receipt = PictureReceipt();
  try {
    receipt = co_await compute(request, call, std::move(sink));
  } catch (...) {
    receipt = std::unexpected(thrown_error(parts_.tasks.place()));
  }
  if (!receipt && !request.cancel_in_lane) refused_.add();
  parts_.in_flight.end(request);
  (*reply)(std::move(receipt));
}

Task<Expected<PictureReceipt>> PictureRequests::compute(InFlight& request, PictureRequest& call,
                                                        std::shared_ptr<PictureSink> sink) {
  // The request itself is counted in the table already.
  if (auto admitted = parts_.in_flight.admit(parts_.in_flight.embeddings() - 1); !admitted) co_return admitted.error();
  if (call.model.empty()) {
    auto chosen = source_.choose("", Capability::text_to_image);
    if (!chosen) co_return chosen.error();
    call.model = *std::move(chosen);
  }
  if (const auto known = source_.resolve(call.model)) request.model = *known;
  auto lease = co_await parts_.models.lease(call.model, call.request_class == RequestClass::background);
  if (!lease) co_return lease.error();
  request.lease = std::move(*lease);
  const ServedModel& served = *request.lease;
  if (served.picture_lane == nullptr) co_return served.wrong_capability("name a model that draws pictures");
  co_return co_await draw_in_lane(request, call, std::move(sink));
}

Task<Expected<PictureReceipt>> PictureRequests::draw_in_lane(InFlight& request, PictureRequest& call,
                                                             std::shared_ptr<PictureSink> sink) {
  const ServedModel& served = *request.lease;
  const llm::PictureFacts& facts = served.picture_model->facts();
  const PictureOptions& options = call.options;
  const auto fit = fit_size(options, facts.sizes);
  if (!fit) co_return fit.error();
  const bool begins_with_picture = call.begin.has_value();
  if (begins_with_picture && !facts.reads_pictures) {
    const std::string text = "the model cannot begin with a picture: its file has no encoder of pictures";
    co_return Error{.code = ErrorCode::proto_field, .message = text, .field = "image"};
  }
  // Decoding a small file may take long.
  const std::size_t bytes = begins_with_picture ? std::max(memory_of(call), WorkPool::kLongBytes) : memory_of(call);
  auto input = co_await parts_.work.run(
      parts_.tasks, TenantId{request.flow.tenant}, bytes,
      [model = served.picture_model, asked = Asked{call.caption, call.negative_caption, std::exchange(call.begin, {})},
       fit = *fit, decode = decode_] { return read_input(*model, asked, fit, decode); },
      request.end.get_token());
  if (!input) co_return input.error();
  const float guidance = options.guidance.value_or(facts.defaults.guidance);
  // Programs send a sampler to every model: one that has no choice draws as it does.
  const bool has_choice = facts.has_samplers;
  const PictureSampler sampler = has_choice ? options.sampler.value_or(facts.defaults.sampler) : facts.defaults.sampler;
  const PictureReceipt receipt{.error = std::nullopt,
                               .model = served.name,
                               .width = fit->width * fit->scale,
                               .height = fit->height * fit->scale,
                               .steps = options.steps.value_or(facts.defaults.steps),
                               .guidance = guidance,
                               .sampler = sampler,
                               .schedule = has_choice && options.schedule ? options.schedule : facts.defaults.schedule,
                               .seed = options.seed.value_or(random_.next_u64() >> 32),
                               .caption_tokens = input->caption.count + (guidance == 1 ? 0 : input->negative.count)};
  if (call.share) {
    const auto pixels_of = [](std::int32_t width, std::int32_t height) {
      return static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
    };
    const std::uint64_t drawn = pixels_of(fit->width, fit->height) * facts.drawing_bytes_per_pixel;
    const std::uint64_t file = pixels_of(receipt.width, receipt.height) * 3;
    if (auto held = call.share->grow(static_cast<std::uint64_t>(options.count) * drawn + file); !held) co_return held.error();
  }
  const std::int32_t first_step = begins_with_picture ? first_step_of(options.strength, receipt.steps) : 0;
  PictureTask task{
      .id = request.id,
      .caption = std::move(input->caption),
      .negative = std::move(input->negative),
      .drawing = {.width = fit->width,
                  .height = fit->height,
                  .steps = receipt.steps,
                  .guidance = receipt.guidance,
                  .seed = receipt.seed,
                  .sampler = receipt.sampler,
                  .schedule = receipt.schedule},
      .begin = std::move(input->begin),
      .first_step = first_step,
      .places = facts.sizes.places_of(fit->width, fit->height),
      .count = options.count,
      .flow = request.flow,
      .is_background = call.request_class == RequestClass::background,
      .received = request.received,
      .deadline = deadline_of_whole(request.received, call.request_class, call.deadline_ms, parts_.limits.deadline_ms, served),
      .on_step = nullptr,
      .done = nullptr};
  const std::int64_t places = facts.sizes.places_of(fit->width, fit->height);
  (void)sink->deliver(PictureBegun{.width = receipt.width,
                                   .height = receipt.height,
                                   .pictures = options.count,
                                   .steps = receipt.steps - first_step,
                                   .seed = receipt.seed,
                                   .caption_tokens = receipt.caption_tokens,
                                   .picture_tokens = places});
  // Both calls come on the lane's thread.
  const auto delivery =
      std::make_shared<Delivery>(std::move(call), receipt, receipt.steps - first_step, fit->scale, places, std::move(sink));
  task.on_step = [delivery](const PictureTask::Step& step) { return delivery->deliver(step); };
  PictureLane& lane = *served.picture_lane;
  co_return co_await parts_.tasks.ask<PictureReceipt>([&](Promise<PictureReceipt> reply) {
    task.done = [delivery, reply = std::move(reply)](const PictureOutcome& outcome) mutable {
      reply(contain([&] { return delivery->receipt(outcome); }));
    };
    parts_.in_flight.set_in_lane(request, [&lane, id = request.id] { lane.cancel(id); });
    lane.post(std::move(task));
  });
}

}  // namespace uma::engine
