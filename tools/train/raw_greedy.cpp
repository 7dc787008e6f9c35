// Generates greedy answers of a chat model with libllama alone, to compare them with umad's answers.
// Reads one conversation per line, {"system": "...", "turns": ["...", ...]}, where system is optional. Answers each turn in
// order and writes {"replies": ["...", ...]}. For every turn the template is applied to the whole history, and the text beyond
// the text so far is tokenized and computed. Exit code 1 with a message on stderr: the input or the model cannot be used.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <llama.h>

namespace {

constexpr int kReplyTokensMax = 256;

struct Message {
  std::string role;
  std::string content;
};

class Chat {
 public:
  explicit Chat(const char* path) {
    ggml_backend_load_all();
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    model_.reset(llama_model_load_from_file(path, llama_model_default_params()));
    if (model_ == nullptr) throw std::runtime_error(std::string("cannot load ") + path);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(llama_model_n_ctx_train(model_.get()));
    params.n_batch = params.n_ctx;
    params.n_threads = params.n_threads_batch = 1;
    context_.reset(llama_init_from_model(model_.get(), params));
    if (context_ == nullptr) throw std::runtime_error("cannot make a context");
    vocab_ = llama_model_get_vocab(model_.get());
  }

  void begin() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    so_far_.clear();
    history_.clear();
  }

  void add(std::string role, std::string content) { history_.push_back({std::move(role), std::move(content)}); }

  std::string reply() {
    const std::string prompt = templated();
    if (!prompt.starts_with(so_far_)) throw std::runtime_error("the chat template changes the text of earlier messages");
    decode(tokenize(prompt.substr(so_far_.size())));
    std::string text;
    for (int count = 0; count < kReplyTokensMax; ++count) {
      const llama_token token = best();
      if (llama_vocab_is_eog(vocab_, token)) break;
      text += piece(token);
      decode(std::vector<llama_token>(1, token));
    }
    so_far_ = prompt + text;
    add("assistant", text);
    return text;
  }

 private:
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
  };

  std::string templated() const {
    std::vector<llama_chat_message> messages;
    std::size_t bytes = 256;
    for (const Message& message : history_) {
      messages.push_back({message.role.c_str(), message.content.c_str()});
      bytes += 2 * (message.role.size() + message.content.size()) + 64;
    }
    std::string text(bytes, '\0');
    const char* source = llama_model_chat_template(model_.get(), nullptr);
    if (source == nullptr) throw std::runtime_error("the model has no chat template");
    const int length = llama_chat_apply_template(source, messages.data(), messages.size(), true, text.data(),
                                                 static_cast<std::int32_t>(text.size()));
    if (length < 0 || static_cast<std::size_t>(length) > text.size())
      throw std::runtime_error("libllama cannot apply the chat template");
    text.resize(static_cast<std::size_t>(length));
    return text;
  }

  std::vector<llama_token> tokenize(const std::string& text) const {
    std::vector<llama_token> tokens(text.size() + 8);
    const int count = llama_tokenize(vocab_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                                     static_cast<std::int32_t>(tokens.size()), so_far_.empty(), true);
    if (count < 0) throw std::runtime_error("libllama cannot tokenize the text");
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
  }

  std::string piece(llama_token token) const {
    char bytes[256];
    const int length = llama_token_to_piece(vocab_, token, bytes, sizeof(bytes), 0, false);
    return {bytes, static_cast<std::size_t>(std::max(length, 0))};
  }

  void decode(std::vector<llama_token> tokens) {
    if (llama_decode(context_.get(), llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()))) != 0) {
      throw std::runtime_error("llama_decode failed: is the conversation longer than the context?");
    }
  }

  llama_token best() const {
    const float* logits = llama_get_logits_ith(context_.get(), -1);
    return static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocab_)) - logits);
  }

  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
  const llama_vocab* vocab_ = nullptr;
  std::vector<Message> history_;
  std::string so_far_;  // The text of the tokens in the context.
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: raw_greedy MODEL.gguf < conversations.jsonl\n", stderr);
    return 1;
  }
  ::setenv("GGML_NO_BACKTRACE", "1", 0);
  try {
    Chat chat(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      const boost::json::object conversation = boost::json::parse(line).as_object();
      chat.begin();
      if (const boost::json::value* system = conversation.if_contains("system"))
        chat.add("system", std::string(system->as_string()));
      boost::json::array replies;
      for (const boost::json::value& turn : conversation.at("turns").as_array()) {
        chat.add("user", std::string(turn.as_string()));
        replies.emplace_back(chat.reply());
      }
      std::cout << boost::json::serialize(boost::json::object{{"replies", std::move(replies)}}) << "\n";
    }
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "raw_greedy: %s\n", problem.what());
    return 1;
  }
  return 0;
}
