// Conversions between texts and tokens, from the request to the reply.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace uma::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kFakeBos;
using testing::kFakeImEnd;

class TextConversionsTest : public ::testing::Test, protected EngineBench {
 protected:
  TextConversionsTest() : EngineBench({.cells = 1024, .sequences = 4, .has_chat_template = true}, {"fake", "other"}) {
    start_router();
    load();
  }
  Expected<TokenizedText> tokenize(TokenizeRequest request) {
    return wait_for(router_->texts().tokenize(kTenant, std::move(request)));
  }
  Expected<ConvertedText> detokenize(DetokenizeRequest request) {
    return wait_for(router_->texts().detokenize(kTenant, std::move(request)));
  }

  const std::shared_ptr<TenantBudget> memory_ = std::make_shared<TenantBudget>(10'000, "requests", "the limit");
};

TEST_F(TextConversionsTest, TextsBecomeTokens) {
  EXPECT_THAT(tokenize({.model = "", .text = "ab"}).value().tokens, ElementsAre('a', 'b'));
  EXPECT_THAT(tokenize({.model = "", .text = "ab", .adds_special = true}).value().tokens, ElementsAre(kFakeBos, 'a', 'b'));
  EXPECT_THAT(tokenize({.model = "", .text = "a<|im_end|>"}).value().tokens, ElementsAre('a', kFakeImEnd));
  EXPECT_EQ(tokenize({.model = "", .text = "a<|im_end|>", .parses_special = false}).value().tokens.size(), 11U);
  const TokenizedText with_texts = tokenize({.model = "", .text = "ab", .wants_texts = true}).value();
  EXPECT_EQ(with_texts.text, "ab");
  EXPECT_THAT(with_texts.text_ends, ElementsAre(1, 2));
  EXPECT_EQ(tokenize({.model = "unknown", .text = "a"}).error().code, ErrorCode::model_unknown);
  EXPECT_EQ(tokenize({.model = "", .text = std::string((1 << 20) + 1, 'x')}).error().code, ErrorCode::limit_prompt);
}

TEST_F(TextConversionsTest, TokensBecomeTexts) {
  EXPECT_EQ(detokenize({.model = "", .tokens = {'a', 'b'}}).value().text, "ab");
  const Error unknown = detokenize({.model = "", .tokens = {'a', 99'999}}).error();
  EXPECT_EQ(unknown.code, ErrorCode::proto_field);
  EXPECT_EQ(unknown.field, "tokens");
}

TEST_F(TextConversionsTest, ResultsAreChargedToTheRequest) {
  const auto may = tokenize({.model = "", .text = std::string(100, 'x'), .share = memory_->open(kTenant)});
  ASSERT_TRUE(may);
  EXPECT_GT(memory_->bytes_used(), 400U) << "as long as the result";
  const auto too_much = tokenize({.model = "", .text = std::string(1'000, 'x'), .share = memory_->open(kTenant)});
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code, ErrorCode::limit_wait);
  EXPECT_EQ(detokenize({.model = "", .tokens = std::vector<Token>(3'000, 'x'), .share = memory_->open(kTenant)}).error().code,
            ErrorCode::limit_wait);
}

TEST_F(TextConversionsTest, AConversationBecomesItsPrompt) {
  GenerateRequest request;
  request.input.messages = {{"user", "what?"}};
  const auto prompt = wait_for(router_->texts().format_chat(kTenant, request));
  ASSERT_TRUE(prompt) << prompt.error().message;
  EXPECT_EQ(prompt->text, "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TextConversionsTest, AConversationHasTheDefaultsOfItsModel) {
  serve_lanes("other", {.system = "Be brief."});
  GenerateRequest request;
  request.model = "other";
  request.input.messages = {{"user", "what?"}};
  const auto prompt = wait_for(router_->texts().format_chat(kTenant, request));
  ASSERT_TRUE(prompt) << prompt.error().message;
  EXPECT_THAT(prompt->text, HasSubstr("<|im_start|>system\nBe brief.<|im_end|>"));
}

TEST_F(TextConversionsTest, LongArgumentsOfATemplateAreReadByTheWorkPool) {
  const auto ask = [&](std::size_t bytes) {
    GenerateRequest request;
    request.input.messages = {{"user", "what?"}};
    request.options.chat.template_arguments =
        std::format(R"({{"chat_template":"none","unused":"{}"}})", std::string(bytes, 'a'));
    auto reply = begin(router_->texts().format_chat(kTenant, std::move(request)));
    while (router_->step()) {
    }
    return reply;
  };
  const auto brief = ask(10);
  ASSERT_TRUE(brief->has_value());
  EXPECT_EQ((*brief)->error().code, ErrorCode::proto_field);
  const auto lengthy = ask(100'000);
  EXPECT_FALSE(lengthy->has_value());
  settle();
  ASSERT_TRUE(lengthy->has_value());
  EXPECT_EQ((*lengthy)->error().message, (*brief)->error().message);
}

TEST_F(TextConversionsTest, AGapNeedsMarks) {
  GenerateRequest request;
  request.input.text = "int a";
  request.input.infill = Infill{.suffix = "return a;"};
  const auto sink = generate(std::move(request));
  EXPECT_EQ(sink->error().code, ErrorCode::model_capability);
  EXPECT_THAT(sink->error().message, HasSubstr("cannot fill gaps"));
}

}  // namespace
}  // namespace uma::engine
