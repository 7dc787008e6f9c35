#include "engine/lane/run/image_prompts.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace uma::engine {
namespace {

constexpr TraceKind kImageSpan{.name = "prefill image", .numbers = {"rows", "request"}};

}  // namespace

void ImagePrompts::prepare() {
  for (Sequence* sequence : parts_.sequences.running()) {
    if (!sequence->is_blocked() && !sequence->job.images.empty()) prepare(*sequence);
  }
  for (auto& [asked, end] : encoding_) {
    if (!is_needed(asked)) end.request_stop();
  }
}

bool ImagePrompts::is_needed(const AskedImage& asked) const {
  return std::ranges::any_of(parts_.sequences, [&](const SequencePtr& sequence) {
    return !sequence->is_finished() && sequence->job.flow.tenant == asked.tenant.value &&
           std::ranges::any_of(sequence->job.images,
                               [&](const image::ImageRun& run) { return run.image == asked.image && !run.encoded; });
  });
}

void ImagePrompts::prepare(Sequence& sequence) {
  const std::int32_t before = parts_.cached(sequence);
  const image::ImageRun* begun = image::run_at(sequence.job.images, before);
  if (begun != nullptr && begun->encoded) {
    (void)parts_.slots.cut(sequence.slot, static_cast<std::size_t>(image::call_begin(*begun, before)));
  }
  const std::int32_t cached = parts_.cached(sequence);
  sequence.has_rows = true;
  for (const image::ImageRun& run : sequence.job.images) {
    if (run.end() <= cached || run.encoded) continue;
    sequence.has_rows = false;
    const AskedImage wanted{{sequence.job.flow.tenant}, run.image};
    const auto [asked, is_new] = encoding_.try_emplace(wanted);
    if (!is_new) continue;
    try {
      parts_.options.encode(wanted.tenant, wanted.image, asked->second.get_token(),
                            [inbox = inbox_, wanted](Expected<image::EncodedPtr> encoded) {
                              inbox->push(EncodedReport{wanted, std::move(encoded)});
                            });
    } catch (...) {
      encoding_.erase(asked);  // The next request for the image asks again.
      throw;
    }
  }
}

void ImagePrompts::accept_encoded(const EncodedReport& report) {
  const auto asked = encoding_.find(report.asked);
  const bool was_ended = asked != encoding_.end() && asked->second.stop_requested();
  if (asked != encoding_.end()) encoding_.erase(asked);
  // A sequence that came meanwhile asks again.
  if (was_ended && !report.encoded) return;
  for (const SequencePtr& sequence : parts_.sequences) {
    if (sequence->is_finished() || sequence->job.flow.tenant != report.asked.tenant.value) continue;
    ends_.contain(*sequence, [&] { accept_encoded(*sequence, report); });
  }
}

void ImagePrompts::accept_encoded(Sequence& sequence, const EncodedReport& report) {
  Expected<Unit> all_fit;
  for (image::ImageRun& run : sequence.job.images) {
    if (run.image != report.asked.image) continue;
    const auto fits = report.encoded
                          ? image::check_encoded(run, **report.encoded, image::call_rows_max(**report.encoded, parts_.shape()))
                          : Expected<Unit>(std::unexpected(report.encoded.error()));
    if (fits) {
      run.encoded = *report.encoded;
    } else {
      all_fit = fits;
    }
  }
  // A sequence without a slot may not need the image now, and requests it again later.
  const bool waits_for_it = sequence.is_running() && !sequence.is_blocked() && !sequence.has_rows;
  if (!all_fit && waits_for_it) ends_.finish(sequence, FinishReason::error, all_fit.error());
}

Sequence* ImagePrompts::stop_at_images(std::vector<sched::SequenceView>& views) const {
  Sequence* first = nullptr;
  for (sched::SequenceView& view : views) {
    Sequence& sequence = parts_.sequences.at(view.index);
    const std::int32_t end = image::text_end(sequence.job.images, view.cached_tokens, size_of(sequence.chain));
    view.pending_tokens = std::min(view.pending_tokens, end - view.cached_tokens);
    const image::ImageRun* run = image::run_at(sequence.job.images, view.cached_tokens);
    if (first == nullptr && run != nullptr && run->encoded) first = &sequence;
  }
  std::erase_if(views, [](const sched::SequenceView& view) { return view.pending_tokens == 0; });
  return first;
}

void ImagePrompts::run(Sequence& sequence) {
  const std::int32_t cached = parts_.cached(sequence);
  const image::ImageRun& run = *image::run_at(sequence.job.images, cached);
  const std::int32_t end = image::call_end(run, cached, image::call_rows_max(*run.encoded, parts_.shape()));
  const std::int32_t rows = end - cached;
  if (!preemption_.free_cells(rows)) return;
  const ContextCalls::PrefillPause pause(calls_);
  calls_.set_decode_threads();
  llm::ImageRows image = image::call_rows(run, sequence.chain, cached, end);
  image.sequence = static_cast<std::int32_t>(sequence.slot);
  image.wants_logits = end == size_of(sequence.chain);
  const auto status = calls_.run(false, sequence.job.adapters, std::span(&sequence.job.id, 1),
                                 [&](llm::CallMonitor* monitor) { return parts_.context.decode_image(image, monitor); });
  if (!status) {
    parts_.slots.clear(sequence.slot);
    return ends_.finish(sequence, FinishReason::error, status.error());
  }
  if (*status != llm::DecodeStatus::done) {
    parts_.slots.resync(sequence.slot, sequence.chain);
    if (*status == llm::DecodeStatus::out_of_cells) preemption_.free_cells_for(sequence);
    return;
  }
  const double ms = calls_.last().ms();
  record_span(kImageSpan, calls_.last().began, calls_.last().ended, {rows, static_cast<std::int64_t>(sequence.job.id.value)});
  log_debug("lane {}: {} rows of an image took {:.2f} ms", parts_.options.index, rows, ms);
  parts_.stats().prefill_call.record_ms(ms);
  parts_.stats().prompt_tokens_total.add(static_cast<std::uint64_t>(rows));
  const sched::PlanRow row{.index = parts_.sequences.index_of(sequence), .slot = image.sequence, .tokens_count = rows};
  runner_.add_computed(std::span(&row, 1), true);
  if (sequence.job.wants_progress) runner_.report_progress(sequence, end);
  if (end == size_of(sequence.chain)) sampler_.sample_row(sequence, rows - 1, calls_.last().ended);
}

}  // namespace uma::engine
