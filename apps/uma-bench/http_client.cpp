// A client of OpenAI's POST /v1/completions with "stream": true, on a persistent connection.
#include "json/json_writer.h"
#include "uma-bench/client.h"
#include "uma-bench/http_stream.h"

namespace uma::bench {

namespace {

namespace asio = boost::asio;
using asio::awaitable;

class HttpClient final : public Client {
 public:
  HttpClient(const asio::any_io_executor& executor, const Endpoint& endpoint, const RunClock& clock)
      : stream_(executor, endpoint, clock) {}

  awaitable<StreamRecord> generate(Job job) override { co_return co_await stream(job, job.prompt, /*with_text=*/false); }

  awaitable<StreamRecord> converse(Job job) override {
    history_ += (history_.empty() ? "" : " ") + job.prompt;
    StreamRecord record = co_await stream(job, history_, /*with_text=*/true);
    history_ += record.reply;
    co_return record;
  }

  void disconnect() override { stream_.close(); }

  awaitable<void> end_conversation() override {
    history_.clear();
    co_return;
  }

 private:
  // The extensions at the top level, which llama-server reads, and in `uma`, which umad reads.
  std::string make_body(const Job& job, std::string_view prompt) const {
    std::string body;
    json::ObjectWriter request(body);
    if (const std::string& model = stream_.endpoint().model; !model.empty()) {
      request.field("model", model);
    }
    request.field("prompt", prompt);
    request.field("max_tokens", job.tokens);
    request.field("temperature", 0);
    request.field("stream", true);
    request.begin("stream_options") += R"({"include_usage":true})";
    request.field("ignore_eos", true);
    std::string& ours = request.begin("uma");
    json::ObjectWriter options(ours);
    options.field("ignore_eos", true);
    options.field("deadline_ms", 0);
    if (job.background) {
      options.field("class", "background");
    }
    options.close();
    request.close();
    return body;
  }

  awaitable<StreamRecord> stream(const Job& job, std::string_view prompt, bool with_text) {
    return stream_.post(job, "/v1/completions", make_body(job, prompt),
                        [with_text](std::string_view data) { return parse_completion_event(data, with_text); });
  }

  HttpStream stream_;
  std::string history_;  // The conversation so far.
};

}  // namespace

std::unique_ptr<Client> make_http_client(const asio::any_io_executor& executor, const Endpoint& endpoint,
                                         const RunClock& clock) {
  return std::make_unique<HttpClient>(executor, endpoint, clock);
}

}  // namespace uma::bench
