// Checks for the results of decoders, for the fuzzers of bodies and frames.
#pragma once

#include <expected>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "core/metadata.h"
#include "core/picture.h"
#include "core/request.h"
#include "core/sampling_fields.h"
#include "json/field_reader.h"
#include "wire/json_body.h"
#include "wire/openai/openai_codec.h"

namespace uma::fuzz {

// Checks text that is stored and written.
inline void check_text(std::string_view text) {
  UMA_CHECK(is_utf8(text));
  UMA_CHECK(!text.contains('\0'));
}

inline void check_object(std::string_view text) {
  check_text(text);
  boost::system::error_code problem;
  UMA_CHECK(json::parse(text, {}, problem).is_object() && !problem);
}

// Checks metadata as it is stored and written.
inline void check_metadata(std::string_view metadata) {
  if (!metadata.empty()) check_object(metadata);
  const auto pairs = metadata_pairs(metadata);
  UMA_CHECK(pairs && pairs->size() <= kMetadataPairsMax);
  const std::string listed = listed_metadata(metadata);
  if (!listed.empty()) check_object(listed);
  UMA_CHECK(listed.size() <= kListedMetadataBytesMax && metadata_pairs(listed));
  for (const MetadataPair& pair : *pairs) {
    std::string text;
    append_metadata_text(text, pair.value);
    check_text(text);
    UMA_CHECK(text.size() <= kMetadataValueBytesMax);
  }
}

inline void check_changes(const std::vector<MetadataChange>& changes) {
  check_metadata(changed_metadata("", changes));
}

inline void check_messages(const std::vector<ChatMessage>& messages) {
  for (const ChatMessage& message : messages) {
    check_text(message.role);
    check_text(message.content);
    if (!message.extra.empty()) check_object(message.extra);
  }
}

// Images are in messages of users and in results of tools, in order.
inline void check_images(const Input& input) {
  std::size_t last = 0;
  for (const InputImage& image : input.images) {
    UMA_CHECK(image.message >= last && image.message < input.messages.size());
    last = image.message;
    const ChatMessage& message = input.messages[last];
    UMA_CHECK(image.at <= message.content.size() && (message.role == "user" || message.role == "tool"));
    check_text(image.source.text);
    check_text(image.field);
  }
}

inline void check_sampling(const SamplingParams& sampling) {
  for (const SamplingFieldInfo& info : sampling_fields()) UMA_CHECK(info.accepts(value_of(sampling, info.field)));
  if (sampling.dry_sequence_breakers) {
    UMA_CHECK(sampling.dry_sequence_breakers->size() <= kDryBreakersMax);
    for (const std::string& breaker : *sampling.dry_sequence_breakers) {
      check_text(breaker);
      UMA_CHECK(!breaker.empty() && breaker.size() <= kDryBreakerBytesMax);
    }
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    UMA_CHECK(token >= 0);
    UMA_CHECK(bias == -std::numeric_limits<float>::infinity() || (bias > -100.01f && bias <= 100.0f));
  }
}

inline void check_picture(const PictureRequest& request) {
  const PictureOptions& options = request.options;
  for (const std::string* text : {&request.caption, &request.negative_caption}) {
    check_text(*text);
    UMA_CHECK(text->size() <= kCaptionBytesMax);
  }
  check_text(request.model);
  for (const std::int32_t side : {options.width, options.height}) UMA_CHECK(side >= 0 && side <= kPictureSideMax);
  UMA_CHECK(options.count >= 1 && options.count <= kPicturesMax);
  UMA_CHECK(options.steps.value_or(1) >= 1 && options.steps.value_or(1) <= kPictureStepsMax);
  UMA_CHECK(options.guidance.value_or(1) >= 1 && options.guidance.value_or(1) <= kPictureGuidanceMax);
  UMA_CHECK(options.strength >= 0 && options.strength <= 1);
  UMA_CHECK(options.partial_pictures >= 0 && options.partial_pictures <= kPartialPicturesMax);
}

// Checks that a refusal has a message that can be sent.
template <class T>
bool is_accepted(const std::expected<T, wire::RejectedBody>& decoded) {
  if (decoded) return true;
  UMA_CHECK(!decoded.error().error.message.empty());
  check_object(wire::error_json(decoded.error().error, 400, decoded.error().field));
  return false;
}

}  // namespace uma::fuzz
