#include "engine/router/picture_request.h"

#include <algorithm>
#include <format>
#include <string>
#include <utility>
#include <vector>

#include "base/thrown.h"
#include "engine/lane/picture_lane.h"
#include "image/png_writer.h"

namespace uma::engine {
namespace {

// How much a picture of the model is enlarged to the size that is asked for.
Expected<std::int32_t> scale_of(const PictureOptions& options, std::int32_t native) {
  const std::int32_t width = options.width > 0 ? options.width : std::max(options.height, 0);
  const std::int32_t height = options.height > 0 ? options.height : width;
  if (width == 0) return 1;
  if (width == height && width % native == 0 && width <= std::max(kPictureSideMax, native)) return width / native;
  const std::string text = std::format(
      "the model draws pictures of {0} × {0} pixels, which can be enlarged to whole multiples of that up to {1} × {1}: "
      "{2} × {3} is not possible",
      native, kPictureSideMax / native * native, width, height);
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
  Delivery(PictureRequest call, PictureReceipt receipt, std::int32_t scale, std::int64_t picture_tokens,
           std::shared_ptr<PictureSink> sink)
      : call_(std::move(call)),
        receipt_(std::move(receipt)),
        scale_(scale),
        picture_tokens_(picture_tokens),
        sink_(std::move(sink)) {}

  // As PictureTask::OnStep. Throws if a picture cannot be written.
  bool deliver(const PictureTask::Step& step) {
    const std::int32_t done = step.drawing.steps_done();
    (void)sink_->deliver(PictureStep{.picture = step.picture, .step = done, .steps = receipt_.steps, .eta_ms = step.eta_ms});
    const std::int32_t partial = partial_after(done, receipt_.steps, call_.options.partial_pictures);
    if (partial == 0 && !step.drawing.is_done()) return true;
    const std::uint64_t seed = step.drawing.options().seed;
    const std::vector<std::uint8_t> levels = step.drawing.levels();
    const std::int32_t size = step.drawing.options().size;
    const auto png = image::write_png({.levels = levels, .width = size, .height = size, .scale = scale_},
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
  const std::int32_t scale_;
  const std::int64_t picture_tokens_;  // Of one picture.
  const std::shared_ptr<PictureSink> sink_;
  bool has_delivered_ = false;  // A picture, finished or not.
  std::optional<Error> problem_;
};

// The numbers of both captions' words.
struct Words {
  std::vector<std::int32_t> caption;
  std::vector<std::int32_t> negative;
};

Expected<Words> encode(const llm::PictureWords& words, const std::string& caption, const std::string& negative) {
  auto encoded = words.encode(caption);
  if (!encoded) {
    encoded.error().field = "prompt";
    return std::unexpected(encoded.error());
  }
  auto encoded_negative = words.encode(negative);
  if (!encoded_negative) {
    encoded_negative.error().message = "in the negative prompt: " + encoded_negative.error().message;
    encoded_negative.error().field = "negative_prompt";
    return std::unexpected(encoded_negative.error());
  }
  return Words{*std::move(encoded), *std::move(encoded_negative)};
}

// Words of a caption without its beginning and its pads.
std::int64_t count_words(const std::vector<std::int32_t>& words) {
  return std::ranges::count_if(words, [](std::int32_t word) { return word > 1; });
}

}  // namespace

void PictureRequests::draw(RequestId id, const TenantId& tenant, PictureRequest call, std::shared_ptr<PictureSink> sink,
                           Reply<PictureReceipt> reply) {
  const auto shared = std::make_shared<Reply<PictureReceipt>>(std::move(reply));  // Shared by the request's task and on_abort.
  InFlight& request = parts_.in_flight.begin({
      .id = id,
      .flow = {tenant.value, call.client},
      .received = parts_.clock.now(),
      .deadline_ms = call.deadline_ms,
      .sinks = {},
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
                            std::shared_ptr<Reply<PictureReceipt>> reply) {
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
  const auto scale = scale_of(options, facts.shape.image_size);
  if (!scale) co_return scale.error();
  auto words = co_await parts_.preparer.run(
      parts_.tasks, TenantId{request.flow.tenant}, call.caption.size() + call.negative_caption.size(),
      [model = served.picture_model, caption = call.caption, negative = call.negative_caption] {
        return encode(model->words(), caption, negative);
      });
  if (!words) co_return words.error();
  const std::int32_t side = facts.shape.image_size * *scale;
  const PictureReceipt receipt{.error = std::nullopt,
                               .model = served.name,
                               .width = side,
                               .height = side,
                               .steps = options.steps.value_or(facts.steps),
                               .guidance = options.guidance.value_or(facts.guidance),
                               .seed = options.seed.value_or(random_.next_u64() >> 32),
                               .caption_tokens = count_words(words->caption) + count_words(words->negative)};
  if (call.share) {
    const auto numbers = static_cast<std::uint64_t>(facts.shape.numbers());
    const auto pictures = static_cast<std::uint64_t>(options.count);
    const std::uint64_t file = static_cast<std::uint64_t>(side) * static_cast<std::uint64_t>(side) * 3;
    if (auto held = call.share->grow(pictures * numbers * 2 * sizeof(float) + file); !held) co_return held.error();
  }
  PictureTask task{
      .id = request.id,
      .caption = std::move(words->caption),
      .negative = std::move(words->negative),
      .drawing = {.size = facts.shape.image_size,
                  .steps = receipt.steps,
                  .guidance = receipt.guidance,
                  .shift = facts.shift,
                  .seed = receipt.seed},
      .count = options.count,
      .flow = request.flow,
      .is_background = call.request_class == RequestClass::background,
      .received = request.received,
      .deadline = deadline_of_whole(request.received, call.request_class, call.deadline_ms, parts_.limits.deadline_ms, served),
      .on_step = nullptr,
      .done = nullptr};
  (void)sink->deliver(PictureBegun{.width = side,
                                   .height = side,
                                   .pictures = options.count,
                                   .steps = receipt.steps,
                                   .seed = receipt.seed,
                                   .caption_tokens = receipt.caption_tokens,
                                   .picture_tokens = facts.shape.patches()});
  // Both calls come on the lane's thread.
  const auto delivery = std::make_shared<Delivery>(std::move(call), receipt, *scale, facts.shape.patches(), std::move(sink));
  task.on_step = [delivery](const PictureTask::Step& step) { return delivery->deliver(step); };
  PictureLane& lane = *served.picture_lane;
  co_return co_await parts_.tasks.ask<PictureReceipt>([&](Reply<PictureReceipt> reply) {
    task.done = [delivery, reply = std::move(reply)](const PictureOutcome& outcome) mutable {
      reply(contain([&] { return delivery->receipt(outcome); }));
    };
    parts_.in_flight.set_in_lane(request, [&lane, id = request.id] { lane.cancel(id); });
    lane.post(std::move(task));
  });
}

}  // namespace uma::engine
