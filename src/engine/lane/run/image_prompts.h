// Prompts with images: requests their encodings from the image encoder, and computes the rows of an image in calls of their
// own. Owned by the lane's thread.
#pragma once

#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/mailbox.h"
#include "engine/lane/lane_command.h"
#include "engine/lane/lane_parts.h"
#include "engine/lane/move/preemption.h"
#include "engine/lane/run/batch_runner.h"
#include "engine/lane/run/context_calls.h"
#include "engine/lane/run/reply_sampler.h"
#include "engine/lane/sequence_ends.h"
#include "sched/plan_batch.h"

namespace uma::engine {

class ImagePrompts {
 public:
  ImagePrompts(const LaneParts& parts, ContextCalls& calls, SequenceEnds& ends, Preemption& preemption, ReplySampler& sampler,
               BatchRunner& runner, std::shared_ptr<Mailbox<LaneCommand>> inbox)
      : parts_(parts),
        calls_(calls),
        ends_(ends),
        preemption_(preemption),
        sampler_(sampler),
        runner_(runner),
        inbox_(std::move(inbox)) {}

  // Moves running sequences back to a position where a call can begin, requests the encodings that they need next, and ends
  // those that no sequence needs any more.
  void prepare();
  // A requested image has been encoded, or encoding has failed or ended.
  void accept_encoded(const EncodedReport& report);
  // Text and images do not share a call: ends each planned prompt before its next image. Returns the first sequence that is at
  // an image; null: there is none.
  [[nodiscard]] Sequence* stop_at_images(std::vector<sched::SequenceView>& views) const;
  // Computes the next rows of the image at which the sequence is. Requires: the image is encoded.
  void run(Sequence& sequence);

 private:
  void prepare(Sequence& sequence);
  [[nodiscard]] bool is_needed(const AskedImage& asked) const;
  void accept_encoded(Sequence& sequence, const EncodedReport& report);

  const LaneParts& parts_;
  ContextCalls& calls_;
  SequenceEnds& ends_;
  Preemption& preemption_;
  ReplySampler& sampler_;
  BatchRunner& runner_;
  const std::shared_ptr<Mailbox<LaneCommand>> inbox_;  // The lane's, for encoded images.
  std::map<AskedImage, std::stop_source> encoding_;    // Images whose encodings were requested; ends them.
};

}  // namespace uma::engine
