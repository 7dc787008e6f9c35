// Ids as clients see them, and requests that are decoded or refused.
#pragma once

#include <string>
#include <utility>

#include <boost/json/value.hpp>
#include <gtest/gtest.h>

#include "wire/openai/responses_decoder.h"

namespace uma::wire {

inline const std::string kSession = "0123456789abcdef0123456789abcdef";
inline const std::string kOwn = "fedcba9876543210";
inline const std::string kResponse = "resp_" + kSession + kOwn;
inline const std::string kConversation = "conv_" + kSession;

inline ResponseCall decoded(const std::string& body) {
  auto call = decode_response(body, "1111111111111111");
  if (call) return std::move(*call);
  ADD_FAILURE() << body << ": " << call.error().error.message;
  return {};
}

// The code and the field of the refusal.
inline std::pair<ErrorCode, std::string> rejected(const std::string& body) {
  const auto call = decode_response(body, "1111111111111111");
  EXPECT_FALSE(call) << body;
  return call ? std::pair(ErrorCode::auth, std::string()) : std::pair(call.error().error.code, call.error().field);
}

}  // namespace uma::wire
