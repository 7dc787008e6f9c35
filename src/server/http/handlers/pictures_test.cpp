// Requests for pictures over HTTP, to a service that the test plays.
#include <string>

#include "server/http/http_server_test_support.h"

namespace uma::server {
namespace {

constexpr const char* kImages = "/v1/images/generations";
constexpr const char* kWhole = R"({"prompt":"a cat","n":2})";
constexpr const char* kStream = R"({"prompt":"a cat","n":2,"stream":true,"partial_images":1})";

const PictureBegun kBegun{
    .width = 64, .height = 64, .pictures = 2, .steps = 4, .seed = 7, .caption_tokens = 2, .picture_tokens = 64};
PictureReceipt receipt_of(std::int32_t pictures) {
  return {.error = std::nullopt,
          .model = "draws",
          .width = 64,
          .height = 64,
          .pictures = pictures,
          .steps = 4,
          .seed = 7,
          .caption_tokens = 2,
          .picture_tokens = 64 * pictures};
}

TEST_F(HttpServerTest, AnswersWithPictures) {
  start();
  HttpClient one = client();
  one.post(kImages, kWhole);
  FakeService::Drawing drawing = service_.next_drawing();
  EXPECT_EQ(drawing.request.model, "") << "the service chooses";
  EXPECT_NE(drawing.request.client, 0U);
  EXPECT_TRUE(drawing.sink->deliver(kBegun));
  EXPECT_TRUE(drawing.sink->deliver(PictureStep{.picture = 0, .step = 1, .steps = 4}));
  EXPECT_TRUE(drawing.sink->deliver(DrawnPicture{.picture = 0, .seed = 7, .png = "abc"}));
  EXPECT_TRUE(drawing.sink->deliver(DrawnPicture{.picture = 1, .seed = 8, .png = "d"}));
  drawing.reply(receipt_of(2));
  const Answer answer = one.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("data":[{"b64_json":"YWJj","uma":{"seed":7}},{"b64_json":"ZA==","uma":{"seed":8}}])"));
  EXPECT_THAT(answer.body, HasSubstr(R"("total_tokens":130)"));
}

TEST_F(HttpServerTest, AnErrorOfAPictureIsTheAnswersAndCancelledOnesAreErrors) {
  start();
  HttpClient one = client();
  one.post(kImages, kWhole);
  service_.next_drawing().reply(std::unexpected(Error{ErrorCode::proto_field, "no such word", "prompt"}));
  const Answer refused = one.answer();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr(R"("param":"prompt")"));
  one.post(kImages, kWhole);
  PictureReceipt cancelled = receipt_of(0);
  cancelled.reason = FinishReason::cancelled;
  service_.next_drawing().reply(cancelled);
  EXPECT_EQ(one.answer().status, 503);
}

TEST_F(HttpServerTest, StreamsPicturesWithSignsOfLife) {
  start({.keep_alive_interval = milliseconds(1)});
  HttpClient one = client();
  one.post(kImages, kStream);
  FakeService::Drawing drawing = service_.next_drawing();
  EXPECT_TRUE(drawing.sink->deliver(kBegun));
  EXPECT_THAT(*one.take_until("\r\n\r\n"), HasSubstr("text/event-stream"));
  EXPECT_TRUE(one.take_until(": keep-alive\n\n"));
  EXPECT_TRUE(drawing.sink->deliver(DrawnPicture{.picture = 0, .partial = 1, .seed = 7, .png = "abc"}));
  EXPECT_TRUE(one.take_until("event: image_generation.partial_image\ndata: "));
  EXPECT_TRUE(drawing.sink->deliver(DrawnPicture{.picture = 0, .seed = 7, .png = "abc"}));
  EXPECT_TRUE(one.take_until("event: image_generation.completed\ndata: "));
  PictureReceipt failed = receipt_of(1);
  failed.reason = FinishReason::error;
  failed.error = Error{ErrorCode::runtime_decode, "it broke"};
  drawing.reply(failed);
  EXPECT_TRUE(one.take_until("event: error\ndata: {\"error\":{\"message\":\"it broke\""));
}

TEST_F(HttpServerTest, AStreamThatCannotBeginHasAStatus) {
  start();
  HttpClient one = client();
  one.post(kImages, kStream);
  service_.next_drawing().reply(fail(ErrorCode::model_unknown, "none draws"));
  EXPECT_EQ(one.answer().status, 404);
}

TEST_F(HttpServerTest, ChargesThePicturesOfWhatAClientLeft) {
  ApiKey key = key_named("ci");
  key.tokens_per_minute = 100;
  key.deadline_ms = 5000;
  for (const char* body : {kWhole, kStream}) {
    start({.keys = {key}});
    HttpClient one = client();
    one.post(kImages, body, "Authorization: Bearer secret\r\n");
    FakeService::Drawing drawing = service_.next_drawing();
    EXPECT_EQ(drawing.request.deadline_ms, 5000);
    EXPECT_TRUE(drawing.sink->deliver(kBegun));
    const std::size_t before = service_.cancelled().size();
    one.close();
    ASSERT_TRUE(service_.wait_cancelled(before + 1));
    EXPECT_EQ(service_.cancelled().back(), drawing.id);
    PictureReceipt cancelled = receipt_of(9);
    cancelled.reason = FinishReason::cancelled;
    drawing.reply(cancelled);
    HttpClient two = client();
    two.post(kImages, kWhole, "Authorization: Bearer secret\r\n");
    EXPECT_EQ(two.answer().status, 429);
  }
}

TEST_F(HttpServerTest, AClientThatReadsNothingEndsItsPictures) {
  start({.limits = {.tx_bytes_max = 1000}});
  HttpClient one(server_->port(), kSmallBuffer);
  one.post(kImages, kStream);
  FakeService::Drawing drawing = service_.next_drawing();
  EXPECT_TRUE(drawing.sink->deliver(kBegun));
  const std::string png(1 << 20, 'x');
  bool is_read = true;
  for (int i = 0; i < 200 && is_read; ++i) is_read = drawing.sink->deliver(DrawnPicture{.picture = i, .seed = 7, .png = png});
  EXPECT_FALSE(is_read);
  PictureReceipt ended = receipt_of(1);
  ended.reason = FinishReason::slow_consumer;
  drawing.reply(ended);
  one.close();
  EXPECT_TRUE(server_->wait_idle(kPatience));
}

}  // namespace
}  // namespace uma::server
