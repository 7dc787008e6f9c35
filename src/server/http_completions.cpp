// /v1/chat/completions and /v1/completions.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/http_connection.h"
#include "server/http_routes.h"
#include "wire/openai_codec.h"

namespace uma::server {
namespace {

class CompletionEncoder final : public AnswerEncoder {
 public:
  explicit CompletionEncoder(wire::CompletionHead head) : head_(std::move(head)) {}

  void append_first(std::string& out) override { wire::append_first_chunk(out, head_); }
  void append_text(std::string& out, std::string_view text) override { wire::append_text_chunk(out, head_, text); }
  void append_part(std::string& out, const ReplyPart& part) override { wire::append_part_chunk(out, head_, part); }
  void append_last(std::string& out, const EosEvent& eos) override { wire::append_last_chunks(out, head_, eos); }
  std::string whole(const EosEvent& eos) override { return wire::completion_json(head_, eos); }

 private:
  const wire::CompletionHead head_;
};

handlers::Answer create(wire::CompletionKind kind, HttpConnection& connection, const HttpRequest& request) {
  auto call = wire::decode_completion(kind, request.body);
  if (!call) co_return co_await connection.respond_rejected(call.error(), request);
  wire::CompletionHead head(kind, random_name(), unix_time_s(), model_name(connection.service(), call->generate.model),
                            call->includes_usage);
  co_return co_await connection.generate(std::move(call->generate), std::make_unique<CompletionEncoder>(std::move(head)),
                                         request);
}

}  // namespace

handlers::Answer handlers::create_chat_completion(HttpConnection& connection, const HttpRequest& request) {
  return create(wire::CompletionKind::chat, connection, request);
}

handlers::Answer handlers::create_completion(HttpConnection& connection, const HttpRequest& request) {
  return create(wire::CompletionKind::text, connection, request);
}

}  // namespace uma::server
