#include "wire/openai/response_ids.h"

#include <string>

#include <gtest/gtest.h>

#include "wire/openai/responses_decoder_test_support.h"

namespace uma::wire {
namespace {

TEST(ResponseIds, IdsSayWhereAThingIs) {
  EXPECT_EQ(parse_response_id(kResponse), (ResponseId{kSession, kOwn}));
  EXPECT_EQ(response_id_text({kSession, kOwn}), kResponse);
  EXPECT_EQ(parse_message_id("msg_" + kSession + kOwn), (ResponseId{kSession, kOwn}));
  EXPECT_EQ(message_id_text({kSession, kOwn}), "msg_" + kSession + kOwn);
  EXPECT_FALSE(parse_message_id(kResponse));
  EXPECT_EQ(parse_conversation_id(kConversation), kSession);
  EXPECT_EQ(conversation_id_text(kSession), kConversation);
}

TEST(ResponseIds, WhatIsNoIdOfOursIsNone) {
  for (const std::string& text :
       {std::string(), std::string("resp_"), kResponse + "0", kResponse.substr(0, kResponse.size() - 1), kConversation,
        "RESP_" + kSession + kOwn, "resp_" + std::string(48, 'G'), "resp_" + std::string(48, 'A'),
        "resp_" + std::string(47, 'a') + std::string(1, '\0'), std::string("resp_../../../etc/passwd"), " " + kResponse,
        std::string(100'000, 'a')}) {
    EXPECT_FALSE(parse_response_id(text)) << text.substr(0, 100);
    EXPECT_FALSE(parse_conversation_id(text == kConversation ? kResponse : text)) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace uma::wire
